"""The least time and GPU time that a job of a measured application can take: bounds for every policy.

A job's configuration is its placement and its batch; both may change at any time, and the application's gradient
statistics by the epoch. With r(c, e) the progress per second in configuration c and epoch e, and p(e) its progress:

    run time  >=  sum over e of p(e) / max over c of r(c, e)
    GPU time  >=  sum over e of p(e) * min over c of GPUs(c) / r(c, e)

because every part of epoch e, whenever and however it is done, takes at least that per unit of progress. Both are exact
over the batches: only the division of a batch by ``Application.split`` matters, and all divisions are tried.
Over placements they are safe: all measured ones, and every number of nodes that could hold the GPUs by interpolation,
whether or not the cluster's nodes can form a placement that was not measured. What cannot be interpolated is
extrapolated, as the truth does (``Application.times_s``); what cannot be extrapolated cannot run and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.batching import split
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.errors import ConfigError
from brim.sim.truths.profiles import NODES_MAX, Application

_MARGIN: Final = 1 - 1e-6
"""For rounding, and for points taken to be on a face of a simplex that they only touch."""


class Ranges(NamedTuple):
    """The GPUs and batches that a job may be given; all bounds are included."""

    gpus_min: int
    gpus_max: int
    batch_min: int
    batch_max: int


class PlacementLimits(NamedTuple):
    """Limits of a cluster's placements: nodes, and GPUs of the widest node."""

    nodes: int
    width: int


@lru_cache(maxsize=256)
def least(app: Application, ranges: Ranges, limits: PlacementLimits) -> tuple[float, float]:
    """Least seconds and least GPU seconds of a job from its start to its end.

    Both are 0, which bounds nothing, if no configuration in range was measured.
    """
    batches, step_s, step_gpu_s = _steps(app, ranges, limits)
    known = np.isfinite(step_s)
    if not known.any():
        return 0.0, 0.0
    batches, step_s, step_gpu_s = batches[known], step_s[known], step_gpu_s[known]
    gain = _gains(app, batches)
    work = np.diff(app.progress_E, prepend=0.0)
    run_s = float((work * (step_s[:, None] / gain).min(axis=0)).sum())
    gpu_s = float((work * (step_gpu_s[:, None] / gain).min(axis=0)).sum())
    return run_s * _MARGIN, gpu_s * _MARGIN


def _steps(app: Application, ranges: Ranges, limits: PlacementLimits) -> tuple[IntArray, FloatArray, FloatArray]:
    """Global batches that occur (B,), and the least seconds and GPU seconds of one step of each (B,)."""
    totals, seconds, gpu_seconds = [], [], []
    for gpus in range(ranges.gpus_min, min(ranges.gpus_max, ranges.batch_max) + 1):
        local, extra = divisions(app, gpus, ranges.batch_min, ranges.batch_max)
        step_s = np.full(len(local), np.inf)
        measured, at = np.unique(np.maximum(local, app.local_batch_min), return_inverse=True)
        for step, sync in _times(app, gpus, measured, limits):
            step_s = np.fmin(step_s, step[at] + extra * (step - sync)[at])  # NaN (not measured) never wins
        totals.append(gpus * local * (extra + 1))
        seconds.append(step_s)
        gpu_seconds.append(gpus * step_s)
    total, step_s, step_gpu_s = (np.concatenate(parts) for parts in (totals, seconds, gpu_seconds))
    batches, row = np.unique(total, return_inverse=True)
    least_s, least_gpu_s = np.full(len(batches), np.inf), np.full(len(batches), np.inf)
    np.minimum.at(least_s, row, step_s)
    np.minimum.at(least_gpu_s, row, step_gpu_s)
    return batches, least_s, least_gpu_s


def divisions(app: Application, gpus: int, batch_min: int, batch_max: int) -> tuple[IntArray, IntArray]:
    """Every local batch and number of extra steps that ``Application.split`` makes of a batch in the range, each (D,).

    Batches that it cannot split are left out.
    """
    share = np.arange(-(-batch_min // gpus), -(-batch_max // gpus) + 1)
    local, extra = split(
        gpus, np.clip(share * gpus, batch_min, batch_max), app.batch_min, app.batch_max, app.local_batch_max
    )
    width = int(extra.max(initial=0)) + 1
    pairs = np.unique((local * width + extra)[local > 0])
    return pairs // width, pairs % width


def _times(
    app: Application, gpus: int, local: IntArray, limits: PlacementLimits
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Step and sync seconds of these local batches on every placement there may be, each (B,); NaN if not measured."""
    times = app.step_times
    measured = local.astype(np.float64)
    for placement in times.placements.get(gpus, ()):
        if len(placement) <= limits.nodes and max(placement) <= limits.width:
            curve = times.curves[placement]
            known = sorted(curve)
            within: BoolArray = measured <= known[-1]
            step, sync = (np.interp(measured, known, [curve[at][part] for at in known]) for part in (0, 1))
            yield _filled(app, len(placement), gpus, measured, np.where(within, step, np.nan), sync)
    fewest, most = -(-gpus // limits.width), min(gpus, limits.nodes)
    nodes = [
        nodes for nodes in range(fewest, min(most, max(fewest, NODES_MAX + 1)) + 1)  # more count as NODES_MAX
        if _only_placement(nodes, gpus, limits.width) not in times.curves
    ]
    if not nodes:
        return
    try:
        steps, syncs = times.between(np.array(nodes), gpus, measured)
    except ConfigError:  # there is nothing to interpolate between
        steps = syncs = np.full((len(nodes), len(measured)), np.nan)
    for on, step, sync in zip(nodes, steps, syncs, strict=True):
        yield _filled(app, on, gpus, measured, step, sync)


def _filled(
    app: Application, nodes: int, gpus: int, local: FloatArray, step: FloatArray, sync: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Step and sync seconds with the NaN of what was not measured replaced by the fitted model's."""
    beyond = np.isnan(step)
    if beyond.any():
        step_s, sync_s = app.step_times.extrapolated_s(nodes, gpus, local)
        step, sync = np.where(beyond, step_s, step), np.where(beyond, sync_s, sync)
    return step, sync


def _only_placement(nodes: int, gpus: int, width: int) -> tuple[int, ...] | None:
    """The placement of that many GPUs on that many nodes, rotated, where there is only one."""
    if gpus - nodes <= 1:
        return (1,) * (2 * nodes - gpus) + (2,) * (gpus - nodes)
    if nodes * width - gpus <= 1:
        return (width - 1,) * (nodes * width - gpus) + (width,) * (gpus - nodes * (width - 1))
    return None


def _gains(app: Application, batches: IntArray) -> FloatArray:
    """``Application.gain`` of each batch in each epoch, (B, E)."""
    known = app.validation.batch_B
    above = np.clip(np.searchsorted(known, batches), 1, max(len(known) - 1, 1))
    if len(known) == 1:
        var, sqr = (np.repeat(table, len(batches), axis=0)
                    for table in (app.validation.grad_var_BE, app.validation.grad_sqr_BE))
    else:
        share = ((batches - known[above - 1]) / (known[above] - known[above - 1]))[:, None]
        var, sqr = (table[above - 1] + share * (table[above] - table[above - 1])
                    for table in (app.validation.grad_var_BE, app.validation.grad_sqr_BE))
    scale = (batches / app.batch_min)[:, None]
    gains: FloatArray = (var + sqr) / (var / scale + sqr)
    return gains
