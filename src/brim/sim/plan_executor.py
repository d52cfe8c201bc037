"""Plans of the engine, carried out on the simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from brim.beliefs.analyser import Analysis, analyse
from brim.core.actions import ACTIONS, Plan, Preempt, Reject, Resize, Start, Tune
from brim.core.events import JobSpec, Kind
from brim.core.trace import NONE
from brim.errors import InvariantError
from brim.policies.sockets import Policy
from brim.sim.attempts import Attempts, RunningJob
from brim.sim.fault_injector import FaultInjector
from brim.sim.overheads import Overheads
from brim.sim.record import Record
from brim.sim.revocation import Departure, Revocation
from brim.sim.sleepers import Sleepers
from brim.sim.stall_detector import StallDetector
from brim.sim.timeline import Timeline
from brim.sim.truths.truth import HasStepTimes, Truth
from brim.units import MS_PER_S

_NOT_ANALYSED = Analysis(samples=(), local_batch_max=0, seconds=0.0)


class PlanExecutor:
    """Carries out the actions of plans: what they cost, when GPUs are free, and what is recorded of them."""

    def __init__(
        self, policy: Policy, specs: Sequence[JobSpec], truth: Truth, overheads: Overheads, attempts: Attempts,
        injector: FaultInjector, timeline: Timeline, record: Record, stall_detector: StallDetector,
        sleepers: Sleepers,
    ) -> None:
        self._sleepers = sleepers
        self._specs, self._truth, self._overheads = specs, truth, overheads
        self._attempts, self._injector, self._timeline = attempts, injector, timeline
        self._record, self._stall_detector = record, stall_detector
        self._chooses = policy.resizes_running and not policy.oracle
        self._leaving: dict[int, int] = {}  # GPU -> time at which the leaving job frees it
        self._saved_ms: dict[int, int] = {}  # job -> time at which its last save is done
        self._ran_ms: dict[int, int] = {}  # job that is resized -> running time of its attempt so far
        self._ready_ms: dict[int, int] = {}  # the same job -> when its attempt made progress, or was to
        self._revocation = Revocation(overheads)
        self._before: dict[int, RunningJob] = {}  # padding job that is resized -> what it had
        self._leave_by: dict[type, Callable[[Any, int], None]] = {Preempt: self._preempt, Resize: self._leave_for}
        self._come_by: dict[type, Callable[[Any, int], None]] = {
            Reject: self._reject, Resize: self._start, Start: self._start, Tune: self._tune,
        }
        for action in ACTIONS:
            if action not in self._leave_by and action not in self._come_by:
                raise InvariantError(f"the twin has no function for {action.__name__}")

    def carry_out(self, plan: Plan, now_ms: int) -> None:
        """Carry out a plan."""
        actions = plan.actions
        for carry_out in (self._leave_by, self._come_by):  # all jobs that leave GPUs do so before any job takes them
            for action in actions:
                if type(action) in carry_out:
                    carry_out[type(action)](action, now_ms)

    def _start(self, action: Start | Resize, now_ms: int) -> None:
        """Start a gang: it begins once its GPUs are free, and makes progress after the start or restart."""
        job, setting = action.job, action.setting
        begin_ms = self._sleepers.awake_ms(setting.nodes, now_ms)
        begin_ms = max(begin_ms, self._saved_ms.get(job, 0))  # it may move to GPUs that no job is leaving
        if self._leaving:  # not removed: another job may get a share of the same GPU
            left_ms = (self._leaving.get(gpu, 0) for gpu in self._attempts.gpus_of(setting))
            begin_ms = max(begin_ms, 0, *left_ms)
        first = self._record.first_start_ms[job] == NONE
        analysis = self._analysis(action)
        start_ms = self._overheads.start_ms if first else self._overheads.restart_ms
        before, ready_ms = self._before.pop(job, None), self._ready_ms.pop(job, 0)
        if before is not None:
            per_ms = self._attempts.pace_on(job, setting).per_ms
            start_ms = self._revocation.start_ms(before, self._attempts.gpus_of(setting), per_ms, now_ms)
        elif isinstance(action, Resize) and self._overheads.resize_ms is not None:
            # it took its time before it had left the GPUs that it does not keep; what was left of a start still is
            start_ms = max(0, ready_ms - begin_ms)
        from_ms = begin_ms + start_ms + math.ceil(analysis.seconds * MS_PER_S)
        if setting.gpus and setting.share_milli != self._specs[job].share_milli:
            self._record.other_shares.add(job)
        self._note_unmeasured(action, first)
        ran_ms = self._ran_ms.pop(job, 0)
        attempt = self._attempts.begin(action, begin_ms, from_ms, ran_ms, analysis.samples, now_ms)
        self._injector.begin(job, attempt)

    def _analysis(self, action: Start | Resize) -> Analysis:
        """The cost and the results of measuring a job first; empty if that was not asked for or is not possible."""
        spec = self._specs[action.job]
        if not (isinstance(action, Start) and action.analyse and isinstance(self._truth, HasStepTimes)):
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
        elif first and spec.profile not in self._attempts.reported_profiles:
            self._record.unmeasured[action.job] = 1

    def _preempt(self, action: Preempt, now_ms: int) -> None:
        """Preempt a job: it saves and leaves its GPUs."""
        self._record.preemptions[action.job] += 1
        attempt = self._attempts.running[action.job]
        leaving = Departure(self._overheads.save_ms, now_ms)
        if attempt.setting.revocable:
            leaving = self._revocation.preempted(action.job, attempt, now_ms)
        gone_ms = max(self._vacate(action.job, now_ms, leaving), self._saved_ms.get(action.job, 0))
        self._timeline.push(gone_ms, Kind.STOPPED, action.job, action.attempt)

    def _leave_for(self, action: Resize, now_ms: int) -> None:
        """A resized job leaves the GPUs it has; it takes the others when all jobs have left theirs."""
        self._record.resizes[action.job] += 1
        attempt, resize_ms = self._attempts.running[action.job], self._overheads.resize_ms
        self._ran_ms[action.job], self._ready_ms[action.job] = attempt.ran_at(now_ms), attempt.from_ms
        leaving = Departure(self._overheads.save_ms if resize_ms is None else resize_ms, now_ms)
        if attempt.setting.revocable:
            self._before[action.job] = attempt
            leaving = self._revocation.resized(action.job, attempt, now_ms)
        self._vacate(action.job, now_ms, leaving)

    def _vacate(self, job: int, now_ms: int, leaving: Departure) -> int:
        """Take a job's GPUs from it and return when they are free; without progress it has nothing to save."""
        attempt, gone_ms = self._attempts.running[job], now_ms
        if now_ms > attempt.from_ms:
            gone_ms = self._saved_ms[job] = now_ms + leaving.leave_ms
            self._leaving.update(dict.fromkeys(attempt.gpus, gone_ms))
        else:
            self._stall_detector.futile(now_ms)
        self._attempts.vacate(job, now_ms, gone_ms, leaving.kept_ms)
        return gone_ms

    def _tune(self, action: Tune, now_ms: int) -> None:
        """Change what a job has besides its GPUs at once, without a stop."""
        if action.setting.batch != self._attempts.running[action.job].setting.batch:
            self._record.unmeasured[action.job] = 0
        if action.setting.gpus and action.setting.share_milli != self._specs[action.job].share_milli:
            self._record.other_shares.add(action.job)
        self._attempts.change_setting(action.job, action.setting, now_ms)

    def _reject(self, action: Reject, now_ms: int) -> None:
        job = action.job
        self._record.rejected[job], self._record.rejected_ms[job] = 1, now_ms
        self._attempts.over(job, now_ms)
