"""Generate synthetic traces from published marginals (``shapes.py``), for use where no real trace is at hand.

Not modelled: bursts of one user, a user's preference for one size, recorded waits.
"""

from __future__ import annotations

import difflib
import math
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.trace import Status, Trace, trace_of
from brim.errors import ConfigError
from brim.traces.shapes import (
    LIMITS_H,
    LONG_SIGMA,
    NUM_GROUPS,
    NUM_USERS,
    OVERASK_MEDIAN,
    OVERASK_SIGMA,
    SHAPES,
    SHORT_SIGMA,
    STATUSES,
    ZIPF_EXPONENT,
    Shape,
)
from brim.traces.table import MAX_TIME_MS
from brim.units import MS_PER_DAY, MS_PER_H, MS_PER_S, WHOLE_GPU

ShapeName: TypeAlias = Literal["philly", "helios", "acme", "pai"]
MAX_JOBS: Final = 100_000_000
MAX_GANG: Final = 1 << 20


def synthesize(
    shape: ShapeName, jobs: int, seed: int, cluster: Cluster | None = None, load: float | None = None
) -> Trace:
    """Draw a trace.

    Run times, gangs, states, users and daily patterns follow the named cluster. The span follows from the
    published arrival rate; with a cluster and a load, the jobs' GPU time is ``load`` times the cluster's capacity over
    the span. Gangs larger than the cluster become the largest power of two that fits.

    Args:
        shape: Cluster whose marginals are used.
        jobs: Number of jobs.
        seed: Equal arguments give equal traces.
        cluster: Cluster to load.
        load: Offered load of that cluster, 1.0 for all of it.

    Raises:
        ConfigError: an argument is out of range, or cluster and load are not given together.
    """
    if shape not in SHAPES:
        near = difflib.get_close_matches(shape, SHAPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(get_args(ShapeName))}"
        raise ConfigError(f"unknown shape {shape!r}: {hint}")
    if not 1 <= jobs <= MAX_JOBS:
        raise ConfigError(f"--num-jobs: found {jobs}, expected 1 to {MAX_JOBS:,}")
    if seed < 0:
        raise ConfigError(f"--seed: found {seed}, expected 0 or more")
    if (cluster is None) != (load is None):
        raise ConfigError("--cluster and --load must be given together")
    if load is not None and not (math.isfinite(load) and load > 0):
        raise ConfigError(f"--load: found {load:g}, expected a number above 0, such as 0.9")
    rng = np.random.default_rng(seed)
    marginals = SHAPES[shape]
    gpus = _gangs(rng, marginals, jobs, cluster)
    share = _shares(rng, marginals, gpus)
    long = rng.random(jobs) < 1 / (1 + np.exp(-(marginals.long_offset + marginals.long_slope * np.log2(gpus))))
    run_ms = _run_ms(rng, marginals, long)
    gpu_ms = float((gpus * run_ms * share).sum(dtype=np.float64)) / WHOLE_GPU
    capacity = cluster.num_gpus * load if cluster is not None and load is not None else None
    span_ms = gpu_ms / capacity if capacity else jobs / marginals.jobs_per_day * MS_PER_DAY
    if span_ms > MAX_TIME_MS:
        raise ConfigError(f"--load: {load} would stretch {jobs} jobs over more than 130 years; give a larger load")
    user = _zipf(rng, jobs, NUM_USERS)
    return trace_of(
        name=f"{shape}-{jobs}-{seed}", format="synth", synthetic=True, job_id=[str(row) for row in range(1, jobs + 1)],
        submit_ms=_arrivals(rng, marginals, jobs, span_ms), gpus=gpus, share_milli=share, run_ms=run_ms,
        time_limit_ms=_limits_ms(rng, run_ms), status=_statuses(rng, marginals, long),
        user=user, users=[f"user{number}" for number in range(1, NUM_USERS + 1)],
        group=_zipf(rng, NUM_USERS, NUM_GROUPS)[user], groups=[f"group{number}" for number in range(1, NUM_GROUPS + 1)],
    )  # fmt: skip


def _gangs(rng: np.random.Generator, shape: Shape, jobs: int, cluster: Cluster | None) -> IntArray:
    gpus = np.left_shift(1, _drawn(rng, shape.gang_share, jobs))
    most = MAX_GANG if cluster is None else 1 << (cluster.num_gpus.bit_length() - 1)
    return np.minimum(gpus, most).astype(np.int64)


def _shares(rng: np.random.Generator, shape: Shape, gpus: IntArray) -> IntArray:
    if not shape.fraction_share:
        return np.full(len(gpus), WHOLE_GPU, dtype=np.int64)
    values = np.array([milli for milli, _ in shape.fraction_share], dtype=np.int64)
    drawn = values[_drawn(rng, tuple(weight for _, weight in shape.fraction_share), len(gpus))]
    return np.where(gpus == 1, drawn, WHOLE_GPU)


def _run_ms(rng: np.random.Generator, shape: Shape, long: BoolArray) -> IntArray:
    median_s = np.where(long, shape.long_median_s, shape.short_median_s)
    sigma = np.where(long, LONG_SIGMA, SHORT_SIGMA)
    run_s = median_s * np.exp(sigma * rng.standard_normal(len(long)))
    whole_s: IntArray = np.rint(np.clip(run_s, 1, shape.max_run_s)).astype(np.int64)
    return whole_s * MS_PER_S


def _arrivals(rng: np.random.Generator, shape: Shape, jobs: int, span_ms: float) -> IntArray:
    """Non-homogeneous Poisson arrivals given their number, stretched to end exactly at the span; Monday first."""
    hours = math.ceil(span_ms / MS_PER_H) + 1
    hour_of_week = np.arange(hours) % 168
    weight = np.array(shape.hour_weight)[hour_of_week % 24] * np.array(shape.day_weight)[hour_of_week // 24]
    edges_ms = np.minimum(np.arange(hours + 1) * float(MS_PER_H), span_ms)
    mass = np.concatenate(([0.0], np.cumsum(weight * np.diff(edges_ms))))
    times = np.sort(np.interp(rng.random(jobs) * mass[-1], mass, edges_ms))
    reach = times[-1] - times[0]
    submit_ms: IntArray = np.rint((times - times[0]) * (span_ms / reach if reach else 0)).astype(np.int64)
    return submit_ms


def _limits_ms(rng: np.random.Generator, run_ms: IntArray) -> IntArray:
    """Over-ask by a lognormal factor of at least 1, then round up to the next usual limit."""
    asked_ms = run_ms * np.maximum(OVERASK_MEDIAN * np.exp(OVERASK_SIGMA * rng.standard_normal(len(run_ms))), 1)
    limits_ms = np.array(LIMITS_H, dtype=np.int64) * MS_PER_H
    return limits_ms[np.minimum(np.searchsorted(limits_ms, asked_ms), len(limits_ms) - 1)]


def _statuses(rng: np.random.Generator, shape: Shape, long: BoolArray) -> IntArray:
    """Draw states: of long jobs by the shares of GPU time, of short ones so that the shares of jobs are right."""
    if not shape.status_by_jobs:
        return np.full(len(long), Status.UNKNOWN, dtype=np.int64)
    by_time = np.array(shape.status_by_gpu_time)
    offsets = shape.long_offset + shape.long_slope * np.arange(len(shape.gang_share))
    mean_long = float(np.average(1 / (1 + np.exp(-offsets)), weights=shape.gang_share))
    by_short = (np.array(shape.status_by_jobs) - mean_long * by_time).clip(0) / (1 - mean_long)
    codes = np.array(STATUSES, dtype=np.int64)
    return np.where(
        long, codes[_drawn(rng, tuple(by_time), len(long))], codes[_drawn(rng, tuple(by_short), len(long))]
    )


def _zipf(rng: np.random.Generator, size: int, names: int) -> IntArray:
    return _drawn(rng, tuple(np.arange(1, names + 1) ** -ZIPF_EXPONENT), size)


def _drawn(rng: np.random.Generator, weights: tuple[float, ...], size: int) -> IntArray:
    """Draw indices in proportion to weights."""
    cumulative: FloatArray = np.cumsum(weights)
    indices: IntArray = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    return indices
