"""Moving averages of admissions as forecasts of a start, with intervals that follow their own errors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.foresight.calibration import COVERAGE, STARTS_MIN

WAITED_S: Final = 3.0
"""A job that starts sooner did not wait: first forecasts are made after this time (``first_forecasts.CALM_S``)."""
LAST: Final = (1, 3, 10, 30, 100, 300)
HOURS: Final = (1, 6, 24)
WINDOWS: Final = (30, 100, 1_000)
POWERS: Final = (1.0, 1.0 / 3.0)
OFFSET_S: Final = 60.0
TAIL: Final = (1.0 - COVERAGE) / 2


def calibrated(
    submit_s: FloatArray, start_s: FloatArray, gpus: IntArray, made_s: FloatArray, wait_s: FloatArray, ahead: FloatArray
) -> Iterator[tuple[str, FloatArray]]:
    """Every average, window and scale: its name, and the ends of each interval in seconds, NaN without enough (F, 2).

    Args:
        submit_s: When each job of the trace was submitted (J,).
        start_s: When it started; a forecast is told of those that had by then (J,).
        gpus: What it holds (J,).
        made_s: When each forecast is made (F,).
        wait_s: The wait that came; a forecast is told of those that had ended by then (F,).
        ahead: Jobs and GPUs ahead (F, 2).
    """
    for (words, expected_s), window, power in product(
        _averages(submit_s, start_s, gpus, made_s, ahead), WINDOWS, POWERS
    ):
        yield f"{words}, {window} errors, power {power:.2g}", _around(expected_s, made_s, wait_s, window, power)


def uncalibrated(submit_s: FloatArray, start_s: FloatArray, made_s: FloatArray, last: int) -> FloatArray:
    """The middle part of the waits of the last admissions that waited, in seconds, NaN without any (F, 2)."""
    order = np.argsort(start_s, kind="stable")
    order = order[(start_s - submit_s)[order] > WAITED_S]
    found = np.full((len(made_s), 2), np.nan)
    for row, until in enumerate(np.searchsorted(start_s[order], made_s, side="right").tolist()):
        seen = order[max(until - last, 0) : until]
        if len(seen):
            found[row] = np.quantile((start_s - submit_s)[seen], (TAIL, 1.0 - TAIL))
    return found


def _averages(
    submit_s: FloatArray, start_s: FloatArray, gpus: IntArray, made_s: FloatArray, ahead: FloatArray
) -> Iterator[tuple[str, FloatArray]]:
    """A name and the wait that each average expects, in seconds (F,)."""
    order = np.argsort(start_s, kind="stable")
    start_s, wait_s, gpus = start_s[order], (start_s - submit_s)[order], gpus[order]
    gone: dict[str, BoolArray] = {"all": np.ones(len(order), dtype=np.bool_), "those that waited": wait_s > WAITED_S}
    for (who, kept), last in product(gone.items(), LAST):
        total = np.concatenate(([0.0], np.cumsum(wait_s[kept])))
        until = np.searchsorted(start_s[kept], made_s, side="right")
        since = np.maximum(until - last, 0)
        yield f"wait of the last {last} of {who}", (total[until] - total[since]) / np.maximum(until - since, 1)
    for what, hours in product((0, 1), HOURS):
        total = np.concatenate(([0.0], np.cumsum((np.ones(len(order)), gpus)[what])))
        until, since = (np.searchsorted(start_s, made_s - ago, side="right") for ago in (0, hours * 3600))
        rate = np.maximum(total[until] - total[since], 1.0) / (hours * 3600)
        yield f"{('jobs', 'GPUs')[what]} ahead over the rate of {hours} h", ahead[:, what] / rate


def _around(expected_s: FloatArray, made_s: FloatArray, wait_s: FloatArray, window: int, power: float) -> FloatArray:
    """Interval of each forecast from the last errors of its like, by Kaplan and Meier; NaN without enough (F, 2)."""
    start_s, root = made_s + wait_s, (expected_s + OFFSET_S) ** power
    error, order = (wait_s + OFFSET_S) ** power - root, np.argsort(start_s, kind="stable")
    found = np.full((len(made_s), 2), np.nan)
    for row, now_s in enumerate(made_s.tolist()):
        known = order[: np.searchsorted(start_s[order], now_s, side="right")]
        known = known[known < row][-window:]
        if len(known) < STARTS_MIN:
            continue
        waits = np.flatnonzero(start_s[:row] > now_s)
        errors = np.concatenate((error[known], (now_s - made_s[waits] + OFFSET_S) ** power - root[waits]))
        has_started = np.repeat((True, False), (len(known), len(waits)))
        by = np.lexsort((~has_started, errors))
        gone = 1.0 - np.cumprod(1.0 - has_started[by] / np.arange(len(by), 0, -1))
        at = np.minimum(np.searchsorted(gone, (TAIL, 1.0 - TAIL)), len(by) - 1)
        found[row] = np.maximum(np.maximum(root[row] + errors[by][at], 0.0) ** (1.0 / power) - OFFSET_S, 0.0)
    return found
