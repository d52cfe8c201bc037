"""How the constants of `brim eta`'s intervals were chosen: each half of a trace with the errors of the other half.

    python benchmarks/eta_constants.py DATA

DATA is a folder with ``traces``. Every job of ``itp03`` that waited is asked about as in ``eta_intervals.py``, under
both policies. Then each half of the starts, before and after the median, is a new cluster whose record begins with the
errors of the other half. For each constant of ``foresight/calibration.py``, other values beside the one that ships, and
fewer continuations: the part of the starts that is covered, over all four halves and in the worst of them, and the
geometric mean of the scores. A value that ships has the least score, or one that is less than 1 % above it. Last, which
part of the variance of errors lies within spans of several lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from brim.core.trace import NONE
from brim.foresight import calibration
from brim.foresight.calibration import Calibration
from brim.foresight.start_interval import stated
from brim.live.records import PastForecast
from brim.units import MS_PER_H, MS_PER_S
from eta_intervals import CHOSEN_ON, STARTS, Asked, ask, elsewhere, error, score

VALUES: Final[dict[str, Sequence[Any]]] = {
    "SPAN_MS": [hours * MS_PER_H for hours in (1, 3, 6, 12, 24)],
    "SPANS_ELSEWHERE": [10, 30, 60, 100, 200, 300],
    "SPREAD_POWER": [0.0, 0.25, 1 / 3, 0.5, 0.75],
    "SPREAD_MIN": [0.1, 0.3, 1.0],
    "ROOT": [0.1, 0.2, 0.25, 1 / 3, 0.5],
}
FEWER: Final = (6, 10, 15)
"""Continuations, of as many as ship."""


def halves(forecasts: Asked) -> list[Asked]:
    """The forecasts before and after the median."""
    is_early = forecasts.made <= np.median(forecasts.made)
    return [Asked(*(column[kept] for column in forecasts)) for kept in (is_early, ~is_early)]


def again(forecasts: Asked) -> tuple[float, float]:
    """State the intervals of the same continuations again: which part covers the start, and the mean score in hours."""
    record: list[PastForecast] = []
    low, high = np.empty((2, len(forecasts.made)))
    for row, (made_s, wait_s, drawn) in enumerate(
        zip(forecasts.made.tolist(), forecasts.wait.tolist(), forecasts.drawn, strict=True)
    ):
        now_ms, start_ms = round(made_s * MS_PER_S), round((made_s + wait_s) * MS_PER_S)
        starts_D = now_ms + np.rint(drawn[~np.isnan(drawn)] * MS_PER_S).astype(np.int64)
        said = stated(starts_D, now_ms, Calibration(record, now_ms))
        assert said is not None, "asked only about starts that come in every continuation"
        record.append(PastForecast(now_ms, said.expected_ms, said.first_ms, said.last_ms, start_ms, NONE))
        low[row], high[row] = (said.low_ms - now_ms) / MS_PER_S, (said.high_ms - now_ms) / MS_PER_S
    hit = (low <= forecasts.wait) & (forecasts.wait <= high)
    return float(hit.mean()), float(score(low, high, forecasts.wait).mean()) * MS_PER_S / MS_PER_H


def measured(cases: Sequence[Asked]) -> str:
    """The quality of the constants as they are set, in words."""
    parts = [halves(case) for case in cases]
    found = []
    for half in (0, 1):
        calibration.ERRORS_ELSEWHERE = elsewhere([part[1 - half] for part in parts])  # type: ignore[misc]
        found += [again(part[half]) for part in parts]
    covered, scores = np.array(found).T
    return f"covered {covered.mean():.1%}, worst half {covered.min():.1%}, score {np.exp(np.log(scores).mean()):.2f} h"


def within_spans(forecasts: Asked) -> Iterator[str]:
    """Part of the variance of errors that lies within spans, by their length."""
    found = error(forecasts)
    for hours in (1, 6, 12, 24):
        _, span, count = np.unique(forecasts.made // (hours * 3_600), return_inverse=True, return_counts=True)
        rest = found - (np.bincount(span, weights=found) / count)[span]
        yield f"{hours} h {rest.var() / found.var():.0%}"


def main() -> None:
    """Ask about the trace of the choice, and print how good each value is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    found = {policy: ask(options.data, f"{CHOSEN_ON}:{policy}", STARTS) for policy in ("fifo", "backfill")}
    cases = {policy: its.forecasts for policy, its in found.items() if its is not None}
    if not cases:
        return
    print(f"as shipped: {measured(list(cases.values()))}", flush=True)
    for name, values in VALUES.items():
        shipped = getattr(calibration, name)
        for value in values:
            setattr(calibration, name, value)
            print(f"{name} {value:.4g}{' (ships)' if value == shipped else ''}: {measured(list(cases.values()))}",
                  flush=True)
        setattr(calibration, name, shipped)
    for draws in FEWER:
        parts = [forecasts._replace(drawn=forecasts.drawn[:, :draws]) for forecasts in cases.values()]
        print(f"the first {draws} continuations: {measured(parts)}", flush=True)
    for policy, forecasts in cases.items():
        print(f"{policy}: variance of errors within spans of {', '.join(within_spans(forecasts))}")


if __name__ == "__main__":
    main()
