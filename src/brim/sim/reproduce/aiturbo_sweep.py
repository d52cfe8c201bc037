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

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.policies.order.arrival import Arrival
from brim.policies.order.borda import Borda
from brim.policies.order.shortest import ShortestRemaining
from brim.policies.order.tiresias import ServiceQueues
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.presets import PRESETS
from brim.policies.size.servers import MarginalServers, ServersAsAsked
from brim.policies.sockets import Policy, Size
from brim.sim.reproduce.aiturbo import QUARTILES_H, SweepPoint, workload
from brim.sim.reproduce.aiturbo_peers import ShortestByCurve
from brim.sim.truths.truth import Truth
from brim.units import MS_PER_H, MS_PER_MIN, WHOLE_GPU

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
CROSSED: Final = (0.0, *SHARES, 1.0)
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


CURVE, ATTAINED, TRUE = "by curve", "by attained service", "by true remaining time"
"""Orders of the crossing. A curve through the losses of every job stands for schedulers that predict, and Tiresias'
queues of attained service for those that go by history; Optimus itself decides sizes, which would hide the order."""


def _ordered(size: Size) -> dict[str, Policy]:
    """Orders with the same sizes, places and rounds: by the classifier, by prediction, by history, by the truth."""
    ours = replace(AITURBO, size=size)
    return {
        "aiturbo": ours, CURVE: replace(ours, order=ShortestByCurve()),
        ATTAINED: replace(ours, order=ServiceQueues()), TRUE: replace(CLAIRVOYANT, size=size),
    }


PRIORS: Final[dict[str, Policy]] = {
    f"{CURVE}, else {hours:g} h": replace(AITURBO, size=ServersAsAsked(), order=ShortestByCurve(3600 * hours))
    for hours in QUARTILES_H
}
"""The order by curve with other remaining times where no curve says one."""
AGAINST: Final[dict[str, Policy]] = {"aiturbo": AITURBO} | {name: PEERS[name] for name in ("optimus", "tiresias")}
EVERY: Final[dict[str, Policy]] = {"aiturbo": AITURBO} | PEERS
SEEDS, SEEDS_OF_ORDERS, SEEDS_OF_MORE, SEEDS_OF_500 = 20, 10, 5, 1
"""Seeds of the sweep, of its orders with sizes as asked, of what else stands beside it, and of its 500 jobs."""
SOME: Final = (0.1, 0.5, 0.9)
ENDS: Final = (0.0, 0.5, 1.0)
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
    """All replays: the sweep, and with the full run its parts, other orders, estimates, lengths, loads and sizes."""

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
        *group("orders", _ordered(ServersAsAsked()), CROSSED, SEEDS_OF_ORDERS),
        *group("orders, alike", _ordered(ServersAsAsked()), CROSSED, SEEDS_OF_MORE, SweepPoint(coupled=False)),
        *group("orders, own sizes", _ordered(AITURBO.size), ENDS, SEEDS_OF_MORE),
        *group("priors", PRIORS, ENDS, SEEDS_OF_MORE),
        *group("parts", PARTS, SOME, SEEDS_OF_MORE), *estimates,
        *group("overload", AGAINST, SOME, SEEDS_OF_MORE, SweepPoint(load=1.8)),
        *group("together", EVERY, SOME, SEEDS_OF_MORE, SweepPoint(load=math.inf)),
        *group("500 jobs", AGAINST, SOME, SEEDS_OF_500, SweepPoint(jobs=500)),
    ]


@dataclass(frozen=True, slots=True)
class SweepTruth:
    """Recipe of the truth of a workload, for other processes."""

    point: SweepPoint

    def build(self, trace: Trace, cluster: Cluster, seed: int = 0) -> Truth:
        """See ``Buildable``."""
        return workload(self.point).truth


class DeviceUse(NamedTuple):
    """GPUs and cores of a cluster in some stretches of a replay, as parts of all; NaN where there is no such stretch.

    Busy is what computes: workers with their cores in the passes, servers in the update; not while a job starts.

    Attributes:
        hours: Length of the stretches.
        gpus_held: GPUs that jobs hold, mean.
        cores_held: The same of cores.
        gap_held: 80th percentile over time of the difference of the two.
        gpus_busy: GPUs that are busy, mean.
        cores_busy: The same of cores.
        gap_busy: 80th percentile over time of the difference of these two.
    """

    hours: float
    gpus_held: float
    cores_held: float
    gap_held: float
    gpus_busy: float
    cores_busy: float
    gap_busy: float


class SweepResult(NamedTuple):
    """What a replay comes to.

    Attributes:
        jct_min: Mean completion time, minutes.
        short_min: Of jobs shorter than ``SHORT_S``; NaN without any.
        long_min: Of the others.
        makespan_min: From the first submission to the last end, minutes.
        decision_ms: Mean time of a decision, ms.
        restarts: Starts after the first, per job.
        arriving: Devices while jobs arrive: from the first submission to the last.
        waiting: Devices while some job has nothing.
        whole: Devices from the first submission to the last end.
    """

    jct_min: float
    short_min: float
    long_min: float
    makespan_min: float
    decision_ms: float
    restarts: float
    arriving: DeviceUse
    waiting: DeviceUse
    whole: DeviceUse


def measured(replay: Replay) -> SweepResult:
    """Measure a replay of a whole trace."""
    trace = replay.trace
    jct_min = (replay.finish_ms - trace.submit_ms) / MS_PER_MIN
    short = replay.run_ms < SHORT_S * 1000
    arriving, waiting, whole = _used(replay)
    return SweepResult(
        jct_min=float(jct_min.mean()), short_min=_mean(jct_min[short]), long_min=_mean(jct_min[~short]),
        makespan_min=float(replay.finish_ms.max() - trace.submit_ms[0]) / MS_PER_MIN,
        decision_ms=1000 * _mean(replay.round_s), restarts=float(replay.restarts.mean()), arriving=arriving,
        waiting=waiting, whole=whole,
    )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _used(replay: Replay) -> tuple[DeviceUse, DeviceUse, DeviceUse]:
    """Devices while jobs arrive, while some job has nothing, and until all have ended."""
    runs, cluster, submit_ms = replay.runs, replay.cluster, replay.trace.submit_ms
    edges = np.unique(np.concatenate((runs.start_ms, runs.end_ms, submit_ms, replay.finish_ms)))
    edges = edges[(edges >= submit_ms[0]) & (edges <= replay.finish_ms.max())]
    cores = float(cluster.cpu_milli_N.sum())
    held = runs.start_ms, runs.end_ms

    def at(of: FloatArray, begin_ms: IntArray, end_ms: IntArray) -> FloatArray:
        """The sum of what counts from a begin to an end, in each stretch between two edges."""
        times = np.concatenate((begin_ms, end_ms))
        order = np.argsort(times, kind="stable")
        total = np.append(0.0, np.cumsum(np.concatenate((of, -of))[order]))
        found: FloatArray = total[np.searchsorted(times[order], edges[:-1], side="right")]
        return found

    gpus = np.diff(runs.first_gpu) * runs.share_milli / WHOLE_GPU
    parts = tuple(at(of, *held) / whole for of, whole in (
        (gpus, cluster.num_gpus), (runs.cores_milli.astype(np.float64), cores),
        (runs.gpus_busy, cluster.num_gpus), (runs.cores_busy_milli, cores),
    ))
    waiting = at(np.ones(len(submit_ms)), submit_ms, replay.finish_ms) - at(np.ones(len(runs.job)), *held)
    time_ms = np.diff(edges).astype(np.float64)
    windows = (edges[:-1] < submit_ms[-1], waiting > 0.5, np.ones(len(time_ms), dtype=np.bool_))
    arrive, wait, whole = (_use(time_ms[of], *(part[of] for part in parts)) for of in windows)
    return arrive, wait, whole


def _use(
    time_ms: FloatArray, gpus_held: FloatArray, cores_held: FloatArray, gpus_busy: FloatArray, cores_busy: FloatArray
) -> DeviceUse:
    """Of stretches of so many ms, in each of which such parts of the devices are held, and busy."""
    total = float(time_ms.sum())
    if not total:
        return DeviceUse(0.0, *[math.nan] * 6)

    def gap(one: FloatArray, other: FloatArray) -> float:
        found = np.abs(one - other)
        order = np.argsort(found)
        reached: BoolArray = np.cumsum(time_ms[order]) >= 0.8 * total
        return float(found[order][reached.argmax()])

    def mean(of: FloatArray) -> float:
        return float(of @ time_ms) / total

    return DeviceUse(
        total / MS_PER_H, mean(gpus_held), mean(cores_held), gap(gpus_held, cores_held), mean(gpus_busy),
        mean(cores_busy), gap(gpus_busy, cores_busy),
    )


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
