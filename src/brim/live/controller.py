"""The controller: inputs in, and what must become durable and what is then ordered out. No clock, no files, no sockets.

::

    commands of users (durable), reports of agents  ->  step  ->  Changes: journal, jobs, attempts   committed first
                                                          |
                                                     engine.advance: rounds that are due between the inputs
                                                          |
                                                  orders to agents, given out after the commit; when to call again

Orders are level-triggered: ``_settle`` compares what an attempt should be with what its agent last said of it, and
orders the difference, again and again until it holds. That is also how living attempts are adopted after a restart.
Reasons and limits: docs/decisions/0014.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any, Final

from brim.agent.protocol import (
    ENDED,
    FINISHED,
    FOREIGN,
    LOST,
    OPEN,
    QUARANTINED,
    RUNNING,
    STOPPED,
    STOPPING,
    AttemptProgress,
    AttemptSeen,
    ForgetAttempt,
    Order,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Action, Preempt, Reject, Start
from brim.core.cluster import Cluster
from brim.core.events import Event, Kind, Report, Sample
from brim.core.lifecycle import Phase
from brim.core.setting import Setting
from brim.engine.advance import advance
from brim.engine.journal import Journal, recover
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import DEFAULT_GAP_MS
from brim.errors import InvariantError, NotFoundError, RefusedError
from brim.live import holds
from brim.live.agents import Agents
from brim.live.ends import CANCELLED, OUTCOMES, PREEMPTED, REQUEUED, TIME_LIMIT, AttemptVerdict, ending, is_crash
from brim.live.inputs import (
    AgentJoined,
    AgentLost,
    AgentSynced,
    Cancel,
    Device,
    Hold,
    Input,
    JobInput,
    Progress,
    Release,
    Requeue,
    Saw,
    Submit,
)
from brim.live.ledger import Ledger
from brim.live.nodes import Dispatch
from brim.live.reasons import why
from brim.live.records import AttemptRecord, Changes, JobRecord, JobStatus
from brim.live.requests import NONE
from brim.policies.sockets import Policy
from brim.units import MS_PER_S, WHOLE_GPU

REPEAT_MS: Final = 5 * MS_PER_S
"""Time after which an order that does not hold is given again, for messages that are lost. Ours."""
PATIENCE_MS: Final = 15 * MS_PER_S
"""Time for which a user's agent may be away before waiting jobs of the user are held. Ours: ten agent starts."""
STRANGER_GRACE_S: Final = 30.0
"""Grace of an attempt that should not live, whose own is not known."""
SAMPLES_MAX: Final = 1e15
"""Largest number of samples believed: beyond it, doubles no longer count one by one."""
_STATUS: Final[dict[Phase, JobStatus]] = {
    Phase.HELD: "held", Phase.PENDING: "pending", Phase.STARTING: "starting", Phase.RUNNING: "running",
    Phase.STOPPING: "stopping",
}
_FATES: Final[tuple[JobStatus | None, ...]] = (None, "finished", "failed", "cancelled")
_FATE_OF: Final[dict[Kind, int]] = {Kind.FINISHED: 1, Kind.GAVE_UP: 2, Kind.REJECT: 2, Kind.CANCELLED: 3}
_STRENGTH: Final = ("", "down", PREEMPTED, REQUEUED, TIME_LIMIT, CANCELLED)
"""Reasons to stop an attempt, weakest first: a stronger one replaces a weaker one."""
_MARKS: Final = {OPEN: Kind.GPU_OPENED, FOREIGN: Kind.GPU_WITHHELD, QUARANTINED: Kind.GPU_QUARANTINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step decided.

    Attributes:
        changes: What must be durable before anything else happens.
        orders: What is then ordered, in turn.
        wake_ms: Time after which the next step has something to do even without inputs, None for never.
    """

    changes: Changes
    orders: tuple[Dispatch, ...]
    wake_ms: int | None


class Controller:
    """One cluster of one node under one policy, long because each input and each due time has its method here.

    Args:
        cluster: The cluster: one node.
        policy: The policy that decides.
        beliefs: Fitted models that the policy may read.
        gap_ms: Shortest time between two rounds.

    Attributes:
        jobs: Every job that has not ended.
        ledger: Every attempt that has not ended.

    Raises:
        RefusedError: the policy needs true run times, which nobody knows of live jobs.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, beliefs: Beliefs | None = None, *, gap_ms: int = DEFAULT_GAP_MS
    ) -> None:
        if policy.oracle:
            raise RefusedError(f"policy {policy.name} needs true run times, which are not known of live jobs")
        if cluster.num_nodes != 1:
            raise RefusedError(f"the controller runs jobs on one machine, found a cluster of {cluster.num_nodes} nodes")
        self._journal = Journal()
        self.scheduler = Scheduler(cluster, policy, beliefs or Beliefs(), gap_ms=gap_ms, journal=self._journal)
        self.jobs: dict[int, JobRecord] = {}
        self.ledger = Ledger()
        self.agents = Agents()
        self._fates = bytearray()  # how each job ended, by id: an index of ``_FATES``
        self._waiting_for: dict[int, set[int]] = {}  # jobs that wait for a job to end
        self._arrays: dict[int, set[int]] = {}
        self._marks: dict[int, str] = {}  # devices that are not open
        self._timers: list[tuple[int, str, int]] = []
        self._timers_set: set[tuple[str, int]] = set()
        self._targets: dict[int, tuple[int, ...]] = {}  # devices of the newest order about a job's attempt
        self._gated: set[int] = set()
        self._dirty: set[int] = set()
        self._changed: dict[int, JobRecord] = {}
        self._orders: list[Dispatch] = []
        self._round_ms: int | None = None
        self._now_ms = self._stepped_ms = 0

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self, inputs: Sequence[Input], before_ms: int) -> StepResult:
        """Handle inputs and everything that is due before a time.

        An input happens at its own time, or as soon after it as nothing later was decided: a round never sees what was
        accepted after it.

        Args:
            inputs: What has happened, in the order in which it was accepted.
            before_ms: Cluster time; nothing that is due at or after it is handled.

        Raises:
            PlanError: the policy wants something impossible.
        """
        before_ms = max(before_ms, self._stepped_ms + 1)
        rest = deque(inputs)
        while True:
            at_ms = self._next_ms(rest, before_ms)
            if self._decide(before_ms if at_ms is None else at_ms):
                continue  # rounds may have made something due before
            if at_ms is None:
                break
            self._now_ms = max(at_ms, self._horizon_ms)
            if self._timers and self._timers[0][0] <= at_ms:
                _, what, key = heapq.heappop(self._timers)
                self._timers_set.discard((what, key))
                getattr(self, f"_due_{what}")(key)
            else:
                self._handle(rest.popleft())
            self._settle_all()
        self._stepped_ms = before_ms
        return self._result(inputs, before_ms)

    def _next_ms(self, rest: deque[Input], before_ms: int) -> int | None:
        """Time of the next input or timer, None if no input is left and no timer is due."""
        times = [min(rest[0].at_ms, before_ms - 1)] if rest else []
        if self._timers and self._timers[0][0] < before_ms:
            times.append(self._timers[0][0])
        return min(times, default=None)

    @property
    def _horizon_ms(self) -> int:
        """Earliest time of an event: after the last round, and not before the last event."""
        return max(self.scheduler.horizon_ms, 0 if self._round_ms is None else self._round_ms + 1)

    def _decide(self, before_ms: int) -> bool:
        """Decide the rounds that are due before a time, and carry them out; returns whether there was one."""
        result = advance(self.scheduler, (), before_ms)
        for one in result.rounds:
            self._now_ms = self._round_ms = one.plan.time_ms
            for action in one.plan.actions:
                self._carry_out(action)
        self._settle_all()
        return bool(result.rounds)

    def _result(self, inputs: Iterable[Input], at_ms: int) -> StepResult:
        due_ms = self.scheduler.due_ms()
        times = [due_ms] if due_ms is not None else []
        times += [self._timers[0][0]] if self._timers else []
        changes = Changes(
            at_ms=at_ms, lines=tuple(self._journal.lines), jobs=tuple(self._changed.values()),
            attempts=tuple(self.ledger.changed.values()),
            inbox_done=tuple(one.inbox for one in inputs if isinstance(one, JobInput)),
        )
        orders = tuple(self._orders)
        self._journal.lines, self._changed, self.ledger.changed, self._orders = [], {}, {}, []
        return StepResult(changes=changes, orders=orders, wake_ms=min(times, default=None))

    # -- restart ---------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """Return what ``recover`` can begin from instead of the first line of the journal."""
        return self.scheduler.save({"fates": base64.b64encode(self._fates).decode()})

    def recover(
        self, saved: bytes | None, lines: Iterable[str], jobs: Iterable[JobRecord], attempts: Iterable[AttemptRecord],
        now_ms: int,
    ) -> None:
        """Go on where an earlier controller ended. Orders that its agents did not hear are given again once they sync.

        Args:
            saved: What ``save`` returned, None for the beginning.
            lines: The lines of the journal since then.
            jobs: All jobs that have not ended.
            attempts: All attempts that have not ended.
            now_ms: Cluster time, not before that of the last step.
        """
        if saved is not None:
            self._fates = bytearray(base64.b64decode(self.scheduler.restore(saved)["fates"]))
        lines = list(lines)
        recover(lines, self.scheduler)
        for line in lines:
            self._note_fates(json.loads(line))
        self._now_ms = self._stepped_ms = max(now_ms, self.scheduler.horizon_ms)
        self._round_ms = self.scheduler.horizon_ms
        for attempt in attempts:
            self.ledger.put(attempt)
        self.ledger.changed.clear()
        for job in jobs:
            self._recover_job(job)
        nodes = self.scheduler.state.freeze(self._now_ms).nodes
        for device in range(int(nodes.gpus[0])) if nodes.withheld.size else ():
            if nodes.withheld[0, device]:
                quarantined = nodes.quarantined.size and nodes.quarantined[0, device]
                self._marks[device] = QUARANTINED if quarantined else FOREIGN

    def _note_fates(self, record: dict[str, Any]) -> None:
        if "e" in record and Kind[record["e"]] in _FATE_OF:
            self._set_fate(record["job"], Kind[record["e"]])
        for action in record.get("d", ()):
            if action["do"] == "reject":
                self._set_fate(action["job"], Kind.REJECT)

    def _recover_job(self, job: JobRecord) -> None:
        state = self.scheduler.state
        if job.id not in state:
            if job.holds != (holds.USER,) and (job.attempt or job.state not in ("pending", "held")):
                raise InvariantError(f"job {job.id} is {job.state} in the store, and the journal does not know it")
            return  # it was accepted, and comes from the inbox again
        self.jobs[job.id] = job
        self._index(job)
        self._timer(self._now_ms + PATIENCE_MS, "absent", job.uid)
        phase, attempt = state.phase(job.id), self.ledger.of(job.id)
        if phase is Phase.RUNNING:
            self._limit_timer(job)
        if attempt is None:
            return
        setting = state.setting(job.id)
        if setting is not None and attempt.sequence == state.sequence(job.id):
            self._targets[job.id] = _devices(setting)
        if attempt.state == "waiting":
            self._gated.add(job.id)
            if attempt.stop_reason:
                self._timer(self._now_ms, "unstarted", job.id)

    # -- inputs ----------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _handle(self, given: Any) -> None:
        raise InvariantError(f"no controller can handle {type(given).__name__}")

    @_handle.register
    def _submit(self, given: Submit) -> None:
        job, state = given.job, self.scheduler.state
        if job.id in self.jobs or self._fate(job.id) is not None:
            return
        begin_ms = job.submit_ms + round((job.request.begin_s - job.submitted_s) * MS_PER_S)
        begins = bool(job.request.begin_s) and begin_ms > self._now_ms
        held = holds.first_holds(
            job, state.cluster, self._end_of, begins=begins, absent=not self._is_expected(job.uid)
        )
        spec = holds.spec_of(job, state.cluster, state.user_code(job.user), self._now_ms)
        self.scheduler.observe(
            Event(self._now_ms, Kind.SUBMITTED, job.id, spec=spec, held=bool(held), user=job.user)
        )
        self.jobs[job.id] = job
        self._put(job.id, holds=held, state="held" if held else "pending", reason=_held_because(held))
        self._changed[job.id] = self.jobs[job.id]
        self._index(self.jobs[job.id])

    def _index(self, job: JobRecord) -> None:
        """Make a job findable by what it waits for and by its array, and set its timers."""
        for other in job.request.after:
            if holds.after(other) in job.holds:
                self._waiting_for.setdefault(other, set()).add(job.id)
        if job.array != NONE:
            self._arrays.setdefault(job.array, set()).add(job.id)
        if holds.BEGIN in job.holds:
            self._timer(
                job.submit_ms + round((job.request.begin_s - job.submitted_s) * MS_PER_S), "begin", job.id
            )

    def _end_of(self, job: int) -> JobStatus | None:
        if job in self.jobs:
            return None
        fate = self._fate(job)
        if fate is None:
            raise LookupError(job)
        return fate

    @_handle.register
    def _cancel(self, given: Cancel) -> None:
        job = self.jobs.get(given.job)
        if job is None:
            return
        if job.id in self.ledger:
            self._stop(job.id, CANCELLED)
            self._put(job.id, reason=f"{given.user} has cancelled it")
        else:
            self._finish(job.id, AttemptVerdict(
                kind=Kind.CANCELLED, state="cancelled", reason=f"{given.user} has cancelled it",
            ))

    @_handle.register
    def _hold(self, given: Hold) -> None:
        self._add_hold(given.job, holds.USER, f"{given.user} holds it")

    @_handle.register
    def _release(self, given: Release) -> None:
        for hold in holds.RELEASED:
            self._drop_hold(given.job, hold)

    @_handle.register
    def _requeue(self, given: Requeue) -> None:
        if given.job in self.ledger:
            self._stop(given.job, REQUEUED)

    @_handle.register
    def _join(self, given: AgentJoined) -> None:
        self.agents.joined(given.uid)

    @_handle.register
    def _sync(self, given: AgentSynced) -> None:
        self.agents.has_synced(given.uid)
        if not self.agents.is_synced(given.uid):
            return
        for attempt in self.ledger:
            if attempt.uid == given.uid and attempt.begin_ms != NONE and not attempt.stop_reason and (
                self.agents.seen(given.uid, attempt.job, attempt.number) is None
            ):
                self._attempt_ended(replace(attempt, outcome=LOST, detail="its agent does not know it any more"))
        for job in tuple(self.jobs.values()):
            if job.uid == given.uid:
                self._drop_hold(job.id, holds.AGENT)
                if job.id in self.ledger:
                    self._dirty.add(job.id)
        self._mark_devices()

    @_handle.register
    def _lose(self, given: AgentLost) -> None:
        self.agents.lost(given.uid)
        self._timer(self._now_ms + PATIENCE_MS, "absent", given.uid)

    @_handle.register
    def _see(self, given: Saw) -> None:
        seen, uid = given.seen, given.uid
        attempt = self.ledger.of(seen.job)
        if attempt is None or (attempt.number, attempt.uid) != (seen.attempt, uid) or attempt.state == "waiting":
            self._order(uid, ForgetAttempt(job=seen.job, attempt=seen.attempt) if seen.state == ENDED else StopAttempt(
                job=seen.job, attempt=seen.attempt, grace_s=STRANGER_GRACE_S, reason=REQUEUED,
            ))
            return
        self.agents.note(uid, seen)
        self._dirty.add(seen.job)
        if seen.state == ENDED:
            outcome = seen.outcome if seen.outcome in OUTCOMES else LOST
            self._attempt_ended(replace(
                attempt, outcome=outcome, exit_code=seen.exit_code, blame=seen.blame, detail=seen.detail,
                begin_ms=self._begin_ms(attempt, seen),
            ))
        else:
            self._attempt_seen(attempt, seen)

    def _attempt_seen(self, attempt: AttemptRecord, seen: AttemptSeen) -> None:
        """A living attempt: note its state, the devices it has left, and whether it makes progress."""
        job, state = attempt.job, self.scheduler.state
        begins = seen.state in (RUNNING, STOPPING)
        attempt = replace(
            attempt, begin_ms=self._begin_ms(attempt, seen) if begins else attempt.begin_ms,
            state="stopping" if attempt.stop_reason else "running" if seen.state == RUNNING else attempt.state,
        )
        target = self._targets.get(job)
        if target is not None and seen.sequence >= attempt.sequence and seen.state == RUNNING:
            refused = bool(seen.devices) and set(seen.devices) != set(target)
            attempt = replace(attempt, devices=attempt.devices if refused else target)
            if refused and not attempt.stop_reason:  # it stays where it was, which may be granted to others by now
                self._put_attempt(attempt)
                self._stop(job, REQUEUED)
                return
        started = (
            seen.state == RUNNING and state.phase(job) is Phase.STARTING and seen.sequence >= state.sequence(job)
        )
        if started and attempt.start_ms == NONE:
            attempt = replace(attempt, start_ms=self._now_ms)
        self._put_attempt(attempt)
        if started:
            self._tell(Kind.STARTED, job)
            self._limit_timer(self.jobs[job])

    def _begin_ms(self, attempt: AttemptRecord, seen: AttemptSeen) -> int:
        """When its processes began to exist; never before it was decided, whatever its agent says."""
        if attempt.begin_ms == NONE and seen.started_ms_ago != NONE:
            return max(attempt.decided_ms, self._now_ms - max(seen.started_ms_ago, 0))
        return self._now_ms if attempt.begin_ms == NONE and seen.state == RUNNING else attempt.begin_ms

    @_handle.register
    def _measure(self, given: Progress) -> None:
        said = given.progress
        attempt = self.ledger.of(said.job)
        if attempt is None or (attempt.number, attempt.uid) != (said.attempt, given.uid) or attempt.state == "waiting":
            return
        job = self.jobs[said.job]
        report = _report(said, job)
        if report is None:
            return
        self._tell(Kind.REPORTED, job.id, report=report)
        self._put(job.id, samples_done=report.samples_done, samples_total=_sound(said.total) or job.samples_total)
        if attempt.samples_first_ms == NONE:
            self._put_attempt(replace(attempt, samples_first=report.samples_done, samples_first_ms=self._now_ms))

    @_handle.register
    def _see_device(self, given: Device) -> None:
        said = given.device
        if 0 <= said.device < self.scheduler.state.cluster.num_gpus and said.state in _MARKS:
            self.agents.note_device(given.uid, said.device, said.state, said.detail)
            if self.agents.is_synced(given.uid):
                self._mark_devices()

    def _mark_devices(self) -> None:
        """Withhold, quarantine or open devices as agents say."""
        for device in range(self.scheduler.state.cluster.num_gpus):
            mark = self.agents.device(device, occupied=bool(self.ledger.jobs_on(device)))
            if mark != self._marks.get(device, OPEN):
                self._marks[device] = mark
                self.scheduler.observe(Event(self._now_ms, _MARKS[mark], node=0, gpu=device))

    # -- what is due -----------------------------------------------------------------------------------------------

    def _timer(self, at_ms: int, what: str, key: int) -> None:
        """Call ``_due_<what>`` at a time, once for each key."""
        if (what, key) not in self._timers_set:
            self._timers_set.add((what, key))
            heapq.heappush(self._timers, (at_ms, what, key))

    def _due_begin(self, job: int) -> None:
        self._drop_hold(job, holds.BEGIN)

    def _limit_timer(self, job: JobRecord) -> None:
        if job.request.time_limit_s:
            left_ms = job.request.time_limit_s * MS_PER_S - self.scheduler.state.run_ms(job.id, self._now_ms)
            self._timer(self._now_ms + max(left_ms, 0), "limit", job.id)

    def _due_limit(self, job: int) -> None:
        record, state = self.jobs.get(job), self.scheduler.state
        if record is None or state.phase(job) is not Phase.RUNNING:
            return  # when it runs again, the timer is set again
        if state.run_ms(job, self._now_ms) >= record.request.time_limit_s * MS_PER_S:
            self._stop(job, TIME_LIMIT)
        else:
            self._limit_timer(record)

    def _due_unstarted(self, job: int) -> None:
        """An attempt was stopped before its start was ordered: nobody has to end."""
        attempt = self.ledger.of(job)
        if attempt is not None and attempt.state == "waiting" and attempt.stop_reason:
            self._attempt_ended(replace(attempt, outcome=STOPPED, detail="it was never started"))

    def _due_absent(self, uid: int) -> None:
        """The agent of a user has been away for long: the user's jobs do not wait for devices, nor keep any unused."""
        if self.agents.is_there(uid):
            return
        for job in tuple(self.jobs.values()):
            if job.uid == uid:
                attempt = self.ledger.of(job.id)
                if attempt is not None and attempt.state == "waiting":
                    self._stop(job.id, REQUEUED)
                self._add_hold(job.id, holds.AGENT, f"the agent of {job.user} is not running")

    def _is_expected(self, uid: int) -> bool:
        """Whether an agent is connected, or has not been away for long."""
        return self.agents.is_there(uid) or ("absent", uid) in self._timers_set

    def _due_repeat(self, job: int) -> None:
        if job in self.ledger:
            self._dirty.add(job)

    # -- plans -----------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        """Turn an action, which the engine has booked, into attempts and orders."""
        self._dirty.add(action.job)
        if isinstance(action, Start):
            if action.setting.share_milli != WHOLE_GPU:
                raise RefusedError(
                    f"policy {self.scheduler.policy.name} grants job {action.job} a share of a GPU, which live jobs "
                    "cannot have yet"
                )
            job = self.jobs[action.job]
            self._put_attempt(AttemptRecord(
                job=job.id, number=action.attempt, uid=job.uid, state="waiting", sequence=action.sequence,
                devices=_devices(action.setting), decided_ms=self._now_ms,
            ))
            self._put(job.id, attempt=action.attempt, reason="",
                      first_start_ms=self._now_ms if job.first_start_ms == NONE else job.first_start_ms)
        elif isinstance(action, Preempt):
            self._put(action.job, preemptions=self.jobs[action.job].preemptions + 1)
            self._announce(action.job, PREEMPTED)
        elif isinstance(action, Reject):
            self._bury(action.job, AttemptVerdict(
                kind=Kind.REJECT, state="failed", reason=f"policy {self.scheduler.policy.name} has rejected it",
            ))

    def _stop(self, job: int, reason: str) -> None:
        """Stop a job's attempt: its devices count as free, and are given on when it has left them."""
        if self.scheduler.state.phase(job) in (Phase.STARTING, Phase.RUNNING):
            self._tell(Kind.PREEMPT, job)
        self._announce(job, reason)

    def _announce(self, job: int, reason: str) -> None:
        """Note why an attempt is stopped; an attempt that was never ordered ends by itself, after this instant."""
        attempt = self.ledger.of(job)
        if attempt is None:
            raise InvariantError(f"job {job} is stopped, and has no attempt")
        if _STRENGTH.index(reason) > _STRENGTH.index(attempt.stop_reason):
            self._put_attempt(replace(
                attempt, stop_reason=reason, stop_ms=self._now_ms if attempt.stop_ms == NONE else attempt.stop_ms,
                state="waiting" if attempt.state == "waiting" else "stopping",
            ))
        if attempt.state == "waiting":
            self._timer(self._now_ms + 1, "unstarted", job)
        self._dirty.add(job)

    # -- orders ----------------------------------------------------------------------------------------------------

    def _settle_all(self) -> None:
        """Order what does not hold yet, of all jobs about which something has changed."""
        while self._dirty:
            for job in sorted(self._dirty):
                self._dirty.discard(job)
                if job in self.jobs:
                    self._put(job, state=_STATUS[self.scheduler.state.phase(job)])
                self._settle(job)

    def _settle(self, job: int) -> None:
        """Compare what a job's attempt should be with what its agent says, and order the difference."""
        attempt = self.ledger.of(job)
        if attempt is None:
            return
        if attempt.state == "waiting" or not attempt.stop_reason:
            attempt = self._granted(attempt)
        if attempt.state == "waiting" or not self.agents.is_synced(attempt.uid):
            return
        order = self._missing(attempt, self.agents.seen(attempt.uid, job, attempt.number))
        if order is not None:
            self._order(attempt.uid, order)
            self._timer(self._now_ms + REPEAT_MS, "repeat", job)

    def _granted(self, attempt: AttemptRecord) -> AttemptRecord:
        """Give an attempt its newest setting, if all others have left the devices and its agent is there."""
        job, state = attempt.job, self.scheduler.state
        setting = state.setting(job)
        if setting is None or (attempt.state != "waiting" and attempt.sequence == state.sequence(job)):
            return attempt
        devices = _devices(setting)
        if self.ledger.taken(devices, job) or not self.agents.is_synced(attempt.uid):
            self._gated.add(job)
            return attempt
        self._gated.discard(job)
        self._targets[job] = devices
        starts = attempt.state == "waiting"
        attempt = replace(
            attempt, state="starting" if starts else attempt.state, sequence=state.sequence(job),
            devices=devices if starts else tuple(sorted({*attempt.devices, *devices})),
            ranks=0 if self.jobs[job].request.ranks == "one" else len(devices), batch=setting.batch,
            loader_workers=setting.loader_workers or NONE,
        )
        self._put_attempt(attempt)
        return attempt

    def _missing(self, attempt: AttemptRecord, seen: AttemptSeen | None) -> Order | None:
        """The order that is still to be obeyed, None if there is none."""
        request, target = self.jobs[attempt.job].request, self._targets.get(attempt.job)
        if attempt.stop_reason:
            return None if seen is not None and seen.state in (STOPPING, ENDED) else StopAttempt(
                job=attempt.job, attempt=attempt.number, grace_s=request.grace_s, reason=attempt.stop_reason,
            )
        if target is None or (seen is not None and seen.sequence >= attempt.sequence):
            return None
        if seen is None:
            return StartAttempt(
                job=attempt.job, attempt=attempt.number, sequence=attempt.sequence, capture=request.capture,
                digest=request.digest, devices=target, ranks=attempt.ranks, batch=attempt.batch,
                loader_workers=attempt.loader_workers, grace_s=request.grace_s, name=request.name,
            )
        if seen.devices == target:
            return TuneAttempt(
                job=attempt.job, attempt=attempt.number, sequence=attempt.sequence, batch=attempt.batch,
                loader_workers=attempt.loader_workers,
            )
        return ResizeAttempt(
            job=attempt.job, attempt=attempt.number, sequence=attempt.sequence, devices=target, ranks=attempt.ranks,
            batch=attempt.batch, loader_workers=attempt.loader_workers,
        )

    def _order(self, uid: int, order: Order) -> None:
        self._orders.append(Dispatch(uid, order))

    # -- ends ------------------------------------------------------------------------------------------------------

    def _attempt_ended(self, attempt: AttemptRecord) -> None:
        """Book the end of an attempt: its job ends, or goes back to the queue."""
        job = self.jobs[attempt.job]
        verdict, known = ending(job, attempt), attempt.state != "waiting"
        attempt = replace(attempt, state="ended", end_ms=self._now_ms)
        self._put_attempt(attempt)
        self.agents.forget(attempt.uid, job.id, attempt.number)
        self._targets.pop(job.id, None)
        self._gated.discard(job.id)
        if known:
            self._order(attempt.uid, ForgetAttempt(job=job.id, attempt=attempt.number))
        self._put(job.id, failures=job.failures + verdict.counts, devices=())
        if is_crash(attempt):
            self._guard(job)
        if verdict.state is not None:
            code = 0 if attempt.outcome == FINISHED and verdict.state == "finished" else attempt.exit_code
            self._finish(job.id, verdict, exit_code=code)
            return
        self._tell(verdict.kind, job.id)
        self._put(job.id, reason=verdict.reason)
        if self.jobs[job.id].holds:
            self._tell(Kind.HELD, job.id)

    def _guard(self, job: JobRecord) -> None:
        """Hold the rest of the array of a job that died at once."""
        for other in sorted(self._arrays.get(job.array, set()) - {job.id}):
            if other not in self.ledger:
                self._add_hold(
                    other, holds.CRASH_GUARD, f"job {job.id} of its array failed at once; release it to try again"
                )

    def _finish(self, job: int, verdict: AttemptVerdict, exit_code: int = NONE) -> None:
        """Book the event with which a job ends, and end it."""
        self._tell(verdict.kind, job)
        self._bury(job, verdict, exit_code)

    def _bury(self, job: int, verdict: AttemptVerdict, exit_code: int = NONE) -> None:
        """A job has ended: its record is final, and those who wait for it hear of it."""
        if verdict.state is None:
            raise InvariantError(f"job {job} ends without a state")
        record = self._put(
            job, state=verdict.state, reason=verdict.reason, ended_ms=self._now_ms, exit_code=exit_code, holds=(),
            devices=(),
        )
        self._set_fate(job, verdict.kind)
        del self.jobs[job]
        self._dirty.discard(job)
        if record.array != NONE:
            self._arrays[record.array].discard(job)
            if not self._arrays[record.array]:
                del self._arrays[record.array]
        for other in record.request.after:
            self._waiting_for.get(other, set()).discard(job)
        for other in sorted(self._waiting_for.pop(job, ())):
            if verdict.state != "finished":
                hold = holds.after_failed(job, self._fate(job) or "failed")
                self._add_hold(other, hold, f"it waits for job {job}, which has ended as {verdict.state}")
            self._drop_hold(other, holds.after(job))

    def _fate(self, job: int) -> JobStatus | None:
        return _FATES[self._fates[job]] if 0 <= job < len(self._fates) else None

    def _set_fate(self, job: int, kind: Kind) -> None:
        if job >= len(self._fates):
            self._fates.extend(bytes(job + 1 - len(self._fates)))
        self._fates[job] = _FATE_OF[kind]

    # -- records ---------------------------------------------------------------------------------------------------

    def _tell(self, kind: Kind, job: int, report: Report | None = None) -> None:
        """Book an event of a job, now."""
        self.scheduler.observe(Event(self._now_ms, kind, job, report=report))
        self._dirty.add(job)

    def _put(self, job: int, **changes: Any) -> JobRecord:
        record = replace(self.jobs[job], **changes)
        if record != self.jobs[job]:
            self.jobs[job] = self._changed[job] = record
        return record

    def _put_attempt(self, attempt: AttemptRecord) -> None:
        if self.ledger.put(attempt):
            self._dirty |= self._gated
        job = self.jobs.get(attempt.job)
        if job is not None and attempt.state not in ("waiting", "ended"):
            self._put(attempt.job, devices=attempt.devices)

    def _add_hold(self, job: int, hold: str, reason: str) -> None:
        record = self.jobs.get(job)
        if record is None or hold in record.holds:
            return
        self._put(job, holds=(*record.holds, hold), reason=reason)
        if self.scheduler.state.phase(job) is Phase.PENDING:
            self._tell(Kind.HELD, job)

    def _drop_hold(self, job: int, hold: str) -> None:
        record = self.jobs.get(job)
        if record is None or hold not in record.holds:
            return
        left = tuple(each for each in record.holds if each != hold)
        self._put(job, holds=left, reason=_held_because(left))
        if not left and self.scheduler.state.phase(job) is Phase.HELD:
            self._tell(Kind.ELIGIBLE, job)

    # -- reading ---------------------------------------------------------------------------------------------------

    def explain(self, job: int) -> str:
        """Why a job that has not ended waits or runs, in a sentence.

        Raises:
            NotFoundError: there is no such job, or it has ended.
        """
        record = self.jobs.get(job)
        if record is None:
            raise NotFoundError(f"job {job} does not exist or has ended")
        return why(record, tuple(self.ledger), self.scheduler.last_round)


def _devices(setting: Setting) -> tuple[int, ...]:
    return tuple(gpu for _, gpu in setting.gpus)


def _held_because(held: tuple[str, ...]) -> str:
    return f"held: {', '.join(held)}" if held else ""


def _sound(value: float | None) -> float | None:
    """A number that an agent sent, None if it cannot be one: agents belong to users."""
    return value if value is not None and math.isfinite(value) and 0 <= value <= SAMPLES_MAX else None


def _report(said: AttemptProgress, job: JobRecord) -> Report | None:
    """What the engine is told of a measurement, None for nothing."""
    samples, speed = _sound(said.samples), _sound(said.samples_per_s)
    if samples is None:
        return None
    step_s, sync_s, local = _sound(said.step_s), _sound(said.sync_s), _sound(said.local_batch)
    seen: tuple[Sample, ...] = ()
    if step_s and local and 0 < said.ranks <= job.request.limits[1] and (sync_s or 0.0) <= step_s:
        seen = (Sample(1, said.ranks, int(local), step_s, sync_s or 0.0),)
    noise = _sound(said.gradient_noise)
    knows = noise is not None and job.request.batch > 0
    loss = said.loss if said.loss is not None and math.isfinite(said.loss) else math.nan
    return Report(
        samples_done=samples, samples_per_s=speed or 0.0, seen=seen, loss=loss,
        grad_var=(noise or 0.0) / job.request.batch if knows else math.nan, grad_sqr=1.0 if knows else math.nan,
    )
