"""The best batch on a number of GPUs, and its cost in convergence.

A batch is split evenly over the GPUs and, if a GPU's share does not fit its memory, over accumulation steps. The best
batch maximises goodput: samples per second, discounted because a large batch makes less progress per sample. Batches
are samples, times seconds. Shapes: J jobs, G most GPUs considered; in (J, G + 1) the column is the number of GPUs.

Source:
    Qiao et al., Pollux, OSDI 2021, sections 3.1 and 4.1, and its simulator; with efficiency 1 also the throughput that
    Effective Elastic Scaling (arXiv 2006.13878) maximises within a range known to leave the accuracy unharmed.
    Differs: the search covers all whole batches; Pollux tries 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from brim.compiled import inline, njit
from brim.core.arrays import FloatArray, IntArray
from brim.errors import ConfigError

# --- convergence


class GradientStatistics(NamedTuple):
    """Statistics of the gradient at the initial batch, (J,): variance and squared norm. NaN: efficiency is 1."""

    grad_var: FloatArray
    grad_sqr: FloatArray


def gain(batch: FloatArray | IntArray, batch_min: FloatArray | IntArray, noise: GradientStatistics) -> FloatArray:
    """Steps at the initial batch that one step at ``batch`` is worth: (var + sqr) / (var / s + sqr), s their ratio.

    Between 1 and s for s >= 1. Where the noise is NaN: s.
    """
    scale = np.asarray(batch, dtype=np.float64) / batch_min
    var, sqr = np.asarray(noise.grad_var), np.asarray(noise.grad_sqr)
    known = np.isfinite(var) & np.isfinite(sqr) & (var + sqr > 0)
    below = np.where(known, var / scale + sqr, 1.0)
    gained: FloatArray = np.where(known, np.where(known, var + sqr, 1.0) / below, scale)
    return gained


# --- splitting


def split(
    gpus: IntArray | int, batch: IntArray | int, batch_min: IntArray | int, batch_max: IntArray | int,
    local_batch_max: IntArray | int,
) -> tuple[IntArray, IntArray]:
    """Split batches over GPUs: samples per GPU and micro-step, and extra micro-steps, in the broadcast shape.

    The split is as even as possible, rounded up, and never above ``batch_max`` in all. One GPU accumulates at least
    once above the initial batch, because the gradient noise cannot be estimated from a single micro-batch. Source:
    Pollux's simulator.
    """
    gpus, batch = np.asarray(gpus), np.asarray(batch)
    share = -(-batch // gpus)
    extra = -(-share // np.asarray(local_batch_max)) - 1
    extra = np.where((gpus == 1) & (batch > np.asarray(batch_min)), np.maximum(extra, 1), extra)
    local = np.minimum(-(-share // (extra + 1)), np.asarray(batch_max) // (gpus * (extra + 1)))
    return local, np.broadcast_to(extra, local.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ranges of the batches of J jobs, (J,): global, and per GPU and micro-step. ``batch_min`` is the initial batch.

    Raises:
        ConfigError: a range is empty; the message names the row.
    """

    batch_min: IntArray
    batch_max: IntArray
    local_batch_min: IntArray
    local_batch_max: IntArray

    def __post_init__(self) -> None:
        for least, most in (("batch_min", "batch_max"), ("local_batch_min", "local_batch_max")):
            low, high = np.asarray(getattr(self, least)), np.asarray(getattr(self, most))
            wrong = np.flatnonzero((low < 1) | (low > high))
            if len(wrong):
                row = wrong[0]
                raise ConfigError(
                    f"job row {row}: found {least}={low[row]} and {most}={high[row]}, expected 1 <= {least} <= {most}"
                )

    def __len__(self) -> int:
        return len(self.batch_min)


def fewest_nodes(gpus_max: int, gpus_per_node: int) -> IntArray:
    """Number of nodes that 0 to ``gpus_max`` GPUs fill when packed, (G + 1,): the usual ``nodes_G``."""
    return -(-np.arange(gpus_max + 1, dtype=np.int64) // gpus_per_node)


def gpus_min(limits: Limits, *, accumulation: bool, names: Sequence[str] | None = None) -> IntArray:
    """Fewest GPUs on which each job has a batch within its limits, (J,).

    Raises:
        ConfigError: there is no such number for a job; the message names it and its limits.
    """
    fewest = _fewest(
        limits.batch_min, limits.batch_max, limits.local_batch_min, limits.local_batch_max, accumulation
    )
    never = np.flatnonzero(fewest == 0)
    if len(never):
        row = int(never[0])
        found = ", ".join(f"{name}={getattr(limits, name)[row]}" for name in Limits.__slots__)
        job, how = names[row] if names is not None else f"row {row}", "with" if accumulation else "without"
        raise ConfigError(
            f"job {job}: found {found}, expected a batch that some number of GPUs can split {how} accumulation"
        )
    return fewest


# --- the best batch


def best_batches(
    parameters: FloatArray, nodes_G: IntArray, limits: Limits, noise: GradientStatistics | None = None, *,
    accumulation: bool = True,
) -> tuple[FloatArray, IntArray]:
    """Find the batch of greatest goodput on each number of GPUs.

    Args:
        parameters: Step-time parameters (J, P) of ``beliefs.throughput``.
        nodes_G: Nodes taken by 0 to G GPUs, (G + 1,); see ``fewest_nodes``.
        limits: Allowed batches.
        noise: Gradient statistics; None or NaN if every batch of the range is equally good per sample.
        accumulation: Whether a GPU may do several micro-steps per step.

    Returns:
        Goodput (J, G + 1) in samples of the initial batch per second (gain / time of a step * batch_min), -inf where
        no batch is feasible, and the batch to give to ``split`` (J, G + 1), 0 there. Column 0 is infeasible.
    """
    return _tables(parameters, nodes_G, limits, noise, limits.batch_min, limits.batch_max, accumulation)


def fixed_batches(
    parameters: FloatArray, nodes_G: IntArray, batch: IntArray, limits: Limits,
    noise: GradientStatistics | None = None, *, accumulation: bool = True,
) -> tuple[FloatArray, IntArray]:
    """Goodput of each job's own batch (J,) on each number of GPUs; arguments and result as of ``best_batches``."""
    return _tables(parameters, nodes_G, limits, noise, batch, batch, accumulation)


def _tables(
    parameters: FloatArray, nodes_G: IntArray, limits: Limits, noise: GradientStatistics | None,
    low: IntArray, high: IntArray, accumulation: bool,
) -> tuple[FloatArray, IntArray]:
    nothing = np.full(len(limits), np.nan)
    var, sqr = noise or (nothing, nothing)
    unknown = ~(np.isfinite(var) & np.isfinite(sqr) & (var + sqr > 0))
    return _search(
        np.ascontiguousarray(parameters, dtype=np.float64), np.ascontiguousarray(nodes_G),
        np.ascontiguousarray(np.stack([
            low, high, limits.batch_min, limits.batch_max, limits.local_batch_min, limits.local_batch_max,
        ], axis=1), dtype=np.int64),
        np.where(unknown, 1.0, var), np.where(unknown, 0.0, sqr), accumulation,
    )  # fmt: skip


class _Job(NamedTuple):
    """Data of the search for one job and one number of GPUs."""

    alpha: float
    beta: float
    sync: float
    gamma: float
    var: float
    sqr: float
    initial: float
    gpus: int


@inline
def _goodput(job: _Job, local: int, extra: int) -> float:
    computing = job.alpha + job.beta * local
    step = computing
    if job.sync > 0.0:
        longer, shorter = max(computing, job.sync), min(computing, job.sync)
        step = longer * (1.0 + (shorter / longer) ** job.gamma) ** (1.0 / job.gamma)
    scale = job.gpus * local * (extra + 1) / job.initial
    return (job.var + job.sqr) / (job.var / scale + job.sqr) / (step + extra * computing) * job.initial


@inline
def _range(
    low: int, high: int, init: int, cap: int, local_min: int, local_max: int, gpus: int, extra: int, accumulate: bool
) -> tuple[int, int]:
    """First and last local batch that ``split`` makes of batches low to high with this number of extra micro-steps."""
    first, last = -(-low // gpus), -(-high // gpus)
    if gpus == 1 and accumulate and extra == 0:
        last = min(last, init)
    elif gpus == 1 and accumulate and extra == 1:
        first = max(first, min(init, local_max) + 1)
    else:
        first = max(first, local_max * extra + 1)
    last = min(last, local_max * (extra + 1))
    if first > last:
        return 1, 0
    most = cap // (gpus * (extra + 1))
    smallest, largest = -(-first // (extra + 1)), -(-last // (extra + 1))
    return max(min(smallest, most), local_min), min(largest, most)


@inline
def _rises(job: _Job, local: int, extra: int) -> bool:
    """Whether goodput grows with the local batch there: the elasticity of the gain is above that of the time."""
    computing = job.alpha + job.beta * local
    step, own = computing, 1.0
    if job.sync > 0.0:
        longer, shorter = max(computing, job.sync), min(computing, job.sync)
        power = (shorter / longer) ** job.gamma
        step = longer * (1.0 + power) ** (1.0 / job.gamma)
        own = (1.0 if computing >= job.sync else power) / (1.0 + power)
    slope = job.beta * local * extra
    if computing > 0.0:
        slope += step * own * job.beta * local / computing
    noise = job.var * job.initial / (job.gpus * local * (extra + 1))
    return noise * (step + extra * computing) > slope * (noise + job.sqr)


@inline
def _best_local(job: _Job, first: int, last: int, extra: int) -> tuple[float, int]:
    """Maximise over local batches first to last; goodput is concave over convex in them, so it has one peak."""
    if _rises(job, last, extra):
        return _goodput(job, last, extra), last
    while last - first > 1:
        middle = (first + last) // 2
        if _rises(job, middle, extra):
            first = middle
        else:
            last = middle
    left, right = _goodput(job, first, extra), _goodput(job, last, extra)
    if left > right:
        return left, first
    return right, last


NEAR: Final = 2
"""Accumulation counts tried on either side of the best one at full memory."""


@njit
def _search(
    parameters: FloatArray, nodes_G: IntArray, limits: IntArray, grad_var: FloatArray, grad_sqr: FloatArray,
    accumulate: bool,
) -> tuple[FloatArray, IntArray]:
    goodput = np.full((len(limits), len(nodes_G)), -np.inf)
    batch = np.zeros((len(limits), len(nodes_G)), dtype=np.int64)
    for j in range(len(limits)):
        low, high, init, cap, local_min, local_max = limits[j]
        p = parameters[j]
        for gpus in range(1, len(nodes_G)):
            peers = np.log2(max(gpus - 1, 1))
            sync = 0.0
            if gpus > 1:
                sync = p[2] + p[3] * peers if nodes_G[gpus] <= 1 else p[4] + p[5] * peers
            job = _Job(p[0], p[1], sync, p[6], grad_var[j], grad_sqr[j], float(init), gpus)
            fewest, most = _extras(low, high, init, local_max, gpus, accumulate)
            # at full memory goodput has one peak over accumulation too: search around it
            left, right = fewest, most
            while right - left > NEAR:
                middle = (left + right) // 2
                if _goodput(job, local_max, middle) < _goodput(job, local_max, middle + 1):
                    left = middle + 1
                else:
                    right = middle
            for extra in range(max(fewest, left - NEAR), min(most, right + NEAR) + 1):
                first, last = _range(low, high, init, cap, local_min, local_max, gpus, extra, accumulate)
                if first <= last:
                    value, local = _best_local(job, first, last, extra)
                    if value > goodput[j, gpus]:
                        goodput[j, gpus] = value
                        batch[j, gpus] = min(max(local * gpus * (extra + 1), low), high)
    return goodput, batch


@inline
def _extras(low: int, high: int, init: int, local_max: int, gpus: int, accumulate: bool) -> tuple[int, int]:
    """Fewest and most extra micro-steps for batches low to high; the most is below the fewest if none is possible."""
    fewest = (low - 1) // gpus // local_max
    most = (high - 1) // gpus // local_max
    if not accumulate:
        return fewest, min(most, 0)
    if gpus == 1 and low > init:
        fewest = max(fewest, 1)
    if gpus == 1 and high > init:
        most = max(most, 1)
    return fewest, most


@njit
def _fewest(
    batch_min: IntArray, batch_max: IntArray, local_min: IntArray, local_max: IntArray, accumulate: bool
) -> IntArray:
    """Fewest GPUs with a feasible batch, 0 where there is none."""
    fewest_J = np.zeros(len(batch_min), dtype=np.int64)
    for j in range(len(batch_min)):
        low, high = batch_min[j], batch_max[j]
        for gpus in range(1, high // local_min[j] + 1):
            fewest, most = _extras(low, high, low, local_max[j], gpus, accumulate)
            for extra in range(fewest, most + 1):
                first, last = _range(low, high, low, high, local_min[j], local_max[j], gpus, extra, accumulate)
                if first <= last:
                    fewest_J[j] = gpus
                    break
            if fewest_J[j]:
                break
    return fewest_J
