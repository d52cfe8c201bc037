"""AITurbo's comparison: policies on the same jobs with parameter servers, over the share of them that nobody predicts.

Shapes: J jobs, S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from scipy.stats import t as student

from brim.core.arrays import FloatArray
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.policies.order.arrival import Arrival
from brim.policies.order.borda import Borda
from brim.policies.order.shortest import ShortestRemaining
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.presets import PRESETS
from brim.policies.size.servers import MarginalServers, ServersAsAsked
from brim.policies.sockets import Policy
from brim.sim.reproduce.aiturbo import SweepPoint, workload
from brim.sim.truths.truth import Truth
from brim.units import MS_PER_MIN, WHOLE_GPU

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
SHORT_S: Final = 1_800.0
"""Run time as asked below which a job counts as short. Ours: near the geometric mean of the medians of both kinds."""
SIGNIFICANT: Final = 0.95
PEER_NAMES: Final = ("optimus", "tiresias", "las", "srtf", "fifo")


def _on_servers(preset: str) -> Policy:
    """A preset for jobs with parameter servers: their workers and servers are those asked for."""
    return replace(PRESETS[preset], size=ServersAsAsked(), place=WorkersAndServers())


PEERS: Final[dict[str, Policy]] = {name: PRESETS[f"{name}-servers"] for name in PEER_NAMES[:2]} | {
    name: _on_servers(name) for name in PEER_NAMES[2:]
}
"""The compared policies. Each decides at its own period, as its preset does; optimus and aiturbo every 240 s."""
AITURBO: Final = PRESETS["aiturbo"]
CLAIRVOYANT: Final = replace(AITURBO, order=ShortestRemaining(), oracle=True)
"""True remaining times at the size asked order the jobs; sizes are those of ``aiturbo``."""
PARTS: Final[dict[str, Policy]] = {
    "order alone": replace(AITURBO, size=ServersAsAsked()),
    "order, sizes of optimus": replace(AITURBO, size=MarginalServers()),
    "sizes alone": replace(AITURBO, order=Arrival()),
    "sizes, Borda order": replace(AITURBO, order=Borda()),
    "aiturbo-borda": PRESETS["aiturbo-borda"],
}
"""Parts of ``aiturbo`` apart, and its published form."""


AGAINST: Final[dict[str, Policy]] = {"aiturbo": AITURBO} | {name: PEERS[name] for name in ("optimus", "tiresias")}
EVERY: Final[dict[str, Policy]] = {"aiturbo": AITURBO} | PEERS
SEEDS, SEEDS_OF_MORE, SEEDS_OF_500 = 20, 5, 1
"""Seeds of the sweep, of what stands beside it, and of its 500 jobs."""
SOME: Final = (0.1, 0.5, 0.9)
_POINT: Final = SweepPoint()


class SweptReplay(NamedTuple):
    """One replay.

    Attributes:
        group: What it is for.
        point: Its jobs.
        label: Its policy.
        policy: The same.
    """

    group: str
    point: SweepPoint
    label: str
    policy: Policy


def plan(*, quick: bool) -> list[SweptReplay]:
    """All replays: the sweep, and with the full run its ends, parts, other estimates, lengths, loads and sizes."""

    def group(
        name: str, policies: dict[str, Policy], shares: Sequence[float], seeds: int, of: SweepPoint = _POINT
    ) -> list[SweptReplay]:
        points = [replace(of, unpredictable=share, seed=seed) for share in shares for seed in range(seeds)]
        return [SweptReplay(name, point, label, policy) for point in points for label, policy in policies.items()]

    if quick:
        return group("sweep", EVERY, SOME, 2) + group("clairvoyant", {"true remaining time": CLAIRVOYANT}, SOME, 2)
    estimates = [
        one for sd in (0.5, 3.0)
        for one in group(f"estimates {sd:g}", {"srtf": PEERS["srtf"]}, SOME, SEEDS_OF_MORE, SweepPoint(estimate_sd=sd))
    ]
    return [
        *group("sweep", EVERY, SHARES, SEEDS),
        *group("clairvoyant", {"true remaining time": CLAIRVOYANT}, SHARES, SEEDS_OF_MORE),
        *group("ends", AGAINST, (0.0, 1.0), SEEDS_OF_MORE),
        *group("parts", PARTS, SOME, SEEDS_OF_MORE), *estimates,
        *group("uncoupled", AGAINST, (0.0, 0.5, 1.0), SEEDS_OF_MORE, SweepPoint(coupled=False)),
        *group("overload", AGAINST, SOME, SEEDS_OF_MORE, SweepPoint(load=1.8)),
        *group("500 jobs", AGAINST, SOME, SEEDS_OF_500, SweepPoint(jobs=500)),
    ]


@dataclass(frozen=True, slots=True)
class SweepTruth:
    """Recipe of the truth of a workload, for other processes."""

    point: SweepPoint

    def build(self, trace: Trace, cluster: Cluster, seed: int = 0) -> Truth:
        """See ``Buildable``."""
        return workload(self.point).truth


class SweepResult(NamedTuple):
    """What a replay comes to.

    Attributes:
        jct_min: Mean completion time, minutes.
        short_min: Of jobs shorter than ``SHORT_S``; NaN without any.
        long_min: Of the others.
        makespan_min: From the first submission to the last end, minutes.
        gpus_held: GPUs held, of all, mean while jobs arrive.
        cores_held: The same of cores.
        gap_p80: 80th percentile over that time of the difference of the two.
        decision_ms: Mean time of a decision, ms.
        restarts: Starts after the first, per job.
    """

    jct_min: float
    short_min: float
    long_min: float
    makespan_min: float
    gpus_held: float
    cores_held: float
    gap_p80: float
    decision_ms: float
    restarts: float


def measured(replay: Replay) -> SweepResult:
    """Measure a replay of a whole trace."""
    trace = replay.trace
    jct_min = (replay.finish_ms - trace.submit_ms) / MS_PER_MIN
    short = replay.run_ms < SHORT_S * 1000
    time_ms, gpu, cpu = _used(replay)
    whole = max(float(time_ms.sum()), 1.0)
    gap = np.abs(gpu - cpu)
    order = np.argsort(gap)
    reached = np.cumsum(time_ms[order]) >= 0.8 * whole
    return SweepResult(
        jct_min=float(jct_min.mean()), short_min=_mean(jct_min[short]), long_min=_mean(jct_min[~short]),
        makespan_min=float(replay.finish_ms.max() - trace.submit_ms[0]) / MS_PER_MIN,
        gpus_held=float(gpu @ time_ms) / whole, cores_held=float(cpu @ time_ms) / whole,
        gap_p80=float(gap[order][reached.argmax()]),
        decision_ms=1000 * _mean(replay.round_s), restarts=float(replay.restarts.mean()),
    )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _used(replay: Replay) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Stretches of time while jobs arrive, ms, and the parts of GPUs and cores that are held in each."""
    runs, cluster = replay.runs, replay.cluster
    first, last = int(replay.trace.submit_ms[0]), int(replay.trace.submit_ms[-1])
    gpus = np.diff(runs.first_gpu) * runs.share_milli / WHOLE_GPU
    times = np.concatenate((runs.start_ms, runs.end_ms, [first, last]))
    order = np.argsort(times, kind="stable")
    at = np.clip(times[order], first, last)

    def held(of: FloatArray, whole: float) -> FloatArray:
        change = np.concatenate((of, -of, [0.0, 0.0]))[order]
        found: FloatArray = np.cumsum(change)[:-1] / whole
        return found

    cores = runs.cores_milli.astype(np.float64)
    return np.diff(at).astype(np.float64), held(gpus, cluster.num_gpus), held(cores, float(cluster.cpu_milli_N.sum()))


class Factor(NamedTuple):
    """The ratio of two policies' mean completion times over paired seeds: geometric mean with its 95 % interval.

    One seed has no interval: its ends are not a number.
    """

    mean: float
    low: float
    high: float


def factor(ours: Sequence[float], theirs: Sequence[float]) -> Factor:
    """The ratio of ours to theirs, each of the same seeds (S,); below 1 where ours is better."""
    logs = np.log(np.array(ours) / np.array(theirs))
    half = math.nan
    if len(logs) > 1:
        half = float(student.ppf((1 + SIGNIFICANT) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    mean = float(logs.mean())
    return Factor(*(float(np.exp(one)) for one in (mean, mean - half, mean + half)))
