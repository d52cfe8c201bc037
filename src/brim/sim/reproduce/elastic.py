"""Effective Elastic Scaling: do more jobs complete, and sooner, if a job's batch is chosen together with its GPUs?

The paper compares with elastic GPUs at a fixed batch. It claims up to about twice as many completed jobs, and an up to
about ten times shorter mean completion time. We found no published cluster, models, arrivals or load, so the conditions
are ours: clusters of 40 and 400 GPUs, four categories of jobs and their mix, Poisson arrivals and bursts, and a load
relative to what the baseline can sustain.

Jobs scale as in ``truths.categories``, with three models per category. Batches range from an eighth of what fits on one
GPU to eight times that (``small``: to half of it). The batch that a user asks for, which the baselines keep, is drawn
log-uniformly from that range; the GPUs asked for are the smallest power of two on which it fits. Work is log-normal
with a mean of one hour on one GPU whose memory the batch fills. Random numbers are common to all runs: the n-th job is
the same at every load and under every policy, and a higher load only moves arrivals closer together. (An exception is
the batch drawn by ``elastic-random``, which depends on the arrival time.)

Source:
    Saxena et al., MASCOTS 2020, arXiv:2006.13878: the claims. Everything else: ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from scipy.special import ndtri

from brim.beliefs.analyser import Exchange
from brim.beliefs.throughput import grad_s
from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import Cluster, parse_cluster
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace, trace_of
from brim.policies.presets import PRESETS
from brim.policies.size.dynamic_program import DynamicProgram
from brim.policies.sockets import Policy
from brim.sim.truths.categories import CATEGORIES, LINKS, jobs_of
from brim.sim.truths.parametric import ElasticJobs, Parametric
from brim.sim.truths.truth import ALONE, Colocation, Pace
from brim.units import MS_PER_H, MS_PER_S

Arrivals = Literal["poisson", "burst"]

WINDOW_H: Final = 8
"""Default hours of arrivals."""
BURST_PERIOD_H: Final = 2
"""Period of the bursts: half of it has 1.6 times the mean rate of arrivals, the other half 0.4 times."""
BURST_HIGH: Final = 1.6
MODELS: Final = 3
"""Models per category."""
BATCH_MIN, BATCH_MAX, BATCH_MAX_SMALL = 1 / 8, 8.0, 1 / 2
"""Smallest and largest batch, and the largest for ``small``, relative to what fits on one GPU. Our choice."""
GPUS_MAX: Final = 32
WORK_H, WORK_SIGMA = 1.0, 1.0
"""Work of a job in hours on one GPU: mean, and sigma of its logarithm."""
MIX: Final = "mix"
CATEGORY_NAMES: Final = (*(category.name for category in CATEGORIES), MIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One point of the experiment.

    Attributes:
        gpus: GPUs of the cluster, four per node.
        category: One of ``CATEGORY_NAMES``.
        arrivals: Poisson or bursts.
        load: Arrival rate relative to what the baseline sustains.
        drop: Whether jobs that do not fit are rejected; otherwise they wait.
        hours: Hours during which jobs arrive.
        seed: Seed of all random numbers.
    """

    gpus: int
    category: str
    arrivals: Arrivals
    load: float
    drop: bool
    hours: int = WINDOW_H
    seed: int = 0

    @property
    def cluster(self) -> Cluster:
        """The cluster of the experiment."""
        return parse_cluster(f"{self.gpus // 4}x4xT4")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExperimentTruth:
    """The truth of this experiment. See ``sim.truth_option.TruthOption``.

    Attributes:
        jobs: True parameters of the jobs.
        work_h: Hours each job would take on one GPU whose memory its batch fills (J,); ``WORK_H`` on average.
    """

    jobs: ElasticJobs
    work_h: FloatArray

    def build(self, trace: Trace, cluster: Cluster, seed: int = 0) -> Parametric:
        """Return the truth; the seed is that of the noise on reported step times."""
        return _OneMicroStep(trace, cluster, self.jobs, seed=seed, exchange=LINKS)


class _OneMicroStep(Parametric):
    """On one GPU, a batch that fits is computed in one micro-step.

    ``Parametric`` uses two for batches above the smallest, as in Pollux, because gradient noise cannot be estimated
    from one. This experiment does not need the noise, and the paper has no such rule. The rule would slow down small
    fixed batches most, so that the baseline would sustain less.
    """

    def __init__(self, trace: Trace, cluster: Cluster, jobs: ElasticJobs, *, seed: int, exchange: Exchange) -> None:
        super().__init__(trace, cluster, jobs, seed=seed, exchange=exchange)
        whole = replace(jobs, batch=jobs.batch_max, batch_min=jobs.batch_max)  # the rule holds above the smallest
        self._alone = Parametric(trace, cluster, whole, seed=seed)

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        if sum(nodes) == 1:
            return self._alone.pace(job, done, nodes, batch, colocation)
        return super().pace(job, done, nodes, batch, colocation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one condition under one policy.

    Attributes:
        condition: The condition.
        policy: Name of the policy.
        submitted: Jobs submitted.
        completed: Jobs completed within the hours of arrivals.
        jct_mean_s: Mean completion time of the jobs that were not rejected.
        jct_p95_s: 95th percentile of the completion time.
        dropped_fraction: Fraction of jobs rejected.
        allocated_fraction: Fraction of GPU time held within the hours of arrivals.
        restarts_per_job: Starts after the first, including resizes and moves, per completed job.
        stalled_fraction: Fraction of the GPU time held in which jobs started, restarted or were measured.
        round_median_ms: Median wall time of a round; None where a compiled loop ran, which does not time rounds.
        round_p99_ms: 99th percentile of the wall time of a round; None as above.
    """

    condition: Condition
    policy: str
    submitted: int
    completed: int
    jct_mean_s: float
    jct_p95_s: float
    dropped_fraction: float
    allocated_fraction: float
    restarts_per_job: float
    stalled_fraction: float
    round_median_ms: float | None
    round_p99_ms: float | None


BASELINE: Final = "elastic-fixed"
OURS: Final = "elastic"
STRONGER: Final = "elastic-fixed-accumulating"
_STRONGER: Final = replace(PRESETS[BASELINE], name=STRONGER, size=DynamicProgram("asked", accumulation=True))
"""A stronger baseline than the paper's: a batch too large for its GPUs may be accumulated over several micro-steps."""
_ACCUMULATING: Final = replace(PRESETS[OURS], name="elastic-accumulating", size=DynamicProgram(accumulation=True))
POLICIES: Final[dict[str, Policy]] = {
    name: PRESETS[name] for name in (OURS, BASELINE, "elastic-max", "elastic-random", "goodput", "fifo")
} | {_STRONGER.name: _STRONGER, _ACCUMULATING.name: _ACCUMULATING}


def policy_for(name: str, *, drop: bool) -> Policy:
    """Return a policy of the experiment; with ``drop``, it rejects jobs that do not fit, if it can."""
    policy = POLICIES[name]
    if drop and isinstance(policy.size, DynamicProgram):
        return replace(policy, size=replace(policy.size, mode="drop"))
    return policy


def arrivals_ms(condition: Condition, rate_per_h: float) -> IntArray:
    """Return increasing arrival times (J,), from the same random numbers at every load."""
    mean = rate_per_h * condition.load
    rng = np.random.default_rng([condition.seed, condition.gpus, 0])
    most = int(2 * mean * condition.hours + 10 * np.sqrt(mean * condition.hours) + 100)
    expected = np.cumsum(rng.exponential(1.0, most))  # expected number of arrivals up to each one
    hours = expected / mean
    if condition.arrivals == "burst":
        hours = _bursts(hours)
    at_ms: IntArray = np.rint(hours[hours < condition.hours] * MS_PER_H).astype(np.int64)
    return at_ms


def _bursts(hours: FloatArray) -> FloatArray:
    """Map arrivals at a constant rate to arrivals at the alternating rate; each stays in its period."""
    period, within = np.divmod(hours, BURST_PERIOD_H)
    half = BURST_PERIOD_H / 2
    early = within < half * BURST_HIGH
    moved = np.where(early, within / BURST_HIGH, half + (within - half * BURST_HIGH) / (2 - BURST_HIGH))
    return period * BURST_PERIOD_H + moved


def workload(condition: Condition, submit_ms: IntArray) -> tuple[Trace, ExperimentTruth]:
    """Draw the jobs that arrive at these times; the n-th job is the same at every load."""
    size = len(submit_ms)
    seed = [condition.seed, CATEGORY_NAMES.index(condition.category)]
    uniform_J4 = np.random.default_rng(seed).uniform(0, 1, (size, 4))
    kinds = range(len(CATEGORIES)) if condition.category == MIX else [CATEGORY_NAMES.index(condition.category)]
    category = np.array(kinds)[(uniform_J4[:, 0] * len(kinds)).astype(np.int64)]
    model = category * MODELS + (uniform_J4[:, 1] * MODELS).astype(np.int64)
    jobs = _scaling(category, model, min(GPUS_MAX, condition.gpus))
    full = jobs.local_batch_max
    ratio = BATCH_MIN * (jobs.batch_max / full / BATCH_MIN) ** uniform_J4[:, 2]
    batch = np.rint(full * ratio).astype(np.int64)
    gpus = 2 ** np.ceil(np.log2(np.maximum(batch / full, 1))).astype(np.int64)
    work_h = WORK_H * np.exp(WORK_SIGMA * ndtri(uniform_J4[:, 3]) - WORK_SIGMA**2 / 2)
    jobs = replace(jobs, batch=batch, samples=work_h * 3600 * _full_rate(jobs), profile=model)
    trace = trace_of(
        name=f"elastic {condition.category} {condition.arrivals}", format="drawn", synthetic=True, origin_ms=0,
        job_id=[f"j{number}" for number in range(size)], submit_ms=submit_ms, gpus=gpus, run_ms=np.full(size, NONE),
        profiles=[f"{kind.name}-{number}" for kind in CATEGORIES for number in range(MODELS)], profile=model,
        batch=jobs.batch,
    )
    return trace, ExperimentTruth(jobs=jobs, work_h=work_h)


def _scaling(category: IntArray, model: IntArray, gpus_max: int) -> ElasticJobs:
    """Return the true parameters of jobs of these models, without their batch and work."""
    figures = np.random.default_rng(len(CATEGORIES)).uniform(0.2, 0.8, (len(CATEGORIES) * MODELS, 3))  # of the models
    one = np.ones(len(category), dtype=np.int64)
    jobs = jobs_of(np.arange(len(category)), category, one, one * gpus_max, figures[model])
    full = jobs.local_batch_max
    most = np.where(category == CATEGORY_NAMES.index("small"), BATCH_MAX_SMALL, BATCH_MAX)
    batch_min, batch_max = (full * BATCH_MIN).astype(np.int64), (full * most).astype(np.int64)
    return replace(
        jobs, batch=batch_min, batch_min=batch_min, batch_max=batch_max,
        gpus_max=np.minimum(gpus_max, batch_max // jobs.local_batch_min),
    )


def _full_rate(jobs: ElasticJobs) -> FloatArray:
    """Return the samples per second on one GPU whose memory the batch fills (J,)."""
    rate: FloatArray = jobs.local_batch_max / grad_s(jobs.parameters, jobs.local_batch_max)
    return rate


def drawn(condition: Condition, rate_per_h: float) -> tuple[Trace, ExperimentTruth]:
    """Draw arrivals and jobs of one condition."""
    return workload(condition, arrivals_ms(condition, rate_per_h))


def backlog(condition: Condition, per_gpu: int) -> tuple[Trace, ExperimentTruth]:
    """Draw this many jobs per GPU, which arrive one millisecond apart."""
    return workload(condition, np.arange(per_gpu * condition.gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Throughput of a policy while more jobs wait than can run.

    Attributes:
        gpus: GPUs of the cluster.
        category: Category of the jobs.
        policy: Name of the policy.
        per_h: Work completed per hour, in units of the mean work of a job.
        halves_per_h: The same for the first and the second half of the jobs counted; similar in a steady state.
    """

    gpus: int
    category: str
    policy: str
    per_h: float
    halves_per_h: tuple[float, float]


_COUNTED: Final = (0.25, 0.55, 0.85)
"""Fractions of a backlog's jobs completed when counting begins, is halved and ends. The long jobs among the first must
have had time to end, and jobs must still be waiting."""


def sustained(replay: Replay, work_h: FloatArray, condition: Condition) -> Sustained:
    """Measure a policy's capacity from the replay of a backlog: work completed per hour.

    Work is counted instead of jobs, because the total work of a few hundred jobs varies by several percent from draw to
    draw, and short jobs end first.
    """
    order = np.argsort(replay.finish_ms, kind="stable")
    done_h, ends_h = np.cumsum(work_h[order]), replay.finish_ms[order] / MS_PER_H
    first, middle, last = (int(share * len(order)) for share in _COUNTED)

    def rate(start: int, end: int) -> float:
        return float((done_h[end] - done_h[start]) / (ends_h[end] - ends_h[start]) / WORK_H)

    return Sustained(
        gpus=condition.gpus, category=condition.category, policy=replay.policy, per_h=rate(first, last),
        halves_per_h=(rate(first, middle), rate(middle, last)),
    )


def outcome(replay: Replay, condition: Condition) -> Outcome:
    """Return the figures of one complete replay."""
    trace = replay.trace
    window_ms = condition.hours * MS_PER_H
    until_ms = window_ms - (trace.origin_ms or 0)  # traces start with their first job
    done = replay.finish_ms != NONE
    jct_s = (replay.finish_ms - trace.submit_ms)[done] / MS_PER_S
    held, useful = int(replay.service_gpu_ms.sum()), int(replay.useful_gpu_ms.sum())
    inside = np.minimum(replay.runs.end_ms, until_ms) - np.minimum(replay.runs.start_ms, until_ms)
    held_inside = float((inside * np.diff(replay.runs.first_gpu)).sum())
    round_ms, timed = replay.round_s * MS_PER_S, len(replay.round_s) > 0
    return Outcome(
        condition=condition, policy=replay.policy, submitted=len(trace),
        completed=int((done & (replay.finish_ms <= until_ms)).sum()),
        jct_mean_s=float(jct_s.mean()), jct_p95_s=float(np.percentile(jct_s, 95)),
        dropped_fraction=float(replay.rejected.mean()),
        allocated_fraction=held_inside / (condition.gpus * window_ms),
        restarts_per_job=float(replay.restarts.sum() / done.sum()), stalled_fraction=1 - useful / held,
        round_median_ms=float(np.median(round_ms)) if timed else None,
        round_p99_ms=float(np.percentile(round_ms, 99)) if timed else None,
    )
