"""The twin's event loop: virtual time, one heap keyed (time_ms, kind, sequence), rounds when they are due.

Jobs progress between events, without ticks. A job's next end is computed when it starts, and an event of an attempt
that is no longer the current one is dropped.
"""

from __future__ import annotations

import heapq
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from brim.beliefs.analyser import Analysis, analyse, measure_exchange
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.library import load
from brim.beliefs.runtime import RunTimes, TrueRunTimes, UserHistory, UserLimits
from brim.beliefs.speeds import SeenSpeeds
from brim.beliefs.work import TrueWork
from brim.core.actions import Plan, Preempt, Reject, Resize, Start, Tune
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.checks import check_snapshot
from brim.core.cluster import Cluster
from brim.core.events import Event, Kind, Sample
from brim.core.replay import Replay, Runs
from brim.core.setting import Setting
from brim.core.trace import NONE, Trace
from brim.engine.advance import advance
from brim.engine.journal import Journal
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import DEFAULT_GAP_MS
from brim.errors import ConfigError, InvariantError, PlanError
from brim.policies.sockets import Policy
from brim.sim.assumptions import assumptions
from brim.sim.lane import can_take_lane, run_lane
from brim.sim.overheads import Faults, Overheads, job_failure_ms, node_failure_ms
from brim.sim.truth import Company, Pace, Rigid, Timed, Truth, Wired, specs_of, user_names
from brim.units import MS_PER_DAY, MS_PER_S, WHOLE_GPU, show_duration

ESTIMATES: dict[str, RunTimes] = {"limits": UserLimits(), "history": UserHistory()}
# Enum members as module constants: looking them up on the class is slow before Python 3.12.
_KINDS = tuple(Kind)
_SUBMITTED, _ELIGIBLE, _STARTED, _STOPPED = Kind.SUBMITTED, Kind.ELIGIBLE, Kind.STARTED, Kind.STOPPED
_FINISHED, _FAILED, _REPORTED = Kind.FINISHED, Kind.FAILED, Kind.REPORTED
_NODE_DOWN, _NODE_DRAIN, _NODE_UP = _OF_NODES = (Kind.NODE_DOWN, Kind.NODE_DRAIN, Kind.NODE_UP)
_OF_STRETCHES = (_FINISHED, _REPORTED)
_NOT_ANALYSED = Analysis(samples=(), local_batch_max=0, seconds=0.0)
STUCK_EVENTS = 10 * 1024
"""Events and rounds without lasting progress after which a replay may be given up. Ours."""
FUTILE_ROUNDS = 4 * 1024
"""Rounds that took GPUs from jobs before these made any progress, without lasting progress of any job between them,
after which a replay is given up although little virtual time has passed. Ours."""
PROGRESS_EVERY = 1024
"""Events and rounds between two checks of the whole state and calls of ``on_progress``: some 100 ms."""

Progress = Callable[[int, int], bool]
"""Called with (jobs ended, virtual time in ms); returns False to stop the replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a replay.

    Attributes:
        overheads: Costs of changes.
        faults: Faults of jobs and nodes.
        estimates: Run times that policies receive: ``limits`` or ``history``. Oracle policies receive the truth.
        library: Profile library whose models policies know beforehand, by the names in the trace; empty for none. Read
            by policies that ask what is known about a model.
        gap_ms: Shortest time between two rounds.
        seed: Seed of faults.
        load: Arrival rate relative to the trace, only for reports: the given trace is already scaled.
        notes: Changes made to the trace before, one sentence each; they come first among the assumptions.
    """

    overheads: Overheads = field(default_factory=Overheads)
    faults: Faults = field(default_factory=Faults)
    estimates: str = "limits"
    library: str = ""
    gap_ms: int = DEFAULT_GAP_MS
    seed: int = 0
    load: float = 1.0
    notes: tuple[str, ...] = ()


def replay(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    settings: Settings | None = None,
    *,
    truth: Truth | None = None,
    journal: Journal | None = None,
    on_progress: Progress | None = None,
) -> Replay:
    """Replay a trace under a policy until every job has ended. Without a truth, run times are those of the trace.

    Policies whose order is fixed at submission run through a compiled lane that makes the same decisions
    (docs/decisions/0005), unless a journal is wanted or there are faults.

    Raises:
        ConfigError: the trace cannot run on the cluster or has no run times, or faults are so frequent that no job
            makes progress any more.
        PlanError: the policy wants something impossible, or lets no job make progress any more.
    """
    settings = settings or Settings()
    if settings.estimates not in ESTIMATES:
        raise ConfigError(f"estimates {settings.estimates!r}: expected one of {', '.join(ESTIMATES)}")
    truth = truth or Rigid(trace)
    believed: RunTimes = TrueRunTimes(truth.run_ms) if policy.oracle else ESTIMATES[settings.estimates]
    started, notes = time.perf_counter(), settings.notes
    if journal is None and type(truth) is Rigid and can_take_lane(policy, trace, settings.faults, believed):
        outcome = run_lane(
            trace, cluster, policy, truth.run_ms, believed, settings.overheads, settings.gap_ms, on_progress
        )
    else:
        library = _library(settings.library, trace)
        beliefs = _beliefs(policy, cluster, truth, believed, library)
        if settings.library:
            notes += (
                f"Step times of {', '.join(trace.profiles[code] for code in library) or 'no model'} are known "
                f"beforehand to policies that ask for models (profile library {settings.library}).",
            )
        if beliefs.exchange is not None:
            notes += (
                "Before its first job the cluster is closed for "
                f"{show_duration(math.ceil(beliefs.exchange.seconds))}: exchanges of gradients are timed.",
            )
        twin = _Twin(trace, cluster, policy, settings, truth, beliefs, journal)
        outcome = twin.run(on_progress or (lambda ended, now_ms: True))
        notes += _failures(trace, beliefs)
        notes += () if truth.contended else _shares(twin.other_shares, trace)
    return Replay(
        trace=trace, cluster=cluster, policy=policy.name, oracle=policy.oracle,
        estimates=believed.words if policy.asks_run_times else "none", seed=settings.seed, load=settings.load,
        **_ideals(trace, truth), **outcome, wall_s=time.perf_counter() - started,
        assumptions=notes + assumptions(
            trace, cluster, truth, settings.overheads, settings.faults, max(settings.gap_ms, policy.gap_ms)
        ),
    )


def _library(name: str, trace: Trace) -> dict[int, FloatArray]:
    """Parameters of those models of the trace that are in a profile library, by profile code."""
    if not name:
        return {}
    known = load(name).steps
    return {code: known[model].parameters for code, model in enumerate(trace.profiles) if model in known}


def _beliefs(
    policy: Policy, cluster: Cluster, truth: Truth, run_times: RunTimes, library: dict[int, FloatArray]
) -> Beliefs:
    """The beliefs at the start of a replay; beliefs about jobs come from their reports."""
    beliefs = Beliefs(run_times=run_times, speeds=SeenSpeeds(library=library))
    if policy.oracle:
        beliefs = replace(beliefs, work=TrueWork(truth.total_samples()))
    if policy.asks_exchange and isinstance(truth, Wired) and cluster.num_gpus > 1:
        beliefs = replace(beliefs, exchange=measure_exchange(
            truth.exchange, num_nodes=cluster.num_nodes, gpus_per_node=int(cluster.gpus_N.max()),
        ))
    return beliefs


def _failures(trace: Trace, beliefs: Beliefs) -> tuple[str, ...]:
    """A sentence about the jobs whose step times fit no model."""
    failures = sorted(beliefs.speeds.failures.items())
    if not failures:
        return ()
    job, why = failures[0]
    return (
        f"{len(failures)} job{'s' if len(failures) > 1 else ''} kept what was asked because the step times reported "
        f"fit no model (first: job {trace.job_id[job]}: {why}).",
    )


def _shares(jobs: set[int], trace: Trace) -> tuple[str, ...]:
    """A sentence about jobs that were granted another share of a GPU, whose cost the twin does not know."""
    if not jobs:
        return ()
    return (
        f"{len(jobs)} job{'s were' if len(jobs) > 1 else ' was'} granted another share of each GPU than asked (first: "
        f"job {trace.job_id[min(jobs)]}) and run as fast as with the share asked: what sharing costs is not modelled.",
    )


def _ideals(trace: Trace, truth: Truth) -> dict[str, Any]:
    """Bounds for every policy, as columns of ``Replay``."""
    limits = truth.columns()
    return {
        "run_ms": truth.run_ms, "ideal_run_ms": truth.shortest_ms, "ideal_gpu_ms": truth.least_gpu_ms,
        "gpus_min": limits.get("gpus_min", trace.gpus), "gpus_max": limits.get("gpus_max", trace.gpus),
    }


@dataclass(slots=True)
class _Attempt:
    """A job on GPUs: granted at ``begin_ms``, making progress from ``from_ms``.

    Attributes:
        number: Number of the placement: starts and resizes so far. Events of an earlier one are stale.
        attempt: Number of the attempt, which goes on through resizes.
        setting: What the job has.
        gpus: Global GPU indices.
        nodes: GPUs per node.
        begin_ms: When it got the GPUs.
        from_ms: When it begins to make progress.
        pace: Pace of the present interval.
        stretches: Intervals of equal pace: (begin, work done by then, work per ms).
        serial: Number of the present interval; an event with another number is stale.
        seen: Step times that the job measured before it began to train.
    """

    number: int
    attempt: int
    setting: Setting
    gpus: tuple[int, ...]
    nodes: tuple[int, ...]
    begin_ms: int
    from_ms: int
    pace: Pace
    stretches: list[tuple[int, float, float]] = field(default_factory=list)
    serial: int = 0
    seen: tuple[Sample, ...] = ()

    def done_at(self, time_ms: int) -> float:
        """Work done by this time."""
        for begin_ms, done, per_ms in reversed(self.stretches):
            if time_ms >= begin_ms:
                return min(done + per_ms * (time_ms - begin_ms), self.pace.until)
        return self.stretches[0][1]


class _Twin:
    """One replay: the scheduler, and the simulated cluster and jobs it acts on."""

    def __init__(
        self, trace: Trace, cluster: Cluster, policy: Policy, settings: Settings, truth: Truth, beliefs: Beliefs,
        journal: Journal | None,
    ) -> None:
        self._trace, self._cluster, self._truth = trace, cluster, truth
        self._overheads, self._faults, self._seed = settings.overheads, settings.faults, settings.seed
        self._specs = specs_of(trace, cluster, truth)
        self._scheduler = Scheduler(
            cluster, policy, beliefs, users=user_names(trace), gap_ms=settings.gap_ms, journal=journal,
        )
        self._heap: list[tuple[int, int, int, int, int]] = []  # time, kind, sequence, job or node, serial or count
        self._sequence = 0
        self._offset = cluster.gpu_offset_N.tolist()
        self._done = [0.0] * len(trace)  # work
        self._placements = [0] * len(trace)
        self._leave_by: dict[type, Callable[[Any, int], None]] = {Preempt: self._preempt, Resize: self._leave_for}
        self._come_by: dict[type, Callable[[Any, int], None]] = {
            Reject: self._reject, Resize: self._start, Start: self._start, Tune: self._tune,
        }
        self._attempts: dict[int, _Attempt] = {}
        self._leaving: dict[int, int] = {}  # GPU -> time at which the leaving job frees it
        self._saved_ms: dict[int, int] = {}  # job -> time at which its last save is done
        self._chooses = policy.resizes_running and not policy.oracle
        self._heard: set[int] = set()  # models whose steps some job reported
        self._dependents: dict[int, list[int]] = {}
        for job, after in enumerate(trace.after.tolist()):
            if after != NONE:
                self._dependents.setdefault(after, []).append(job)
        self.other_shares: set[int] = set()  # jobs that were granted another share of their GPUs than they asked
        self._down: set[int] = set()
        self._inputs: list[Event] = []  # what has happened since the engine was last called
        self._wake_ms: int | None = None
        self._draining = [0] * cluster.num_nodes  # drains in progress
        self._failures = [0] * len(trace)
        self._record = _Record(len(trace))
        self._progressed = False  # whether some job made lasting progress since the last check
        self._arrived = 0  # jobs that had arrived at the last check
        self._lively = (0, 0)  # events and virtual time of the last lasting progress
        self._futile = 0  # rounds since then that took GPUs from a job before it made progress
        self._futile_ms = NONE  # time of the last of them
        self._patience_ms = _patience_ms(trace, settings)
        self._round_s = array("d")

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, on_progress: Progress) -> dict[str, object]:
        """Handle events and rounds in order of time until every job has ended, or ``on_progress`` stops the replay."""
        self._schedule_measuring()
        self._schedule_faults()
        arrivals = self._trace.submit_ms.tolist()
        total, arrived, events, now_ms = len(arrivals), 0, 0, 0
        scheduler, heap = self._scheduler, self._heap
        partial = False
        while self._record.ended < total:
            due_ms = self._wake_ms
            next_ms = heap[0][0] if heap else None
            if arrived < total and (next_ms is None or (arrivals[arrived], _SUBMITTED) < (next_ms, heap[0][1])):
                next_ms, kind = arrivals[arrived], _SUBMITTED
            elif heap:
                kind = _KINDS[heap[0][1]]
            if due_ms is not None and (next_ms is None or due_ms < next_ms):
                now_ms = due_ms
                self._round(now_ms)
            elif next_ms is None:
                raise InvariantError(
                    f"{total - self._record.ended} jobs wait at {now_ms} ms and nothing will happen (first: job "
                    f"{self._trace.job_id[self._first_waiting()]}): policy {scheduler.policy.name!r} gave them no GPUs"
                )
            elif kind is _SUBMITTED:
                now_ms = next_ms
                self._submit(arrived, now_ms)
                arrived += 1
            else:
                now_ms, _, _, item, count = heapq.heappop(heap)
                self._handle(kind, now_ms, item, count)
            self._advance(now_ms)
            events += 1  # rounds count too: there may be years of them between two events
            if events % PROGRESS_EVERY == 0:
                self._check_progress(events, arrived, now_ms)
                check_snapshot(scheduler.state.freeze(now_ms))
                if not on_progress(self._record.ended, now_ms):
                    partial = True
                    break
        on_progress(self._record.ended, now_ms)
        for job, attempt in self._attempts.items():
            if attempt.begin_ms != now_ms:
                self._close_run(job, attempt, now_ms)
        return {
            **self._record.columns(), "end_ms": now_ms, "partial": partial, "rounds": len(self._round_s),
            "round_s": np.array(self._round_s),
        }

    def _first_waiting(self) -> int:
        """The first job, in order of submission, that has not ended."""
        over = np.array(self._record.finish_ms) != NONE
        return int(np.argmin(over | (np.array(self._record.rejected) > 0)))

    def _check_progress(self, events: int, arrived: int, now_ms: int) -> None:
        """Give up a replay in which no job makes lasting progress any more.

        Raises:
            ConfigError: faults are too frequent for any job to make progress.
            PlanError: the policy lets no job make progress.
        """
        lasting_ms = self._overheads.checkpoint_ms
        if self._progressed or arrived != self._arrived or any(
            now_ms - attempt.from_ms >= lasting_ms for attempt in self._attempts.values()
        ):
            self._progressed, self._arrived, self._lively = False, arrived, (events, now_ms)
            self._futile = 0
            return
        since_events, since_ms = self._lively
        futile = self._futile >= FUTILE_ROUNDS and now_ms - since_ms >= self._overheads.change_ms
        if events - since_events < STUCK_EVENTS or (now_ms - since_ms < self._patience_ms and not futile):
            return
        job = self._first_waiting()
        spent = show_duration((now_ms - max(since_ms, int(self._trace.submit_ms[job]))) / MS_PER_S)
        starts = self._record.restarts[job] + (self._record.first_start_ms[job] != NONE)
        said = (
            f"job {self._trace.job_id[job]} has made no lasting progress for {spent}, and neither has any other job "
            f"({events - since_events:,} events and rounds; it has started {starts} times)"
        )
        if not futile and (self._faults.node_mtbf_ms or self._faults.job_mtbf_ms):
            rate = min(filter(None, (self._faults.node_mtbf_ms, self._faults.job_mtbf_ms))) / MS_PER_S
            raise ConfigError(
                f"{said}: failures every {show_duration(rate)} on average leave no time for its next checkpoint, "
                f"{show_duration(lasting_ms / MS_PER_S)} after each start; expected rarer failures"
            )
        raise PlanError(f"policy {self._scheduler.policy.name!r}: {said}")

    def _push(self, time_ms: int, kind: Kind, item: int, count: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time_ms, kind, self._sequence, item, count))

    def _observe(self, time_ms: int, kind: Kind, job: int) -> None:
        self._inputs.append(Event(time_ms, kind, job))

    # -- decisions -------------------------------------------------------------------------------------------------

    def _round(self, now_ms: int) -> None:
        began = time.perf_counter()
        step = advance(self._scheduler, (), now_ms + 1)
        self._round_s.append(time.perf_counter() - began)
        for plan in step.orders:
            self._carry_out(plan, now_ms)

    def _advance(self, now_ms: int) -> None:
        """Give the engine what has happened; no round is due before, because the heap was served in order of time."""
        inputs, self._inputs = self._inputs, []
        self._wake_ms = advance(self._scheduler, inputs, now_ms).wake_ms

    def _carry_out(self, plan: Plan, now_ms: int) -> None:
        for carry_out in (self._leave_by, self._come_by):  # all jobs that leave GPUs do so before any job takes them
            for action in plan.actions:
                if type(action) in carry_out:
                    carry_out[type(action)](action, now_ms)

    def _start(self, action: Start | Resize, now_ms: int) -> None:
        """Start a gang: it begins once its GPUs are free, and makes progress after the start or restart."""
        job, offset, setting = action.job, self._offset, action.setting
        gpus = tuple(offset[node] + gpu for node, gpu in setting.gpus)
        begin_ms = max(now_ms, self._saved_ms.get(job, 0))  # it may move to GPUs that no job is leaving
        if self._leaving:  # not removed: another job may get a share of the same GPU
            begin_ms = max(begin_ms, *(self._leaving.get(gpu, 0) for gpu in gpus))
        first = self._record.first_start_ms[job] == NONE
        from_ms = begin_ms + (self._overheads.start_ms if first else self._overheads.restart_ms)
        analysis = self._analysis(action)
        from_ms += math.ceil(analysis.seconds * MS_PER_S)
        nodes = tuple(Counter(node for node, _ in setting.gpus).values())
        pace = self._pace(job, setting, gpus, nodes)
        if setting.share_milli != self._specs[job].share_milli:
            self.other_shares.add(job)
        self._placements[job] += 1
        attempt = _Attempt(
            self._placements[job], action.attempt, setting, gpus, nodes, begin_ms, from_ms, pace, seen=analysis.samples
        )
        self._attempts[job] = attempt
        self._note_unmeasured(action, first)
        if first:
            self._record.first_start_ms[job] = begin_ms
        else:
            self._record.restarts[job] += 1
        self._push(attempt.from_ms, _STARTED, job, attempt.number)
        lives_ms = job_failure_ms(self._faults, self._seed, job, attempt.number) if self._faults.job_mtbf_ms else 0
        if lives_ms:
            self._push(attempt.from_ms + lives_ms, _FAILED, job, attempt.number)
        self._go_on(job, attempt, pace, attempt.from_ms)
        self._neighbours_changed(gpus, now_ms, but=job)

    def _pace(self, job: int, setting: Setting, gpus: tuple[int, ...], nodes: tuple[int, ...]) -> Pace:
        """The job's pace from what it has done on, beside the jobs that have a share of its GPUs."""
        neighbours = self._beside(gpus, job) if self._truth.contended else ()
        company = Company(setting.share_milli, neighbours, setting.loader_workers)
        return self._truth.pace(job, self._done[job], nodes, setting.batch, company)

    def _beside(self, gpus: tuple[int, ...], but: int) -> tuple[int, ...]:
        """Jobs that hold a share of one of these GPUs."""
        return tuple(sorted(
            job for job, attempt in self._attempts.items() if job != but and not set(gpus).isdisjoint(attempt.gpus)
        ))

    def _neighbours_changed(self, gpus: tuple[int, ...], now_ms: int, but: int) -> None:
        """Give the jobs on these GPUs the pace they have now that a job came or went."""
        if self._truth.contended:
            for job in self._beside(gpus, but):
                self._pace_anew(job, self._attempts[job], now_ms)

    def _pace_anew(self, job: int, attempt: _Attempt, now_ms: int) -> None:
        """Change a job's pace in the middle of an interval, and report it."""
        if now_ms < attempt.from_ms:
            attempt.stretches.clear()
            self._change_pace(job, attempt, attempt.from_ms)
        else:
            self._done[job] = attempt.done_at(now_ms)
            self._change_pace(job, attempt, now_ms)
            self._tell(now_ms, job, attempt)

    def _analysis(self, action: Start | Resize) -> Analysis:
        """The cost and the results of measuring a job first; empty if that was not asked for or is not possible."""
        spec = self._specs[action.job]
        if not (isinstance(action, Start) and action.analyse and isinstance(self._truth, Timed)):
            return _NOT_ANALYSED
        if min(spec.batch_min, spec.gpus_max, spec.local_batch_max) < 1:
            return _NOT_ANALYSED
        return analyse(
            self._truth.steps(action.job), batch_min=spec.batch_min, gpus_max=spec.gpus_max,
            local_batch_max=spec.local_batch_max, local_batch_min=max(spec.local_batch_min, 1),
        )

    def _note_unmeasured(self, action: Start | Resize, first: bool) -> None:
        """See ``Replay.unmeasured``."""
        spec = self._specs[action.job]
        if not self._chooses or spec.gpus_min >= spec.gpus_max:
            return
        as_asked = len(action.setting.gpus) == spec.gpus and action.setting.batch == spec.batch
        analysed = isinstance(action, Start) and action.analyse
        if not as_asked or analysed:
            self._record.unmeasured[action.job] = 0
        elif first and spec.profile not in self._heard:
            self._record.unmeasured[action.job] = 1

    def _change_pace(self, job: int, attempt: _Attempt, from_ms: int) -> None:
        """Change a job's pace: it has another batch, or has reached another part of its work."""
        attempt.pace = self._pace(job, attempt.setting, attempt.gpus, attempt.nodes)
        self._go_on(job, attempt, attempt.pace, from_ms)

    def _go_on(self, job: int, attempt: _Attempt, pace: Pace, from_ms: int) -> None:
        """Begin an interval of equal pace at ``from_ms``."""
        done = self._done[job]
        attempt.stretches.append((from_ms, done, pace.per_ms))
        attempt.serial = self._sequence + 1
        end_ms = from_ms + math.ceil((pace.until - done) / pace.per_ms)
        self._push(end_ms, _FINISHED if pace.ends else _REPORTED, job, attempt.serial)

    def _preempt(self, action: Preempt, now_ms: int) -> None:
        """Preempt a job: it saves and leaves its GPUs."""
        self._record.preemptions[action.job] += 1
        gone_ms = max(self._vacate(action.job, now_ms), self._saved_ms.get(action.job, 0))
        self._push(gone_ms, _STOPPED, action.job, action.attempt)

    def _leave_for(self, action: Resize, now_ms: int) -> None:
        """A resized job leaves the GPUs it has; it takes the others when all jobs have left theirs."""
        self._record.resizes[action.job] += 1
        self._vacate(action.job, now_ms)

    def _vacate(self, job: int, now_ms: int) -> int:
        """Record the end of an attempt and return when its GPUs are free.

        An attempt that has made no progress has nothing to save.
        """
        attempt = self._attempts.pop(job)
        gone_ms = now_ms
        if now_ms > attempt.from_ms:
            gone_ms = self._saved_ms[job] = now_ms + self._overheads.save_ms
            self._keep(job, attempt, now_ms, now_ms)
            for gpu in attempt.gpus:
                self._leaving[gpu] = gone_ms
        elif now_ms > self._futile_ms:
            self._futile, self._futile_ms = self._futile + 1, now_ms
        self._close_run(job, attempt, gone_ms)
        self._neighbours_changed(attempt.gpus, now_ms, but=job)
        return gone_ms

    def _tune(self, action: Tune, now_ms: int) -> None:
        """Change what a job has besides its GPUs at once, without a stop."""
        attempt = self._attempts[action.job]
        before, attempt.setting = attempt.setting, action.setting
        if attempt.setting.batch != before.batch:
            self._record.unmeasured[action.job] = 0
        self._pace_anew(action.job, attempt, now_ms)

    def _reject(self, action: Reject, now_ms: int) -> None:
        job = action.job
        self._record.rejected[job], self._record.rejected_ms[job] = 1, now_ms
        self._over(job, now_ms)

    # -- what happens ----------------------------------------------------------------------------------------------

    def _submit(self, job: int, now_ms: int) -> None:
        spec = self._specs[job]
        self._inputs.append(Event(now_ms, _SUBMITTED, job, spec=spec, held=spec.after != NONE))

    def _handle(self, kind: Kind, now_ms: int, item: int, count: int) -> None:
        if kind in _OF_NODES:
            self._node(kind, now_ms, item, count)
        elif kind is _STOPPED:
            self._observe(now_ms, kind, item)
        elif kind is _ELIGIBLE:
            if not self._record.rejected[item]:  # it was rejected while it was held
                self._observe(now_ms, kind, item)
        else:
            attempt = self._attempts.get(item)
            if attempt is None or count != (attempt.serial if kind in _OF_STRETCHES else attempt.number):
                return  # the attempt or its interval has ended
            if kind is _STARTED:
                self._observe(now_ms, kind, item)
                self._tell(now_ms, item, attempt)
            elif kind is _FINISHED:
                self._keep(item, attempt, now_ms, now_ms)
                self._end(item, attempt, now_ms, kind)
            elif kind is _REPORTED:
                self._done[item] = attempt.pace.until
                self._change_pace(item, attempt, now_ms)
                self._tell(now_ms, item, attempt)
            else:
                self._fail(item, attempt, now_ms)

    def _tell(self, now_ms: int, job: int, attempt: _Attempt) -> None:
        """Report a job's progress to the scheduler, if the truth has a report."""
        report = attempt.pace.report
        if report is not None:
            if attempt.seen:
                report, attempt.seen = replace(report, seen=attempt.seen + report.seen), ()
            if report.seen and self._specs[job].profile != NONE:
                self._heard.add(self._specs[job].profile)
            self._inputs.append(Event(now_ms, _REPORTED, job, report=report))

    def _fail(self, job: int, attempt: _Attempt, now_ms: int) -> None:
        self._roll_back(job, attempt, now_ms)
        self._failures[job] += 1
        if self._failures[job] >= self._faults.attempts_max:
            self._record.failed[job] = 1
            self._end(job, attempt, now_ms, Kind.GAVE_UP)
        else:
            self._leave(job, attempt, now_ms, _FAILED)

    def _end(self, job: int, attempt: _Attempt, now_ms: int, kind: Kind) -> None:
        self._leave(job, attempt, now_ms, kind)
        self._record.finish_ms[job] = now_ms
        self._over(job, now_ms)

    def _over(self, job: int, now_ms: int) -> None:
        """Record that a job has ended, and release the jobs that waited for it."""
        self._record.ended += 1
        self._progressed = True
        for dependent in self._dependents.get(job, ()):
            self._push(
                max(now_ms + int(self._trace.after_ms[dependent]), self._specs[dependent].submit_ms),
                _ELIGIBLE, dependent, 0,
            )

    def _leave(self, job: int, attempt: _Attempt, now_ms: int, kind: Kind) -> None:
        del self._attempts[job]
        self._close_run(job, attempt, now_ms)
        self._observe(now_ms, kind, job)
        self._neighbours_changed(attempt.gpus, now_ms, but=job)

    def _node(self, kind: Kind, now_ms: int, node: int, count: int) -> None:
        if kind is _NODE_DOWN:
            self._down.add(node)
            self._observe_node(now_ms, kind, node)
            first, stop = self._offset[node], self._offset[node + 1]
            lost = [j for j, a in self._attempts.items() if any(first <= gpu < stop for gpu in a.gpus)]
            for job in sorted(lost):
                attempt = self._attempts[job]
                self._roll_back(job, attempt, now_ms)
                self._leave(job, attempt, now_ms, Kind.EVICTED)
            self._push(now_ms + self._faults.repair_ms, _NODE_UP, node, count + 1)
            return
        if kind is _NODE_DRAIN:
            self._draining[node] += 1
        elif count:  # repaired
            self._down.remove(node)
            failure_ms = node_failure_ms(self._faults, self._seed, node, count)
            self._push(now_ms + failure_ms, _NODE_DOWN, node, count)
        else:
            self._draining[node] -= 1
        if node not in self._down:  # a lost node stays lost when its drain ends, and a repaired one continues to drain
            self._observe_node(now_ms, _NODE_DRAIN if self._draining[node] else _NODE_UP, node)

    def _observe_node(self, now_ms: int, kind: Kind, node: int) -> None:
        self._inputs.append(Event(now_ms, kind, node=node))

    def _schedule_measuring(self) -> None:
        """Close the cluster while its exchange of gradients is measured, once, at the beginning."""
        exchange = self._scheduler.beliefs.exchange
        if exchange is not None:
            for node in range(self._cluster.num_nodes):
                self._push(0, _NODE_DRAIN, node, 0)
                self._push(math.ceil(exchange.seconds * MS_PER_S), _NODE_UP, node, 0)

    def _schedule_faults(self) -> None:
        if self._faults.node_mtbf_ms:
            for node in range(self._cluster.num_nodes):
                self._push(node_failure_ms(self._faults, self._seed, node, 0), _NODE_DOWN, node, 0)
        for drain in self._faults.drains:
            for node in drain.nodes:
                self._push(drain.start_ms, _NODE_DRAIN, node, 0)
                self._push(drain.end_ms, _NODE_UP, node, 0)

    # -- record ----------------------------------------------------------------------------------------------------

    def _keep(self, job: int, attempt: _Attempt, now_ms: int, kept_ms: int) -> None:
        """Record the work done until ``kept_ms``, which is kept; work from then to ``now_ms`` is lost."""
        done = attempt.done_at(kept_ms)
        self._progressed |= done > self._done[job]
        self._done[job] = done
        weight = len(attempt.gpus) * attempt.setting.share_milli
        self._record.useful_gpu_ms[job] += (kept_ms - attempt.from_ms) * weight // WHOLE_GPU
        self._record.lost_gpu_ms[job] += (now_ms - kept_ms) * weight // WHOLE_GPU

    def _roll_back(self, job: int, attempt: _Attempt, now_ms: int) -> None:
        """Keep the work up to the last checkpoint and return it; checkpoints count from the first step."""
        if now_ms <= attempt.from_ms:
            return
        kept_ms = now_ms - (now_ms - attempt.from_ms) % self._overheads.checkpoint_ms
        self._keep(job, attempt, now_ms, kept_ms)
        report = self._pace(job, attempt.setting, attempt.gpus, attempt.nodes).report
        if report is not None:
            self._inputs.append(Event(now_ms, _REPORTED, job, report=replace(report, seen=())))

    def _close_run(self, job: int, attempt: _Attempt, end_ms: int) -> None:
        if end_ms < attempt.begin_ms:  # the jobs leaving its GPUs are still leaving: it never got them
            if self._record.first_start_ms[job] == attempt.begin_ms:
                self._record.first_start_ms[job] = NONE
            else:
                self._record.restarts[job] -= 1
            return
        self._record.run(job, attempt.begin_ms, end_ms, attempt.gpus, attempt.setting.share_milli)


def _patience_ms(trace: Trace, settings: Settings) -> int:
    """Virtual time without lasting progress after which a replay is given up: longer than any legitimate pause."""
    cost, faults = settings.overheads, settings.faults
    repair_ms = faults.repair_ms if faults.node_mtbf_ms else 0
    drain_ms = sum(drain.end_ms - drain.start_ms for drain in faults.drains)
    return MS_PER_DAY + 10 * (cost.change_ms + repair_ms) + drain_ms + int(trace.after_ms.max(initial=0))


class _Record:
    """The columns of ``Replay`` while the replay runs."""

    def __init__(self, jobs: int) -> None:
        self.ended = 0
        self.first_start_ms, self.finish_ms, self.rejected_ms = ([NONE] * jobs for _ in range(3))
        self.service_gpu_ms, self.useful_gpu_ms, self.lost_gpu_ms = [0] * jobs, [0] * jobs, [0] * jobs
        self.preemptions, self.restarts, self.resizes = ([0] * jobs for _ in range(3))
        self.failed, self.rejected, self.unmeasured = ([0] * jobs for _ in range(3))
        self._job, self._start, self._end = array("q"), array("q"), array("q")
        self._first, self._gpu, self._share = array("q", [0]), array("q"), array("q")

    def run(self, job: int, start_ms: int, end_ms: int, gpus: tuple[int, ...], share_milli: int) -> None:
        """Record that a job held GPUs; an interval of no length is left out."""
        if end_ms <= start_ms:
            return
        self.service_gpu_ms[job] += (end_ms - start_ms) * len(gpus) * share_milli // WHOLE_GPU
        self._job.append(job)
        self._start.append(start_ms)
        self._end.append(end_ms)
        self._share.append(share_milli)
        self._gpu.extend(gpus)
        self._first.append(len(self._gpu))

    def columns(self) -> dict[str, object]:
        """The job columns and the runs, in order of start."""
        job, start, end = (np.array(values, dtype=np.int64) for values in (self._job, self._start, self._end))
        first, gpu, share = (np.array(values, dtype=np.int64) for values in (self._first, self._gpu, self._share))
        names = ("first_start_ms", "finish_ms", "service_gpu_ms", "useful_gpu_ms", "lost_gpu_ms", "preemptions",
                 "restarts", "resizes", "failed", "rejected", "rejected_ms", "unmeasured")
        return {
            **{name: frozen(np.array(getattr(self, name), dtype=np.int64)) for name in names},
            "runs": sorted_runs(job, start, end, share, first, gpu),
        }


def sorted_runs(
    job: IntArray, start: IntArray, end: IntArray, share: IntArray, first: IntArray, gpu: IntArray
) -> Runs:
    """Put runs in order of (start, job)."""
    order = np.lexsort((job, start))
    counts = np.diff(first)[order]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    picks = np.repeat(first[:-1][order] - offsets[:-1], counts) + np.arange(len(gpu))
    return Runs(
        job=frozen(job[order]), start_ms=frozen(start[order]), end_ms=frozen(end[order]),
        share_milli=frozen(share[order]), first_gpu=frozen(offsets), gpu=frozen(gpu[picks]),
    )
