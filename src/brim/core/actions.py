"""What a round decides: an ordered tuple of actions, frees before takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brim.core.trace import NONE


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take the GPUs of a job away; it goes back to the queue. ``epoch`` fences stale messages."""

    job: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Turn a waiting job away for good: there is no room for it, and the policy does not queue."""

    job: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Move a job that holds GPUs to these: more, fewer, or as many elsewhere. A new attempt of the same job.

    Attributes:
        job: Job id.
        epoch: The new attempt's number; one above the last.
        gpus: (node, gpu) pairs in increasing order: the whole gang from now on.
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
    """Start a job on these GPUs, once the jobs that leave them are gone.

    Attributes:
        job: Job id.
        epoch: The attempt's number; one above the last.
        gpus: (node, gpu) pairs in increasing order: the whole gang.
        loader_workers: Data-loading processes per rank, 0 where the cluster's cores are not known.
        batch: Global batch, NONE for jobs that have none.
        analyse: Time the job's steps at several batch sizes before it trains.
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
    """Give a job another global batch on the GPUs it has; it goes on without a stop."""

    job: int
    epoch: int
    batch: int


Action: TypeAlias = Preempt | Reject | Resize | Start | Tune


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of one round, in the order Preempt, Reject, Resize, Start, Tune.

    Executors apply them in this order and may overlap what does not depend on each other.
    """

    time_ms: int
    actions: tuple[Action, ...] = ()
