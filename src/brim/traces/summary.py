"""Summary figures of a trace, for ``brim trace info`` and for reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.cluster import Cluster
from brim.core.trace import NONE, Status, Trace
from brim.traces.transform import offered_load
from brim.units import MS_PER_H, MS_PER_S, WHOLE_GPU

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Jobs of one gang size.

    Attributes:
        gpus: Gang size; 0 for shares of one GPU.
        jobs: Number of jobs.
        gpu_hours: Their recorded GPU time; NaN where no run time is recorded.
    """

    gpus: int
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """Figures of a trace; NaN where nothing is recorded.

    Attributes:
        name: Name of the trace.
        format: Format that was read, or generator.
        synthetic: Whether the jobs were drawn, not recorded.
        origin_ms: Wall clock of time 0, None where hidden.
        jobs: Number of jobs.
        span_h: First to last submission.
        users: Distinct users with a job.
        groups: Distinct groups with a job.
        arrivals_per_hour_mean: Jobs over the span.
        arrivals_per_hour_peak: Jobs in the busiest hour.
        arrivals_by_hour: Jobs in each hour from the first submission.
        sizes: Jobs by gang size, shares first.
        duration_mean_s: Mean of recorded run times.
        duration_s: Quantile -> run time.
        duration_by_decade: Upper bound in seconds (1, 10, 100 ...) -> jobs.
        gpu_hours: Recorded GPU time.
        status_fraction: State -> share of jobs.
        wait_mean_s: Mean of recorded waits.
        wait_median_s: Median of recorded waits.
        with_limit_fraction: Share of jobs with a time limit.
        load: Offered load of the cluster, NaN without one.
    """

    name: str
    format: str
    synthetic: bool
    origin_ms: int | None
    jobs: int
    span_h: float
    users: int
    groups: int
    arrivals_per_hour_mean: float
    arrivals_per_hour_peak: int
    arrivals_by_hour: tuple[int, ...]
    sizes: tuple[SizeClass, ...]
    duration_mean_s: float
    duration_s: dict[float, float]
    duration_by_decade: dict[int, int]
    gpu_hours: float
    status_fraction: dict[str, float]
    wait_mean_s: float
    wait_median_s: float
    with_limit_fraction: float
    load: float


def summary(trace: Trace, cluster: Cluster | None = None) -> TraceSummary:
    """Summarise a trace; with a cluster, also compute the load that the trace offers to it."""
    run_s = trace.run_ms[trace.run_ms != NONE] / MS_PER_S
    wait_s = trace.wait_ms[trace.wait_ms != NONE] / MS_PER_S
    by_hour = np.bincount(trace.submit_ms // MS_PER_H)
    span_h = trace.span_ms / MS_PER_H
    decades = np.ceil(np.log10(np.maximum(run_s, 1))).astype(np.int64)
    return TraceSummary(
        name=trace.name, format=trace.format, synthetic=trace.synthetic, origin_ms=trace.origin_ms, jobs=len(trace),
        span_h=span_h, users=_distinct(trace.user), groups=_distinct(trace.group),
        arrivals_per_hour_mean=len(trace) / span_h if span_h else math.nan,
        arrivals_per_hour_peak=int(by_hour.max(initial=0)), arrivals_by_hour=tuple(by_hour.tolist()),
        sizes=_sizes(trace), duration_mean_s=_mean(run_s),
        duration_s={q: float(np.quantile(run_s, q)) if len(run_s) else math.nan for q in QUANTILES},
        duration_by_decade={10**decade: int((decades == decade).sum()) for decade in range(_top(decades) + 1)},
        gpu_hours=float(trace.gpu_ms.sum(dtype=np.float64)) / MS_PER_H if len(run_s) else math.nan,
        status_fraction={status.name.lower(): _mean(trace.status == status) for status in Status},
        wait_mean_s=_mean(wait_s), wait_median_s=float(np.median(wait_s)) if len(wait_s) else math.nan,
        with_limit_fraction=_mean(trace.time_limit_ms != NONE),
        load=math.nan if cluster is None else offered_load(trace, cluster),
    )  # fmt: skip


def _sizes(trace: Trace) -> tuple[SizeClass, ...]:
    size = np.where(trace.share_milli < WHOLE_GPU, 0, trace.gpus)
    classes, which = np.unique(size, return_inverse=True)
    gpu_hours = np.bincount(which, weights=trace.gpu_ms / MS_PER_H, minlength=len(classes))
    gpu_hours[np.bincount(which, weights=trace.run_ms != NONE, minlength=len(classes)) == 0] = math.nan
    jobs = np.bincount(which, minlength=len(classes))
    return tuple(
        SizeClass(gpus=int(gpus), jobs=int(count), gpu_hours=float(hours))
        for gpus, count, hours in zip(classes, jobs, gpu_hours, strict=True)
    )


def _distinct(codes: IntArray) -> int:
    return len(np.unique(codes[codes != NONE]))


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _top(decades: IntArray) -> int:
    return int(decades.max(initial=-1))
