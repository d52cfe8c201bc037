"""The twin: one replay of a trace under a policy, from its settings to its result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from brim.beliefs.analyser import measure_exchange
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.interference import Interference
from brim.beliefs.library import load
from brim.beliefs.loading import Loading
from brim.beliefs.measured_sets import BUILTIN, load_sets, seeds_of
from brim.beliefs.runtime import RunTimes, TrueRunTimes, UserHistory, UserLimits
from brim.beliefs.speeds import SeenSpeeds
from brim.beliefs.work import TrueWork
from brim.core.arrays import FloatArray
from brim.core.cluster import Cluster
from brim.core.power import PowerCurve
from brim.core.reasons import Reason
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace
from brim.engine.journal import Journal
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import DEFAULT_GAP_MS
from brim.errors import ConfigError
from brim.policies.sockets import Policy
from brim.sim.assumptions import assumptions
from brim.sim.attempts import Attempts
from brim.sim.compiled.eligible import eligible_loop
from brim.sim.compiled.scenario import Scenario
from brim.sim.fault_injector import FaultInjector
from brim.sim.faults import Drain, Faults
from brim.sim.loop import Loop, Progress
from brim.sim.overheads import Overheads
from brim.sim.plan_executor import PlanExecutor
from brim.sim.record import Record
from brim.sim.sleepers import Sleep, Sleepers
from brim.sim.specs import specs_of, user_names
from brim.sim.stall_detector import StallDetector
from brim.sim.timeline import Timeline
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import HasInterconnect, HasStepModels, Truth
from brim.units import MS_PER_S, counted, show_duration

ESTIMATES: dict[str, RunTimes] = {"limits": UserLimits(), "history": UserHistory()}
BOUNDS: Final = ("run_ms", "ideal_run_ms", "ideal_gpu_ms", "gpus_min", "gpus_max")
"""Columns of ``Replay`` that no policy changes."""
Bounds: TypeAlias = Mapping[str, Any]
"""These columns by name, each an ``IntArray`` (J,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Settings of a replay.

    Attributes:
        overheads: Costs of changes.
        faults: Faults of jobs and nodes.
        sleep: When nodes without jobs sleep; None for never.
        estimates: Run times that policies receive: ``limits`` or ``history``. Oracle policies receive the truth.
        library: Profile library whose models policies know beforehand, by the names in the trace; empty for none. Read
            by policies that ask what is known about a model.
        gap_ms: Shortest time between two rounds.
        gap_job_us: If above 0, it is shorter while few jobs wait: see ``Scheduler``.
        seed: Seed of faults.
        load: Arrival rate relative to the trace, only for reports: the given trace is already scaled.
        power: Power of a node for each GPU type of the cluster, for reports of energy; empty for none.
        notes: Changes made to the trace before, one sentence each; they come first among the assumptions.
    """

    overheads: Overheads = field(default_factory=Overheads)
    faults: Faults = field(default_factory=Faults)
    sleep: Sleep | None = None
    estimates: str = "limits"
    library: str = ""
    gap_ms: int = DEFAULT_GAP_MS
    gap_job_us: int = 0
    seed: int = 0
    load: float = 1.0
    power: tuple[PowerCurve, ...] = ()
    notes: tuple[str, ...] = ()


def replay(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    settings: ReplaySettings | None = None,
    *,
    truth: Truth | None = None,
    journal: Journal | None = None,
    on_progress: Progress | None = None,
    bounds: Bounds | None = None,
) -> Replay:
    """Replay a trace under a policy until every job has ended. Without a truth, run times are those of the trace.

    The bounds of ``bounds_of`` may be given, for several replays of one trace; otherwise they are computed.

    Policies of shipped parts that keep the size of every job run in compiled loops that make the same decisions
    (docs/decisions/0005), unless a journal is wanted, there are faults, nodes sleep, rounds are closer together while
    few jobs wait, or the truth is of another class than the shipped ones.

    Raises:
        ConfigError: the trace cannot run on the cluster or has no run times, or faults are so frequent that no job
            makes progress any more.
        PlanError: the policy wants something impossible, or lets no job make progress any more.
    """
    settings = settings or ReplaySettings()
    if settings.estimates not in ESTIMATES:
        raise ConfigError(f"estimates {settings.estimates!r}: expected one of {', '.join(ESTIMATES)}")
    truth = truth or Rigid(trace)
    believed: RunTimes = TrueRunTimes(truth.run_ms) if policy.oracle else ESTIMATES[settings.estimates]
    started, notes = time.perf_counter(), settings.notes
    notes += () if settings.sleep is None else (settings.sleep.sentence,)
    report = on_progress or (lambda ended, now_ms: True)
    library = _library(settings.library, trace)
    notes += _known_models(settings.library, library, trace, policy) + _power(settings.power, trace)
    scenario = Scenario(trace=trace, cluster=cluster, policy=policy, truth=truth, run_times=believed,
                        overheads=settings.overheads, gap_ms=settings.gap_ms)
    is_plain = journal is None and not settings.faults.any and not settings.gap_job_us and settings.sleep is None
    run = eligible_loop(scenario) if is_plain else None
    if run:
        outcome = run(scenario, report)
    else:
        loading, said = _loading(policy, settings.library, trace)
        notes += said
        beliefs = replace(
            _beliefs(policy, cluster, truth, believed, library, settings.overheads), loading=loading,
            interference=_interference(trace, cluster),
        )
        if beliefs.exchange is not None:
            notes += (
                "Before its first job the cluster is closed for "
                f"{show_duration(math.ceil(beliefs.exchange.seconds))}: exchanges of gradients are timed.",
            )
        record = Record(len(trace))
        loop = _loop(trace, cluster, policy, settings, truth, beliefs, journal, record)
        outcome = loop.run(report)
        notes += _failures(trace, beliefs)
        notes += _bases(record.shared_by) + (() if truth.contended else _shares(record.other_shares, trace))
    return Replay(
        trace=trace, cluster=cluster, policy=policy.name, oracle=policy.oracle,
        estimates=believed.words if policy.asks_run_times else "none", seed=settings.seed, load=settings.load,
        **(bounds_of(trace, truth) if bounds is None else bounds), **outcome, wall_s=time.perf_counter() - started,
        power=settings.power, assumptions=notes + assumptions(
            trace, cluster, truth, settings.overheads, settings.faults, max(settings.gap_ms, policy.gap_ms),
            settings.gap_job_us,
        ),
    )


def _library(name: str, trace: Trace) -> dict[int, FloatArray]:
    """Parameters of those models of the trace that are in a profile library, by profile code."""
    if not name:
        return {}
    known = load(name).steps
    return {code: known[model].parameters for code, model in enumerate(trace.profiles) if model in known}


def _loading(policy: Policy, name: str, trace: Trace) -> tuple[Loading, tuple[str, ...]]:
    """What a policy that asks for it knows beforehand of the loaders of models, and a sentence that says so.

    Raises:
        ConfigError: the library knows nothing of any loader.
    """
    if not policy.asks_loading:
        return Loading(), ()
    known = load(name).loading if name else {}
    if name and not known:
        raise ConfigError(f"--library {name}: found no 'loading' table, which policy {policy.name!r} reads")
    library = {code: known[model].parameters for code, model in enumerate(trace.profiles) if model in known}
    unknown = int((~np.isin(trace.profile, list(library))).sum())
    models = ", ".join(trace.profiles[code] for code in library)
    said = [f"What cores bring the loaders of {models} is known beforehand (profile library {name})."] if models else []
    if unknown:
        said.append(
            f"{unknown:,} of {len(trace):,} jobs are of models whose loader is unknown: each gets an equal share of "
            "the cores until it reports how long it waits for data."
        )
    return Loading(library), tuple(said)


def _interference(trace: Trace, cluster: Cluster) -> Interference:
    """What is believed of jobs that share GPUs: the measured sets that come with brim, of the models of the trace."""
    measured = load_sets(BUILTIN, "")
    return Interference(seeds=seeds_of(measured, trace.profiles, cluster.gpu_types), rule=measured.rule)


def _known_models(name: str, library: dict[int, FloatArray], trace: Trace, policy: Policy) -> tuple[str, ...]:
    """A sentence about the models that are in a profile library."""
    if not name:
        return ()
    known = ", ".join(trace.profiles[code] for code in library)
    if not known and policy.asks_loading:
        return ()  # it is given for what it says of loaders, which another sentence tells
    return (
        f"Step times of {known} are known beforehand to policies that ask for models (profile library {name})."
        if known else f"The profile library {name} has step times of no model of this trace.",
    )


def _power(curves: tuple[PowerCurve, ...], trace: Trace) -> tuple[str, ...]:
    """A sentence about how energy is modelled."""
    if not curves:
        return ()
    watts = ", ".join(
        f"{curve.idle_w:,.0f} to {curve.full_w:,.0f} W for {curve.gpus} {curve.gpu_type}" for curve in curves
    )
    unknown = int((trace.gpu_util_milli == NONE).sum())
    busy = f" {unknown:,} of {len(trace):,} jobs record no utilisation and count as keeping what they hold busy."
    return (f"Energy is modelled from the utilisation of GPUs ({watts}), not measured.{busy if unknown else ''}",)


def _beliefs(
    policy: Policy, cluster: Cluster, truth: Truth, run_times: RunTimes, library: dict[int, FloatArray],
    overheads: Overheads,
) -> Beliefs:
    """The beliefs at the start of a replay; beliefs about jobs come from their reports."""
    beliefs = Beliefs(
        run_times=run_times, speeds=SeenSpeeds(library=library),
        in_place_ms=None if overheads.resize_ms is None else float(overheads.resize_ms),
    )
    if policy.oracle:
        beliefs = replace(beliefs, work=TrueWork(truth.total_samples()))
    if isinstance(truth, HasStepModels):
        beliefs = replace(beliefs, steps=truth.profiled)
    if policy.asks_exchange and isinstance(truth, HasInterconnect) and cluster.num_gpus > 1:
        beliefs = replace(beliefs, exchange=measure_exchange(
            truth.exchange, num_nodes=cluster.num_nodes, gpus_per_node=int(cluster.gpus_N.max()),
        ))
    return beliefs


def _loop(
    trace: Trace, cluster: Cluster, policy: Policy, settings: ReplaySettings, truth: Truth, beliefs: Beliefs,
    journal: Journal | None, record: Record,
) -> Loop:
    """The parts of the simulated cluster around the scheduler."""
    overheads, faults = settings.overheads, settings.faults
    specs, timeline = specs_of(trace, cluster, truth), Timeline(trace)
    scheduler = Scheduler(
        cluster, policy, beliefs, users=user_names(trace), gap_ms=settings.gap_ms,
        gap_job_us=settings.gap_job_us, journal=journal, in_place=overheads.resize_ms is not None,
    )
    stall_detector = StallDetector(trace, policy.name, overheads, faults, record)
    sleepers = Sleepers(cluster.num_nodes, settings.sleep, timeline, record)
    attempts = Attempts(cluster, specs, truth, overheads.checkpoint_ms, timeline, record, stall_detector, sleepers)
    injector = FaultInjector(cluster, faults, settings.seed, attempts, timeline, record, sleepers)
    injector.schedule(_measuring(cluster, beliefs))
    executor = PlanExecutor(
        policy, specs, truth, overheads, attempts, injector, timeline, record, stall_detector, sleepers
    )
    return Loop(trace, specs, scheduler, timeline, attempts, injector, executor, record, stall_detector, sleepers)


def _measuring(cluster: Cluster, beliefs: Beliefs) -> tuple[Drain, ...]:
    """The closing of the cluster while its exchange of gradients is measured, once, at the beginning."""
    if beliefs.exchange is None:
        return ()
    nodes, end_ms = tuple(range(cluster.num_nodes)), math.ceil(beliefs.exchange.seconds * MS_PER_S)
    return (Drain(nodes=nodes, start_ms=0, end_ms=end_ms),)


def _failures(trace: Trace, beliefs: Beliefs) -> tuple[str, ...]:
    """A sentence about the jobs whose step times fit no model."""
    failures = sorted(beliefs.speeds.failures.items())
    if not failures:
        return ()
    job, why = failures[0]
    return (
        f"{counted(len(failures), 'job')} kept what was asked because the step times reported "
        f"fit no model (first: job {trace.job_id[job]}: {why}).",
    )


_BASES: Final = {
    Reason.SHARES_BY_HISTORY: "what was observed of exactly such jobs", Reason.SHARES_BY_PAIRS: "pairs of such jobs",
    Reason.SHARES_BY_DEMAND: "the utilisation of each, since such jobs were not observed",
}


def _bases(started: Mapping[Reason, int]) -> tuple[str, ...]:
    """A sentence about the jobs that were started beside others, and on what basis."""
    if not started:
        return ()
    each = ", ".join(f"{started[why]:,} by {words}" for why, words in _BASES.items() if started.get(why))
    return (f"Starts beside other jobs on their GPUs, by how their slowdown was predicted: {each}.",)


def _shares(jobs: set[int], trace: Trace) -> tuple[str, ...]:
    """A sentence about jobs that were granted another share of a GPU, whose cost the twin does not know."""
    if not jobs:
        return ()
    return (
        f"{len(jobs)} job{'s were' if len(jobs) > 1 else ' was'} granted another share of each GPU than asked (first: "
        f"job {trace.job_id[min(jobs)]}) and run as fast as with the share asked: what sharing costs is not modelled.",
    )


def bounds_of(trace: Trace, truth: Truth) -> Bounds:
    """Run times, bounds and limits of the jobs under every policy, as columns of ``Replay`` (J,)."""
    limits = truth.columns()
    columns = (truth.run_ms, truth.shortest_ms, truth.least_gpu_ms,
               limits.get("gpus_min", trace.gpus), limits.get("gpus_max", trace.gpus))
    return dict(zip(BOUNDS, columns, strict=True))
