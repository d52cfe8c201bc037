"""What starts and growths last cost: from GPUs granted to progress, of each padding job and of the whole cluster.

Shapes: J jobs of a snapshot; P changes that are kept of a job, Q of the cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from brim.core.arrays import IntArray, frozen
from brim.core.trace import NONE

OF_JOB: Final = 5
"""Starts, and growths, that are kept of a job: two odd ones do not move their median. Ours."""
OF_CLUSTER: Final = 16
"""The same of the cluster: as many as gaps of a GPU. Ours."""
_NOTHING: Final[IntArray] = frozen(np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTimes:
    """Milliseconds of past changes, NONE where there were fewer. Empty columns: nobody keeps account.

    Attributes:
        starts_ms: Starts of each job, those after a preemption included; only of padding jobs (J, P).
        growths_ms: Growths of each job in place or through a checkpoint; only of padding jobs (J, P).
        cluster_starts_ms: Starts of all padding jobs, and first starts of the others (Q,).
        cluster_growths_ms: Growths of all padding jobs (Q,).
    """

    starts_ms: IntArray = field(default_factory=lambda: _NOTHING.reshape(0, OF_JOB))
    growths_ms: IntArray = field(default_factory=lambda: _NOTHING.reshape(0, OF_JOB))
    cluster_starts_ms: IntArray = field(default_factory=lambda: _NOTHING)
    cluster_growths_ms: IntArray = field(default_factory=lambda: _NOTHING)


@dataclass(slots=True)
class _OfJob:
    """What one padding job has done: its attempt and GPUs when it last went on, and what changes cost."""

    attempt: int = NONE
    gpus: int = 0
    starts: deque[int] = field(default_factory=lambda: deque(maxlen=OF_JOB))
    growths: deque[int] = field(default_factory=lambda: deque(maxlen=OF_JOB))


class JoinBook:
    """Account of the costs: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self) -> None:
        self._of_job: dict[int, _OfJob] = {}
        self._starts: deque[int] = deque(maxlen=OF_CLUSTER)
        self._growths: deque[int] = deque(maxlen=OF_CLUSTER)

    def note_padding(self, job: int, attempt: int, gpus: int, took_ms: int) -> None:
        """Note that a padding job goes on with so many GPUs, and how long after they were granted."""
        own = self._of_job.setdefault(job, _OfJob())
        if attempt != own.attempt:
            own.starts.append(took_ms)
            self._starts.append(took_ms)
        elif gpus > own.gpus:  # one that shrinks waits for nobody to join
            own.growths.append(took_ms)
            self._growths.append(took_ms)
        own.attempt, own.gpus = attempt, gpus

    def note_regular(self, took_ms: int) -> None:
        """Note the first start of another job."""
        self._starts.append(took_ms)

    def over(self, job: int) -> None:
        """Forget a job that has ended, but not what the cluster learned of it."""
        self._of_job.pop(job, None)

    def renumber(self, rows: dict[int, int]) -> None:
        """Give the jobs other ids."""
        self._of_job = {rows[job]: own for job, own in self._of_job.items()}

    def freeze(self, jobs: int, row_of: Callable[[IntArray], IntArray]) -> JoinTimes:
        """Return the table of so many jobs; ``row_of`` gives the rows of job ids."""
        starts, growths = (np.full((jobs, OF_JOB), NONE, dtype=np.int64) for _ in range(2))
        rows = row_of(np.array(list(self._of_job), dtype=np.int64)).tolist()
        for row, own in zip(rows, self._of_job.values(), strict=True):
            starts[row, : len(own.starts)], growths[row, : len(own.growths)] = own.starts, own.growths
        return JoinTimes(
            starts_ms=frozen(starts), growths_ms=frozen(growths),
            cluster_starts_ms=frozen(np.array(self._starts, dtype=np.int64)),
            cluster_growths_ms=frozen(np.array(self._growths, dtype=np.int64)),
        )

    def plain(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return {
            "starts": list(self._starts), "growths": list(self._growths),
            "jobs": [[job, own.attempt, own.gpus, list(own.starts), list(own.growths)]
                     for job, own in self._of_job.items()],
        }

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> JoinBook:
        """Return the book of what ``plain`` returned; of nothing an empty one."""
        book = cls()
        book._starts.extend(plain.get("starts", ()))
        book._growths.extend(plain.get("growths", ()))
        rows: Iterable[Any] = plain.get("jobs", ())
        for job, attempt, gpus, starts, growths in rows:
            book._of_job[job] = _OfJob(attempt, gpus, deque(starts, OF_JOB), deque(growths, OF_JOB))
        return book
