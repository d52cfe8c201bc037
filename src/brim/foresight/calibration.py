"""What is made of earlier forecasts: how far from the expected start jobs really started says how wide an interval is.

Every forecast of a start is kept with the start that the continuations expected. What they do not know, such as later
submissions and failures, makes them wrong in the same way again, so the intervals come from their own record: from the
part of the forecasts whose jobs started sooner and later than expected. Jobs that still wait count, too, as far as they
have waited: without them a queue that grows would look shorter than it is, since the short waits end first.

Pure: equal records give equal intervals, so a controller that starts again states the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.trace import NONE
from brim.units import MS_PER_MIN

COVERAGE: Final = 0.8
"""Part of the starts that lie within the stated interval. Ours: an interval that is nearly always right is too wide to
plan by."""
STARTS_MIN: Final = 20
"""Starts after a forecast from which intervals follow the record; ours: then two lie beyond each end of an interval."""
RECORD_MAX: Final = 1_000
"""Forecasts that count, the newest; chosen on one trace (docs/measurements/2026-11-25-eta.md)."""
ROOT: Final = 0.2
"""Power of a wait in which errors are counted. Low roots of sums of random times are nearly normal, and as wide for
long waits as for short ones: a fourth root by Hawkins, Wixley, A Note on the Transformation of Chi-Squared Variables to
Normality, The American Statistician 1986. Of 0.1, 0.2, 0.25, 1/3 and 1/2 the best on one trace
(docs/measurements/2026-11-25-eta.md)."""
OFFSET_MS: Final = MS_PER_MIN
"""Added to waits before that: below it nobody cares; ours."""


class PastForecast(NamedTuple):
    """An earlier forecast of a start; times in ms of cluster time.

    Attributes:
        made_ms: When it was made.
        expected_ms: When the continuations expected the start: their mean.
        until_ms: When the job started, or until when it is known to have waited.
        has_started: Whether it started then.
    """

    made_ms: int
    expected_ms: int
    until_ms: int
    has_started: bool


def past_forecasts(rows: Iterable[tuple[int, int, int, int]], now_ms: int) -> tuple[PastForecast, ...]:
    """Return the record at a time: what came later is not in it, even if it is known.

    Args:
        rows: When each was made, the start that it expected, start and end of its job, NONE for not yet; cluster ms.
        now_ms: Cluster time. A job that ended without a start waited at least until then.
    """
    found = []
    for made_ms, expected_ms, start_ms, end_ms in rows:
        if made_ms <= now_ms:
            has_started = NONE != start_ms <= now_ms
            gave_up_ms = end_ms if start_ms == NONE != end_ms else now_ms
            until_ms = start_ms if has_started else min(now_ms, gave_up_ms)
            found.append(PastForecast(made_ms, expected_ms, until_ms, has_started))
    return tuple(found)


def recalibrated(
    wait_ms: float, record: Sequence[PastForecast], coverage: float = COVERAGE
) -> tuple[float, float] | None:
    """Return the interval around an expected wait in which so much of a record lies; None if the record is too short.

    Args:
        wait_ms: Wait that the continuations expect.
        record: Earlier forecasts, none of which tells of a time after now.
        coverage: Part of the starts, between 0 and 1.

    Example:
        >>> record = [PastForecast(0, 600_000, until, True) for until in range(300_000, 900_000, 10_000)]
        >>> low_ms, high_ms = recalibrated(600_000.0, record)
        >>> low_ms < 360_000 and 840_000 < high_ms
        True
    """
    if sum(one.has_started for one in record) < STARTS_MIN:
        return None
    made, expected, until, started = (np.array(column) for column in zip(*record, strict=True))
    error = _root(until - made) - _root(expected - made)
    around = _root(np.array([wait_ms]))[0]
    low, high = (around + quantile for quantile in _quantiles(error, started.astype(np.bool_), coverage))
    return max(low, 0.0) ** (1.0 / ROOT) - OFFSET_MS, max(high, 0.0) ** (1.0 / ROOT) - OFFSET_MS


def _root(wait_ms: FloatArray | IntArray) -> FloatArray:
    found: FloatArray = (np.maximum(wait_ms, 0.0) + OFFSET_MS) ** ROOT
    return found


def _quantiles(error: FloatArray, started: BoolArray, coverage: float) -> tuple[float, float]:
    """Errors that (1 - coverage) / 2 of the forecasts lie below, and as many above, by Kaplan and Meier's estimate."""
    order = np.lexsort((~started, error))
    error, started = error[order], started[order]
    at_risk = np.arange(len(error), 0, -1)
    ended_by = 1.0 - np.cumprod(1.0 - started / at_risk)
    tail = (1.0 - coverage) / 2
    low, high = np.minimum(np.searchsorted(ended_by, (tail, 1.0 - tail)), len(error) - 1)
    return float(error[low]), float(error[high])
