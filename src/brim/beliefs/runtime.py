"""Models of run times: the user's limit, the user's history, or (only in the twin) the truth.

Each returns the whole run time of every job in the snapshot, in milliseconds, and is a pure function of it. A job that
has outlived its estimate gets the next doubling above what it has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn, Protocol

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.errors import PlanError
from brim.units import MS_PER_H

UNKNOWN_RUN_MS: Final = 6 * MS_PER_H
"""Estimate for a job about which nothing is known. Ours: between Philly's median (15 min) and mean (5 h) run time,
on the long side because over-estimates never delay a reservation."""

_UNDECLARED: Final = (
    "it reads beliefs.run_times and does not declare it: add `asks_run_times: ClassVar[bool] = True` to the part"
)


class RunTimes(Protocol):
    """A model of run times. ``words`` names it in reports."""

    words: ClassVar[str]

    def total_ms(self, snapshot: Snapshot) -> FloatArray:
        """Estimated run time of each job from its first start, shape (J,), above what it has run already."""
        ...


def remaining_ms(run_times: RunTimes, snapshot: Snapshot) -> FloatArray:
    """Estimated remaining run time of each job, shape (J,), > 0."""
    return run_times.total_ms(snapshot) - snapshot.jobs.run_ms


@dataclass(frozen=True, slots=True)
class UserLimits:
    """The user's time limit; for jobs without one, the user's history."""

    words: ClassVar[str] = "time limits, else per-user history"

    def total_ms(self, snapshot: Snapshot) -> FloatArray:
        """See ``RunTimes``."""
        limit_ms = snapshot.jobs.time_limit_ms
        return _outlive(np.where(limit_ms != NONE, limit_ms, _history_ms(snapshot)), snapshot.jobs.run_ms)


@dataclass(frozen=True, slots=True)
class UserHistory:
    """Mean of the user's last two completed run times, never above the job's own limit.

    Source:
        Tsafrir, Etsion, Feitelson, Backfilling Using System-Generated Predictions, IEEE TPDS 2007 (section 3).
        Differs: a job that outlives its prediction gets a doubling, not a fixed increment.
    """

    words: ClassVar[str] = "per-user history (last two runs), else time limits"

    def total_ms(self, snapshot: Snapshot) -> FloatArray:
        """See ``RunTimes``."""
        limit_ms = snapshot.jobs.time_limit_ms
        estimate_ms = _history_ms(snapshot)
        known = snapshot.users.last_run_ms[snapshot.jobs.user] != NONE
        capped = np.where(known, np.minimum(estimate_ms, np.where(limit_ms != NONE, limit_ms, np.inf)), limit_ms)
        return _outlive(np.where(capped != NONE, capped, estimate_ms), snapshot.jobs.run_ms)


@dataclass(frozen=True, slots=True)
class TrueRunTimes:
    """The run times of the trace, by job id: for policies that declare themselves an oracle."""

    words: ClassVar[str] = "true run times (oracle)"
    run_ms: IntArray

    def total_ms(self, snapshot: Snapshot) -> FloatArray:
        """See ``RunTimes``. Time lost to restarts is not in it, hence the guard."""
        return _outlive(self.run_ms[snapshot.jobs.id], snapshot.jobs.run_ms)


class Undeclared:
    """The run times for a part that does not declare that it reads them: reading them is an error."""

    words: ClassVar[str] = "none"

    def total_ms(self, snapshot: Snapshot) -> FloatArray:
        """See ``RunTimes``.

        Raises:
            PlanError: always.
        """
        raise PlanError(_UNDECLARED)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else PlanError(_UNDECLARED)


def _history_ms(snapshot: Snapshot) -> FloatArray:
    users, user = snapshot.users, snapshot.jobs.user
    last, previous = users.last_run_ms[user], users.previous_run_ms[user]
    mean = np.where(previous != NONE, (last + previous) / 2, last)
    return np.where(last != NONE, mean, UNKNOWN_RUN_MS)


def _outlive(estimate_ms: FloatArray | IntArray, run_ms: IntArray) -> FloatArray:
    """Double an estimate until it lies above the time already run."""
    estimate = np.maximum(estimate_ms.astype(np.float64), 1.0)
    late = run_ms >= estimate
    if late.any():
        doublings = np.floor(np.log2(run_ms[late] / estimate[late])) + 1
        estimate[late] *= 2.0**doublings
    return estimate
