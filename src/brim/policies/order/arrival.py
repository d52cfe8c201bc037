"""First come, first served, without interrupting running jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Arrival:
    """Running jobs first, then by submission, which is the order of the job table."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        return np.argsort(~snapshot.jobs.holds, kind="stable")
