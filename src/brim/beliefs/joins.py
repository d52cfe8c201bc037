"""What it will cost a padding job to start, or to grow: the median of what these have cost lately.

Shapes: J jobs, R of them in some rows; P changes that are kept of a job, Q of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.overheads import RESTART_MS
from brim.core.arrays import FloatArray, IntArray
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

    def start_ms(self, joins: JoinTimes, rows: IntArray) -> FloatArray:
        """What the next start of each job in these rows will cost, in ms (R,)."""
        return self._medians(joins.starts_ms, joins.cluster_starts_ms, rows, np.full(len(rows), float(RESTART_MS)))

    def growth_ms(self, joins: JoinTimes, rows: IntArray) -> FloatArray:
        """What the next growth of each will cost, in ms (R,)."""
        return self._medians(joins.growths_ms, joins.cluster_growths_ms, rows, self.start_ms(joins, rows))

    def _medians(
        self, of_jobs: IntArray, of_cluster: IntArray, rows: IntArray, otherwise: FloatArray
    ) -> FloatArray:
        found = np.full(len(rows), np.median(of_cluster)) if len(of_cluster) else otherwise
        if len(of_jobs):
            own = np.sort(of_jobs[rows], axis=1)  # NONE, which is negative, comes first
            count = (own != NONE).sum(axis=1)
            enough = np.flatnonzero(count >= self.own_min)
            last, half = own.shape[1] - 1, count[enough] // 2
            found[enough] = (own[enough, last - half] + own[enough, last - (count[enough] - 1) // 2]) / 2
        return found
