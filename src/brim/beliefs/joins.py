"""What it will cost a padding job to start, or to grow: the median of what these have cost lately.

Shapes: J jobs; P changes that are kept of a job, Q of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.overheads import RESTART_MS
from brim.core.arrays import IntArray
from brim.core.joins import JoinTimes
from brim.core.trace import NONE
from brim.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PastJoins:
    """Median of the last starts, or growths, of a job; of all jobs of the cluster while it has few of its own.

    A start and a growth in place differ by an order of magnitude, so they are apart; what a growth costs before any was
    seen is what a start costs. The median, because one start that had to read a library from a disk takes ten times as
    long as the next, and a job that believes it refuses the gaps in which it would learn better. Until the cluster has
    seen a start, one is expected to cost ``RESTART_MS``.

    Attributes:
        own_min: Changes of a job's own from which their median counts. Ours, as for gaps.
    """

    own_min: int = 3

    def __post_init__(self) -> None:
        if self.own_min < 1:
            raise ConfigError(f"own_min is {self.own_min}, expected at least 1")

    def start_ms(self, joins: JoinTimes, row: int) -> float:
        """What the next start of the job in this row will cost."""
        return self._median(joins.starts_ms, joins.cluster_starts_ms, row, float(RESTART_MS))

    def growth_ms(self, joins: JoinTimes, row: int) -> float:
        """What its next growth will cost."""
        return self._median(joins.growths_ms, joins.cluster_growths_ms, row, self.start_ms(joins, row))

    def _median(self, of_jobs: IntArray, of_cluster: IntArray, row: int, otherwise: float) -> float:
        own = of_jobs[row] if len(of_jobs) else of_cluster[:0]
        own = own[own != NONE]
        known = own if len(own) >= self.own_min else of_cluster
        return float(np.median(known)) if len(known) else otherwise
