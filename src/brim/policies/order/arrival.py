"""First come, first served; nobody who runs is interrupted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Arrival:
    """Running jobs first, then by submission. The job table is in order of submission already."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        return np.argsort(~snapshot.jobs.holds, kind="stable")
