"""Chart of mean completion time against energy and cost, one dot per policy, with those that no other beats in all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray
from brim.reports.charts.svg import (
    BOTTOM,
    LEFT,
    PLOT_WIDTH,
    TOP,
    Tick,
    escape,
    frame,
    polyline,
    x_axis,
    y_axis,
)
from brim.units import S_PER_H, show_duration

_HEIGHT: Final = 300
_RADIUS, _GROWTH = 3.5, 5.0
"""Radius of the cheapest dot, and by how much that of the dearest is larger, in units."""
_CHARACTER: Final = 6.5
_LINE: Final = 11
"""Width and height of a character of a label, in units."""
_ROOM: Final = 1.12
"""Factor between the outermost dots and the ends of an axis."""
_STEPS: Final = (1, 1.2, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
_LABEL_GAP: Final = {"x": 46, "y": 20}
"""Least distance of two labels of an axis, in units."""
_DURATIONS_S: Final = tuple(
    float(count * unit) for unit, counts in (
        (1, (1, 2, 5, 10, 20, 30)), (60, (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)),
        (S_PER_H, (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 36, 48, 72, 120, 240, 480, 1200, 2400)),
    ) for count in counts
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """What one policy costs.

    Attributes:
        number: What stands beside its dot.
        policy: Its name.
        jct_s: Mean completion time.
        kwh: Energy of all nodes.
        cost: What the jobs cost; None without prices, and then for every policy.
        is_oracle: Whether it knows the truth; it is shown, and beats no other.
    """

    number: int
    policy: str
    jct_s: float
    kwh: float
    cost: float | None = None
    is_oracle: bool = False

    @property
    def figures(self) -> tuple[float, ...]:
        """What should be small, to the three digits at which policies count as equal."""
        known = (self.jct_s, self.kwh) if self.cost is None else (self.jct_s, self.kwh, self.cost)
        return tuple(float(f"{value:.3g}") for value in known)


def beaten_by(one: Trade, others: Iterable[Trade]) -> str | None:
    """The first policy that is as good in every figure and better in one; None on the frontier."""
    for other in others:
        pairs = list(zip(other.figures, one.figures, strict=True))
        if not other.is_oracle and all(theirs <= ours for theirs, ours in pairs) and other.figures != one.figures:
            return other.policy
    return None


def trade_off(points: Sequence[Trade]) -> str:
    """Draw energy over mean completion time (log axis); a larger dot costs more, a filled one is on the frontier."""
    across, up = ([getattr(point, name) for point in points] for name in ("jct_s", "kwh"))
    at_x, x_ticks = _log_axis(across, _DURATIONS_S, PLOT_WIDTH, _LABEL_GAP["x"], show_duration)
    steps = [step * 10.0 ** power for power in range(-3, 9) for step in _STEPS]
    at_y, y_ticks = _log_axis(up, steps, _HEIGHT - TOP - BOTTOM, _LABEL_GAP["y"], lambda kwh: f"{kwh:,.4g}")
    body, taken = [x_axis(x_ticks, _HEIGHT), y_axis(y_ticks, _HEIGHT)], list[tuple[float, float, float]]()
    body += [
        f'<text class="onchart" x="{LEFT + 4}" y="{TOP + _LINE}">kWh</text>',
        f'<text class="onchart" x="{LEFT + PLOT_WIDTH}" y="{_HEIGHT - BOTTOM - 5}" text-anchor="end">mean JCT</text>',
    ]
    front, joined = _front(points), _front([replace(point, cost=None) for point in points])
    if len(joined) > 1:
        body.append(f'<path class="line p7 dash" d="{polyline(at_x[joined], at_y[joined], _HEIGHT)}"/>')
    centres = [(LEFT + x * PLOT_WIDTH, TOP + (1 - y) * (_HEIGHT - TOP - BOTTOM))
               for x, y in zip(at_x.tolist(), at_y.tolist(), strict=True)]
    radii = _radii(points)
    taken += [(x, y, radius) for (x, y), radius in zip(centres, radii, strict=True)]
    dots = []
    for row in sorted(range(len(points)), key=lambda row: (row in front, -radii[row])):
        point, (x, y), radius = points[row], centres[row], radii[row]
        cost = "" if point.cost is None else f", cost {point.cost:,.0f}"
        said = f"{point.number} {point.policy}: mean JCT {show_duration(point.jct_s)}, {point.kwh:,.0f} kWh{cost}"
        kind = "dot p0" if row in front else "ring p7"
        left, top = _label_at(x, y, radius, len(str(point.number)), taken)
        dots.append(
            f'<g data-policy="{escape(point.policy)}"><title>{escape(said)}</title>'
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
            f'<text class="onchart{" strong" if row in front else ""}" x="{left:.1f}" y="{top + _LINE:.1f}">'
            f"{point.number}</text></g>"
        )
    body += dots
    return frame(_HEIGHT, label="Mean completion time and energy of each policy; the table below has all figures",
                 body=body)


def _front(points: Sequence[Trade]) -> list[int]:
    """Places of the policies that no other beats, the shortest mean completion time first."""
    rows = (row for row, point in enumerate(points) if not point.is_oracle and beaten_by(point, points) is None)
    return sorted(rows, key=lambda row: points[row].jct_s)


def _log_axis(
    values: Sequence[float], steps: Sequence[float], length: float, gap: float, shown: Callable[[float], str]
) -> tuple[FloatArray, list[Tick]]:
    """Places of values on a logarithmic axis just wide enough for them, and its marks at familiar steps."""
    low = math.log(min(values) / _ROOM)
    span = math.log(max(values) * _ROOM) - low
    ticks: list[Tick] = []
    for step in steps:
        at = (math.log(step) - low) / span
        if 0 <= at <= 1 and (not ticks or (at - ticks[-1].at) * length >= gap):
            ticks.append(Tick(at, shown(step)))
    return (np.log(np.array(values)) - low) / span, ticks


def _radii(points: Sequence[Trade]) -> list[float]:
    costs = [point.cost or 0.0 for point in points]
    low, span = min(costs), max(costs) - min(costs)
    return [_RADIUS + (_GROWTH * (cost - low) / span if span else 0.0) for cost in costs]


def _label_at(
    x: float, y: float, radius: float, length: int, taken: list[tuple[float, float, float]]
) -> tuple[float, float]:
    """Left and top of a label beside a dot, where the dots and labels so far are farthest away; it is added to them."""
    wide, gap = _CHARACTER * length, radius + 2
    places = (
        (x + gap, y - _LINE / 2), (x - gap - wide, y - _LINE / 2),
        (x - wide / 2, y - gap - _LINE), (x - wide / 2, y + gap),
        (x + gap, y - gap - _LINE / 2), (x + gap, y + gap - _LINE / 2),
        (x - gap - wide, y - gap - _LINE / 2), (x - gap - wide, y + gap - _LINE / 2),
    )

    def room(place: tuple[float, float]) -> float:
        middle = place[0] + wide / 2, place[1] + _LINE / 2
        near = min((math.dist(middle, (px, py)) - r for px, py, r in taken if (px, py) != (x, y)), default=math.inf)
        return min(near, 2.0 * _LINE)

    left, top = max(places, key=room)
    taken.append((left + wide / 2, top + _LINE / 2, wide / 2))
    return left, top
