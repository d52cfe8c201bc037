"""When regular jobs last left each GPU, and how long its past gaps between regular jobs were.

Shapes: K GPUs of the cluster, node by node; P past gaps that are kept of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, IntArray, frozen
from brim.core.trace import NONE
from brim.units import MS_PER_S

GAPS_KEPT: Final = 16
"""Past gaps of each GPU that are kept: enough for a median, few enough to follow the time of day. Ours."""
SHORTEST_MS: Final = MS_PER_S
"""Shorter gaps are not noted: between two rounds nobody could use them. As long as rounds are apart in the twin."""
_NOTHING: Final[IntArray] = frozen(np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGaps:
    """Gaps between regular jobs; what padding jobs do in them does not count. Empty columns: nobody keeps account.

    Attributes:
        since_ms: When a regular job last left each GPU, NONE where one holds it (K,).
        past_ms: Lengths of its last gaps, NONE where there were fewer (K, P).
    """

    since_ms: IntArray = field(default_factory=lambda: _NOTHING)
    past_ms: IntArray = field(default_factory=lambda: _NOTHING.reshape(0, GAPS_KEPT))


class GapBook:
    """Account of the gaps: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self, gpus: int) -> None:
        self.since_ms = np.zeros(gpus, dtype=np.int64)
        self.past_ms = np.full((gpus, GAPS_KEPT), NONE, dtype=np.int64)

    def note(self, busy: BoolArray, now_ms: int) -> None:
        """Note which GPUs regular jobs hold from now on (K,)."""
        held = self.since_ms == NONE
        if np.array_equal(busy, held):
            return
        self.since_ms[held & ~busy] = now_ms
        taken = np.flatnonzero(busy & ~held)
        long = taken[now_ms - self.since_ms[taken] >= SHORTEST_MS]
        self.past_ms[long, 1:] = self.past_ms[long, :-1]
        self.past_ms[long, 0] = now_ms - self.since_ms[long]
        self.since_ms[taken] = NONE

    def freeze(self) -> IdleGaps:
        """Return the table."""
        return IdleGaps(since_ms=frozen(self.since_ms.copy()), past_ms=frozen(self.past_ms.copy()))
