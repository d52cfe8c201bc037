"""What a round decides: an ordered tuple of actions, frees before takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brim.core.trace import NONE


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop a job and free its GPUs; the job goes back to the queue. ``epoch`` fences stale messages."""

    job: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject a waiting job for good: there is no room for it, and the policy does not queue jobs."""

    job: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Move a job that holds GPUs to other GPUs: more, fewer, or the same number elsewhere. It begins a new attempt.

    Attributes:
        job: Job id.
        epoch: The new attempt's number; one above the last.
        gpus: All GPUs of the job from now on, as (node, gpu) pairs in increasing order.
        batch: Global batch from now on, NONE for jobs that have none.
        loader_workers: Data-loading processes per rank, 0 where the cluster's cores are not known.
        share_milli: Thousandths of each GPU, NONE for what the job asks.
    """

    job: int
    epoch: int
    gpus: tuple[tuple[int, int], ...]
    batch: int = NONE
    loader_workers: int = 0
    share_milli: int = NONE


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job on these GPUs, once the jobs that are leaving them have ended.

    Attributes:
        job: Job id.
        epoch: The attempt's number; one above the last.
        gpus: All GPUs of the job, as (node, gpu) pairs in increasing order.
        loader_workers: Data-loading processes per rank, 0 where the cluster's cores are not known.
        batch: Global batch, NONE for jobs that have none.
        analyse: Measure the job's step times at several batch sizes before it trains.
        share_milli: Thousandths of each GPU, NONE for what the job asks.
    """

    job: int
    epoch: int
    gpus: tuple[tuple[int, int], ...]
    loader_workers: int = 0
    batch: int = NONE
    analyse: bool = False
    share_milli: int = NONE


@dataclass(frozen=True, slots=True)
class Tune:
    """Change the global batch of a job on the GPUs it has; the job continues without a stop."""

    job: int
    epoch: int
    batch: int


Action: TypeAlias = Preempt | Reject | Resize | Start | Tune


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of one round, in the order Preempt, Reject, Resize, Start, Tune.

    Executors apply actions in this order and may overlap those that do not depend on each other.
    """

    time_ms: int
    actions: tuple[Action, ...] = ()
