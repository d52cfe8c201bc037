"""The scheduler of both drivers: state, policy, beliefs, trigger and journal behind ``observe`` and ``decide``."""

from __future__ import annotations

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import event_of
from brim.core.cluster import Cluster
from brim.core.events import Event
from brim.core.state import ClusterState
from brim.engine.journal import Journal
from brim.engine.round import RoundResult, run_round
from brim.engine.trigger import DEFAULT_GAP_MS, Trigger
from brim.policies.sockets import Policy


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
        journal: Journal | None = None,
    ) -> None:
        self.state = ClusterState(cluster, users)
        self.policy, self.beliefs, self.journal = policy, beliefs, journal
        self.last_round: RoundResult | None = None
        self._trigger = Trigger(
            gap_ms=max(gap_ms, policy.gap_ms), period_ms=policy.period_ms, wakes_on=policy.wakes_on
        )

    @property
    def _idle(self) -> bool:
        """Whether no round could change anything: no job waits, and the policy changes nothing else."""
        return not self.state.num_waiting and not (self.policy.acts_when_idle and len(self.state))

    def observe(self, event: Event) -> None:
        """Record one event and apply it to the state."""
        if self.journal:
            self.journal.event(event)
        self.state.apply(event)
        if not self._idle:
            self._trigger.note(event.kind, event.time_ms)

    def due_ms(self) -> int | None:
        """Time at which the next round is due, None if no round is due."""
        if self._idle:
            return None
        due_ms = self._trigger.due_ms()
        if due_ms is None:
            return None
        due_ms, period_ms = max(due_ms, self.state.now_ms), self.policy.period_ms
        return -(-due_ms // period_ms) * period_ms if self.policy.fixed_rounds else due_ms

    def decide(self, now_ms: int) -> RoundResult:
        """Run a round, record it, and apply its plan to the state as events.

        Raises:
            PlanError: the policy wants something impossible.
        """
        result = run_round(self.state.freeze(now_ms), self.beliefs, self.policy)
        if self.journal:
            self.journal.decision(result)
        for socket, memory in result.memory.items():
            self.state.remember(socket, result.job, memory)
        for action in result.plan.actions:
            self.state.apply(event_of(action, now_ms))
        self._trigger.done(now_ms)
        self.last_round = result
        return result
