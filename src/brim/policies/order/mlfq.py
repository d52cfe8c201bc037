"""Multi-level feedback queue by attained service of all devices: of jobs with parameter servers, on GPU or CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import BoolArray, IntArray
from brim.core.snapshot import Snapshot
from brim.policies.allocations import as_asked, service_ms, weight
from brim.units import MS_PER_S

SERVED, UNTIL = 0, 1
"""Columns of the memory: service in weighted ms, and until when it is counted."""
THRESHOLDS_CORE_S: Final = (7_200, 43_200)
"""Service at which a job falls to the next queue, in weighted seconds (see ``weight``): 30 and 180 units per round of
240 s (successor of AITurbo)."""
STARVED: Final = 3.0
"""Times a job has waited what it was served, after which it is in the first queue. Ours, after Tiresias."""


class RemembersService:
    """An order that remembers the service that each job has received."""

    __slots__ = ()
    memory_columns: ClassVar[int] = 2

    def remember(self, snapshot: Snapshot) -> IntArray:
        """Return the service of each job until now in core-ms, and until when it is counted (J, 2)."""
        memo = snapshot.jobs.memo
        served = service_ms(snapshot, memo[:, SERVED], memo[:, UNTIL])
        return np.column_stack((served, np.full(len(served), snapshot.now_ms)))


@dataclass(frozen=True, slots=True)
class MultiLevelQueue(RemembersService):
    """The queue of least attained service first; in a queue, jobs in order of submission.

    Attributes:
        thresholds_core_s: Weighted service (``weight``), in seconds, at which a job falls to the next queue.
        starved: Waiting over served time from which a job is in the first queue.

    Source:
        AITurbo, HPDC 2021, with the thresholds and weights of its successor's code; see ``allocations.weight``.
    """

    thresholds_core_s: tuple[int, ...] = THRESHOLDS_CORE_S
    starved: float = STARVED

    def remember(self, snapshot: Snapshot) -> IntArray:
        """The same, but a job that has starved begins anew: or it would be interrupted as soon as it runs (J, 2)."""
        return begun_anew(RemembersService.remember(self, snapshot), has_starved(snapshot, self.starved))

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        return np.argsort(levels(snapshot, self.thresholds_core_s, self.starved), kind="stable")


def levels(snapshot: Snapshot, thresholds_core_s: tuple[int, ...], starved: float) -> IntArray:
    """Queue of each job, 0 for one that has waited too long (J,)."""
    edges = np.array(thresholds_core_s, dtype=np.int64) * MS_PER_S
    level = np.searchsorted(edges, snapshot.jobs.memo[:, SERVED], side="right")
    return np.where(has_starved(snapshot, starved), 0, level)


def begun_anew(memory: IntArray, starved: BoolArray) -> IntArray:
    """What orders remember, without the service of jobs that have starved (J, 2)."""
    memory[starved, SERVED] = 0
    return memory


def has_starved(snapshot: Snapshot, starved: float) -> BoolArray:
    """Whether each job has waited so many times as long as it has held what it asked for, starts included (J,)."""
    jobs = snapshot.jobs
    waited_ms = np.where(jobs.waits, snapshot.now_ms - jobs.since_ms, 0)
    held_ms = jobs.memo[:, SERVED] / np.maximum(weight(as_asked(snapshot)), 1)
    result: BoolArray = waited_ms >= starved * np.maximum(held_ms, MS_PER_S)
    return result & (jobs.attempt > 0)
