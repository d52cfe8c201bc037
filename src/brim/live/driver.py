"""The live driver: it reports events to the engine and carries out the engine's plans, under the wall clock.

The loop is the same as the twin's: events and rounds in one order of (time_ms, kind, sequence). Scheduled events
(submissions, rounds) carry the time they were scheduled for; observed events carry the clock's time at which the driver
received them. At each wake-up the driver handles everything *before* the present millisecond and nothing at or after
it, because more events of that millisecond may still arrive. So the order of the journal never depends on how late the
driver woke up, and the twin's loop, given the recorded events, makes the same plans at the same times
(tests/live/test_parity.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Plan, Preempt, Reject, Start, Tune
from brim.core.cluster import Cluster
from brim.core.events import Event, JobSpec, Kind, Report
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.engine.advance import advance
from brim.engine.journal import Journal
from brim.engine.round import RoundResult
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import DEFAULT_GAP_MS
from brim.errors import ConfigError, InvariantError, RefusedError
from brim.live.executor import AttemptReport, Command, Executor, ReportKind
from brim.live.record import Attempt
from brim.policies.sockets import Policy
from brim.units import MS_PER_S, WHOLE_GPU, counted

ATTEMPTS_MAX: Final = 3
"""Failed attempts after which a job is given up, as in the twin (sim/faults.py)."""

Clock = Callable[[], int]
"""Milliseconds since the driver's time 0; never goes backwards."""

_ENDING: Final = {
    ReportKind.FINISHED: Kind.FINISHED, ReportKind.STOPPED: Kind.STOPPED, ReportKind.UNUSABLE: Kind.GAVE_UP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A submission to the live driver.

    Attributes:
        name: Name shown to users.
        user: Name of the user.
        at_ms: Time of submission, after the driver's time 0.
        gpus: Devices it asks for: all or nothing. On CPU slots the gang is one process that is granted that many slots.
        command: The command it runs.
        time_limit_ms: The user's time limit, NONE for none. Policies may read it; it is not enforced yet.
    """

    name: str
    user: str
    at_ms: int
    gpus: int
    command: Command
    time_limit_ms: int = NONE


class Watcher:
    """Receives what happens in a session; the base class ignores it."""

    def event(self, event: Event) -> None:
        """Called for every event except reports of progress."""

    def planned(self, plan: Plan) -> None:
        """Called with the plan of every round."""

    def detail(self, job: int, text: str) -> None:
        """Called with the reason why an attempt failed, from the executor."""

    def tick(self, now_ms: int) -> bool:
        """Called at each wake-up; return False to stop the session."""
        return True


class LiveDriver:
    """One session: jobs submitted at given times to one cluster under one policy, until all have ended.

    Args:
        cluster: One node; its GPUs are the executor's slots.
        policy: The policy that decides.
        jobs: Jobs in any order; their ids follow the order of submission.
        executor: The executor that runs the processes. The caller closes it.
        gap_ms: Shortest time between two rounds.
        journal: Journal for events and decisions, None for no journal.

    Raises:
        RefusedError: the policy needs true run times, which are not known live, or changes running jobs.
        ConfigError: a job asks for more devices than the machine has.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        jobs: tuple[LiveJob, ...],
        executor: Executor,
        *,
        gap_ms: int = DEFAULT_GAP_MS,
        journal: Journal | None = None,
    ) -> None:
        if policy.oracle:
            raise RefusedError(f"policy {policy.name} needs true run times, which are not known of live jobs")
        if policy.changes_running:
            raise RefusedError(
                f"policy {policy.name} resizes or moves jobs while they run, which live jobs cannot do yet: use a "
                "policy that only starts and preempts jobs, such as srtf or tiresias"
            )
        if cluster.num_nodes != 1:
            raise ConfigError(f"the live driver runs jobs on one machine, found a cluster of {cluster.num_nodes} nodes")
        self.jobs = tuple(sorted(jobs, key=lambda job: job.at_ms))
        for job in self.jobs:
            if not 1 <= job.gpus <= cluster.num_gpus:
                raise ConfigError(f"job {job.name} asks for {job.gpus} devices, this machine has {cluster.num_gpus}")
        self.users = tuple(dict.fromkeys(job.user for job in self.jobs))
        self.scheduler = Scheduler(cluster, policy, Beliefs(), users=self.users, gap_ms=gap_ms, journal=journal)
        self.attempts: list[Attempt] = []
        self.ended_ms: dict[int, int] = {}
        self.gave_up: set[int] = set()
        self.fractions = [0.0] * len(self.jobs)
        self.last_snapshot: Snapshot | None = None
        self.rounds = 0
        self._wake_ms: int | None = None
        self._executor = executor
        self._current: dict[int, Attempt] = {}  # by job
        self._failures = [0] * len(self.jobs)
        self._carry_out: dict[type, Callable[[Any, int, Watcher], None]] = {
            Preempt: self._preempt, Reject: self._reject, Start: self._start, Tune: self._tune,
        }
        self._heap: list[tuple[int, int, int, Event]] = []  # time, kind, sequence
        self._sequence = 0
        self.specs = self._specs()
        for spec in self.specs:
            self._push(Event(spec.submit_ms, Kind.SUBMITTED, spec.id, spec=spec))

    def run(self, clock: Clock, watcher: Watcher | None = None, *, tick_ms: int | None = None) -> bool:
        """Run until every job has ended (True) or the watcher stops the session (False).

        Args:
            clock: Clock whose time 0 is the start of the session.
            watcher: Receives what happens.
            tick_ms: Longest time between two calls of ``Watcher.tick``, None for no limit.

        Raises:
            PlanError: the policy wants something impossible.
        """
        watcher = watcher or Watcher()
        while True:
            self._catch_up(clock(), watcher)
            if not watcher.tick(clock()):
                return False
            if len(self.ended_ms) == len(self.jobs):
                return True
            reports = self._executor.wait(self._sleep_ms(clock(), tick_ms))
            now_ms = clock()
            for report in reports:
                self._handle_report(report, now_ms, watcher)

    def attempt_of(self, job: int) -> Attempt | None:
        """The job's present attempt, None while it has none."""
        return self._current.get(job)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _catch_up(self, horizon_ms: int, watcher: Watcher) -> None:
        """Handle every event and round before the horizon, in the engine's total order."""
        while self._heap and self._heap[0][0] < horizon_ms:
            self._advance((), self._heap[0][0], watcher)
            self._handle(heapq.heappop(self._heap)[-1], watcher)
        self._advance((), horizon_ms, watcher)

    def _advance(self, inputs: tuple[Event, ...], before_ms: int, watcher: Watcher) -> None:
        """Give the engine what has happened, and carry out its plans."""
        step = advance(self.scheduler, inputs, before_ms)
        self._wake_ms = step.wake_ms
        for result in step.rounds:
            self._carry_out_round(result, watcher)

    def _sleep_ms(self, now_ms: int, tick_ms: int | None) -> int | None:
        """Time to sleep until the next scheduled event or round lies in the past; None for no limit."""
        times = [self._heap[0][0]] if self._heap else []
        if self._wake_ms is not None:
            times.append(self._wake_ms)
        if not times and not self._current:
            waiting = counted(len(self.scheduler.state), "job")
            raise InvariantError(f"{waiting} still waiting at {now_ms} ms and nothing will happen")
        sleeps = [max(0, min(times) + 1 - now_ms)] if times else []
        if tick_ms is not None:
            sleeps.append(tick_ms)
        return min(sleeps, default=None)

    def _push(self, event: Event) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (event.time_ms, event.kind, self._sequence, event))

    # -- decisions -------------------------------------------------------------------------------------------------

    def _carry_out_round(self, result: RoundResult, watcher: Watcher) -> None:
        self.last_snapshot, plan, now_ms = result.snapshot, result.plan, result.plan.time_ms
        self.rounds += 1
        watcher.planned(plan)
        for action in plan:
            if type(action) not in self._carry_out:
                raise RefusedError(
                    f"policy {self.scheduler.policy.name} {action.rule.verb} job {action.job}, which no live job can do"
                )
            self._carry_out[type(action)](action, now_ms, watcher)

    def _preempt(self, action: Preempt, now_ms: int, watcher: Watcher) -> None:
        self._current[action.job].preempt_ms = now_ms
        self._executor.stop(action.job, action.attempt)

    def _reject(self, action: Reject, now_ms: int, watcher: Watcher) -> None:
        self.ended_ms[action.job] = now_ms
        self.gave_up.add(action.job)
        watcher.detail(action.job, f"rejected by policy {self.scheduler.policy.name}")

    def _start(self, action: Start, now_ms: int, watcher: Watcher) -> None:
        setting = action.setting
        if setting.share_milli != WHOLE_GPU or len(setting.gpus) != len(setting.ranks):
            raise RefusedError(
                f"policy {self.scheduler.policy.name} grants job {action.job} {setting.share_milli / 10:g} % of a GPU: "
                "live jobs can only have whole GPUs"
            )
        slots = tuple(gpu for _, gpu in setting.gpus)
        attempt = Attempt(job=action.job, number=action.attempt, slots=slots)
        self._current[action.job] = attempt
        self.attempts.append(attempt)
        self._executor.start(action.job, action.attempt, slots, self.jobs[action.job].command, setting.loader_workers)

    def _tune(self, action: Tune, now_ms: int, watcher: Watcher) -> None:
        """Do nothing: under a policy that is not refused only the mark of revocable grants changes."""

    # -- what happens ----------------------------------------------------------------------------------------------

    def _handle_report(self, report: AttemptReport, now_ms: int, watcher: Watcher) -> None:
        """Record a report of the executor, and turn it into an event if the engine has one for it."""
        attempt = self._current.get(report.job)
        if attempt is None or attempt.number != report.attempt or attempt.end_ms is not None:
            return  # the attempt has ended
        if report.kind is ReportKind.LAUNCHED:
            attempt.begin_ms = now_ms
        elif report.kind is ReportKind.PROGRESS:
            self._progress(report, now_ms)
        elif report.kind is ReportKind.STARTED:
            attempt.from_ms = now_ms
            self._push(Event(now_ms, Kind.STARTED, report.job))
        else:
            attempt.end_ms = now_ms
            attempt.kind = _ENDING[report.kind] if report.kind in _ENDING else self._failure(report.job)
            self._push(Event(now_ms, attempt.kind, report.job))
            if report.kind in (ReportKind.FAILED, ReportKind.UNUSABLE):
                watcher.detail(report.job, report.detail)

    def _progress(self, report: AttemptReport, now_ms: int) -> None:
        """Report a job's progress and speed in its own unit; the speed is the mean since the attempt's first report."""
        attempt = self._current[report.job]
        self.fractions[report.job] = report.fraction
        if attempt.first_done is None or attempt.first_ms is None:
            attempt.first_done, attempt.first_ms = report.done, now_ms
        span_ms = now_ms - attempt.first_ms
        per_s = max(0.0, (report.done - attempt.first_done) * MS_PER_S / span_ms) if span_ms else 0.0
        self._push(Event(
            now_ms, Kind.REPORTED, report.job, report=Report(samples_done=report.done, samples_per_s=per_s),
        ))

    def _failure(self, job: int) -> Kind:
        self._failures[job] += 1
        return Kind.GAVE_UP if self._failures[job] >= ATTEMPTS_MAX else Kind.FAILED

    def _handle(self, event: Event, watcher: Watcher) -> None:
        if event.kind in (Kind.STARTED, Kind.REPORTED) and event.job not in self._current:
            return  # it ended in the same millisecond
        self._advance((event,), event.time_ms, watcher)
        if event.kind in (Kind.FINISHED, Kind.GAVE_UP):
            self.ended_ms[event.job] = event.time_ms
            if event.kind is Kind.GAVE_UP:
                self.gave_up.add(event.job)
        if event.kind in (Kind.FINISHED, Kind.GAVE_UP, Kind.FAILED, Kind.STOPPED):
            del self._current[event.job]
        if event.kind is not Kind.REPORTED:
            watcher.event(event)

    def _specs(self) -> tuple[JobSpec, ...]:
        return tuple(
            JobSpec(id=row, user=self.users.index(job.user), submit_ms=job.at_ms, gpus=job.gpus,
                    time_limit_ms=job.time_limit_ms)
            for row, job in enumerate(self.jobs)
        )


def warm_up(cluster: Cluster, policy: Policy) -> None:
    """Run one round on a made-up job, so that no round of a session waits for the placement walk to be compiled."""
    scheduler = Scheduler(cluster, policy, Beliefs(), users=("nobody",))
    scheduler.observe(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=0, gpus=1)))
    scheduler.decide(0)
