"""Choose how often to save, from the cost of a checkpoint and the rate of stops without notice.

Before an announced stop the job saves and loses nothing, so only stops without notice (a kill, a lost node) count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from brim.train.checkpoint.checkpointer import PendingSave

PRIOR_S = 6 * 3600.0
"""The estimate begins as if one stop in this time had been observed. Our choice."""

SHORTEST_S = 10.0
LONGEST_S = 1800.0
"""Bounds of the interval. Our choice: half an hour is what people accept to lose."""

BUSY_FRACTION_MAX = 0.25
"""Largest fraction of the time in which checkpoints may be written to the disk. Our choice."""


def interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return the time between checkpoints with the least loss to saving and to repeated work.

    Args:
        cost_s: Seconds that a checkpoint takes from training; if it is written in the background, the stall alone.
        mtbf_s: Mean time between stops without notice; infinite if there are none.

    Returns:
        Seconds of training from the end of one checkpoint to the start of the next.

    Raises:
        ValueError: ``cost_s`` is negative or ``mtbf_s`` is not positive.

    Source:
        Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, equation
        37; its first term is Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.

    Example:
        >>> round(interval_s(0.5, 4 * 3600))
        120
    """
    if not cost_s >= 0 or not mtbf_s > 0:
        raise ValueError(f"cost_s is {cost_s} and mtbf_s is {mtbf_s}: expected cost_s >= 0 and mtbf_s > 0")
    if cost_s == 0 or math.isinf(mtbf_s):
        return 0.0 if cost_s == 0 else math.inf
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class Autosave:
    """Decides at each step boundary whether to save.

    Call `due` in one process, and send the answer to the others, since clocks differ. The interval follows from the
    cost of saves and the rate of stops; it stays between ``shortest_s`` and ``longest_s``, and is long enough that
    checkpoints are written in at most a quarter of the time. No save is due while a checkpoint is being written.

    Args:
        seen: Result of `state`, from the checkpoint that the job resumed from.
        stopped: The job is resuming after a stop without notice.
        shortest_s: Shortest interval.
        longest_s: Longest interval.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        seen: Mapping[str, float] | None = None,
        *,
        stopped: bool = False,
        shortest_s: float = SHORTEST_S,
        longest_s: float = LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < shortest_s <= longest_s:
            raise ValueError(f"bounds are {shortest_s} s and {longest_s} s, expected 0 < shortest <= longest")
        seen = seen or {}
        self._clock, self._shortest_s, self._longest_s = clock, shortest_s, longest_s
        self._ran_s, self._stops = float(seen.get("ran_s", 0.0)), float(seen.get("stops", 0.0)) + stopped
        self._cost_s, self._written_s = float(seen.get("cost_s", 0.0)), float(seen.get("written_s", 0.0))
        self._began_s = self._last_s = clock()
        self._saving: PendingSave | None = None

    @property
    def mtbf_s(self) -> float:
        """Estimated mean time between stops without notice, in seconds."""
        return (PRIOR_S + self._ran_s + self._clock() - self._began_s) / (1.0 + self._stops)

    @property
    def interval_s(self) -> float:
        """The present time between checkpoints, in seconds."""
        self._learn()
        wanted_s = max(interval_s(self._cost_s, self.mtbf_s), self._written_s / BUSY_FRACTION_MAX, self._shortest_s)
        return min(wanted_s, self._longest_s)

    def due(self) -> bool:
        """Return whether to save now."""
        if self._saving is not None and not self._saving.done:
            return False
        return self._clock() - self._last_s >= self.interval_s

    def began(self, saving: PendingSave) -> None:
        """Record that a checkpoint was begun: the interval starts now, and its cost counts once it has ended."""
        self._learn()
        self._saving, self._last_s = saving, self._clock()

    def state(self) -> dict[str, float]:
        """Return what was measured so far, for the ``meta`` of a checkpoint."""
        self._learn()
        return {
            "ran_s": self._ran_s + self._clock() - self._began_s,
            "stops": self._stops,
            "cost_s": self._cost_s,
            "written_s": self._written_s,
        }

    def _learn(self) -> None:
        """Average old and new costs, half and half, so that one slow save does not count for long."""
        saving = self._saving
        if saving is None or not saving.done:
            return
        self._saving = None
        if saving.error is None:
            known = self._written_s > 0
            self._cost_s = (self._cost_s + saving.stall_s) / 2 if known else saving.stall_s
            self._written_s = (self._written_s + saving.total_s) / 2 if known else saving.total_s
