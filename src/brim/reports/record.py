"""The row "as recorded": what a trace recorded of its own cluster, in the figures of a replay.

The record covers the jobs whose wait, run time and end were recorded. It is shown beside replays that serve the same
jobs at the same times for the recorded run times; beside all others, the report says why it is missing. Suspensions and
the time between the attempts of a requeued job count as waiting, as they do in a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.prices import Prices, tiers
from brim.core.replay import Replay
from brim.core.trace import NONE, JobClass, Trace
from brim.reports import metrics
from brim.reports.metrics import finished, jct_ms, percentile
from brim.units import MS_PER_H, MS_PER_S, S_PER_H

NAME: Final = "as recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMetrics:
    """Figures of the recorded jobs, defined as in ``metrics.Metrics``.

    Attributes:
        jobs: Jobs of the trace.
        covered: Jobs whose wait, run time and end were recorded; the figures cover these.
        jct_ms: Completion minus submission of each job, shape (J,); NONE where not covered.
        queue_ms: Submission to first start of each job, shape (J,); NONE where not covered.
        jct_mean_s: Mean of ``jct_ms``.
        jct_p50_s: Its median.
        jct_p99_s: Its 99th percentile.
        queue_mean_s: Mean of ``queue_ms``.
        queue_p50_s: Its median.
        queue_p99_s: Its 99th percentile.
        wait_mean_s: Mean of the time between submission and end in which a job did not run.
        wait_p50_s: Its median.
        wait_p99_s: Its 99th percentile.
        requeue_mean_s: Mean of the part of that time after the first start.
        held_gpu_s: GPU time held, shares counted as shares.
        padding_gpu_s: Part of that of padding jobs.
        absent_types: GPU types that jobs were recorded on and the replays do not have; empty if there is none.
    """

    jobs: int
    covered: int
    jct_ms: IntArray
    queue_ms: IntArray
    jct_mean_s: float
    jct_p50_s: float | None
    jct_p99_s: float | None
    queue_mean_s: float
    queue_p50_s: float | None
    queue_p99_s: float | None
    wait_mean_s: float
    wait_p50_s: float | None
    wait_p99_s: float | None
    requeue_mean_s: float
    held_gpu_s: float
    padding_gpu_s: float = 0.0
    absent_types: str = ""

    def cost(self, prices: Prices) -> float:
        """What the jobs would have cost, without energy. No recorded job counts as elastic: nobody resized it."""
        reserved_h, padding_h = (self.held_gpu_s - self.padding_gpu_s) / S_PER_H, self.padding_gpu_s / S_PER_H
        return reserved_h * prices.of("reserved") + padding_h * prices.of("padding")


@dataclass(frozen=True, slots=True)
class NoRecord:
    """The reason why the record is left out."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Totals of the same jobs in two outcomes: first the record or another replay, then a replay.

    Attributes:
        reference: Name of the first outcome.
        jobs: Jobs compared.
        before_jct_s: Sum of completion times in the first.
        after_jct_s: The same in the second.
        before_wait_s: Sum of waiting times in the first.
        after_wait_s: The same in the second.
        before_gpu_s: GPU time held in the first.
        after_gpu_s: The same in the second, including stalls, saves, restarts and lost work.
        before_cost: Cost in the first; None without prices.
        after_cost: The same in the second.
    """

    reference: str
    jobs: int
    before_jct_s: float
    after_jct_s: float
    before_wait_s: float
    after_wait_s: float
    before_gpu_s: float
    after_gpu_s: float
    before_cost: float | None = None
    after_cost: float | None = None

    @property
    def saved_cost(self) -> float | None:
        """Return how much less the same jobs cost in the second outcome."""
        return None if self.before_cost is None or self.after_cost is None else self.before_cost - self.after_cost

    @property
    def saved_gpu_s(self) -> float:
        """Return how much less GPU time the same jobs hold in the second outcome."""
        return self.before_gpu_s - self.after_gpu_s

    @property
    def saved_wait_s(self) -> float:
        """Return how much less time the same jobs wait in the second outcome, summed over the jobs."""
        return self.before_wait_s - self.after_wait_s


def record_of(trace: Trace) -> RecordedMetrics | NoRecord:
    """Reduce what a trace recorded to the figures of a replay."""
    covered = _covered(trace)
    if not covered.any():
        return NoRecord("the trace records no start times")
    wait_ms = trace.jct_ms - trace.run_ms
    jct_s, queue_s, wait_s = (_s(column[covered]) for column in (trace.jct_ms, trace.wait_ms, wait_ms))
    return RecordedMetrics(
        jobs=len(trace), covered=int(covered.sum()), jct_ms=np.where(covered, trace.jct_ms, NONE),
        queue_ms=np.where(covered, trace.wait_ms, NONE),
        jct_mean_s=float(jct_s.mean()), jct_p50_s=percentile(jct_s, 50), jct_p99_s=percentile(jct_s, 99),
        queue_mean_s=float(queue_s.mean()), queue_p50_s=percentile(queue_s, 50), queue_p99_s=percentile(queue_s, 99),
        wait_mean_s=float(wait_s.mean()), wait_p50_s=percentile(wait_s, 50), wait_p99_s=percentile(wait_s, 99),
        requeue_mean_s=float(_s((wait_ms - trace.wait_ms)[covered]).mean()),
        held_gpu_s=float(trace.gpu_ms[covered].sum()) / MS_PER_S,
        padding_gpu_s=float(trace.gpu_ms[covered & (trace.job_class == JobClass.PADDING)].sum()) / MS_PER_S,
    )


def at_load(record: RecordedMetrics | NoRecord | None, load: float) -> RecordedMetrics | NoRecord | None:
    """Return the record, for replays at this load."""
    return NoRecord("the load is not the recorded one") if isinstance(record, RecordedMetrics) and load != 1 else record


def beside_record(replay: Replay, prices: Prices | None = None) -> Comparison | None:
    """Compare a replay with the record of its trace, over the recorded jobs that finished; None without any."""
    trace = replay.trace
    both = _covered(trace) & finished(replay)
    if not both.any():
        return None
    price = None if prices is None else prices.of_jobs(tiers(replay))[both] / MS_PER_H
    before_jct_s, after_jct_s = float(_s(trace.jct_ms[both]).sum()), float(_s(jct_ms(replay)[both]).sum())
    return Comparison(
        reference=NAME, jobs=int(both.sum()), before_jct_s=before_jct_s, after_jct_s=after_jct_s,
        before_wait_s=before_jct_s - float(_s(trace.run_ms[both]).sum()),
        after_wait_s=float(_s(metrics.wait_ms(replay)[both]).sum()),
        before_gpu_s=float(_s(trace.gpu_ms[both]).sum()), after_gpu_s=float(_s(replay.service_gpu_ms[both]).sum()),
        before_cost=None if price is None else float((price * trace.gpu_ms[both]).sum()),
        after_cost=None if price is None else float((price * replay.service_gpu_ms[both]).sum()),
    )


def _covered(trace: Trace) -> BoolArray:
    covered: BoolArray = (trace.jct_ms != NONE) & (trace.wait_ms != NONE) & (trace.run_ms != NONE)
    return covered


def _s(values_ms: IntArray) -> FloatArray:
    return values_ms / MS_PER_S
