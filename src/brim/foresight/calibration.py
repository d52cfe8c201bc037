"""What is made of earlier forecasts: how far from the expected start jobs really started says how wide an interval is.

Every forecast of a start is kept with the start that the continuations expected. What they do not know, such as later
submissions and failures, makes them wrong in the same way again, so the intervals come from their own record: from the
part of the forecasts whose jobs started sooner and later than expected. Jobs that still wait count, too, as far as they
have waited: without them a queue that grows would look shorter than it is, since the short waits end first. The record
of a new cluster begins with the errors of another one, which its own replace as they come.

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
"""Starts after a forecast from which an interval follows the cluster's own record alone, if the continuations agree on
the start; ours: then two lie beyond each end of an interval."""
RECORD_MAX: Final = 1_000
"""Forecasts that count, the newest; chosen on one trace (docs/measurements/2026-11-25-eta.md)."""
ROOT: Final = 0.2
"""Power of a wait in which errors are counted. Low roots of sums of random times are nearly normal, and as wide for
long waits as for short ones: a fourth root by Hawkins, Wixley, A Note on the Transformation of Chi-Squared Variables to
Normality, The American Statistician 1986. Of 0.1, 0.2, 0.25, 1/3 and 1/2 the best on one trace
(docs/measurements/2026-11-25-eta.md)."""
OFFSET_MS: Final = MS_PER_MIN
"""Added to waits before that: below it nobody cares; ours. Continuations that differ by less agree on a start."""
ERRORS_ELSEWHERE: Final = np.array((
    -8.0, -5.1, -4.2, -3.5, -2.9, -2.1, -1.3, -1.0, -0.7, -0.5, -0.3, -0.1, 0.2,
    0.4, 0.7, 1.0, 1.4, 1.8, 2.1, 2.3, 2.5, 2.8, 3.3, 4.4, 7.0,
))  # fmt: skip
"""Errors of forecasts on another cluster, as differences of roots of ms: 25 quantiles (2 %, 6 %, ... 98 %) of 2,100 on
cluster 03 of Microsoft's ITP (traces of ElasticFlow, ASPLOS 2023), under fifo and backfill, printed by
``benchmarks/eta_intervals.py``. They fill the record up to ``RECORD_MAX``."""


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
    wait_ms: float, record: Sequence[PastForecast], coverage: float = COVERAGE, *, agreed: bool = False
) -> tuple[float, float] | None:
    """Return the interval around an expected wait in which so much of a record lies.

    Args:
        wait_ms: Wait that the continuations expect.
        record: Earlier forecasts, none of which tells of a time after now; the newest ``RECORD_MAX`` of them.
        coverage: Part of the starts, between 0 and 1.
        agreed: Whether the continuations agree on the start. Then the errors of another cluster do not count, and
            there is no interval (None) if the record has fewer than ``STARTS_MIN`` starts.

    Example:
        >>> record = [PastForecast(0, 600_000, until, True) for until in range(300_000, 900_000, 10_000)]
        >>> low_ms, high_ms = recalibrated(600_000.0, record, agreed=True)
        >>> low_ms < 360_000 and 840_000 < high_ms
        True
    """
    own = np.array(record, dtype=np.float64).reshape(-1, 4)
    made, expected, until, started = own.T
    error, has_started, weight = root(until - made) - root(expected - made), started == 1.0, np.ones(len(own))
    if agreed and has_started.sum() < STARTS_MIN:
        return None
    if not agreed and len(own) < RECORD_MAX:
        count = len(ERRORS_ELSEWHERE)
        error = np.concatenate((ERRORS_ELSEWHERE, error))
        has_started = np.concatenate((np.ones(count, dtype=np.bool_), has_started))
        weight = np.concatenate((np.full(count, (RECORD_MAX - len(own)) / count), weight))
    around = root(np.array([wait_ms]))[0]
    low, high = (max(around + quantile, 0.0) for quantile in _quantiles(error, has_started, weight, coverage))
    return max(low ** (1.0 / ROOT) - OFFSET_MS, 0.0), max(high ** (1.0 / ROOT) - OFFSET_MS, 0.0)


def root(wait_ms: FloatArray | IntArray) -> FloatArray:
    """The scale on which errors are counted, of a wait."""
    found: FloatArray = (np.maximum(wait_ms, 0.0) + OFFSET_MS) ** ROOT
    return found


def _quantiles(error: FloatArray, started: BoolArray, weight: FloatArray, coverage: float) -> tuple[float, float]:
    """Errors that (1 - coverage) / 2 of the forecasts lie below, and as many above, by Kaplan and Meier's estimate."""
    order = np.lexsort((~started, error))
    error, started, weight = error[order], started[order], weight[order]
    at_risk = np.cumsum(weight[::-1])[::-1]
    ended_by = 1.0 - np.cumprod(1.0 - started * weight / at_risk)
    tail = (1.0 - coverage) / 2
    low, high = np.minimum(np.searchsorted(ended_by, (tail, 1.0 - tail)), len(error) - 1)
    return float(error[low]), float(error[high])
