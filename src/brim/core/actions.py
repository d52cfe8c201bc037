"""What a round decides: an ordered tuple of actions, frees before takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take the GPUs of a job away; it goes back to the queue. ``epoch`` fences stale messages."""

    job: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job on these GPUs, once whoever leaves them is gone.

    Attributes:
        job: Job id.
        epoch: The attempt's number; one above the last.
        gpus: (node, gpu) pairs in increasing order: the whole gang.
        loader_workers: Data-loading processes per rank, 0 where the cluster's cores are not known.
    """

    job: int
    epoch: int
    gpus: tuple[tuple[int, int], ...]
    loader_workers: int = 0


Action: TypeAlias = Preempt | Start


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of one round. Executors apply it in order and may overlap what does not depend on each other."""

    time_ms: int
    actions: tuple[Action, ...] = ()
