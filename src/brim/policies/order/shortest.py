"""Shortest job first, and shortest remaining time first, by estimated or true run times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import remaining_ms
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ShortestJob:
    """Running jobs first, then the shortest estimated run time; ties by submission."""

    asks_run_times: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        total_ms = beliefs.run_times.total_ms(snapshot)
        return np.lexsort((total_ms, ~snapshot.jobs.holds))


@dataclass(frozen=True, slots=True)
class ShortestRemaining:
    """The shortest estimated remaining run time first, running or not; ties: running jobs, then by submission."""

    asks_run_times: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        return np.lexsort((~snapshot.jobs.holds, remaining_ms(beliefs.run_times, snapshot)))
