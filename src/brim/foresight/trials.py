"""One round on a copy of the state, after changes that have not happened: by the code that decides in the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from brim.core.actions import Preempt, Start
from brim.core.events import Event
from brim.engine.round import RoundResult, run_round
from brim.live.reconciliation import devices_of
from brim.live.situation import Situation


def decided(situation: Situation, events: Iterable[Event] = ()) -> RoundResult:
    """Decide a round on the situation as it would be after some events at its time; it is not changed.

    Raises:
        PlanError: the policy wants something impossible.
        InvariantError: an event is impossible here.
    """
    scheduler = situation.scheduler
    state = scheduler.state.copy()
    for event in events:
        state.apply(event)
    return run_round(state.freeze(situation.now_ms), scheduler.beliefs, scheduler.policy)


def starts(result: RoundResult) -> dict[int, tuple[int, ...]]:
    """Devices of the jobs that a round starts, by job."""
    return {action.job: devices_of(action.setting) for action in result.plan if isinstance(action, Start)}


def preempted(result: RoundResult) -> frozenset[int]:
    """Jobs that a round preempts."""
    return frozenset(action.job for action in result.plan if isinstance(action, Preempt))
