"""EaCO (arXiv 2412.08294) again: its measured table from a fitted model, and clusters of 64 and 28 nodes.

The table: power and slowdown are fitted on the jobs alone and the pairs; every set is then replayed on one node, and
the meter reads its energy. The clusters: the trace, number of jobs, loads and deadlines of the paper are not published;
ours are a synthetic trace whose jobs train the four measured models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import least_squares

from brim.beliefs.interference import DemandRule
from brim.beliefs.measured_sets import BUILTIN, MeasuredSets, load_sets
from brim.core.arrays import FloatArray, frozen
from brim.core.cluster import Cluster, parse_cluster
from brim.core.energy import BUSIEST, J_PER_KWH, energy_of
from brim.core.power import PowerCurve
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace, trace_of
from brim.policies.place.energy_sharing import EnergySharing
from brim.policies.presets import PRESETS
from brim.policies.sockets import Policy
from brim.sim.overheads import Overheads
from brim.sim.sleepers import Sleep
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.sharing import Sharing
from brim.sim.truths.truth import Truth
from brim.sim.twin import ReplaySettings, replay
from brim.traces.synth import ShapeName, synthesize
from brim.units import MS_PER_H, WHOLE_GPU

IDLE_W: Final = 560.0
"""Watts of an idle node of 8 V100: not in the paper, a plausible figure; see beliefs/profiles/power.toml."""
GPU_MIB: Final = 16_384
ENERGY_WITHIN, JCT_WITHIN = 0.05, 0.03
PUBLISHED_SAVING, PUBLISHED_GROWTH = 0.39, 0.032
"""Published energy below exclusive FIFO, and growth of the mean run time, with 64 and with 28 nodes."""
CLUSTER_SAVINGS: Final = {64: {"fifo": 0.39, "fifo-packed": 0.39, "gandiva-pack": 0.39},
                          28: {"fifo": 0.39, "fifo-packed": 0.245, "gandiva-pack": 0.083}}
"""Published energy of EaCO below that of each baseline, by nodes."""
ACTIVE_SAVINGS: Final = {64: 0.47, 28: 0.30}
"""Published share of active nodes below exclusive FIFO."""
RUN_H_MAX: Final = 24
"""Longest run time on the clusters: with the weeks of the longest jobs, few jobs would meet for most of a replay."""
SLACKS: Final[dict[str, tuple[tuple[float, float], ...]]] = {
    "mixed": ((1.2, 0.2), (1.5, 0.3), (2.0, 0.2), (0.0, 0.3)), "none": ((0.0, 1.0),), "tight": ((1.2, 1.0),),
}
"""Deadline over run time and share of the jobs, 0 for no deadline. Ours: the paper gives none."""


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A row of the paper's table.

    Attributes:
        jobs: Indices of ``MODELS``.
        watts: Mean power of the node.
        kwh: Energy until the last job of the set has ended.
        jct_h: Mean completion time.
        busy: Mean utilisation of the GPUs, 0 to 1.
        memory: Mean utilisation of GPU memory, 0 to 1.
    """

    jobs: tuple[int, ...]
    watts: float
    kwh: float
    jct_h: float
    busy: float
    memory: float


MODELS: Final = ("alexnet", "resnet18", "resnet50", "vgg16")
TABLE: Final = tuple(PublishedSet(*row) for row in (
    ((0,), 712, 24.73, 34.76, 0.0472, 0.0173),
    ((1,), 959, 33.69, 35.13, 0.1117, 0.0607),
    ((2,), 1330, 47.87, 36.01, 0.3661, 0.2229),
    ((3,), 1533, 55.38, 36.13, 0.4801, 0.3003),
    ((0, 2), 1390, 50.93, 36.63, 0.4025, 0.2266),
    ((0, 3), 1506, 54.97, 36.51, 0.5516, 0.3126),
    ((1, 3), 1644, 60.84, 37.01, 0.6106, 0.3485),
    ((0, 1, 2), 1541, 59.01, 38.28, 0.5224, 0.2777),
    ((0, 1, 3), 1713, 65.55, 38.26, 0.6699, 0.3583),
    ((0, 1, 2, 3), 1944, 93.66, 44.21, 0.9664, 0.4346),
))
"""The measured sets: 8 V100, every job on all of them."""
ALONE: Final = TABLE[:4]
FITTED_ON: Final = TABLE[:7]


def fitted_curve(idle_w: float | None = None) -> PowerCurve:
    """Fit the power of a node on the jobs alone and the pairs, with the utilisation that the jobs alone sum to.

    Args:
        idle_w: Watts of an idle node. None: fitted too, which suits the table, where no node is idle.
    """
    busy = np.array([_sum_busy(row.jobs) for row in FITTED_ON])
    watts = np.array([row.watts for row in FITTED_ON])

    def errors(p: FloatArray) -> FloatArray:
        idle = p[2] if idle_w is None else idle_w
        wrong: FloatArray = np.log((idle + p[0] * busy ** p[1]) / watts)
        return wrong

    start = (1400.0, 0.6, 300.0) if idle_w is None else (1400.0, 0.6)
    rise_w, exponent, *rest = least_squares(errors, start).x.tolist()
    idle = rest[0] if idle_w is None else idle_w
    return PowerCurve(gpu_type="V100", gpus=8, idle_w=idle, full_w=idle + rise_w, exponent=exponent)


def fitted_rule() -> DemandRule:
    """Fit what a neighbour costs on the mean completion times of the pairs."""
    pairs = FITTED_ON[len(ALONE) :]

    def errors(p: Sequence[float]) -> list[float]:
        rule = DemandRule(per_neighbour=max(0.0, float(p[0])))
        return [float(np.log(_mean_jct_h(row.jobs, rule) / row.jct_h)) for row in pairs]

    return DemandRule(per_neighbour=float(least_squares(errors, (0.03,)).x[0]))


def _sum_busy(jobs: Sequence[int]) -> float:
    return min(BUSIEST, sum(ALONE[job].busy for job in jobs))


def _mean_jct_h(jobs: Sequence[int], rule: DemandRule) -> float:
    ratios = rule.slowdowns([ALONE[job].busy for job in jobs])
    return float(np.mean([ALONE[job].jct_h * ratio for job, ratio in zip(jobs, ratios, strict=True)]))


@dataclass(frozen=True, slots=True)
class TableRow:
    """A measured set beside the replay of it."""

    published: PublishedSet
    kwh: float
    jct_h: float

    @property
    def energy_error(self) -> float:
        """Relative error of the energy."""
        return self.kwh / self.published.kwh - 1.0

    @property
    def jct_error(self) -> float:
        """Relative error of the mean completion time."""
        return self.jct_h / self.published.jct_h - 1.0

    @property
    def is_asked(self) -> bool:
        """Whether the row must be met: pairs and triples."""
        return 2 <= len(self.published.jobs) <= 3

    @property
    def is_met(self) -> bool:
        """Whether both errors are small enough."""
        return abs(self.energy_error) <= ENERGY_WITHIN and abs(self.jct_error) <= JCT_WITHIN


def table_rows(idle_w: float | None = None) -> tuple[TableRow, ...]:
    """Replay every measured set on one node, under the fitted power (see ``fitted_curve``) and slowdown."""
    curve, rule = fitted_curve(idle_w), fitted_rule()
    return tuple(_replayed(row, curve, rule) for row in TABLE)


def _replayed(row: PublishedSet, curve: PowerCurve, rule: DemandRule) -> TableRow:
    jobs = list(row.jobs)
    run_ms = [round(ALONE[job].jct_h * MS_PER_H) for job in jobs]
    trace = trace_of(
        name="EaCO's set", format="eaco", job_id=[MODELS[job] for job in jobs], submit_ms=[0] * len(jobs),
        gpus=[8] * len(jobs), run_ms=run_ms, time_limit_ms=run_ms, profiles=MODELS, profile=jobs,
        gpu_util_milli=[round(1000 * ALONE[job].busy) for job in jobs],
        gpu_mem_mib=[round(GPU_MIB * ALONE[job].memory) for job in jobs],
    )
    everyone = replace(PRESETS["eaco"], name="all together", place=EnergySharing(
        utilisation_limit=1.0, memory_limit=1.0, residents=4, alpha=1.0,
    ))
    settings = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0, power=(curve,))
    truth = Sharing(Rigid(trace), trace, MeasuredSets(rule=rule))
    outcome = replay(trace, parse_cluster("1x8xV100"), everyone, settings, truth=truth)
    if set(outcome.runs.start_ms.tolist()) - {0} and len(outcome.runs.job) == len(jobs):
        raise AssertionError("a job of the set did not start with the others")
    return TableRow(row, _kwh(outcome), float((outcome.finish_ms - trace.submit_ms).mean()) / MS_PER_H)


def _kwh(outcome: Replay) -> float:
    energy = energy_of(outcome)
    assert energy is not None
    return energy.total_j / J_PER_KWH


# -- clusters --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTruth:
    """Recipe of the truth: EaCO's measured sets, and the fitted rule for all others."""

    def build(self, trace: Trace, cluster: Cluster, seed: int = 0) -> Truth:
        """See ``cli.replays.Buildable``."""
        measured = MeasuredSets(rule=fitted_rule(), sets=load_sets(BUILTIN, "").sets)
        return Sharing(Rigid(trace), trace, measured, cluster.gpu_types)


def with_models(trace: Trace, seed: int, slacks: str = "mixed") -> Trace:
    """Let the jobs of a trace train the measured models, drawn evenly, with deadlines; their run times are known."""
    rng = np.random.default_rng(seed)
    model = rng.integers(len(MODELS), size=len(trace))
    factors, weights = (np.array(column) for column in zip(*SLACKS[slacks], strict=True))
    factor = factors[rng.choice(len(factors), size=len(trace), p=weights)]
    deadline = np.where(factor > 0, np.rint(factor * trace.run_ms), NONE).astype(np.int64)
    util, memory = (
        np.array([round(scale * getattr(row, name)) for row in ALONE])[model]
        for name, scale in (("busy", WHOLE_GPU), ("memory", GPU_MIB))
    )
    return replace(
        trace, profiles=MODELS, profile=frozen(model), time_limit_ms=trace.run_ms,
        relative_deadline_ms=frozen(deadline), gpu_util_milli=frozen(util), gpu_mem_mib=frozen(memory),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What is replayed.

    Attributes:
        label: What differs from the main conditions.
        nodes: Nodes of 8 V100.
        shape: Marginals of the synthetic trace (``traces.synth``).
        whole_nodes: Whether every job asks for 8 GPUs, as all measured ones did.
        slacks: Key of ``SLACKS``.
        jobs: Number of jobs.
        busy_nodes: Mean number of nodes that the jobs would fill one by one: below 64 and above 28, since the paper
            calls the former ample and the latter scarce.
        seed: Seed of trace, models and deadlines.
    """

    label: str = ""
    nodes: int = 64
    shape: ShapeName = "philly"
    whole_nodes: bool = True
    slacks: str = "mixed"
    jobs: int = 400
    busy_nodes: float = 36.0
    seed: int = 0

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return parse_cluster(f"{self.nodes}x8xV100")

    def trace(self) -> Trace:
        """Draw the jobs."""
        drawn = synthesize(self.shape, self.jobs, self.seed)
        gpus = np.full(len(drawn), 8) if self.whole_nodes else np.minimum(drawn.gpus, 8 * self.nodes)
        run_ms = np.minimum(drawn.run_ms, RUN_H_MAX * MS_PER_H)
        span_ms = float((gpus * run_ms).sum()) / (8 * self.busy_nodes)
        submit_ms = np.rint(drawn.submit_ms * (span_ms / drawn.submit_ms[-1])).astype(np.int64)
        whole = np.full(len(drawn), WHOLE_GPU)
        moved = replace(
            drawn, gpus=frozen(gpus), share_milli=frozen(whole), submit_ms=frozen(submit_ms), run_ms=frozen(run_ms)
        )
        return with_models(moved, self.seed, self.slacks)


SENSITIVITY: Final = (
    Conditions(label="no deadlines", slacks="none"), Conditions(label="all deadlines at 1.2", slacks="tight"),
    Conditions(label="another draw", seed=1), Conditions(label="run times as in Helios", shape="helios"),
    Conditions(label="run times as in Acme", shape="acme"),
    Conditions(label="sizes as in Philly too", whole_nodes=False, jobs=600),
)
"""Each is replayed under exclusive FIFO and ``eaco``; limits and numbers of residents are on the frontier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A policy of the comparison, and whether idle nodes sleep."""

    label: str
    policy: Policy
    sleeps: bool = True

    @property
    def settings(self) -> ReplaySettings:
        """Settings of its replays."""
        return ReplaySettings(power=(fitted_curve(IDLE_W),), sleep=Sleep() if self.sleeps else None)


def _eaco(label: str, **constants: float) -> Variant:
    place = EnergySharing(**constants)  # type: ignore[arg-type]
    return Variant(label=label, policy=replace(PRESETS["eaco"], name=label, place=place))


EXCLUSIVE: Final = Variant(label="fifo", policy=PRESETS["fifo"])
BASELINES: Final = (
    EXCLUSIVE, Variant(label="fifo, nodes never sleep", policy=PRESETS["fifo"], sleeps=False),
    Variant(label="fifo-packed", policy=PRESETS["fifo-packed"]),
    Variant(label="gandiva-pack", policy=PRESETS["gandiva-pack"]),
)
EACO: Final = Variant(label="eaco", policy=PRESETS["eaco"])
FRONTIER: Final = (
    _eaco("eaco, 2 residents, limit 30 %", residents=2, utilisation_limit=0.3),
    _eaco("eaco, 2 residents", residents=2),
    _eaco("eaco, limit 30 %", utilisation_limit=0.3), _eaco("eaco, limit 50 %", utilisation_limit=0.5), EACO,
    _eaco("eaco, 4 residents", residents=4), _eaco("eaco, 4 residents, energy alone", residents=4, alpha=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """One policy on one cluster.

    Attributes:
        label: The policy.
        kwh: Energy of all nodes.
        active_node_h: Node-hours with a job.
        run_growth: Mean time from first start to end over the mean run time alone, minus 1.
        total_h: Mean time from submission to end.
        late: Share of the jobs with a deadline that missed it.
        undone: Jobs taken off GPUs that they shared.
    """

    label: str
    kwh: float
    active_node_h: float
    run_growth: float
    total_h: float
    late: float
    undone: int


def cluster_row(label: str, outcome: Replay) -> ClusterRow:
    """Sum up a replay."""
    trace, energy = outcome.trace, energy_of(outcome)
    assert energy is not None
    due = trace.relative_deadline_ms
    asked = due != NONE
    late = outcome.finish_ms - trace.submit_ms > due
    return ClusterRow(
        label=label, kwh=energy.total_j / J_PER_KWH, active_node_h=float(energy.active_ms.sum()) / MS_PER_H,
        run_growth=float((outcome.finish_ms - outcome.first_start_ms).sum() / trace.run_ms.sum()) - 1.0,
        total_h=float((outcome.finish_ms - trace.submit_ms).mean()) / MS_PER_H,
        late=float(late[asked].mean()) if asked.any() else 0.0, undone=int(outcome.preemptions.sum()),
    )


def saving(row: ClusterRow, base: ClusterRow) -> float:
    """Share of the energy of another policy that this one saves."""
    return 1.0 - row.kwh / base.kwh


def is_reached(row: ClusterRow, base: ClusterRow) -> bool:
    """Whether the published point is reached: as much energy saved, at no more growth of the run time."""
    return saving(row, base) >= PUBLISHED_SAVING and row.run_growth <= PUBLISHED_GROWTH
