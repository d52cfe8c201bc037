"""One order of jobs whose end can be predicted and of those whose end cannot: Borda ranks in queues, or one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.policies.allocations import as_asked, attained_s, merged, present, remaining_s, weight
from brim.policies.order.mlfq import (
    SERVED,
    STARVED,
    THRESHOLDS_CORE_S,
    RemembersService,
    begun_anew,
    has_starved,
    levels,
)

FIRST_CORE_S: Final = 600.0
"""Service that a job of which nothing is known is believed to need at least, in weighted seconds (see ``weight``): half
a minute of a GPU (10) with its worker (5) and a server (5). Ours."""
KEPT: Final = 0.5
"""Factor on the service of a running job. Without it, two nearly equal jobs take turns of a round each, and never end
if a start takes longer. Ours."""


@dataclass(frozen=True, slots=True)
class Borda(RemembersService):
    """In queues of attained service, the least sum of ranks first.

    A job whose end is predicted has its rank by remaining service and that by attained service; another has the latter
    twice. Ranks by remaining service are stretched to as many as there are jobs, so that both lists weigh the same.

    Attributes:
        thresholds_core_s: Service at which a job falls to the next queue.
        kept: Factor on the attained service of a running job, so that two nearly equal jobs do not alternate.
        starved: Waiting over served time from which a job is in the first queue.

    Source:
        AITurbo, HPDC 2021 (Borda counting in a multi-level feedback queue); the ranks follow its successor's code.
    """

    thresholds_core_s: tuple[int, ...] = THRESHOLDS_CORE_S
    kept: float = KEPT
    starved: float = STARVED

    def remember(self, snapshot: Snapshot) -> IntArray:
        """See ``MultiLevelQueue``."""
        return begun_anew(RemembersService.remember(self, snapshot), has_starved(snapshot, self.starved))

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        jobs = snapshot.jobs
        remaining, predicted = remaining_service(snapshot, beliefs)
        least = ranks(attained_s(jobs.memo[:, SERVED]) * np.where(jobs.holds, self.kept, 1.0), jobs.holds)
        points = 2 * least
        rows = np.flatnonzero(predicted)
        points[rows] = least[rows] + ranks(remaining[rows], jobs.holds[rows]) * (len(jobs) / max(len(rows), 1))
        return np.lexsort((~jobs.holds, points, levels(snapshot, self.thresholds_core_s, self.starved)))


@dataclass(frozen=True, slots=True)
class RemainingOrAttained(RemembersService):
    """Least service first: the predicted remaining service of predictable jobs, and the received service of others.

    A job that has received some service and whose end nobody knows is as likely as not to need as much again, if
    service is spread over orders of magnitude; so both are on one scale. Ours, beside ``Borda``.

    Attributes:
        first_core_s: Least place on the scale of a job whose end is not predicted.
        kept: Factor on the service of a running job, so that two nearly equal jobs do not alternate.
        starved: Waiting over served time from which a job comes first.
    """

    first_core_s: float = FIRST_CORE_S
    kept: float = KEPT
    starved: float = STARVED

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        jobs = snapshot.jobs
        remaining, predicted = remaining_service(snapshot, beliefs)
        attained = np.maximum(attained_s(jobs.memo[:, SERVED]), self.first_core_s)
        needs = np.where(predicted, remaining, attained) * np.where(jobs.holds, self.kept, 1.0)
        return np.lexsort((needs, ~has_starved(snapshot, self.starved)))


def remaining_service(snapshot: Snapshot, beliefs: Beliefs) -> tuple[FloatArray, BoolArray]:
    """Weighted service (``weight``) until the end of each job with what it has, or asks for; is it predicted? (J,)."""
    outlook = beliefs.progress.of_jobs(snapshot)
    has = merged(present(snapshot), as_asked(snapshot))
    left = remaining_s(snapshot, beliefs, has, outlook.samples_left) * weight(has)
    return left, outlook.is_predictable & np.isfinite(outlook.samples_left)


def ranks(values: FloatArray, runs: BoolArray) -> FloatArray:
    """Ranks from 1, by value, then jobs that run, then row (N,)."""
    found = np.empty(len(values))
    found[np.lexsort((~runs, values))] = np.arange(1, len(values) + 1)
    return found
