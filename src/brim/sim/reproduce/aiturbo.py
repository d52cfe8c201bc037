"""AITurbo (HPDC 2021) again: jobs with parameter servers, of which only some have an end that can be predicted.

The paper's test-bed, traces, job lengths and learning curves are not published. Ours: the fourteen models and the
cluster of its successor (github.com/MaoZzzzz/Aiturbo-vGPU, 2022), lengths from the marginals of the authors' data set
(github.com/LFSCODE/AITurbo), and curves drawn here. Predictable jobs follow a falling curve with noise; the others drop
in steps, diverge, or are all noise, and end at a time that no curve tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brim.beliefs.parameter_servers import (
    CPU_SLOWER,
    Allocation,
    DefaultModel,
    StepModels,
    default_models,
    fitted,
    models_of,
)
from brim.core.arrays import BoolArray, FloatArray, frozen
from brim.core.cluster import Cluster, parse_cluster
from brim.core.trace import Trace, trace_of
from brim.sim.truths.parameter_servers import (
    REPORTS,
    SERVERS_MAX,
    WORKERS_MAX,
    LossCurve,
    ParameterServers,
    ServerJobs,
)
from brim.units import MS_PER_S

PREDICTABLE_S: Final = (8_970.0, 1.0)
"""Median run time of predictable jobs, s (authors' data set), and log standard deviation. The latter is ours: the
quartiles of all jobs there are 0.19 and 3.9 h."""
UNPREDICTABLE_S: Final = (470.0, 1.5)
"""The same of unpredictable jobs."""
RUN_S_MAX: Final = 24.8 * 3600
"""Longest run time in the data set, s."""
MEDIAN_S, QUARTILES_H = 2.0 * 3600, (0.19, 3.9)
"""Median run time in the data set, s, and its quartiles, h."""
RANK_MILLI: Final = 2_000
"""Milli-cores of a worker on GPU and of a server as asked. Ours."""
TRUE_ERROR: Final = 0.15
"""Log standard deviation of the true times of a model around the defaults. Ours."""
PROFILE_NOISE: Final = 0.05
"""Log standard deviation of a measured step. Ours."""
PROFILES: Final = 10
"""Configurations that are measured of each model and kind of device: Optimus measures up to ten."""
SERVERS_ASKED: Final = ((1, 0.35), (2, 0.4), (3, 0.15), (4, 0.1))
WORKERS_ASKED: Final = ((1, 0.3), (2, 0.4), (3, 0.1), (4, 0.2))
"""Servers and workers asked for, with their shares: near those of the data set (mean 1.95, and most often 2)."""
UNPREDICTABLE_KINDS: Final = ("steps", "diverging", "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """What is replayed.

    Attributes:
        jobs: Number of jobs.
        cluster: The cluster.
        unpredictable: Share of jobs whose end cannot be predicted.
        load: GPU time that the jobs as asked take, over that of the cluster while they arrive; infinite for jobs that
            are submitted together.
        coupled: Whether unpredictable jobs are shorter, as in the authors' data set; else all are drawn from the
            lengths of both.
        estimate_sd: Log standard deviation of the run times that policies with estimates are given of unpredictable
            jobs; for predictable ones it is 0.1.
        cpu_slower: Times that a worker on CPU takes longer.
        seed: Seed of everything.
    """

    jobs: int = 60
    cluster: str = "2x2xK80:cpus=32"
    unpredictable: float = 0.5
    load: float = 0.9
    coupled: bool = True
    estimate_sd: float = 1.5
    cpu_slower: float = CPU_SLOWER
    seed: int = 0


ESTIMATE_SD_PREDICTABLE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs, where they run, and how they really run."""

    trace: Trace
    cluster: Cluster
    truth: ParameterServers
    predictable: BoolArray


def workload(of: SweepPoint) -> Workload:
    """Draw the jobs. Draws of a seed are the same for every share: a job becomes unpredictable and stays so."""
    rng = np.random.default_rng(of.seed)
    defaults, cluster = default_models(of.cpu_slower), parse_cluster(of.cluster)
    true = _true_models(defaults, rng)
    profiled = _profiled(defaults, true, rng)
    size = of.jobs
    profile = rng.integers(len(defaults), size=size)
    workers = rng.choice([w for w, _ in WORKERS_ASKED], size=size, p=[share for _, share in WORKERS_ASKED])
    servers = rng.choice([p for p, _ in SERVERS_ASKED], size=size, p=[share for _, share in SERVERS_ASKED])
    predictable = rng.random(size) >= of.unpredictable
    lengths = rng.standard_normal(size)
    kind = predictable if of.coupled else rng.random(size) < 0.5
    median, sd = np.where(kind, *np.array([PREDICTABLE_S, UNPREDICTABLE_S])[:, 0]), np.where(
        kind, PREDICTABLE_S[1], UNPREDICTABLE_S[1])
    run_s = np.clip(median * np.exp(sd * lengths), 30.0, RUN_S_MAX)
    gaps = rng.exponential(size=size)
    span_s = float((run_s * workers).sum()) / (cluster.num_gpus * of.load)
    submit_ms = np.rint((np.cumsum(gaps) - gaps[0]) / gaps.sum() * span_s * MS_PER_S).astype(np.int64)
    batch = np.array([one.batch for one in defaults])[profile]
    sd = np.where(predictable, ESTIMATE_SD_PREDICTABLE, of.estimate_sd)
    estimate_s = run_s * np.exp(sd * rng.standard_normal(size))
    trace = trace_of(
        name=f"aiturbo, seed {of.seed}", format="aiturbo", synthetic=True, job_id=[f"job{n}" for n in range(size)],
        submit_ms=submit_ms, gpus=workers, cpu_milli=np.full(size, RANK_MILLI),
        run_ms=np.rint(run_s * MS_PER_S).astype(np.int64),
        time_limit_ms=np.maximum(np.rint(estimate_s * MS_PER_S), 1).astype(np.int64),
        profiles=[model.name for model in defaults], profile=profile, batch=batch,
    )
    asked = Allocation(
        workers, np.ones(size, dtype=np.bool_), np.full(size, RANK_MILLI), servers, np.full(size, RANK_MILLI)
    )
    samples = run_s / true.phases(profile, batch, asked).step_s * batch
    planned = np.ceil(samples * rng.uniform(1.1, 4.0, size)).astype(np.int64)
    curves, target = _curves(predictable, samples / planned, rng)
    jobs = ServerJobs(
        models=true, samples=frozen(samples), samples_max=frozen(planned), servers=frozen(servers),
        target_loss_ppm=frozen(np.rint(target * 1e6).astype(np.int64)), curves=curves,
    )
    return Workload(
        trace=trace, cluster=cluster, truth=ParameterServers(trace, jobs, profiled), predictable=predictable
    )


def _true_models(defaults: Sequence[DefaultModel], rng: np.random.Generator) -> StepModels:
    base = models_of(defaults)
    return replace(base, times=frozen(base.times * np.exp(TRUE_ERROR * rng.standard_normal(base.times.shape))))


def _profiled(defaults: Sequence[DefaultModel], true: StepModels, rng: np.random.Generator) -> StepModels:
    """Times fitted to noisy steps of each model on each kind of device."""
    times = np.empty_like(true.times)
    for row, model in enumerate(defaults):
        for place, on_gpu in enumerate((True, False)):
            has = Allocation(
                rng.integers(1, WORKERS_MAX + 1, PROFILES), np.full(PROFILES, on_gpu),
                1000 * rng.integers(1, 6, PROFILES), rng.integers(1, SERVERS_MAX + 1, PROFILES),
                1000 * rng.integers(1, 4, PROFILES),
            )
            batch = np.full(PROFILES, model.batch) * rng.integers(1, 3, PROFILES)
            seconds = true.phases(np.full(PROFILES, row), batch, has).step_s
            seconds = seconds * np.exp(PROFILE_NOISE * rng.standard_normal(PROFILES))
            times[row, place] = fitted(batch, has, model.curves, seconds)
    return StepModels(frozen(times), true.curves)


def _curves(
    predictable: BoolArray, end: FloatArray, rng: np.random.Generator
) -> tuple[list[LossCurve], FloatArray]:
    """Losses of each job, which ends at a part of what its user planned, and the loss that its user aims at."""
    place = np.arange(REPORTS + 1) / REPORTS
    curves, target = [], np.empty(len(end))
    for row, stop in enumerate(end.tolist()):
        draw = np.random.default_rng(rng.integers(1 << 62))
        floor, noise = draw.uniform(0.05, 0.3), draw.uniform(0.002, 0.01)
        aim = draw.uniform(0.05, 0.25)
        target[row] = floor + (1 - floor) * aim
        steepness = (1 / aim - 1) / stop  # (1 - floor) / (steepness x + 1) + floor is the target at the end
        falling = (1 - floor) / (steepness * place + 1) + floor
        kind = UNPREDICTABLE_KINDS[int(draw.integers(len(UNPREDICTABLE_KINDS)))]
        loss = falling * (1 + noise * draw.standard_normal(len(place)))
        if not predictable[row]:
            if kind == "steps":
                drops = np.sort(draw.uniform(0, 1.2 * stop, 3))
                loss = draw.uniform(0.3, 0.7, 3).cumprod()
                loss = np.concatenate(([1.0], loss))[np.searchsorted(drops, place)]
                loss = loss * (1 + noise * draw.standard_normal(len(place)))
            elif kind == "diverging":
                turn = stop * draw.uniform(0.1, 0.6)
                loss = np.where(place < turn, falling, np.interp(turn, place, falling) + (place - turn) / stop)
                loss = loss * (1 + 3 * noise * draw.standard_normal(len(place)))
            else:
                loss = 1.0 * np.exp(np.cumsum(0.08 * draw.standard_normal(len(place))))
        curves.append(LossCurve(frozen(place), frozen(np.maximum(loss, 1e-3))))
    return curves, target
