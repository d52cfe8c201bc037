"""Effects of switches that were turned on and off in every combination, on the scale of ratios.

With a figure y of each combination, the main effect of switch A is the mean of log y with A minus that without A. The
interaction of A and B is half of: the effect of A while B is on, minus the effect of A while B is off. Both are shown
as exp(effect) - 1, in percent. An interaction above 0 between two switches that both lower y means that together they
lower it less than each by itself would suggest.

Source: Box, Hunter and Hunter, Statistics for Experimenters, chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

from brim.reports.charts.svg import escape

Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of one switch, or the interaction of two, on one figure: a ratio minus 1."""

    switches: Names
    change: float


def effects(figures: Mapping[Names, float | None]) -> tuple[Effect, ...] | None:
    """Return main effects, then interactions of two switches; None where a figure is missing or not above 0.

    Args:
        figures: The figure of each combination, by the switches that are on.
    """
    values = {frozenset(names): value for names, value in figures.items()}
    if any(value is None or value <= 0 for value in values.values()):
        return None
    logs = {names: math.log(value) for names, value in values.items() if value}
    switches = list(dict.fromkeys(name for names in figures for name in names))
    found = [
        Effect(switches=of, change=math.expm1(_contrast(logs, of)))
        for count in (1, 2) for of in combinations(switches, count)
    ]
    return tuple(found)


def _contrast(logs: Mapping[frozenset[str], float], of: Names) -> float:
    """Mean of the logarithms with a sign for each of these switches: twice the mean over all combinations."""
    total = math.fsum(
        value * math.prod(1 if name in names else -1 for name in of) for names, value in logs.items()
    )
    return 2 * total / len(logs)


def table(figures: Mapping[str, Mapping[Names, float | None]]) -> list[list[str]]:
    """Return headings, then a row for each effect, with a column for each figure.

    Args:
        figures: By the name of the figure, its value for each combination.
    """
    columns = {name: effects(values) for name, values in figures.items()}
    names = next(iter(figures.values()))
    switches = list(dict.fromkeys(name for combination in names for name in combination))
    rows = [["effect of", *columns]]
    for number, of in enumerate(of for count in (1, 2) for of in combinations(switches, count)):
        shown = ["-" if found is None else percent(found[number].change) for found in columns.values()]
        rows.append([" x ".join(of), *shown])
    return rows


def percent(change: float) -> str:
    """Show a ratio minus 1."""
    return f"{change:+.1%}"


def as_json(figures: Mapping[str, Mapping[Names, float | None]]) -> dict[str, Any]:
    """Return all figures and effects as plain data."""
    names = next(iter(figures.values()))
    return {
        "combinations": [
            {"on": list(on), **{name: values[on] for name, values in figures.items()}} for on in names
        ],
        "effects": [
            {"figure": name, "switches": list(one.switches), "change": one.change}
            for name, values in figures.items() for one in effects(values) or ()
        ],
    }


_ROW, _LABEL, _WIDTH, _HALF = 22, 130, 480, 145


def chart(title: str, found: Sequence[Effect]) -> str:
    """Draw effects as bars to the left (less) and right (more) of a line."""
    widest = max((abs(one.change) for one in found), default=0.0) or 1.0
    middle, height = _LABEL + _HALF, _ROW * len(found) + 8
    parts = [f'<path class="grid" d="M{middle} 0V{height}"/>']
    for row, one in enumerate(found):
        y, length = row * _ROW + _ROW / 2 + 4, _HALF * abs(one.change) / widest * 0.8
        x = middle - length if one.change < 0 else middle
        label = " x ".join(one.switches)
        at, anchor = (x - 4, "end") if one.change < 0 else (middle + length + 4, "start")
        parts.append(
            f'<g><title>{escape(f"{label}: {percent(one.change)}")}</title>'
            f'<text class="onchart" x="0" y="{y + 4:g}">{escape(label)}</text>'
            f'<path class="bar p{0 if len(one.switches) == 1 else 1}" d="M{x:.1f} {y:g}H{x + max(length, 0.5):.1f}"/>'
            f'<text class="onchart" x="{at:.1f}" y="{y + 4:g}" text-anchor="{anchor}">{percent(one.change)}</text></g>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
