"""The interval of a start: continuations of the queue say what to expect, the record how far that may be wrong.

The same functions forecast in the live cluster and in ``benchmarks/eta_intervals.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.trace import NONE
from brim.foresight.calibration import COVERAGE, Calibration
from brim.foresight.run_times import Believed, drawn_ms
from brim.live.records import StartForecast
from brim.sim.continuation import InitialState, continued_by_draw

DRAWS: Final = 20
"""Continuations. The first ten of them score 2.9 % worse on one trace (docs/measurements/2026-11-28-eta.md)."""
DRAWS_MIN: Final = 6
EVENTS_MAX: Final = 10 * 1_024
"""Events and rounds of all continuations together, if that leaves ``DRAWS_MIN`` of them; ours: some seconds."""


def drawn(
    initial: InitialState, believed: Sequence[Believed], seed: int, starts_of: Collection[int] | None = None
) -> tuple[IntArray, IntArray]:
    """Start and end of each job in each continuation, NONE for never (D, J).

    Args:
        initial: What continuations begin from.
        believed: What is believed of the run time of each job.
        seed: Seed of the draws.
        starts_of: Rows of jobs of which only the start is asked for; None for all starts and ends.

    Raises:
        PlanError: the policy wants something impossible.
    """
    run_ms = drawn_ms(believed, DRAWS, np.random.default_rng(seed)).tolist()
    starts, ends, events = [], [], 0
    for number, course in enumerate(continued_by_draw(initial, run_ms, starts_of), 1):
        starts.append(course.start_ms)
        ends.append(course.end_ms)
        events += course.events
        if number >= max(DRAWS_MIN, EVENTS_MAX * number // max(events, 1)):
            break
    return np.array(starts), np.array(ends)


def ends(times_D: IntArray | FloatArray) -> tuple[float, float]:
    """Return the ends of what continuations say (D,): one more of them lies between in ``COVERAGE`` of the cases.

    Example:
        >>> ends(np.arange(1, 21)), ends(np.arange(1, 11))  # 17 of 21 more lie between, and 9 of 11
        ((2.0, 19.0), (1.0, 10.0))
    """
    beyond = max(int((1.0 - COVERAGE) / 2 * (len(times_D) + 1)) - 1, 0)
    ordered = np.sort(times_D)
    return float(ordered[beyond]), float(ordered[-1 - beyond])


def stated(starts_D: IntArray, now_ms: int, calibration: Calibration) -> StartForecast | None:
    """Return the interval of a start; None if it does not start in every continuation.

    Args:
        starts_D: When it starts in each continuation, NONE for never.
        now_ms: Cluster time.
        calibration: What earlier forecasts under the same policy tell.
    """
    if (starts_D == NONE).any():
        return None
    expected_ms, first_ms, last_ms = (max(int(at_ms), now_ms) for at_ms in (np.mean(starts_D), *ends(starts_D)))
    around = calibration.around(expected_ms - now_ms, first_ms - now_ms, last_ms - now_ms)
    low_ms, high_ms = (now_ms + round(wait_ms) for wait_ms in around) if around else (first_ms, last_ms)
    return StartForecast(expected_ms, low_ms, high_ms, first_ms, last_ms)
