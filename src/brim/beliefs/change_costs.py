"""What a start, a return and a preemption cost on this cluster, learned from attempts that it recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

TRIM_FRACTION: Final = 0.25
"""Part of the times that is left out at either end: the interquartile mean. A stall that catches every eighth job, as
one was measured, must not shift the rest; a median would ignore that these times lean to the long side. Ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCosts:
    """Trimmed means in ms; a cost of which nothing was recorded is that of its nearest kin, in the end 0.

    Attributes:
        start_ms: From GPUs that are free to the first useful step of a job.
        restart_ms: The same for every later attempt, and what it repeats, where that is known.
        save_ms: From the decision to preempt a job that made progress until its GPUs are free.
        starts: First starts that were recorded.
        restarts: Later starts that were recorded.
        saves: Preemptions of jobs that made progress that were recorded.
    """

    start_ms: int
    restart_ms: int
    save_ms: int
    starts: int
    restarts: int
    saves: int


def learn_costs(start_ms: Sequence[int], restart_ms: Sequence[int], save_ms: Sequence[int]) -> ChangeCosts:
    """Learn the costs of changes from recorded times."""
    starts, restarts = start_ms or restart_ms, restart_ms or start_ms
    return ChangeCosts(
        start_ms=round(trimmed_mean(starts)), restart_ms=round(trimmed_mean(restarts)),
        save_ms=round(trimmed_mean(save_ms)), starts=len(start_ms), restarts=len(restart_ms), saves=len(save_ms),
    )


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the smallest and the largest quarter; 0 of nothing."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(len(ordered) * TRIM_FRACTION)
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else 0.0
