"""How often to save: from what a checkpoint costs and how often a job is stopped without notice.

A stop that is announced saves by itself and loses nothing, so only stops without notice (a kill, a lost node) count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from brim.train.checkpoint import Saving

PRIOR_S = 6 * 3600.0
"""Before anything was seen, one stop in this time is assumed, as if it had been seen; ours."""

SHORTEST_S = 10.0
LONGEST_S = 1800.0
"""Bounds of the interval, whatever the formula says: ours. Half an hour is what people accept to lose."""

BUSY_FRACTION_MAX = 0.25
"""Most of the time that the disk may be busy with checkpoints; ours."""


def interval_s(cost_s: float, mtbf_s: float) -> float:
    """The time between checkpoints that loses least, saving and redoing together.

    Args:
        cost_s: What a checkpoint takes from training: with a copy in the background, the stall alone.
        mtbf_s: Mean time between stops without notice; infinite if there are none.

    Returns:
        Seconds of training from the end of one checkpoint to the begin of the next.

    Source:
        Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, equation
        37; its first term is Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.

    Example:
        >>> round(interval_s(0.5, 4 * 3600))
        120
    """
    if not cost_s >= 0 or not mtbf_s > 0:
        raise ValueError(f"cost_s is {cost_s} and mtbf_s {mtbf_s}, expected at least 0 and more than 0")
    if cost_s == 0 or math.isinf(mtbf_s):
        return 0.0 if cost_s == 0 else math.inf
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class Autosave:
    """Says at each step boundary whether it is time to save.

    Ask `due` in the one process that decides, and tell the others: clocks differ. The interval follows what saves cost
    and how often the job was stopped; it stays between ``shortest_s`` and ``longest_s``, and is long enough that the
    disk is busy with checkpoints for at most a quarter of the time. While one is being written none is due.

    Args:
        seen: What `state` gave, from the checkpoint that the job resumed from. Give ``stopped=True`` with it.
        stopped: The job is resuming after a stop without notice.
        shortest_s: Never save more often.
        longest_s: Never less often.
        clock: Seconds that never run backwards.
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
        self._saving: Saving | None = None

    @property
    def mtbf_s(self) -> float:
        """Mean time between stops without notice, as far as is known."""
        return (PRIOR_S + self._ran_s + self._clock() - self._began_s) / (1.0 + self._stops)

    @property
    def interval_s(self) -> float:
        """Seconds between checkpoints."""
        self._learn()
        wanted_s = max(interval_s(self._cost_s, self.mtbf_s), self._written_s / BUSY_FRACTION_MAX, self._shortest_s)
        return min(wanted_s, self._longest_s)

    def due(self) -> bool:
        """Whether to save now."""
        if self._saving is not None and not self._saving.done:
            return False
        return self._clock() - self._last_s >= self.interval_s

    def began(self, saving: Saving) -> None:
        """A checkpoint was begun, due or not: the time counts from here, and its cost is looked at once it ends."""
        self._learn()
        self._saving, self._last_s = saving, self._clock()

    def state(self) -> dict[str, float]:
        """What was seen so far, for the ``meta`` of a checkpoint."""
        self._learn()
        return {
            "ran_s": self._ran_s + self._clock() - self._began_s,
            "stops": self._stops,
            "cost_s": self._cost_s,
            "written_s": self._written_s,
        }

    def _learn(self) -> None:
        """Costs move half way to the newest, so that one slow save does not count for long."""
        saving = self._saving
        if saving is None or not saving.done:
            return
        self._saving = None
        if saving.error is None:
            known = self._written_s > 0
            self._cost_s = (self._cost_s + saving.stall_s) / 2 if known else saving.stall_s
            self._written_s = (self._written_s + saving.total_s) / 2 if known else saving.total_s
