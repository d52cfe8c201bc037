"""The twin from a given state on: what a live cluster would do if its jobs took the run times that are given.

The same loop, parts and engine as a replay. It begins with a copy of the live engine, running jobs included, in place
of a trace, and no job arrives. Jobs run as long as given on whatever they get (truth ``rigid``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.actions import Start
from brim.core.arrays import IntArray
from brim.core.events import JobSpec, Kind
from brim.core.lifecycle import Phase
from brim.core.replay import Runs
from brim.core.trace import NONE, trace_of
from brim.engine.scheduler import Scheduler
from brim.sim.attempts import Attempts
from brim.sim.fault_injector import FaultInjector
from brim.sim.faults import Faults
from brim.sim.loop import PROGRESS_EVERY, Loop
from brim.sim.overheads import Overheads
from brim.sim.plan_executor import PlanExecutor
from brim.sim.record import Record
from brim.sim.stall_detector import StallDetector
from brim.sim.timeline import Timeline
from brim.sim.truths.rigid import Rigid
from brim.units import MS_PER_DAY

STRETCHES_MAX: Final = 4
"""Stretches of ``PROGRESS_EVERY`` events and rounds after which a continuation is cut off; ours: some seconds."""
HORIZON_MS: Final = 90 * MS_PER_DAY
"""Time after which a continuation ends; ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outset:
    """What a continuation begins from; rows are jobs by their ids in the scheduler, 0 to J - 1.

    Attributes:
        now_ms: Time at which it begins.
        scheduler: The engine; it is copied.
        specs: The jobs (J).
        waits: Rows that must end before a held job becomes eligible, by its row.
        begin_ms: Time at which another held job becomes eligible, by its row.
        overheads: Costs of changes.
    """

    now_ms: int
    scheduler: Scheduler
    specs: Sequence[JobSpec]
    waits: Mapping[int, tuple[int, ...]]
    begin_ms: Mapping[int, int]
    overheads: Overheads


@dataclass(frozen=True, slots=True)
class Course:
    """What happened to each job: when it next began to hold GPUs, and when it ended; NONE for never (J,)."""

    start_ms: IntArray
    end_ms: IntArray
    events: int


def continued(outset: Outset, run_ms: Sequence[int]) -> Course:
    """Continue until every job has ended, or for a bounded number of events.

    Args:
        outset: What to begin from.
        run_ms: Whole run time of each job in ms, above what it has run already.

    Raises:
        PlanError: the policy wants something impossible.
    """
    scheduler, specs, total = outset.scheduler.copy(), outset.specs, len(outset.specs)
    trace = trace_of(
        name="the queue", format="live", job_id=[str(row) for row in range(total)], submit_ms=[0] * total,
        gpus=[spec.gpus for spec in specs], run_ms=list(run_ms),
    )
    cluster, policy = scheduler.state.cluster, scheduler.policy
    timeline, record, truth = Timeline(trace, arrived=total), Record(total), Rigid(trace)
    stall_detector = StallDetector(trace, policy.name, outset.overheads, Faults(), record)
    attempts = Attempts(cluster, specs, truth, outset.overheads.checkpoint_ms, timeline, record, stall_detector)
    injector = FaultInjector(cluster, Faults(), 0, attempts, timeline, record)
    executor = PlanExecutor(
        policy, specs, truth, outset.overheads, attempts, injector, timeline, record, stall_detector
    )
    _resume(outset, scheduler, timeline, attempts, record)
    loop = Loop(trace, specs, scheduler, timeline, attempts, injector, executor, record, stall_detector)
    stretches = 0

    def goes_on(ended: int, now_ms: int) -> bool:
        nonlocal stretches
        stretches += 1
        return stretches < STRETCHES_MAX

    runs = loop.run(goes_on, outset.now_ms + HORIZON_MS)["runs"]
    assert isinstance(runs, Runs)
    start_ms = np.full(total, NONE, dtype=np.int64)
    for row, attempt in attempts.running.items():
        start_ms[row] = attempt.begin_ms  # its run may have no length yet
    start_ms[runs.job[::-1]] = runs.start_ms[::-1]  # the first of each job is written last
    return Course(start_ms, np.array(record.finish_ms, dtype=np.int64), stretches * PROGRESS_EVERY)


def _resume(outset: Outset, scheduler: Scheduler, timeline: Timeline, attempts: Attempts, record: Record) -> None:
    """Put every job where it is."""
    state, now_ms, overheads = scheduler.state, outset.now_ms, outset.overheads
    for row in range(len(outset.specs)):
        phase, setting = state.phase(row), state.setting(row)
        if state.attempt(row):
            record.first_start_ms[row] = 0  # another start costs a restart
        if phase in (Phase.STARTING, Phase.RUNNING) and setting is not None:
            from_ms = now_ms
            if phase is Phase.STARTING:
                from_ms += max(overheads.start_ms if state.attempt(row) == 1 else overheads.restart_ms, 1)
            action = Start(row, state.attempt(row), state.sequence(row), setting)
            attempts.resume(action, state.run_ms(row, now_ms), from_ms, now_ms)
        elif phase is Phase.STOPPING:
            timeline.push(now_ms + overheads.save_ms, Kind.STOPPED, row, state.attempt(row))
    for row, others in outset.waits.items():
        timeline.wait_for(row, others)
    for row, begin_ms in outset.begin_ms.items():
        timeline.push(max(begin_ms, now_ms), Kind.ELIGIBLE, row)
