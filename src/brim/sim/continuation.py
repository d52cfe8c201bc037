"""The twin from a given state on: what a live cluster would do if its jobs took the run times that are given.

The same loop, parts and engine as a replay. It begins with a copy of the live engine, running jobs included, in place
of a trace, and no job arrives. Jobs run as long as given on the GPUs they asked for; on other numbers of GPUs, those
whose speed is believed to be known are as much faster or slower, and the others run as long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from brim.core.actions import Start
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Event, JobSpec, Kind
from brim.core.lifecycle import Phase
from brim.core.replay import Runs
from brim.core.trace import NONE, Trace, trace_of
from brim.engine.scheduler import Scheduler
from brim.sim.attempts import Attempts
from brim.sim.compiled.continuation import Continuation
from brim.sim.fault_injector import FaultInjector
from brim.sim.faults import Faults
from brim.sim.loop import PROGRESS_EVERY, Loop
from brim.sim.overheads import Overheads
from brim.sim.plan_executor import PlanExecutor
from brim.sim.record import Record
from brim.sim.sleepers import Sleepers
from brim.sim.stall_detector import StallDetector
from brim.sim.timeline import Timeline
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import ALONE, Colocation, Pace
from brim.units import MS_PER_DAY

STRETCHES_MAX: Final = 4
"""Stretches of ``PROGRESS_EVERY`` events and rounds after which a continuation is cut off; ours: some seconds."""
COMPILED_EVENTS_MAX: Final = 1 << 18
"""The same in the compiled loop: events and rounds; ours."""
COMPILED_SPEEDUP: Final = 16
"""Events and rounds of the compiled loop in the time of one of the general loop: 15 to 19 were measured
(docs/measurements/2026-11-28-eta.md)."""
HORIZON_MS: Final = 90 * MS_PER_DAY
"""Time after which a continuation ends; ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What some jobs may have together, from when they wait for devices to their end.

    Attributes:
        most: The most of it: GPUs, or jobs.
        needs: What each of these jobs needs of it, by row.
    """

    most: int
    needs: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """What a continuation begins from; rows are jobs by their ids in the scheduler, 0 to J - 1.

    Attributes:
        now_ms: Time at which it begins.
        scheduler: The engine; it is copied.
        specs: The jobs (J).
        waits: Rows that must end before a held job becomes eligible, by its row.
        begin_ms: Time at which another held job becomes eligible, by its row.
        limits: What jobs may have together; a held job becomes eligible once these leave room for it, too.
        leaving: Rows of stopping jobs that end with their stop.
        speedups: Speed on 0 to G GPUs, relative to the GPUs asked for, by row of a job of which it is known (G + 1,).
        overheads: Costs of changes.
    """

    now_ms: int
    scheduler: Scheduler
    specs: Sequence[JobSpec]
    waits: Mapping[int, tuple[int, ...]]
    begin_ms: Mapping[int, int]
    limits: tuple[Limit, ...] = ()
    leaving: frozenset[int] = frozenset()
    speedups: Mapping[int, FloatArray] = field(default_factory=dict)
    overheads: Overheads


@dataclass(frozen=True, slots=True)
class JobTimes:
    """What happened to each job: when it next began to hold GPUs, and when it ended; NONE for never (J,).

    ``events`` is how long it took, in events and rounds of the general loop.
    """

    start_ms: IntArray
    end_ms: IntArray
    events: int


def continued_by_draw(
    initial: InitialState, drawn: Iterable[Sequence[int]], starts_of: Collection[int] | None = None
) -> Iterator[JobTimes]:
    """Continue, for each draw of run times, until every job has ended, or for a bounded number of events.

    In the compiled loop where it implements what decides (``sim/compiled/continuation``), else in the general one.

    Args:
        initial: What to begin from.
        drawn: Whole run time of each job in ms, above what it has run already (J,), of each draw.
        starts_of: Rows of jobs of which only the next start is asked for: it ends when all of them have GPUs.

    Raises:
        PlanError: the policy wants something impossible.
    """
    compiled, until_ms = None, initial.now_ms + HORIZON_MS
    if not (initial.waits or initial.begin_ms or initial.limits or initial.leaving):
        compiled = Continuation.of(initial.scheduler, initial.overheads, initial.now_ms)
    for run_ms in drawn:
        if compiled is None:
            yield continued(initial, run_ms, starts_of)
        else:
            start_ms, end_ms, events = compiled.course(run_ms, starts_of, until_ms, COMPILED_EVENTS_MAX)
            yield JobTimes(start_ms, end_ms, events // COMPILED_SPEEDUP)


def continued(initial: InitialState, run_ms: Sequence[int], starts_of: Collection[int] | None = None) -> JobTimes:
    """Continue in the general loop; see ``continued_by_draw``.

    Args:
        initial: What to begin from.
        run_ms: Whole run time of each job in ms, above what it has run already.
        starts_of: Rows of jobs of which only the next start is asked for: it ends when all of them have GPUs.

    Raises:
        PlanError: the policy wants something impossible.
    """
    scheduler, specs, total = initial.scheduler.copy(), initial.specs, len(initial.specs)
    stop_ms = {row: scheduler.state.run_ms(row, initial.now_ms) + max(initial.overheads.save_ms, 1)
               for row in initial.leaving}
    run_ms = [stop_ms.get(row, time_ms) for row, time_ms in enumerate(run_ms)]
    trace = trace_of(
        name="the queue", format="live", job_id=[str(row) for row in range(total)], submit_ms=[0] * total,
        gpus=[spec.gpus for spec in specs], run_ms=run_ms,
    )
    cluster, policy, state = scheduler.state.cluster, scheduler.policy, scheduler.state
    holding = [row for row in range(total) if state.phase(row) is not Phase.HELD]
    timeline, record, truth = _LimitedTimeline(trace, initial.limits, holding), Record(total), _Believed(trace, initial)
    stall_detector = StallDetector(trace, policy.name, initial.overheads, Faults(), record)
    sleepers = Sleepers(cluster.num_nodes, None, timeline, record)
    attempts = Attempts(
        cluster, specs, truth, initial.overheads.checkpoint_ms, timeline, record, stall_detector, sleepers
    )
    injector = FaultInjector(cluster, Faults(), 0, attempts, timeline, record, sleepers)
    executor = PlanExecutor(
        policy, specs, truth, initial.overheads, attempts, injector, timeline, record, stall_detector, sleepers
    )
    _resume(initial, scheduler, timeline, attempts, record)
    loop = Loop(trace, specs, scheduler, timeline, attempts, injector, executor, record, stall_detector, sleepers)
    stretches = 0

    def goes_on(ended: int, now_ms: int) -> bool:
        nonlocal stretches
        stretches += 1
        return stretches < STRETCHES_MAX

    unstarted = None if starts_of is None else set(starts_of)

    def enough() -> bool:
        assert unstarted is not None
        unstarted.difference_update([row for row in unstarted if row in attempts.running])
        return not unstarted

    runs = loop.run(goes_on, initial.now_ms + HORIZON_MS, None if unstarted is None else enough)["runs"]
    assert isinstance(runs, Runs)
    start_ms = np.full(total, NONE, dtype=np.int64)
    for row, attempt in attempts.running.items():
        start_ms[row] = attempt.begin_ms  # its run may have no length yet
    start_ms[runs.job[::-1]] = runs.start_ms[::-1]  # the first of each job is written last
    return JobTimes(start_ms, np.array(record.finish_ms, dtype=np.int64), stretches * PROGRESS_EVERY)


def _resume(
    initial: InitialState, scheduler: Scheduler, timeline: Timeline, attempts: Attempts, record: Record
) -> None:
    """Put every job where it is."""
    state, now_ms, overheads = scheduler.state, initial.now_ms, initial.overheads
    for row in range(len(initial.specs)):
        phase, setting = state.phase(row), state.setting(row)
        if state.attempt(row):
            record.first_start_ms[row] = 0  # another start costs a restart
            attempts.has_done(row, state.run_ms(row, now_ms))
        if phase in (Phase.STARTING, Phase.RUNNING) and setting is not None:
            from_ms = now_ms
            if phase is Phase.STARTING:
                from_ms += max(overheads.start_ms if state.attempt(row) == 1 else overheads.restart_ms, 1)
            action = Start(row, state.attempt(row), state.sequence(row), setting)
            attempts.resume(action, from_ms, now_ms)
        elif phase is Phase.STOPPING and row in initial.leaving and setting is not None:
            action = Start(row, state.attempt(row), state.sequence(row), setting)
            attempts.resume(action, now_ms, now_ms)
        elif phase is Phase.STOPPING:
            timeline.push(now_ms + overheads.save_ms, Kind.STOPPED, row, state.attempt(row))
    for row, others in initial.waits.items():
        timeline.wait_for(row, others)
    for row, begin_ms in initial.begin_ms.items():
        timeline.push(max(begin_ms, now_ms), Kind.ELIGIBLE, row)


class _Believed(Rigid):
    """The given run times, and how much faster or slower elastic jobs are believed to be on other numbers of GPUs."""

    def __init__(self, trace: Trace, initial: InitialState) -> None:
        super().__init__(trace)
        self._speedups = {row: speedup.tolist() for row, speedup in initial.speedups.items()}

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        pace, speedup = super().pace(job, done, nodes, batch, colocation), self._speedups.get(job)
        return pace if speedup is None else pace._replace(per_ms=speedup[min(sum(nodes), len(speedup) - 1)])


class _LimitedTimeline(Timeline):
    """A timeline in which a job becomes eligible once what jobs may have together leaves room for it.

    Args:
        trace: The jobs, all of which have arrived.
        limits: What jobs may have together.
        holding: Rows of jobs that have or wait for devices.
    """

    def __init__(self, trace: Trace, limits: Sequence[Limit], holding: Collection[int]) -> None:
        super().__init__(trace, arrived=len(trace))
        self._limits = limits
        self._holding, self._wanting = set(holding), set[int]()
        self._left = [limit.most - sum(limit.needs.get(row, 0) for row in holding) for limit in limits]

    def record_event(self, event: Event) -> None:
        """Keep an event that has happened, unless it would let a job wait for devices for which limits have no room."""
        if event.kind is not Kind.ELIGIBLE:
            super().record_event(event)
        elif any(limit.needs.get(event.job, 0) > left for limit, left in zip(self._limits, self._left, strict=True)):
            self._wanting.add(event.job)
        else:
            self._wanting.discard(event.job)
            self._holding.add(event.job)
            self._take(event.job, 1)
            super().record_event(event)

    def release(self, job: int, now_ms: int) -> None:
        """Let the jobs become eligible that waited for the end of this one, or for the room that it leaves."""
        super().release(job, now_ms)
        if job in self._holding:
            self._holding.remove(job)
            self._take(job, -1)
            for row in sorted(self._wanting):
                self.record_event(Event(now_ms, Kind.ELIGIBLE, row))

    def _take(self, job: int, sign: int) -> None:
        for at, limit in enumerate(self._limits):
            self._left[at] -= sign * limit.needs.get(job, 0)
