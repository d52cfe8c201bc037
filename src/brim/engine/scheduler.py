"""The scheduler of both drivers: state, policy, beliefs, trigger and journal behind ``observe`` and ``decide``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import Cluster
from brim.core.events import Event, Kind
from brim.core.saved import state_bytes, state_of
from brim.core.state import ClusterState
from brim.core.trace import JobClass
from brim.engine.journal import Journal, RecordedDecision
from brim.engine.padding import NO_REASONS, Reasons
from brim.engine.round import RoundResult, run_round
from brim.engine.trigger import DEFAULT_GAP_MS, Trigger
from brim.errors import InvariantError
from brim.policies.sockets import Policy

REFUSALS_MAX: Final = 5
"""Refusals of one round's plans after which it is given up: HashiCorp Nomad's limit for service jobs."""
Submit = Callable[[RoundResult], Sequence[Event] | None]
"""Receives a round before it counts: returns None to accept its plan, or the events that it did not know."""


class Scheduler:
    """Feeds events into the state and runs rounds when they are due.

    A driver reports every event with ``observe``, asks ``due_ms`` when to call ``decide``, and carries out the returned
    plan. The driver supplies the time.

    Args:
        cluster: The cluster to schedule.
        policy: The policy that decides.
        beliefs: Fitted models that the policy may read.
        users: User names known in advance.
        gap_ms: Shortest time between two rounds.
        gap_job_us: If above 0, rounds may be closer together than ``gap_ms`` while few jobs wait: see ``Trigger``. Not
            while a policy that changes running jobs has one to change, since each change costs the job time.
        in_place: Whether jobs change their size in place, within a second or so. Then a policy's own gap, which is
            there because a restart costs half a minute, is not kept (one with fixed rounds keeps it), and the first
            step times of a job on a number of GPUs cause a round if the policy resizes jobs.
        journal: Journal for events and decisions, None for no journal.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        beliefs: Beliefs,
        *,
        users: tuple[str, ...] = (),
        gap_ms: int = DEFAULT_GAP_MS,
        gap_job_us: int = 0,
        in_place: bool = False,
        journal: Journal | None = None,
    ) -> None:
        self._fills = policy.takes_padding
        self.state = ClusterState(cluster, users, padding_apart=self._fills)
        self.policy, self.beliefs, self.journal = policy, beliefs, journal
        self.last_round: RoundResult | None = None
        self._acts_when_idle = policy.acts_when_idle  # asks every part, and is read twice per event
        self._resizes = policy.resizes_running
        self._changes = policy.changes_running
        self._learns = in_place and policy.resizes_running
        own_ms = 0 if in_place and not policy.fixed_rounds else policy.gap_ms
        self._trigger = Trigger(
            gap_ms=max(gap_ms, own_ms), gap_job_us=0 if own_ms else gap_job_us, period_ms=policy.period_ms,
            wakes_on=policy.wakes_on,
        )
        self._fill_trigger = Trigger(
            gap_ms=gap_ms, period_ms=int(getattr(policy.fill, "fill_period_ms", 0)), wakes_on=policy.wakes_on,
            backs_off=True,
        )

    @property
    def _waiting(self) -> int:
        """Jobs that wait, without padding jobs that the fill part takes."""
        return self.state.num_waiting - (self.state.num_padding_waiting if self._fills else 0)

    @property
    def _idle(self) -> bool:
        """Whether no round could change anything but padding: no job waits, and the policy changes nothing else.

        A size part has nothing to change where every job has one number of GPUs, one batch and no ranks on CPU.
        """
        if self._waiting:
            return False
        if not self._acts_when_idle:
            return not (self._resizes and self.state.has_elastic)
        return len(self.state) <= (self.state.num_padding if self._fills else 0)

    def observe(self, event: Event) -> None:
        """Record one event and apply it to the state."""
        if self.journal:
            self.journal.event(event)
        learns = self._learns and event.report is not None
        sizes = self.state.sizes_seen(event.job) if learns else 0
        padding = self._fills and self._is_of_padding(event)  # one that has started may grow
        self.state.apply(event)
        if self._fills and self.state.num_padding:
            self._fill_trigger.note(event.kind, event.time_ms, learned=padding and event.kind is Kind.STARTED)
        if not padding and not self._idle:
            self._trigger.note(event.kind, event.time_ms, learned=learns and self.state.sizes_seen(event.job) > sizes)

    def _is_of_padding(self, event: Event) -> bool:
        """Whether an event concerns nothing but a padding job."""
        if event.spec is not None:
            return event.spec.job_class == JobClass.PADDING
        return self.state.is_padding(event.job)

    def due_ms(self) -> int | None:
        """Time at which the next round is due, None if no round is due.

        A round for padding jobs alone does not come just before one that fills as well.
        """
        regular_ms = self._regular_due_ms()
        if not (self._fills and self.state.num_padding):
            return regular_ms
        fill_ms = self._fill_trigger.due_ms(
            looks=self.state.has_room_for_padding or (self._acts_when_idle and self._fill_trigger.looks)
        )
        if fill_ms is None or (regular_ms is not None and regular_ms - self._fill_trigger.gap_ms <= fill_ms):
            return regular_ms
        return max(fill_ms, self.state.now_ms)

    def _regular_due_ms(self) -> int | None:
        """Time at which the next round is due that decides about all jobs."""
        if self._idle:
            return None
        elastic, waiting = (self._changes or self._resizes) and self.state.has_elastic, self._waiting
        due_ms = self._trigger.due_ms(
            None if self._changes and elastic else waiting,
            looks=bool(waiting) or (self._resizes and elastic) or self._trigger.looks,
        )
        if due_ms is None:
            return None
        due_ms, period_ms = max(due_ms, self.state.now_ms), self.policy.period_ms
        return -(-due_ms // period_ms) * period_ms if self.policy.fixed_rounds else due_ms

    def decide(self, now_ms: int, submit: Submit | None = None) -> RoundResult:
        """Run a round, record it, and apply its plan to the state as events.

        Args:
            now_ms: Time of the round.
            submit: Asked to accept the plan before it counts. If it refuses, it returns what the round did not know;
                these events are observed, and the round is decided again on the newer state. None accepts every plan.

        Raises:
            PlanError: the policy wants something impossible.
            InvariantError: the plan was refused ``REFUSALS_MAX`` times, or without a reason.
        """
        for _ in range(REFUSALS_MAX):
            result = run_round(self.state.freeze(now_ms), self.beliefs, self.policy, self._reasons_before(now_ms))
            news = submit(result) if submit else None
            if news is None:
                self.commit(result)
                return result
            if not news:
                raise InvariantError(f"the plan of {now_ms} ms was refused without an event that explains it")
            for event in news:
                self.observe(event)
                now_ms = max(now_ms, event.time_ms)
        raise InvariantError(f"{REFUSALS_MAX} plans were refused in turn, the last at {now_ms} ms")

    def _reasons_before(self, now_ms: int) -> Reasons | None:
        """Why regular jobs wait, if only padding jobs have a reason for a round now; None for a round about all."""
        if not self._fills:
            return None
        regular_ms = self._regular_due_ms()
        if regular_ms is not None and regular_ms <= now_ms:
            return None
        return self.last_round.reasons if self.last_round else NO_REASONS

    def commit(self, result: RoundResult) -> None:
        """Record an accepted round and apply it."""
        if self.journal:
            self.journal.decision(result)
        self.last_round = result
        self.fold(RecordedDecision.of(result))

    def fold(self, decision: RecordedDecision) -> None:
        """Apply a decision without deciding."""
        for socket, (jobs, values) in decision.memory.items():
            self.state.remember(socket, jobs, values)
        self.state.apply_plan(decision.plan)
        self._fill_trigger.done(decision.plan.time_ms)
        self._fill_trigger.looks = not decision.settled_padding
        if not decision.only_fills:
            self._trigger.done(decision.plan.time_ms)
            self._trigger.looks = not decision.settled

    def look_again(self) -> None:
        """Forget that parts were settled: policy, beliefs or cluster may be others than those that said so."""
        self._trigger.looks = self._fill_trigger.looks = True

    def save(self, beside: Mapping[str, Any] | None = None) -> bytes:
        """Return everything that later decisions depend on, but policy and beliefs, and what a driver keeps beside it.

        Args:
            beside: Plain data for JSON.
        """
        kept = {"trigger": self._trigger, "fill_trigger": self._fill_trigger}
        triggers = {
            name: {"last_ms": one.last_ms, "since_ms": one.since_ms, "event_ms": one.event_ms, "looks": one.looks}
            for name, one in kept.items()
        }
        return state_bytes(self.state, {**triggers, "driver": dict(beside or {})})

    def restore(self, data: bytes) -> dict[str, Any]:
        """Go on from what ``save`` returned, and return what the driver kept beside it.

        Raises:
            InvariantError: the bytes are no saved state, or that of another cluster or version.
        """
        self.state, kept = state_of(data, self.state.cluster)
        self.state.keep_apart(self._fills)
        for trigger, saved in ((self._trigger, kept["trigger"]), (self._fill_trigger, kept.get("fill_trigger"))):
            if saved:  # earlier versions had no trigger of padding jobs
                trigger.last_ms, trigger.since_ms = saved["last_ms"], saved["since_ms"]
                trigger.event_ms, trigger.looks = saved.get("event_ms"), saved.get("looks", True)
        self.last_round = None
        driver: dict[str, Any] = kept["driver"]
        return driver

    def copy(self) -> Scheduler:
        """Return an independent copy without a journal, for trials: what happens to it does not happen here."""
        beliefs = replace(self.beliefs, speeds=self.beliefs.speeds.copy(), progress=self.beliefs.progress.copy())
        copied = Scheduler(self.state.cluster, self.policy, beliefs, gap_ms=self._trigger.gap_ms)
        copied.state, copied.last_round, copied._trigger = self.state.copy(), self.last_round, replace(self._trigger)
        copied._fill_trigger = replace(self._fill_trigger)
        return copied

    @property
    def trigger(self) -> Trigger:
        """Copy of what tells when the next round is due that decides about all jobs."""
        return replace(self._trigger)

    @property
    def horizon_ms(self) -> int:
        """Time before which nothing more can happen: that of the last event or round."""
        return max(self.state.now_ms, self._trigger.last_ms or 0, self._fill_trigger.last_ms or 0)
