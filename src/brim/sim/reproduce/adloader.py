"""A-Dloader (IEEE CLOUD 2022) again: cores divided by what they bring, against equal cores for each job.

Published are two figures and no condition: model, algorithm, jobs and machines are ours. Divisions of one node are
calculated; makespan is that of replays in which policies know nothing of the loaders but what jobs report.

Source:
    Jia, Yuan, Lin, Mi: A-Dloader, IEEE CLOUD 2022, 10.1109/CLOUD55607.2022.00068: both figures. Everything else: ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.beliefs.library import load
from brim.beliefs.loading import CPU, KNEE, KNEE_TYPICAL
from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import Cluster, parse_cluster
from brim.core.replay import Replay
from brim.core.trace import Trace, trace_of
from brim.policies.feed.exhaustive import Exhaustive, speeds
from brim.policies.feed.throughput import LoaderPlacement, Throughput
from brim.sim.overheads import Overheads
from brim.sim.truths.loading import LoadingData
from brim.sim.truths.rigid import Rigid
from brim.units import MS_PER_H, MS_PER_MIN

PUBLISHED: Final = {"throughput": 0.235, "makespan": 0.10}
"""Gains over equal cores for each application, of its throughput and of the makespan."""
RATIOS: Final = (2, 4, 8)
BOUNDS: Final = {2: 0.143, 4: 0.231, 8: 0.280}
"""Gain of a perfect division at each ratio of demands, if cores just cover all demand: 2 / (1 + (1 + a) / 2a)."""
IDEAL_KNEE: Final = 1000.0
"""A pipeline without jitter."""
RATE_PER_S: Final = 1000.0
LIGHT_CORES: Final = 2
"""Cores that the loader of a light job wants; the hungry one wants a multiple."""
CORES: Final = (5, 8, 16, 32, 48, 64)
"""At least one for each of the five."""
ORACLE_SETS: Final = 200
JOBS: Final = 40
GPUS: Final = 8
MEAN_MIN: Final = 60.0
"""Jobs and GPUs of a replay, and the mean run time with data always there. Ours."""
TRUTH_SPREAD: Final = 0.15
"""Standard deviation of the logarithm of CPU times in the replays. Ours."""
OVERHEADS: Final = Overheads(save_ms=0, restart_ms=0, start_ms=0)
MIXED: Final = ("res18", "alexnet", "res50", "transformer", "tabular")
"""Section 3.6 of our notes: two hungry vision models, one that is busy on the GPU, tokens, and small rows."""
TABULAR: Final = np.array((20_000.0, 2e-5, 1e-4, 0.0, 0.0, KNEE_TYPICAL))
"""A table of small samples, limited by its main process. Ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Speeds of some jobs on one node, each a part of that with any number of cores, summed.

    Attributes:
        what: The jobs.
        knee: Exponent of the knee, 0 if each has its own.
        cores: Cores for loader workers.
        even: Sum with equal cores for each job.
        ours: Sum by marginal gain.
        best: Sum of the best division of all; NaN if that was not looked for.
    """

    what: str
    knee: float
    cores: int
    even: float
    ours: float
    best: float

    @property
    def gain(self) -> float:
        """Gain over equal cores."""
        return self.ours / self.even - 1

    @property
    def short(self) -> float:
        """Part by which it is below the best."""
        return 1 - self.ours / self.best


def demand(cores: float, knee: float) -> FloatArray:
    """A job whose loader wants this many cores."""
    return np.array((RATE_PER_S, cores / RATE_PER_S, 0.0, 0.0, 0.0, knee))


def mix(ratio: float, knee: float) -> list[FloatArray]:
    """Two light jobs and two hungry ones."""
    return [demand(LIGHT_CORES, knee)] * 2 + [demand(LIGHT_CORES * ratio, knee)] * 2


def division(what: str, rows: Sequence[FloatArray], cores: int, *, search: bool = True) -> Division:
    """Divide the cores of a node among jobs of one rank each."""
    jobs = len(rows)
    placement = LoaderPlacement(
        np.arange(jobs), np.zeros(jobs, dtype=np.int64), np.ones(jobs, dtype=np.int64), np.arange(jobs + 1),
        np.array([cores]),
    )
    parameters, free = np.array(rows), np.full(jobs, -1)

    def total(workers: IntArray) -> float:
        return float(speeds(placement, parameters, workers).sum())

    def by(part: Throughput) -> float:
        return total(part.divide(np.arange(jobs), placement, parameters, free, np.zeros_like(free), np.inf))

    knees = parameters[:, KNEE]
    return Division(
        what=what, knee=float(knees[0]) if (knees == knees[0]).all() else 0.0, cores=cores,
        even=total(np.full(jobs, cores // jobs)), ours=by(Throughput()),
        best=by(Exhaustive()) if search else float("nan"),
    )


def mixes() -> Iterator[Division]:
    """Cores that cover all demand exactly, at each ratio: an ideal pipeline, then the knee that we believe."""
    for knee in (IDEAL_KNEE, KNEE_TYPICAL):
        for ratio in RATIOS:
            yield division(f"{ratio}:1", mix(ratio, knee), 2 * LIGHT_CORES * (1 + ratio))


def without_gain() -> Iterator[Division]:
    """Cases in which nothing can be gained: jobs alike, and ample cores."""
    for knee in (IDEAL_KNEE, KNEE_TYPICAL):
        yield division("4 jobs alike", [demand(4, knee)] * 4, 12)
        yield division("4:1, ample cores", mix(4, knee), 4 * 4 * LIGHT_CORES * 4, search=False)


def sweep() -> Iterator[Division]:
    """A mixed set of five models at several numbers of cores."""
    known = {name: profile.parameters for name, profile in load("synergy").loading.items()}
    rows = [known.get(name, TABULAR) for name in MIXED]
    for cores in CORES:
        yield division("five models", rows, cores, search=False)


def against_best(seed: int = 0, sets: int = ORACLE_SETS) -> list[Division]:
    """Random sets of two to four models of the library on random numbers of cores, beside the best division."""
    rng = np.random.default_rng(seed)
    known = sorted(load("synergy").loading.items())
    found = []
    for _ in range(sets):
        rows = [known[at][1].parameters for at in rng.integers(0, len(known), rng.integers(2, 5))]
        found.append(division("drawn", rows, int(rng.integers(len(rows), 6 * len(rows)))))
    return found


# --- replays


def trace(seed: int, ratio: float) -> Trace:
    """Jobs of one GPU, half of them hungry, all submitted at once; run times are exponential."""
    rng = np.random.default_rng(seed)
    run_ms = np.maximum(rng.exponential(MEAN_MIN, JOBS) * MS_PER_MIN, MS_PER_MIN).astype(np.int64)
    hungry = rng.permutation(np.arange(JOBS) % 2)
    return trace_of(
        name=f"{JOBS} jobs, {ratio:g}:1", format="drawn", synthetic=True, job_id=[f"j{job}" for job in range(JOBS)],
        users=("user",), gpu_types=(), profiles=("light", "hungry"), profile=hungry.tolist(),
        submit_ms=[0] * JOBS, run_ms=run_ms.tolist(), gpus=[1] * JOBS,
    )


def models(ratio: float, seed: int) -> dict[str, FloatArray]:
    """The two models; their CPU times differ a little from seed to seed, and nobody knows them beforehand."""
    rng = np.random.default_rng((seed, 1))
    found = {"light": demand(LIGHT_CORES, KNEE_TYPICAL), "hungry": demand(LIGHT_CORES * ratio, KNEE_TYPICAL)}
    for row in found.values():
        row[CPU] *= float(np.exp(rng.normal(0.0, TRUTH_SPREAD)))
    return found


def node(ratio: float) -> Cluster:
    """A node whose cores cover all demand exactly if half of its jobs are hungry, beside the main processes."""
    cores = GPUS // 2 * LIGHT_CORES * (1 + ratio) + GPUS
    return parse_cluster(f"1x{GPUS}xV100:cpus={cores:g}")


def truth(jobs: Trace, ratio: float, seed: int) -> LoadingData:
    """Jobs that wait for data."""
    return LoadingData(Rigid(jobs), jobs, node(ratio), models(ratio, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class FedReplay:
    """A replay.

    Attributes:
        policy: Its policy.
        speed: Mean speed of the jobs while they held GPUs, weighted by GPU time, as a part of that without waiting.
        makespan_h: From the first submission to the last end.
    """

    policy: str
    speed: float
    makespan_h: float


def outcome(replay: Replay) -> FedReplay:
    """What a replay shows."""
    held_ms = float((replay.runs.end_ms - replay.runs.start_ms).sum())
    return FedReplay(policy=replay.policy, speed=float(replay.trace.gpu_ms.sum()) / held_ms,
                   makespan_h=float(replay.finish_ms.max()) / MS_PER_H)


