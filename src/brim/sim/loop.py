"""The twin's event loop: events and rounds in order of virtual time, through the engine that also runs live."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from brim.core.actions import Start
from brim.core.checks import check_snapshot
from brim.core.events import Event, JobSpec, Kind
from brim.core.reasons import SHARES, Reason
from brim.core.trace import NONE, Trace
from brim.engine.advance import advance
from brim.engine.round import RoundResult
from brim.engine.scheduler import Scheduler
from brim.errors import InvariantError
from brim.sim.attempts import Attempts
from brim.sim.fault_injector import FaultInjector
from brim.sim.plan_executor import PlanExecutor
from brim.sim.record import Record
from brim.sim.sleepers import Sleepers
from brim.sim.stall_detector import StallDetector
from brim.sim.timeline import Timeline
from brim.units import counted

PROGRESS_EVERY: Final = 1024
"""Events and rounds between two checks of the whole state and calls of ``on_progress``: some 100 ms."""

Progress = Callable[[int, int], bool]
"""Called with (jobs ended, virtual time in ms); returns False to stop the replay."""


class Loop:
    """Takes events and rounds in order of time, and passes each to the part that acts on it."""

    def __init__(
        self, trace: Trace, specs: Sequence[JobSpec], scheduler: Scheduler, timeline: Timeline, attempts: Attempts,
        injector: FaultInjector, executor: PlanExecutor, record: Record, stall_detector: StallDetector,
        sleepers: Sleepers,
    ) -> None:
        self._sleepers = sleepers
        self._trace, self._specs, self._scheduler, self._timeline = trace, specs, scheduler, timeline
        self._attempts, self._injector, self._executor = attempts, injector, executor
        self._record, self._stall_detector = record, stall_detector
        self._wake_ms = scheduler.due_ms()  # when the next round is due
        self._shares = scheduler.policy.shares_gpus
        self._round_s = array("d")

    def run(
        self, on_progress: Progress, until_ms: int | None = None, enough: Callable[[], bool] | None = None
    ) -> dict[str, object]:
        """Run until every job has ended, ``on_progress`` stops the replay, or nothing happens until a time.

        ``enough``, where given, is asked after each event and round whether what is to be known is known.

        Returns:
            Columns of ``Replay``.

        Raises:
            ConfigError: faults are so frequent that no job makes progress any more.
            PlanError: the policy wants something impossible, or lets no job make progress any more.
        """
        timeline, record = self._timeline, self._record
        total, events, now_ms, partial = len(self._trace), 0, 0, False
        while record.ended < total:
            next_ms, due_ms = timeline.next_ms, self._wake_ms
            if until_ms is not None and until_ms < min((at for at in (next_ms, due_ms) if at is not None),
                                                       default=until_ms + 1):
                partial = True
                break
            if due_ms is not None and (next_ms is None or due_ms < next_ms):
                now_ms = due_ms
                self._round(now_ms)
            elif next_ms is not None:
                now_ms = self._happen(*timeline.pop())
            else:
                raise InvariantError(
                    f"{counted(total - record.ended, 'job')} still waiting at {now_ms} ms and nothing will happen "
                    f"(first: job {self._trace.job_id[record.first_waiting()]}): policy "
                    f"{self._scheduler.policy.name!r} gave them "
                    "no GPUs"
                )
            self._advance(now_ms)
            if enough is not None and enough():
                partial = True
                break
            events += 1  # rounds count too: there may be years of them between two events
            if events % PROGRESS_EVERY == 0:
                running = self._attempts.running.values()
                self._stall_detector.check(events, timeline.arrived, now_ms, (attempt.from_ms for attempt in running))
                check_snapshot(self._scheduler.state.freeze(now_ms))
                if not on_progress(record.ended, now_ms):
                    partial = True
                    break
        on_progress(record.ended, now_ms)
        self._attempts.close_runs(now_ms)
        return {
            **record.columns(), "end_ms": now_ms, "partial": partial, "rounds": len(self._round_s),
            "round_s": np.array(self._round_s),
        }

    def _round(self, now_ms: int) -> None:
        began = time.perf_counter()
        step = advance(self._scheduler, (), now_ms + 1)
        self._round_s.append(time.perf_counter() - began)
        self._wake_ms = step.wake_ms
        for result in step.rounds:
            if self._shares:
                self._note_shares(result)
            self._executor.carry_out(result.plan, now_ms)

    def _note_shares(self, result: RoundResult) -> None:
        """Note on what basis jobs are started beside others."""
        if np.isin(result.why, SHARES).any():
            why_of = dict(zip(result.job.tolist(), result.why.tolist(), strict=True))
            started = (why_of[action.job] for action in result.plan if isinstance(action, Start))
            self._record.shared_by.update(Reason(why) for why in started if why in SHARES)

    def _advance(self, now_ms: int) -> None:
        """Give the engine what has happened; no round is due before, because events are taken in order of time."""
        happened = self._timeline.take_events()
        if happened:
            self._wake_ms = advance(self._scheduler, happened, now_ms).wake_ms

    def _happen(self, now_ms: int, kind: Kind, item: int, count: int) -> int:
        """Let one event happen and return its time."""
        match kind:
            case Kind.REPORTED | Kind.FINISHED:  # most frequent first
                self._attempts.reached(item, count, now_ms)
            case Kind.SUBMITTED:
                spec = self._specs[item]
                self._timeline.record_event(Event(now_ms, kind, item, spec=spec, held=spec.after != NONE))
            case Kind.ELIGIBLE:
                if not self._record.rejected[item]:  # it was rejected while it was held
                    self._timeline.record_event(Event(now_ms, kind, item))
            case Kind.STARTED:
                self._attempts.started(item, count, now_ms)
            case Kind.STOPPED:
                self._timeline.record_event(Event(now_ms, kind, item))
            case Kind.FAILED:
                self._injector.fail(item, count, now_ms)
            case Kind.NODE_DOWN:
                self._injector.lose(item, count, now_ms)
            case Kind.NODE_DRAIN:
                self._injector.drain(item, now_ms)
            case Kind.NODE_UP:
                self._injector.open(item, count, now_ms)
            case Kind.NODE_SLEEP:
                self._sleepers.fall_asleep(item, count, now_ms)
            case _:
                raise InvariantError(f"the twin met an event of kind {kind.name} at {now_ms} ms, which it never makes")
        return now_ms
