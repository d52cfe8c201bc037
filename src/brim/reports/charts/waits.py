"""Chart of queueing delay by job size: which jobs wait under a policy's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray
from brim.core.replay import Replay
from brim.reports.charts.svg import BOTTOM, LEFT, PLOT_WIDTH, TOP, Key, LogTime, escape, frame, legend, style, x_axis
from brim.reports.metrics import SIZE_CLASSES, finished, percentile, queue_ms, size_class
from brim.units import MS_PER_S, counted, show_duration

_ROW: Final = 10
_HEAD: Final = 22
_FOOT_GAP: Final = 6


def waits_by_size(replays: Sequence[Replay]) -> str:
    """Draw median (dot) and 90th percentile (end of the bar) of queueing delay per size class and policy, log axis."""
    classes = size_class(replays[0].trace)
    kinds = [kind for kind in range(len(SIZE_CLASSES)) if (classes == kind).any()]
    delays = {(kind, index): _delays_s(replay, kind) for kind in kinds for index, replay in enumerate(replays)}
    marks = {key: (percentile(values, 50), percentile(values, 90)) for key, values in delays.items()}
    scale = LogTime.around(
        min((p50 for p50, _ in marks.values() if p50 is not None), default=1.0),
        max((p90 for _, p90 in marks.values() if p90 is not None), default=10.0),
    )
    height = TOP + len(kinds) * (_HEAD + len(replays) * _ROW + _FOOT_GAP) + BOTTOM
    body = [x_axis(scale.ticks(), height)]
    y = TOP
    for kind in kinds:
        count = int((classes == kind).sum())
        asked = f"{SIZE_CLASSES[kind]} GPU{'' if kind == 0 else 's'}"
        body.append(
            f'<text class="onchart" x="{LEFT}" y="{y + 15}"><tspan class="strong">{asked}</tspan> '
            f'{counted(count, "job")}</text>'
        )
        y += _HEAD
        for index, replay in enumerate(replays):
            p50, p90 = marks[kind, index]
            if p50 is not None and p90 is not None:
                title = (
                    f"{replay.policy}, {asked}: half wait up to {show_duration(p50)}, "
                    f"nine in ten up to {show_duration(p90)}"
                )
                body.append(_mark(index, scale.at(np.array([p50, p90])), y + _ROW / 2, title))
            y += _ROW
        y += _FOOT_GAP
    text = "Queueing delay by job size and policy, median and 90th percentile, logarithmic time"
    return legend(Key(i, replay.policy) for i, replay in enumerate(replays)) + frame(height, label=text, body=body)


def _delays_s(replay: Replay, kind: int) -> FloatArray:
    picked = finished(replay) & (size_class(replay.trace) == kind)
    delays: FloatArray = queue_ms(replay)[picked] / MS_PER_S
    return delays


def _mark(index: int, at_x: FloatArray, y: float, title: str) -> str:
    x50, x90 = (LEFT + at_x * PLOT_WIDTH).tolist()
    return (
        f'<g data-s="{index}"><title>{escape(title)}</title>'
        f'<path class="bar {style(index)}" d="M{x50:.1f} {y:g}H{max(x90, x50 + 0.5):.1f}"/>'
        f'<path class="line {style(index).split()[0]}" d="M{x90:.1f} {y - 3.5:g}V{y + 3.5:g}"/>'
        f'<circle class="dot p{index % 8}" cx="{x50:.1f}" cy="{y:g}" r="3.5"/></g>'
    )
