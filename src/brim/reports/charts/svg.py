"""Shared parts of charts: escaping, time scales and their ticks, frames, legends.

Charts are drawn 480 units wide and scaled by the page; text that must be readable on a telephone is in HTML, not in
the SVG. Colours are CSS classes (``p0`` ... ``p7``, one per policy), so the page's style sets light and dark ones.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray

WIDTH: Final = 480
LEFT: Final = 44
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 26
PLOT_WIDTH: Final = WIDTH - LEFT - RIGHT
COLOURS: Final = 8
"""Policies with a colour of their own; later ones reuse the colours, with dots."""
RECORD: Final = -1
"""Place of the record among the policies."""

_LOG_TICKS: Final = (
    (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3_600, "1 h"), (36_000, "10 h"), (86_400, "1 d"),
    (864_000, "10 d"), (8_640_000, "100 d"), (86_400_000, "1000 d"),
)
_LABEL_GAP: Final = 42
"""Least distance of two axis labels, in units."""
_TIME_STEPS_H: Final = (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 14, 24 * 28, 24 * 56, 24 * 140, 24 * 365)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its place in [0, 1], and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Key:
    """One policy in a legend: its place among the policies, name and a figure."""

    index: int
    name: str
    figure: str = ""


@dataclass(frozen=True, slots=True)
class LogTime:
    """A logarithmic axis of durations from a familiar one, which also represents all shorter ones, to the longest."""

    start_s: float
    end_s: float

    @classmethod
    def around(cls, low_s: float, high_s: float) -> LogTime:
        """Return an axis that starts at the last familiar duration below ``low_s``."""
        start = max((seconds for seconds, _ in _LOG_TICKS if seconds <= low_s), default=_LOG_TICKS[0][0])
        return cls(float(start), max(high_s, 10.0 * start))

    def at(self, seconds: FloatArray) -> FloatArray:
        """Return the places of durations in [0, 1]."""
        decades = np.log10(self.end_s / self.start_s)
        placed: FloatArray = np.log10(np.maximum(seconds, self.start_s) / self.start_s) / decades
        return np.minimum(placed, 1.0)

    def ticks(self) -> list[Tick]:
        """Return marks at familiar durations, never closer than their labels allow."""
        kept: list[Tick] = []
        for seconds, label in _LOG_TICKS:
            at = float(self.at(np.array([float(seconds)]))[0])
            if seconds == self.start_s:
                kept.append(Tick(at, f"\u2264{label}"))
            elif self.start_s < seconds <= self.end_s and (at - kept[-1].at) * PLOT_WIDTH >= _LABEL_GAP:
                kept.append(Tick(at, label))
        return kept


def calendar_ticks(end_ms: int, origin_ms: int | None) -> list[Tick]:
    """Return marks on a linear time axis from 0: dates (UTC) if the trace has them, else hours or days."""
    hours = max(end_ms, 1) / 3_600_000
    step = next((step for step in _TIME_STEPS_H if hours / step <= 6), _TIME_STEPS_H[-1])
    first = 0.0 if origin_ms is None else -(origin_ms / 3_600_000) % min(step, 24)  # full hours, or midnights
    marks = [first + count * step for count in range(int((hours - first) // step) + 1)]
    return [Tick(at_h / hours, _calendar_label(at_h, step, origin_ms)) for at_h in marks]


def escape(text: object) -> str:
    """Escape text for HTML content or a quoted attribute."""
    return html.escape(str(text), quote=True)


def style(index: int) -> str:
    """Return the CSS classes of a policy's lines: a colour, and dashes where eight colours are hard to tell apart."""
    if index == RECORD:
        return "pr"
    dash = "" if index % COLOURS < COLOURS // 2 else " dash"
    return f"p{index % COLOURS}" + (" dots" if index >= COLOURS else dash)


def frame(height: float, *, label: str, body: Iterable[str]) -> str:
    """Return an SVG image of a given height with its description for screen readers."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">' + "".join(body) + "</svg>"
    )


def x_axis(ticks: Sequence[Tick], height: float) -> str:
    """Draw vertical grid lines with labels below."""
    foot = height - BOTTOM
    parts = []
    for tick in ticks:
        x = LEFT + tick.at * PLOT_WIDTH
        anchor = "end" if tick.at > 0.97 else "middle"
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{foot:g}"/>')
        parts.append(f'<text x="{x:.1f}" y="{foot + 17:g}" text-anchor="{anchor}">{escape(tick.label)}</text>')
    return "".join(parts)


def y_axis(ticks: Sequence[Tick], height: float) -> str:
    """Draw horizontal grid lines with labels at the left."""
    parts = []
    for tick in ticks:
        y = TOP + (1 - tick.at) * (height - TOP - BOTTOM)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(tick.label)}</text>')
    return "".join(parts)


def count_ticks(largest: float) -> list[Tick]:
    """Return three or four marks of a linear axis of counts that ends at ``largest``."""
    if largest <= 0:
        return [Tick(0.0, "0")]
    rough = largest / 4
    power = 10 ** np.floor(np.log10(rough))
    step = float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough))
    return [Tick(value / largest, f"{value:,.4g}" if value < 10_000 else f"{value / 1000:,.4g}k")
            for value in np.arange(0, largest * 1.001, step)]


def polyline(at_x: FloatArray, at_y: FloatArray, height: float) -> str:
    """Return path data of points in [0, 1] x [0, 1]."""
    x = LEFT + at_x * PLOT_WIDTH
    y = TOP + (1 - at_y) * (height - TOP - BOTTOM)
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in zip(x, y, strict=True))


def legend(keys: Iterable[Key]) -> str:
    """Return the legend as HTML: policies with their line and a figure."""
    items = []
    for key in keys:
        figure = f" <b>{escape(key.figure)}</b>" if key.figure else ""
        line = (
            f'<svg class="swatch" viewBox="0 0 22 8" aria-hidden="true"><path class="line {style(key.index)}" '
            'd="M0 4H22"/></svg>'
        )
        items.append(f'<li data-s="{key.index}">{line}{escape(key.name)}{figure}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _calendar_label(at_h: float, step_h: float, origin_ms: int | None) -> str:
    if origin_ms is not None:
        moment = datetime.fromtimestamp(round(origin_ms / 1000 + at_h * 3600), UTC)
        return f"{moment:%H:%M}" if step_h < 24 else f"{moment.day} {moment:%b}"
    return f"{at_h:g} h" if step_h < 24 else f"day {at_h / 24:g}"
