"""What is made of earlier forecasts: how far from the expected start jobs really started says how wide an interval is.

Every forecast of a start is kept with what the continuations said. What they do not know, such as later submissions and
failures, makes them wrong in the same way again, so the intervals come from their own record: from the part of the
forecasts whose jobs started sooner and later than expected. An error counts relative to how far the continuations were
apart. Forecasts of the same hours are wrong in the same way, so those of half a day count as much as one. Jobs that
still wait count, too, as far as they have waited: without them a queue that grows would look shorter than it is, since
the short waits end first. The record of a new cluster begins with the errors of another one, which its own replace as
they come.

Pure: equal records give equal intervals, so a controller that starts again states the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.trace import NONE
from brim.live.records import PastForecast
from brim.units import MS_PER_H, MS_PER_MIN

COVERAGE: Final = 0.8
"""Part of the starts that lie within the stated interval. Ours: an interval that is nearly always right is too wide to
plan by."""
STARTS_MIN: Final = 20
"""Starts after a forecast from which an interval follows the cluster's own record alone, if the continuations agree on
the start; ours."""
RECORD_MAX: Final = 10_000
"""Forecasts that are read, the newest; ours: weeks of a busy cluster, and milliseconds."""
SPAN_MS: Final = 12 * MS_PER_H
"""Time in which forecasts count as much as one: on one trace as good as 24 hours, and better than 1, 3 and 6. Two
thirds of the variance of errors lie between such spans (docs/measurements/2026-11-28-eta.md)."""
SPANS_ELSEWHERE: Final = 60
"""Spans that the errors of another cluster count as, less the cluster's own: on that trace as good as 100, 200 and 300,
and better than 10 and 30 (docs/measurements/2026-11-28-eta.md)."""
ROOT: Final = 0.25
"""Power of a wait in which errors are counted. Low roots of sums of random times are nearly normal, and as wide for
long waits as for short ones: a fourth root by Hawkins, Wixley, A Note on the Transformation of Chi-Squared Variables to
Normality, The American Statistician 1986. Of 0.1, 1/5, 1/4, 1/3 and 1/2 the best on one trace
(docs/measurements/2026-11-28-eta.md)."""
OFFSET_MS: Final = MS_PER_MIN
"""Added to waits before that: below it nobody cares; ours. Continuations that differ by less agree on a start."""
SPREAD_POWER: Final = 0.5
"""Power of the spread of the continuations that errors are relative to. On one trace as good as 1/4, 1/3 and 3/4, and
better than 0 (docs/measurements/2026-11-28-eta.md)."""
SPREAD_MIN: Final = 0.3
"""Least such spread, as a difference of roots of ms; ours: 5 s from now on, 18 minutes in a day. On the same trace 0.1
and 1 are as good."""
ERRORS_ELSEWHERE: Final = np.array((
    -5.14, -4.01, -3.4, -2.91, -2.37, -1.75, -1.23, -0.87, -0.64, -0.48, -0.32, -0.15, 0.07,
    0.24, 0.41, 0.65, 1.02, 1.29, 1.56, 1.77, 1.94, 2.13, 2.44, 3.1, 6.32,
))  # fmt: skip
"""Errors of forecasts on another cluster: 25 quantiles (2 %, 6 %, ... 98 %) of 4,384 on cluster 03 of Microsoft's ITP
(traces of ElasticFlow, ASPLOS 2023), under fifo and backfill, printed by ``benchmarks/eta_intervals.py``."""


class Calibration:
    """How far from what the continuations expect jobs start, by a record of earlier forecasts.

    Args:
        record: Earlier forecasts.
        now_ms: Cluster time: what came later does not count, even if it is known.
        coverage: Part of the starts that is to lie within an interval, between 0 and 1.

    Example:
        >>> record = [PastForecast(0, 600_000, 300_000, 900_000, at, -1) for at in range(300_000, 900_000, 10_000)]
        >>> low_ms, high_ms = Calibration(record, 900_000).around(600_000, 600_000, 610_000)
        >>> low_ms < 600_000 < high_ms
        True
    """

    def __init__(self, record: Sequence[PastForecast], now_ms: int, coverage: float = COVERAGE) -> None:
        rows = np.array(record, dtype=np.int64).reshape(-1, len(PastForecast._fields))
        made, expected, first, last, start, end = rows[rows[:, 0] <= now_ms].T
        has_started = (start != NONE) & (start <= now_ms)
        gave_up = np.where((start == NONE) & (end != NONE), end, now_ms)
        until = np.where(has_started, start, np.minimum(gave_up, now_ms))
        error = relative_error(until - made, expected - made, first - made, last - made)
        _, span, forecasts = np.unique(made // SPAN_MS, return_inverse=True, return_counts=True)
        weight = 1.0 / forecasts[span]
        self._alone = _quantiles(error, has_started, weight, coverage) if has_started.sum() >= STARTS_MIN else None
        missing = SPANS_ELSEWHERE - len(forecasts)
        if missing > 0:
            count = len(ERRORS_ELSEWHERE)
            error = np.concatenate((ERRORS_ELSEWHERE, error))
            has_started = np.concatenate((np.ones(count, dtype=np.bool_), has_started))
            weight = np.concatenate((np.full(count, missing / count), weight))
        self._all = _quantiles(error, has_started, weight, coverage)

    def around(self, expected_ms: float, first_ms: int, last_ms: int) -> tuple[float, float] | None:
        """Return the interval of a wait, in ms.

        Where the continuations agree on the start, the errors of another cluster do not count, and there is no interval
        if the record has fewer than ``STARTS_MIN`` starts.

        Args:
            expected_ms: Wait that the continuations expect.
            first_ms: Shortest wait in any of them.
            last_ms: Longest wait in any of them.
        """
        errors = self._alone if last_ms - first_ms <= OFFSET_MS else self._all
        if errors is None:
            return None
        middle, scale = _root(np.array([expected_ms]))[0], _scale(np.array([first_ms]), np.array([last_ms]))[0]
        low, high = (max(middle + error * scale, 0.0) ** (1.0 / ROOT) - OFFSET_MS for error in errors)
        return max(low, 0.0), max(high, 0.0)


def relative_error(
    wait_ms: FloatArray | IntArray, expected_ms: FloatArray | IntArray, first_ms: FloatArray | IntArray,
    last_ms: FloatArray | IntArray,
) -> FloatArray:
    """Error of forecasts: how much longer a wait was than expected, in roots, relative to a power of their spread.

    Args:
        wait_ms: The wait that came (F,).
        expected_ms: The wait that the continuations expected (F,).
        first_ms: The shortest wait in any of them (F,).
        last_ms: The longest (F,).
    """
    return (_root(wait_ms) - _root(expected_ms)) / _scale(first_ms, last_ms)


def _root(wait_ms: FloatArray | IntArray) -> FloatArray:
    found: FloatArray = (np.maximum(wait_ms, 0.0) + OFFSET_MS) ** ROOT
    return found


def _scale(first_ms: FloatArray | IntArray, last_ms: FloatArray | IntArray) -> FloatArray:
    """What errors are relative to: a power of the spread of the continuations."""
    found: FloatArray = np.maximum(_root(last_ms) - _root(first_ms), SPREAD_MIN) ** SPREAD_POWER
    return found


def _quantiles(error: FloatArray, started: BoolArray, weight: FloatArray, coverage: float) -> tuple[float, float]:
    """Errors that (1 - coverage) / 2 of the forecasts lie below, and as many above, by Kaplan and Meier's estimate.

    The forecast that is asked for counts as one more span whose error lies beyond either: a tenth of a few spans alone
    is too near. So does split conformal prediction (Lei et al., Distribution-Free Predictive Inference for Regression,
    JASA 2018; with weights: Tibshirani et al., Conformal Prediction Under Covariate Shift, NeurIPS 2019).
    """
    order = np.lexsort((weight, ~started, error))
    error, started, weight = error[order], started[order], weight[order]
    at_risk = np.cumsum(weight[::-1])[::-1]
    ended_by = 1.0 - np.cumprod(1.0 - started * weight / at_risk)
    total = float(at_risk[0])
    tail = max((1.0 - coverage) / 2 * (total + 1.0) - 1.0, 0.0) / total
    low, high = np.minimum(np.searchsorted(ended_by, (tail, 1.0 - tail)), len(error) - 1)
    return float(error[low]), float(error[high])
