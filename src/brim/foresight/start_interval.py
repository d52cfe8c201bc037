"""The interval of a start: continuations of the queue say what to expect, the record how far that may be wrong.

The same functions forecast in the live cluster and in ``benchmarks/eta_intervals.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.trace import NONE
from brim.foresight.calibration import Calibration
from brim.foresight.run_times import Believed, drawn_ms
from brim.live.records import StartForecast
from brim.sim.continuation import Outset, courses

DRAWS: Final = 10
"""Continuations: one more start falls between the first and the last of ten in 9 of 11 cases, if it is of their kind;
that is the stated part of the starts where they agree on one and there is no record."""
DRAWS_MIN: Final = 6
EVENTS_MAX: Final = 10 * 1_024
"""Events and rounds of all continuations together, if that leaves ``DRAWS_MIN`` of them; ours: some seconds."""


def drawn(
    outset: Outset, believed: Sequence[Believed], seed: int, starts_of: Collection[int] | None = None
) -> tuple[IntArray, IntArray]:
    """Start and end of each job in each continuation, NONE for never (D, J).

    Args:
        outset: What continuations begin from.
        believed: What is believed of the run time of each job.
        seed: Seed of the draws.
        starts_of: Rows of jobs of which only the start is asked for; None for all starts and ends.

    Raises:
        PlanError: the policy wants something impossible.
    """
    run_ms = drawn_ms(believed, DRAWS, np.random.default_rng(seed)).tolist()
    starts, ends, events = [], [], 0
    for number, course in enumerate(courses(outset, run_ms, starts_of), 1):
        starts.append(course.start_ms)
        ends.append(course.end_ms)
        events += course.events
        if number >= max(DRAWS_MIN, EVENTS_MAX * number // max(events, 1)):
            break
    return np.array(starts), np.array(ends)


def stated(starts_D: IntArray, now_ms: int, calibration: Calibration) -> StartForecast | None:
    """Return the interval of a start; None if it does not start in every continuation.

    Args:
        starts_D: When it starts in each continuation, NONE for never.
        now_ms: Cluster time.
        calibration: What earlier forecasts under the same policy tell.
    """
    if (starts_D == NONE).any():
        return None
    expected_ms, first_ms, last_ms = (max(int(at(starts_D)), now_ms) for at in (np.mean, np.min, np.max))
    around = calibration.around(expected_ms - now_ms, first_ms - now_ms, last_ms - now_ms)
    low_ms, high_ms = (now_ms + round(wait_ms) for wait_ms in around) if around else (first_ms, last_ms)
    return StartForecast(expected_ms, low_ms, high_ms, first_ms, last_ms)
