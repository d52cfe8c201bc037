"""The controller: inputs in, and what must become durable and what is then ordered out. No clock, no files, no sockets.

::

    commands of users (durable), reports of agents  ->  step  ->  Changes: journal, jobs, attempts   committed first
                                                          |
                                                     engine.advance: rounds that are due between the inputs
                                                          |
                                                  orders to agents, given out after the commit; when to call again

``books.py`` keeps engine, jobs and attempts in agreement, ``reconciliation.py`` makes the orders, ``ends.py`` says what
the end of an attempt means, ``holds.py`` what holds a job. Reasons and limits: docs/decisions/0014.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any, Final, assert_never

from brim.agent.protocol import (
    BLAME_NODE,
    ENDED,
    FINISHED,
    LOST,
    RUNNING,
    STOPPED,
    STOPPING,
    AttemptSeen,
    ForgetAttempt,
    StopAttempt,
)
from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Action, Preempt, Reject, Resize, Start, Tune
from brim.core.cluster import Cluster, parse_cluster
from brim.core.events import Event, Kind, Report
from brim.core.lifecycle import Phase
from brim.core.saved import saved_cluster, state_on
from brim.core.setting import ON_CPU, Setting
from brim.core.state import ClusterState
from brim.engine.advance import advance
from brim.engine.journal import Journal
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import DEFAULT_GAP_MS
from brim.errors import InvariantError, NotFoundError, RefusedError
from brim.live import holds
from brim.live.agents import Agents
from brim.live.back_off import BackOff
from brim.live.believed import believed
from brim.live.books import Books
from brim.live.ends import (
    BLAMES,
    CANCELLED,
    EXCHANGED,
    OUTCOMES,
    PREEMPTED,
    REQUEUED,
    TIME_LIMIT,
    AttemptVerdict,
    ending,
    is_crash,
    repeated_gpu_s,
)
from brim.live.inputs import (
    AgentJoined,
    AgentLost,
    AgentSynced,
    AttemptReported,
    Cancel,
    Device,
    Hold,
    Input,
    JobInput,
    Progress,
    Release,
    Requeue,
    Submit,
    Vacated,
)
from brim.live.ledger import Ledger
from brim.live.limits import keep_array_limits, keep_quotas
from brim.live.marks import KINDS, DeviceMarks
from brim.live.measurements import SLOWDOWN_MAX, analysis_of, energy_j, exit_code, processes, report_of, sound
from brim.live.nodes import Dispatch
from brim.live.reasons import why
from brim.live.reconciliation import Reconciler, devices_of
from brim.live.records import AttemptRecord, Changes, ControllerSetting, JobRecord
from brim.live.requests import NONE
from brim.live.slowdowns import StepSlowdowns
from brim.live.texts import text
from brim.policies.sockets import Policy
from brim.units import MS_PER_S

PATIENCE_MS: Final = 15 * MS_PER_S
"""Time for which a user's agent may be away before waiting jobs of the user are held. Ours: ten agent starts."""
STRANGER_GRACE_S: Final = 30.0
"""Grace of an attempt that should not live, whose own is not known."""


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
    """One cluster of one node under one policy; long because every input and everything that is due has its method.

    Args:
        cluster: The cluster: one node.
        policy: The policy that decides.
        beliefs: Fitted models that the policy may read.
        gap_ms: Shortest time between two rounds.
        gap_job_us: If above 0, it is shorter while few jobs wait: see ``Scheduler``.
        user_gpus: Most GPUs that the jobs of a user may have at the same time; NONE for no quota.

    Attributes:
        books: Engine, jobs and attempts.
        agents: What agents have said.
        setting: Under what it decides.
        is_moved: Whether the cluster is another one than before the restart: the next commit needs a snapshot.

    Raises:
        RefusedError: the policy needs true run times, which nobody knows of live jobs.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, beliefs: Beliefs | None = None, *, gap_ms: int = DEFAULT_GAP_MS,
        gap_job_us: int = 0, user_gpus: int = NONE,
    ) -> None:
        if policy.oracle:
            raise RefusedError(f"policy {policy.name} needs true run times, which are not known of live jobs")
        if cluster.num_nodes != 1:
            raise RefusedError(f"the controller runs jobs on one machine, found a cluster of {cluster.num_nodes} nodes")
        self.setting = ControllerSetting(
            policy=policy.name, cluster=str(cluster), gap_ms=gap_ms, gap_job_us=gap_job_us
        )
        self._journal = Journal()
        self.books = Books(Scheduler(
            cluster, policy, beliefs or believed(), gap_ms=gap_ms,
            gap_job_us=gap_job_us, in_place=True, journal=self._journal,
        ))
        self.agents = Agents()
        self._reconciler = Reconciler(self.books, self.agents)
        self._back_off = BackOff(self.books)
        self._slowdowns = StepSlowdowns(self.books.ledger)
        self._analyses: set[int] = set()  # jobs whose analysis the engine was told
        self._marks = DeviceMarks(self.books, self.agents)
        self._round_ms: int | None = None
        self._stepped_ms = self._earliest_ms = 0
        self.user_gpus = user_gpus
        self.is_moved = False
        self._due: dict[str, Callable[[int], None]] = {
            "begin": self._due_begin, "limit": self._due_limit, "unstarted": self._due_unstarted,
            "absent": self._due_absent, "repeat": self._due_repeat, "back-off": self._back_off.is_over,
            "revoked": self._due_revoked,
        }

    @property
    def scheduler(self) -> Scheduler:
        """The engine."""
        return self.books.scheduler

    @property
    def jobs(self) -> dict[int, JobRecord]:
        """Every job that has not ended."""
        return self.books.jobs

    @property
    def ledger(self) -> Ledger:
        """Every attempt that has not ended."""
        return self.books.ledger

    # -- one step --------------------------------------------------------------------------------------------------

    def step(
        self, inputs: Sequence[Input], before_ms: int, clock: Callable[[], int] = lambda: 0
    ) -> StepResult:
        """Handle inputs and everything that is due before a time.

        An input happens at its own time, or as soon after it as nothing later was decided: a round never sees what was
        accepted after it. What a round starts begins when its policy has decided; what comes meanwhile happens then.

        Args:
            inputs: What has happened, in the order in which it was accepted.
            before_ms: Cluster time; nothing that is due at or after it is handled.
            clock: A time in ms that goes on while a policy decides; that of virtual clusters stands still.

        Raises:
            PlanError: the policy wants something impossible.
        """
        before_ms = max(before_ms, self._stepped_ms + 1)
        rest = deque(inputs)
        while True:
            at_ms = self._next_ms(rest, before_ms)
            if self._decide(before_ms if at_ms is None else at_ms, clock):
                continue  # rounds may have made something due before
            if at_ms is None:
                if self._keep_limits():
                    continue
                break
            self.books.now_ms = max(at_ms, self._horizon_ms)
            due_ms = self.books.due_ms()
            if due_ms is not None and due_ms <= at_ms:
                what, key = self.books.next_due()
                self._due[what](key)
            else:
                self._handle(rest.popleft())
            self._reconciler.settle_all()
        self._stepped_ms = max(before_ms, self._earliest_ms)
        return self._result(inputs, self._stepped_ms)

    def _next_ms(self, rest: deque[Input], before_ms: int) -> int | None:
        """Time of the next input or timer, None if no input is left and no timer is due."""
        times = [min(rest[0].at_ms, before_ms - 1)] if rest else []
        due_ms = self.books.due_ms()
        if due_ms is not None and due_ms < before_ms:
            times.append(due_ms)
        return min(times, default=None)

    @property
    def _horizon_ms(self) -> int:
        """Earliest time of an event: not before the last one or the restart, and after the last round was decided."""
        after_ms = 0 if self._round_ms is None else self._round_ms + 1
        return max(self.scheduler.horizon_ms, after_ms, self._earliest_ms)

    def _decide(self, before_ms: int, clock: Callable[[], int]) -> bool:
        """Decide the rounds that are due before a time, and carry them out; returns whether there was one."""
        due_ms = self.scheduler.due_ms()
        if due_ms is not None and due_ms < before_ms:
            self._keep_limits()
        began_ms = clock()
        result = advance(self.scheduler, (), before_ms)
        took_ms = clock() - began_ms
        for one in result.rounds:
            self._round_ms = one.plan.time_ms
            self.books.now_ms = max(one.plan.time_ms + took_ms, self._earliest_ms)
            if took_ms:
                self._earliest_ms = self.books.now_ms
            for action in one.plan.actions:
                self._carry_out(action)
        for job in [action.job for one in result.rounds for action in one.plan.actions if isinstance(action, Reject)]:
            self.books.now_ms = self._horizon_ms  # jobs that wait for it change after these rounds
            self.books.close_record(job, AttemptVerdict(
                kind=Kind.REJECT, state="failed", reason=f"policy {self.scheduler.policy.name} has rejected it",
            ))
        self._reconciler.settle_all()
        return bool(result.rounds)

    def _keep_limits(self) -> bool:
        """Hold jobs, or let them wait for devices, as limits say; returns whether any job changed."""
        self.books.now_ms = max(self.books.now_ms, self._horizon_ms)
        changed = keep_array_limits(self.books, self.user_gpus)
        changed |= keep_quotas(self.books, self.user_gpus)
        self._reconciler.settle_all()
        return changed

    def _result(self, inputs: Iterable[Input], at_ms: int) -> StepResult:
        times = [due_ms for due_ms in (self.scheduler.due_ms(), self.books.due_ms()) if due_ms is not None]
        changes = Changes(
            at_ms=at_ms, lines=tuple(self._journal.lines), jobs=tuple(self.books.changed.values()),
            attempts=tuple(self.ledger.changed.values()),
            inbox_done=tuple(one.inbox for one in inputs if isinstance(one, JobInput)),
        )
        orders = tuple(self._reconciler.orders)
        self._journal.lines, self.books.changed, self.ledger.changed, self._reconciler.orders = [], {}, {}, []
        return StepResult(changes=changes, orders=orders, wake_ms=min(times, default=None))

    # -- restart ---------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """Return what ``recover`` can begin from instead of the first line of the journal."""
        return self.books.save()

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

        Raises:
            RefusedError: the cluster has other devices, and attempts have not ended.
        """
        jobs, attempts = tuple(jobs), tuple(attempts)
        cluster = self.scheduler.state.cluster
        self.is_moved = saved is not None and saved_cluster(saved) != str(cluster)
        if self.is_moved:
            self._move(str(saved_cluster(saved or b"")), cluster, saved, lines, jobs, attempts)
        else:
            self.books.fold(saved, lines)
        self.scheduler.look_again()
        self.books.now_ms = self._stepped_ms = self._earliest_ms = max(now_ms, self.scheduler.horizon_ms)
        self._round_ms = self.scheduler.horizon_ms
        for attempt in attempts:
            self.ledger.put(attempt)
        self.ledger.changed.clear()
        for job in jobs:
            self._recover_job(job)
        self._look_at_what_can_run()
        if self.user_gpus == NONE:  # an earlier controller may have had a quota
            for job in jobs:
                self.books.drop_hold(job.id, holds.QUOTA)
        self._marks.recover()

    def _move(
        self, before: str, cluster: Cluster, saved: bytes | None, lines: Iterable[str], jobs: Iterable[JobRecord],
        attempts: Iterable[AttemptRecord],
    ) -> None:
        """Go on with the same jobs on another cluster."""
        was = parse_cluster(before)
        alive = {attempt.job: len(attempt.devices) for attempt in attempts if attempt.state != "ended"}
        is_alike = list(was.gpus_N) == list(cluster.gpus_N)  # the same devices, whatever their type is called by now
        if alive and not (is_alike and holds.is_room_for(alive, {job.id: job.request for job in jobs}, cluster)):
            raise RefusedError(
                f"the cluster was {before} and is {cluster} now, but job {min(alive)} still runs: start with the "
                "devices of before, and change them when no job runs"
            )
        self.scheduler.state = ClusterState(was, padding_apart=self.scheduler.policy.takes_padding)
        self.books.fold(saved, lines)
        self.scheduler.state = state_on(self.scheduler.state, cluster, {
            job.id: holds.type_code(job.request, cluster) for job in jobs if job.id in self.scheduler.state
        })

    def _look_at_what_can_run(self) -> None:
        """Hold the jobs that this cluster or policy cannot run, and no others for that reason."""
        for job in tuple(self.jobs.values()):
            if not self.is_moved and "cpu" not in job.request.devices:
                continue  # the policy says whether jobs run on CPU, the cluster the rest
            reason = holds.why_impossible(job.request, self.scheduler.state.cluster, self.scheduler.policy)
            wanted = holds.impossible(reason) if reason else ""
            if wanted:
                self.books.add_hold(job.id, wanted, holds.because((wanted,)))
            for hold in job.holds:
                if holds.is_of_cluster(hold) and hold != wanted:
                    self.books.drop_hold(job.id, hold)

    def _recover_job(self, job: JobRecord) -> None:
        state = self.scheduler.state
        if job.id not in state:
            if job.holds != (holds.USER,) and (job.attempt or job.state not in ("pending", "held")):
                raise InvariantError(f"job {job.id} is {job.state} in the store, and the journal does not know it")
            return  # it was accepted, and comes from the inbox again
        self.jobs[job.id] = job
        self.books.index(job)
        if holds.BACK_OFF in job.holds:
            self._back_off.wait(job.id)
        self.books.timer(self.books.now_ms + PATIENCE_MS, "absent", job.uid)
        phase, attempt = state.phase(job.id), self.ledger.of(job.id)
        if attempt is None:
            return
        if phase in (Phase.STARTING, Phase.RUNNING) and attempt.begin_ms != NONE:
            self.books.limit_timer(job)
        setting = state.setting(job.id)
        if setting is not None and attempt.sequence == state.sequence(job.id):
            self._reconciler.targets[job.id] = devices_of(setting)
            if setting.revocable:
                self._revoke(job.id)
        if attempt.state == "waiting":
            self.books.gated.add(job.id)
            if attempt.stop_reason:
                self.books.timer(self.books.now_ms, "unstarted", job.id)

    # -- inputs ----------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def _handle(self, given: Any) -> None:
        raise InvariantError(f"no controller can handle {type(given).__name__}")

    @_handle.register
    def _submit(self, given: Submit) -> None:
        job, state = given.job, self.scheduler.state
        if job.id in self.jobs or self.books.end_state(job.id) is not None:
            return
        begins = bool(job.request.begin_s) and holds.cluster_ms(job, job.request.begin_s) > self.books.now_ms
        held = holds.first_holds(
            job, state.cluster, self.books.end_of, begins=begins, absent=not self._is_expected(job.uid),
            limited=self.user_gpus != NONE, policy=self.scheduler.policy,
        )
        spec = holds.spec_of(job, state.cluster, state.user_code(job.user), self.books.now_ms, self.user_gpus)
        self.scheduler.observe(
            Event(self.books.now_ms, Kind.SUBMITTED, job.id, spec=spec, held=bool(held), user=job.user)
        )
        self.jobs[job.id] = job
        self.books.put(job.id, holds=held, state="held" if held else "pending", reason=holds.because(held))
        self.books.changed[job.id] = self.jobs[job.id]
        self.books.index(self.jobs[job.id])

    @_handle.register
    def _cancel(self, given: Cancel) -> None:
        job = self.jobs.get(given.job)
        if job is None:
            return
        if job.id in self.ledger:
            self.books.stop(job.id, CANCELLED)
            self.books.put(job.id, reason=f"{given.user} has cancelled it")
        else:
            self.books.finish(job.id, AttemptVerdict(
                kind=Kind.CANCELLED, state="cancelled", reason=f"{given.user} has cancelled it",
            ))

    @_handle.register
    def _hold(self, given: Hold) -> None:
        self.books.add_hold(given.job, holds.USER, f"{given.user} holds it")

    @_handle.register
    def _release(self, given: Release) -> None:
        for hold in holds.RELEASED:
            self.books.drop_hold(given.job, hold)

    @_handle.register
    def _requeue(self, given: Requeue) -> None:
        if given.job in self.ledger:
            self.books.stop(given.job, REQUEUED)

    @_handle.register
    def _join(self, given: AgentJoined) -> None:
        self.agents.joined(given.uid)
        self.books.call_off("absent", given.uid)

    @_handle.register
    def _sync(self, given: AgentSynced) -> None:
        self.agents.has_synced(given.uid)
        if not self.agents.is_synced(given.uid):
            return
        for attempt in self.ledger:
            if attempt.uid == given.uid and attempt.begin_ms != NONE and not attempt.stop_reason and (
                self.agents.seen(given.uid, attempt.job, attempt.number) is None
            ):
                self._attempt_ended(replace(
                    attempt, outcome=LOST, blame=BLAME_NODE, detail="its agent does not know it any more"
                ))
        for job in tuple(self.jobs.values()):
            if job.uid == given.uid:
                self.books.drop_hold(job.id, holds.AGENT)
                living = self.ledger.of(job.id)
                if living is not None:
                    self.books.dirty.add(job.id)
                    if living.begin_ms != NONE:
                        self.books.limit_timer(job)
        self._marks.settle()

    @_handle.register
    def _lose(self, given: AgentLost) -> None:
        self.agents.lost(given.uid, self.books.now_ms)
        self.books.timer(self.books.now_ms + PATIENCE_MS, "absent", given.uid)

    @_handle.register
    def _see(self, given: AttemptReported) -> None:
        seen, uid = given.seen, given.uid
        attempt = self.ledger.of(seen.job)
        if attempt is None or (attempt.number, attempt.uid) != (seen.attempt, uid) or attempt.state == "waiting":
            self._reconciler.order(uid, _away(seen))
            return
        self.agents.note(uid, seen)
        self.books.dirty.add(seen.job)
        self._tell_analysis(seen)
        if seen.state == ENDED:
            outcome = seen.outcome if seen.outcome in OUTCOMES else LOST
            attempt = replace(attempt, begin_ms=self._begin_ms(attempt, given))
            self._attempt_ended(replace(
                attempt, outcome=outcome, exit_code=exit_code(seen.exit_code), detail=text(seen.detail),
                blame=seen.blame if seen.blame in BLAMES else "", gpu_energy_j=energy_j(seen.gpu_energy_j),
                end_ms=self._end_ms(attempt, given),
            ))
        else:
            self._attempt_seen(attempt, given)

    def _tell_analysis(self, seen: AttemptSeen) -> None:
        """Tell the engine of step times that were measured before the attempt began, once."""
        samples = analysis_of(seen)
        if samples and seen.job not in self._analyses:
            self._analyses.add(seen.job)
            report = Report(samples_done=self.jobs[seen.job].samples_done or 0.0, samples_per_s=0.0, seen=samples)
            self.books.observe(Kind.REPORTED, seen.job, report=report)

    def _attempt_seen(self, attempt: AttemptRecord, given: AttemptReported) -> None:
        """A living attempt: note its state, the devices it has left, and whether it makes progress."""
        seen = given.seen
        job, state, was = attempt.job, self.scheduler.state, attempt
        begins = seen.state in (RUNNING, STOPPING)
        attempt = replace(
            attempt, begin_ms=self._begin_ms(attempt, given) if begins else attempt.begin_ms,
            state="stopping" if attempt.stop_reason else "running" if seen.state == RUNNING else attempt.state,
            processes=processes(seen.processes), detail=text(seen.detail),
        )
        target = self._reconciler.targets.get(job)
        if target is not None and seen.sequence >= attempt.sequence and seen.state == RUNNING:
            refused = not set(seen.devices) <= set(target)  # a job that cannot run on so many uses some of them
            attempt = replace(attempt, devices=attempt.devices if refused else target)
            setting = state.setting(job)
            if not refused and setting is not None and attempt.sequence == state.sequence(job):
                cores = self._reconciler.cores_of(job, setting)
                attempt = replace(attempt, share_milli=setting.share_milli, cores_milli=cores)
            if refused and not attempt.stop_reason:  # it stays where it was, which may be granted to others by now
                self.books.put_attempt(attempt)
                self.books.stop(job, REQUEUED)
                return
        started = (
            seen.state == RUNNING and seen.has_begun and state.phase(job) is Phase.STARTING
            and seen.sequence >= state.sequence(job)
        )
        if was.state == "starting" and was.detail != attempt.detail:  # why it does not start, or that it has
            self.books.put(job, reason="" if attempt.state == "running" else attempt.detail)
        if started and attempt.start_ms == NONE:
            told_ms = self.books.now_ms - given.unread_ms
            attempt = replace(attempt, start_ms=max(attempt.decided_ms, attempt.begin_ms, told_ms))
        self.books.put_attempt(attempt)
        if not self._has_to_leave(job):  # what is revoked later has a grace of its own
            self.books.call_off("revoked", job)
        if started:
            self.books.observe(Kind.STARTED, job)
        if attempt.begin_ms != NONE and state.phase(job) in (Phase.STARTING, Phase.RUNNING):
            self.books.limit_timer(self.jobs[job])

    def _begin_ms(self, attempt: AttemptRecord, given: AttemptReported) -> int:
        """When its processes began to exist; never before it was decided, whatever its agent says."""
        seen, told_ms = given.seen, self.books.now_ms - given.unread_ms
        if attempt.begin_ms == NONE and seen.started_ms_ago != NONE:
            return max(attempt.decided_ms, told_ms - max(seen.started_ms_ago, 0))
        return self.books.now_ms if attempt.begin_ms == NONE and seen.state == RUNNING else attempt.begin_ms

    def _end_ms(self, attempt: AttemptRecord, given: AttemptReported) -> int:
        """When its processes were gone.

        With a connected agent: when it told so. After an absence: when it says, if it knows, but not before the
        absence began. Never before the attempt was decided, began or was asked to stop.
        """
        seen, told_ms = given.seen, self.books.now_ms - given.unread_ms
        earliest_ms = max(attempt.decided_ms, attempt.begin_ms, attempt.start_ms, attempt.stop_ms)
        if self.agents.is_synced(attempt.uid) or seen.ended_ms_ago == NONE:
            return max(earliest_ms, told_ms)
        return max(earliest_ms, self.agents.lost_ms(attempt.uid), told_ms - max(seen.ended_ms_ago, 0))

    @_handle.register
    def _vacate(self, given: Vacated) -> None:
        """Give the devices of an attempt on, although its agent cannot say that it has ended.

        The attempt stays until the agent returns and says how it ended: it may have finished.
        """
        attempt = self.ledger.of(given.job)
        if attempt is None or attempt.number != given.attempt or not attempt.devices or attempt.state == "waiting":
            return
        open_all = all(self.agents.sees_open(device, besides=attempt.uid) for device in attempt.own_devices)
        if self._is_expected(attempt.uid) or not open_all:
            return
        if not attempt.stop_reason:
            self.books.stop(given.job, REQUEUED)
        self._reconciler.targets.pop(given.job, None)
        self.books.put_attempt(replace(self.ledger.of(given.job) or attempt, devices=(), cores_milli=0))
        self.books.put(given.job, reason=f"nothing of it runs, and the agent of {self.jobs[given.job].user} is away")
        self._marks.left(sorted(attempt.own_devices))
        self._marks.settle()

    @_handle.register
    def _measure(self, given: Progress) -> None:
        said = given.progress
        attempt = self.ledger.of(said.job)
        if attempt is None or (attempt.number, attempt.uid) != (said.attempt, given.uid) or attempt.state == "waiting":
            return
        job = self.jobs[said.job]
        sizes = self.scheduler.state.usable_sizes(job.id, said.sizes)
        report = report_of(said, job, sizes, attempt.loader_workers, on_cpu=ON_CPU in attempt.devices)
        if report is None:
            return
        report = self._slowdowns.judged(report, attempt, self.scheduler.state, self.books.now_ms)
        report = replace(report, slowdown_ratio=min(report.slowdown_ratio, SLOWDOWN_MAX))  # NaN stays NaN
        self.books.observe(Kind.REPORTED, job.id, report=report)
        done, total = report.samples_done, sound(said.total) or job.samples_total
        lost_gpu_s, again = job.lost_gpu_s, job.samples_again
        if attempt.samples_first_ms == NONE:  # the attempt before had done more
            again += max(job.samples_done - done, 0.0)
        if report.samples_per_s > 0:  # not yet in the first reports of an attempt
            lost_gpu_s, again = lost_gpu_s + again / report.samples_per_s * len(attempt.own_devices), 0.0
        waits, slowdown = (
            None if math.isnan(one) else one for one in (report.loader_wait_ratio, report.slowdown_ratio)
        )
        self.books.put(
            job.id, samples_done=done, samples_total=total, lost_gpu_s=lost_gpu_s, samples_again=again,
            loader_wait_ratio=waits, slowdown_ratio=slowdown,
        )
        if attempt.samples_first_ms == NONE:
            self.books.put_attempt(replace(attempt, samples_first=done, samples_first_ms=self.books.now_ms))

    @_handle.register
    def _see_device(self, given: Device) -> None:
        said = given.device
        if 0 <= said.device < self.scheduler.state.cluster.num_gpus and said.state in KINDS:
            self.agents.note_device(given.uid, said.device, said.state, said.detail)
            if self.agents.is_synced(given.uid):
                self._marks.settle()

    # -- what is due -----------------------------------------------------------------------------------------------

    def _due_begin(self, job: int) -> None:
        self.books.drop_hold(job, holds.BEGIN)

    def _due_limit(self, job: int) -> None:
        record, state = self.jobs.get(job), self.scheduler.state
        if record is None or state.phase(job) not in (Phase.STARTING, Phase.RUNNING):
            return  # when it runs again, the timer is set again
        if not self.agents.is_synced(record.uid):
            return  # it may have ended long ago: the timer is set again once its agent has said so
        if self.books.time_left_ms(record) <= 0:
            self.books.stop(job, TIME_LIMIT)
        else:
            self.books.limit_timer(record)

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
                    self.books.stop(job.id, REQUEUED)
                self.books.add_hold(job.id, holds.AGENT, f"the agent of {job.user} is not running")

    def _is_expected(self, uid: int) -> bool:
        """Whether an agent is connected, or has not been away for long."""
        return self.agents.is_there(uid) or self.books.is_due("absent", uid)

    def _due_repeat(self, job: int) -> None:
        if job in self.ledger:
            self.books.dirty.add(job)

    # -- plans -----------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        """Turn an action, which the engine has booked, into attempts and orders."""
        self.books.dirty.add(action.job)
        match action:
            case Start():
                job = self.jobs[action.job]
                if action.analyse and action.attempt == 1 and job.request.is_elastic:
                    self._reconciler.analysed.add(job.id)
                self._begin_attempt(job.id, action.attempt, action.sequence, action.setting)
            case Resize():
                attempt, devices = self.ledger.of(action.job), devices_of(action.setting)
                if attempt is not None and attempt.state != "waiting" and ON_CPU in (*attempt.devices, *devices):
                    self.books.announce(action.job, EXCHANGED)
                if action.setting.revocable:
                    self._revoke(action.job)
            case Preempt():
                self.books.put(action.job, preemptions=self.jobs[action.job].preemptions + 1)
                self.books.announce(action.job, PREEMPTED)
            case Tune() | Reject():
                pass  # the reconciler compares settings; rejected jobs end after their rounds, see ``_decide``
            case _:
                assert_never(action)

    def _devices(self, job: int) -> tuple[int, ...]:
        """Devices on which processes of a job may be."""
        attempt = self.ledger.of(job)
        return () if attempt is None or attempt.state == "waiting" else attempt.devices

    def _revoke(self, job: int) -> None:
        """A padding job has its grace to leave devices that others were granted; then it leaves all of them."""
        if self._has_to_leave(job):
            grace_ms = round(self.jobs[job].request.grace_s * MS_PER_S)
            self.books.timer(self.books.now_ms + grace_ms, "revoked", job)

    def _has_to_leave(self, job: int) -> bool:
        """Whether processes of a job may be on devices that it does not have any more."""
        setting = self.scheduler.state.setting(job)
        return setting is not None and not set(self._devices(job)) <= set(devices_of(setting))

    def _due_revoked(self, job: int) -> None:
        if self._has_to_leave(job):
            self._reconciler.overdue.add(job)
            self.books.stop(job, REQUEUED)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _attempt_ended(self, attempt: AttemptRecord) -> None:
        """Book the end of an attempt: its job ends, or goes back to the queue."""
        job = self.jobs[attempt.job]
        verdict = ending(job, attempt, self._back_off.unseen(attempt))
        known = attempt.state != "waiting"
        end_ms = self.books.now_ms if attempt.end_ms == NONE else attempt.end_ms
        attempt = replace(attempt, state="ended", end_ms=end_ms)
        self.books.put_attempt(attempt)
        self.agents.forget(attempt.uid, job.id, attempt.number)
        self._reconciler.targets.pop(job.id, None)
        self.books.gated.discard(job.id)
        self.books.call_off("revoked", job.id)
        if known:
            self._reconciler.order(attempt.uid, ForgetAttempt(job=job.id, attempt=attempt.number))
        self._slowdowns.forget(job.id)
        pause = self._back_off.ended(attempt, verdict)
        self._reconciler.analysed.discard(job.id)
        self._reconciler.overdue.discard(job.id)
        self._analyses.discard(job.id)
        self.books.put(
            job.id, failures=job.failures + verdict.counts, devices=(), loader_wait_ratio=None, slowdown_ratio=None,
            lost_gpu_s=job.lost_gpu_s + (repeated_gpu_s(attempt) if verdict.state is None else 0.0),
        )
        if is_crash(attempt):
            self._guard(job)
        if verdict.state is not None:
            code = 0 if attempt.outcome == FINISHED and verdict.state == "finished" else attempt.exit_code
            self.books.finish(job.id, verdict, exit_code=code, ended_ms=end_ms)
            return
        setting = self._kept_for(attempt)
        if self.scheduler.state.phase(job.id) is Phase.STARTING and verdict.kind is Kind.STOPPED:
            self.books.observe(Kind.PREEMPT, job.id)
        self.books.observe(verdict.kind, job.id)
        if setting is not None and verdict.kind is Kind.STOPPED:
            self._go_on(job.id, setting)
            return
        held = self.jobs[job.id].holds
        reasons = (verdict.reason, pause, holds.because(held))
        self.books.put(job.id, reason="; ".join(reason for reason in reasons if reason))
        if held:
            self.books.observe(Kind.HELD, job.id)

    def _kept_for(self, attempt: AttemptRecord) -> Setting | None:
        """What is kept for a job while it is exchanged: nobody else can be granted it before the job goes on."""
        job = attempt.job
        is_kept = attempt.stop_reason == EXCHANGED and not self.jobs[job].holds
        return self.scheduler.state.setting(job) if is_kept else None

    def _go_on(self, job: int, setting: Setting) -> None:
        """Start the next attempt of a job on the devices that were kept for it, at the instant at which the last ended.

        The engine hears of a stop and a start, with no round between them.
        """
        self.books.observe(Kind.START, job, setting=setting)
        self._begin_attempt(job, self.scheduler.state.attempt(job), self.scheduler.state.sequence(job), setting)

    def _begin_attempt(self, job: int, number: int, sequence: int, setting: Setting) -> None:
        record = self.jobs[job]
        self.books.put_attempt(AttemptRecord(
            job=job, number=number, uid=record.uid, state="waiting", sequence=sequence, devices=devices_of(setting),
            share_milli=setting.share_milli, decided_ms=self.books.now_ms,
        ))
        first_ms = self.books.now_ms if record.first_start_ms == NONE else record.first_start_ms
        self.books.put(job, attempt=number, reason="", first_start_ms=first_ms)

    def _guard(self, job: JobRecord) -> None:
        """Hold the rest of the array of a job that died at once."""
        for other in sorted(self.books.arrays.get(job.array, set()) - {job.id}):
            if other not in self.ledger:
                self.books.add_hold(
                    other, holds.CRASH_GUARD, f"job {job.id} of its array failed at once; release it to try again"
                )

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


def _away(seen: AttemptSeen) -> ForgetAttempt | StopAttempt:
    """What is ordered of an attempt that should not live, or whose end is known."""
    if seen.state == ENDED:
        return ForgetAttempt(job=seen.job, attempt=seen.attempt)
    return StopAttempt(job=seen.job, attempt=seen.attempt, grace_s=STRANGER_GRACE_S, reason=REQUEUED)
