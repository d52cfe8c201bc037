"""How long a GPU that no regular job holds will stay so: the residual life of its past gaps.

Shapes: K GPUs of the cluster, node by node; P past gaps of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.gaps import IdleGaps
from brim.core.trace import NONE
from brim.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PastGaps:
    """Median of what was left of the past gaps that lasted as long as the present one has.

    A GPU with too few such gaps is judged by those of all GPUs. If none of them lasted so long, as much is expected
    again as has passed; if no gap has ended yet, nobody has ever come, and nobody is expected.

    Attributes:
        gaps_min: Gaps of a GPU's own from which its median counts. Ours.
    """

    gaps_min: int = 3

    def __post_init__(self) -> None:
        if self.gaps_min < 1:
            raise ConfigError(f"gaps_min is {self.gaps_min}, expected at least 1")

    def rest_ms(self, gaps: IdleGaps, now_ms: int) -> FloatArray:
        """Time until a regular job takes each GPU (K,); 0 for those that one holds."""
        idle = gaps.since_ms != NONE
        age_ms = np.where(idle, now_ms - gaps.since_ms, 0)
        rest = np.where(gaps.past_ms > age_ms[:, None], gaps.past_ms - age_ms[:, None], np.inf)
        rest.sort(axis=1)
        lasted = np.isfinite(rest).sum(axis=1)
        median = _median(rest, lasted)
        few = idle & (lasted < self.gaps_min)
        if few.any():
            median[few] = self._of_all(gaps.past_ms[gaps.past_ms != NONE], age_ms[few])
        median[~idle] = 0.0
        return median

    def _of_all(self, past_ms: IntArray, age_ms: IntArray) -> FloatArray:
        """The same from the gaps of all GPUs (Q,), for some ages (A,)."""
        if not len(past_ms):
            return np.full(len(age_ms), np.inf)
        past = np.sort(past_ms)
        first = np.searchsorted(past, age_ms, side="right")  # the gaps that lasted longer
        lasted = len(past) - first
        low, high = (np.minimum(first + (lasted + up) // 2, len(past) - 1) for up in (-1, 0))
        rest: FloatArray = np.where(lasted > 0, (past[low] + past[high]) / 2 - age_ms, age_ms).astype(np.float64)
        return rest


def _median(rows: FloatArray, counts: IntArray) -> FloatArray:
    """Median of the first ``counts`` values of each sorted row; infinite where there are none."""
    if not rows.shape[1]:
        return np.full(len(rows), np.inf)
    at = np.arange(len(rows))
    low, high = rows[at, np.maximum(counts - 1, 0) // 2], rows[at, np.minimum(counts // 2, rows.shape[1] - 1)]
    return np.where(counts > 0, (low + np.where(counts % 2, low, high)) / 2, np.inf)
