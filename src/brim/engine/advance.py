"""The step function under both drivers: events in, plans and the time of the next round out. It reads no clock.

::

    driver: events that happened, until when  ->  advance  ->  plans to carry out, when to call again
                                                    |
                              rounds that are due between the events, in one order of time

The twin calls it with the next event of its heap; the controller with what users and agents say. Both carry out the
plans in turn, and call again at ``wake_ms`` at the latest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brim.core.actions import Plan
from brim.core.events import Event
from brim.engine.round import RoundResult
from brim.engine.scheduler import Scheduler, Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceResult:
    """What one call of ``advance`` decided.

    Attributes:
        rounds: The rounds that were due, in order.
        wake_ms: When the next round is due if nothing happens before, None if none is.
    """

    rounds: tuple[RoundResult, ...]
    wake_ms: int | None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans to carry out, in order."""
        return tuple(result.plan for result in self.rounds)


def advance(
    scheduler: Scheduler, inputs: Iterable[Event], before_ms: int, submit: Submit | None = None
) -> AdvanceResult:
    """Apply events in order, and decide every round that is due before each of them and before ``before_ms``.

    A round that is due at the time of an event waits for it: all events of one instant are seen by the round. When a
    plan is refused, the inputs up to the time of the news are applied together with the news, in one order of time.

    Args:
        scheduler: State, policy, beliefs and trigger.
        inputs: What happened, in order of (time, kind).
        before_ms: Time before which rounds are decided; not before the last event.
        submit: Asked to accept each plan before it counts; None accepts all.

    Raises:
        PlanError: the policy wants something impossible.
        InvariantError: an event is impossible in this state.
    """
    rounds: list[RoundResult] = []
    rest = deque(inputs)

    def with_inputs(result: RoundResult) -> Sequence[Event] | None:
        news = submit(result) if submit else None
        if not news:
            return news
        until_ms = max(event.time_ms for event in news)
        early = [rest.popleft() for event in tuple(rest) if event.time_ms <= until_ms]
        return tuple(heapq.merge(news, early, key=lambda event: (event.time_ms, event.kind)))

    while rest:
        event = rest[0]
        _decide(scheduler, event.time_ms, with_inputs, rounds)
        if rest and rest[0] is event:  # not applied with the news of a refused plan
            scheduler.observe(rest.popleft())
    return AdvanceResult(wake_ms=_decide(scheduler, before_ms, with_inputs, rounds), rounds=tuple(rounds))


def _decide(scheduler: Scheduler, before_ms: int, submit: Submit | None, rounds: list[RoundResult]) -> int | None:
    """Decide the rounds that are due before a time; returns when the next one is due."""
    due_ms = scheduler.due_ms()
    while due_ms is not None and due_ms < before_ms:
        rounds.append(scheduler.decide(due_ms, submit))
        due_ms = scheduler.due_ms()
    return due_ms
