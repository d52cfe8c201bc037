"""Line charts: CDF of durations, queue length and allocated GPUs over time, mean JCT by load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.replay import Replay
from brim.reports.charts.svg import (
    BOTTOM,
    LEFT,
    PLOT_WIDTH,
    RECORD,
    RIGHT,
    TOP,
    WIDTH,
    Key,
    LogTime,
    Tick,
    calendar_ticks,
    count_ticks,
    escape,
    frame,
    legend,
    polyline,
    style,
    x_axis,
    y_axis,
)
from brim.reports.metrics import run_end_ms
from brim.reports.record import NAME as RECORDED
from brim.units import WHOLE_GPU, show_duration

_HEIGHT: Final = 250
_POINTS: Final = 240
"""Points per line; the plot is 424 units wide."""
_LABEL_GAP: Final = 36
"""Least distance of two labels of loads, in units."""
_SPOKEN: Final = 20
"""Curves of more points are formulas: their loads are not marked, their values not listed."""
_STRIP: Final = 52
_FULL: Final = 30


def cdf(series: Sequence[tuple[str, FloatArray]], *, what: str, recorded: FloatArray | None = None) -> str:
    """Draw the share of jobs up to each duration, one line per policy, log axis, with the medians in the legend.

    Args:
        series: Policy name and seconds of its finished jobs.
        what: What the durations are, for the description.
        recorded: Seconds of the recorded jobs, for a line of their own.
    """
    series = [*series, *([] if recorded is None else [(RECORDED, recorded)])]
    pooled = np.concatenate([values for _, values in series]) if series else np.zeros(0)
    low_s, high_s = (float(np.quantile(pooled, 0.01)), float(pooled.max())) if len(pooled) else (1.0, 10.0)
    scale = LogTime.around(low_s, high_s)
    body = [x_axis(scale.ticks(), _HEIGHT), y_axis([Tick(q / 100, f"{q} %") for q in (0, 25, 50, 75, 100)], _HEIGHT)]
    keys = []
    for at, (name, values) in enumerate(series):
        index = RECORD if recorded is not None and at == len(series) - 1 else at
        if not len(values):
            keys.append((np.inf, Key(index, name, "-")))
            continue
        median = float(np.median(values))
        keys.append((median, Key(index, name, show_duration(median))))
        picked = np.unique(np.linspace(0, len(values) - 1, _POINTS).round().astype(np.int64))
        share = (picked + 1) / len(values)
        path = polyline(scale.at(np.sort(values)[picked]), share, _HEIGHT)
        body.append(_line(index, path, f"{name}: half of the jobs within {show_duration(median)}"))
    keys.sort(key=lambda pair: pair[0])
    text = f"Share of jobs by {what}, one line per policy, logarithmic time. Medians: " + ", ".join(
        f"{key.name} {key.figure}" for _, key in keys
    )
    return legend(key for _, key in keys) + frame(_HEIGHT, label=text, body=body)


def queue_length(replays: Sequence[Replay]) -> str:
    """Draw the waiting jobs over time, as means over equal stretches, with the time mean in the legend."""
    end_ms = max(replay.end_ms for replay in replays)
    edges = np.linspace(0, max(end_ms, 1), _POINTS + 1)
    levels = [binned_mean(*_queue_steps(replay), np.minimum(edges, replay.end_ms)) for replay in replays]
    largest = max([float(np.nanmax(level, initial=0)) for level in levels] + [1.0])
    body = [x_axis(calendar_ticks(end_ms, replays[0].trace.origin_ms), _HEIGHT), y_axis(count_ticks(largest), _HEIGHT)]
    middle = (edges[1:] + edges[:-1]) / 2 / edges[-1]
    keys = []
    for index, (replay, level) in enumerate(zip(replays, levels, strict=True)):
        here = ~np.isnan(level)
        mean = float(binned_mean(*_queue_steps(replay), np.array([0.0, max(replay.end_ms, 1)]))[0])
        keys.append(Key(index, replay.policy, _count(mean)))
        path = polyline(middle[here], np.maximum(level[here], 0) / largest, _HEIGHT)
        body.append(_line(index, path, f"{replay.policy}: {_count(mean)} waiting on average"))
    said = ", ".join(f"{key.name} {key.figure}" for key in keys)
    text = f"Waiting jobs over time, one line per policy. Averages over time: {said}"
    return legend(keys) + frame(_HEIGHT, label=text, body=body)


def allocated_gpus(replays: Sequence[Replay]) -> str:
    """Draw the share of the GPUs held over time, one strip per policy; the full height is the whole cluster."""
    end_ms = max(replay.end_ms for replay in replays)
    edges = np.linspace(0, max(end_ms, 1), _POINTS + 1)
    height = TOP + len(replays) * _STRIP + BOTTOM
    body = [x_axis(calendar_ticks(end_ms, replays[0].trace.origin_ms), height)]
    said = []
    for index, replay in enumerate(replays):
        level = binned_mean(*_held_steps(replay), np.minimum(edges, replay.end_ms)) / replay.cluster.num_gpus
        whole = float(binned_mean(*_held_steps(replay), np.array([0.0, max(replay.end_ms, 1)]))[0])
        mean = whole / replay.cluster.num_gpus
        said.append(f"{replay.policy} {mean:.0%}")
        foot = TOP + (index + 1) * _STRIP
        body.append(_strip(index, np.clip(np.nan_to_num(level), 0, 1), foot))
        body.append(
            f'<text class="onchart" x="{LEFT}" y="{foot - _FULL - 5}">{escape(replay.policy)} '
            f'<tspan class="strong">{mean:.0%}</tspan></text>'
        )
    text = "Share of GPUs held over time, one strip per policy. Means: " + ", ".join(said)
    return frame(height, label=text, body=body)


def jct_by_load(points: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """Draw the mean JCT against load, one line per policy, log time.

    Args:
        points: Policy name, and (load, seconds) in order of load.
    """
    curves = [Curve(name, index, tuple(line)) for index, (name, line) in enumerate(points)]
    return by_load(curves, scale="time", label="Mean JCT by load, one line per policy")


@dataclass(frozen=True, slots=True)
class Curve:
    """A line over loads.

    Attributes:
        name: Name in the legend.
        index: Number of its colour; a policy has the same colour in all charts of a page.
        points: (load, value) in order of load.
    """

    name: str
    index: int
    points: tuple[tuple[float, float], ...]


Scale = Literal["time", "count", "fraction", "ratio"]
"""Seconds (logarithmic); numbers from 0; shares of 1 from 0, in percent; multiples (logarithmic, with 1)."""


def by_load(curves: Sequence[Curve], *, scale: Scale, label: str) -> str:
    """Draw values against load, one line per curve.

    Args:
        curves: At least one; none is empty.
        scale: Scale of the values.
        label: Description.
    """
    loads = sorted({load for curve in curves if len(curve.points) <= _SPOKEN for load, _ in curve.points})
    values = np.array([value for curve in curves for _, value in curve.points])
    low, span = loads[0], max(loads[-1] - loads[0], 1e-9)
    place, ticks = _scaled(values, scale)
    at_loads = _apart([Tick((load - low) / span, f"{load:g}x") for load in loads])
    body = [x_axis(at_loads, _HEIGHT), y_axis(ticks, _HEIGHT)]
    for curve in curves:
        at_x, value = np.array(curve.points).T
        shown = curve.points if len(curve.points) <= _SPOKEN else ()
        title = ", ".join([curve.name, *(f"{_shown(v, scale)} at {load:g}x" for load, v in shown)])
        path = polyline((at_x - low) / span, place(value), _HEIGHT)
        body.append(_line(curve.index, path if len(value) > 1 else f"{path}h1", title))
    return legend(Key(curve.index, curve.name) for curve in curves) + frame(_HEIGHT, label=label, body=body)


_MULTIPLES: Final = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


def _scaled(values: FloatArray, scale: Scale) -> tuple[Callable[[FloatArray], FloatArray], list[Tick]]:
    """Return the places of values in [0, 1], and the marks of their axis."""
    if scale == "time":
        time = LogTime.around(float(values.min()), float(values.max()))
        return time.at, [Tick(tick.at, tick.label.lstrip("\u2264")) for tick in time.ticks()]
    if scale == "ratio":
        bottom, top = np.log(min(float(values.min()), 0.9)), np.log(max(float(values.max()), 2.2))
        marks = [(float((np.log(m) - bottom) / (top - bottom)), m) for m in _MULTIPLES]
        return (
            lambda value: np.asarray((np.log(value) - bottom) / (top - bottom)),
            [Tick(at, f"{multiple:g}x") for at, multiple in marks if 0 <= at <= 1],
        )
    largest = max(float(values.max()), 0.1 if scale == "fraction" else 1.0)
    ticks = count_ticks(100 * largest) if scale == "fraction" else count_ticks(largest)
    sign = " %" if scale == "fraction" else ""
    return lambda value: value / largest, [Tick(tick.at, tick.label + sign) for tick in ticks]


def _shown(value: float, scale: Scale) -> str:
    if scale == "time":
        return show_duration(value)
    return f"{value:.0%}" if scale == "fraction" else f"{value:.2f}x" if scale == "ratio" else _count(value)


def _apart(ticks: Sequence[Tick]) -> list[Tick]:
    """Drop labels that would overlap; keep rounder numbers, and among equally long ones the first."""
    kept: list[Tick] = []
    for tick in sorted(ticks, key=lambda tick: len(tick.label)):
        if all(abs(tick.at - other.at) * PLOT_WIDTH >= _LABEL_GAP for other in kept):
            kept.append(tick)
    return sorted(kept, key=lambda tick: tick.at)


def binned_mean(times: FloatArray, steps: FloatArray, edges: FloatArray) -> FloatArray:
    """Return time means between consecutive edges of what changes by ``steps`` at ``times``; NaN in empty bins."""
    order = np.argsort(times, kind="stable")
    moment = np.concatenate(([0.0], times[order]))
    level = np.concatenate(([0.0], np.cumsum(steps[order])))
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(moment))))
    last = np.searchsorted(moment, edges, side="right") - 1
    until = area[last] + level[last] * (edges - moment[last])
    width = np.diff(edges)
    mean: FloatArray = np.where(width > 0, np.diff(until) / np.where(width > 0, width, 1), np.nan)
    return mean


def _count(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.1f}"


def _queue_steps(replay: Replay) -> tuple[FloatArray, FloatArray]:
    """A job waits from its submission to its end, except while it runs."""
    runs, ends = replay.runs, run_end_ms(replay)
    last_run_ms = np.zeros(len(replay.trace), dtype=np.int64)
    np.maximum.at(last_run_ms, runs.job, ends)
    left_ms = np.where(replay.finish_ms >= 0, replay.finish_ms, np.where(replay.failed > 0, last_run_ms, -1))
    left_ms = np.maximum(left_ms, replay.rejected_ms)
    left_ms = left_ms[left_ms >= 0]
    return _steps(
        (replay.trace.submit_ms, 1.0), (left_ms, -1.0), (runs.start_ms, -1.0), (ends, 1.0),
    )


def _held_steps(replay: Replay) -> tuple[FloatArray, FloatArray]:
    runs = replay.runs
    gpus = np.diff(runs.first_gpu) * runs.share_milli / WHOLE_GPU
    times = np.concatenate((runs.start_ms, run_end_ms(replay))).astype(np.float64)
    return times, np.concatenate((gpus, -gpus))


def _steps(*parts: tuple[IntArray, float]) -> tuple[FloatArray, FloatArray]:
    times = np.concatenate([times for times, _ in parts]).astype(np.float64)
    return times, np.concatenate([np.full(len(times), step) for times, step in parts])


def _line(index: int, path: str, title: str) -> str:
    return f'<path class="line {style(index)}" data-s="{index}" d="{path}"><title>{escape(title)}</title></path>'


def _strip(index: int, level: FloatArray, foot: float) -> str:
    """Draw one policy as a filled area: bins as steps, the whole cluster as a thin frame."""
    x = LEFT + np.arange(len(level) + 1) / len(level) * PLOT_WIDTH
    y = foot - level * _FULL
    steps = "".join(f"V{py:.1f}H{px:.1f}" for py, px in zip(y, x[1:], strict=True))
    return (
        f'<path class="area p{index % 8}" d="M{LEFT} {foot:g}{steps}V{foot:g}Z"/>'
        f'<path class="grid" d="M{LEFT} {foot - _FULL:g}H{WIDTH - RIGHT}M{LEFT} {foot:g}H{WIDTH - RIGHT}"/>'
    )
