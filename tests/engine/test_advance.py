"""The step function, and drivers that refuse a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import plan_of
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.engine.advance import advance
from brim.engine.journal import Journal
from brim.engine.journal import replay as replay_journal
from brim.engine.scheduler import REFUSALS_MAX, Scheduler
from brim.errors import InvariantError
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS

from .plans import start

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))


def scheduler(policy=SKIP, cluster="1x2xT4", **more):
    return Scheduler(parse_cluster(cluster), policy, Beliefs(), users=("ann",), **more)


def submitted(time_ms, job):
    return Event(time_ms, Kind.SUBMITTED, job, spec=JobSpec(id=job, user=0, submit_ms=time_ms, gpus=1))


def test_a_step_decides_what_is_due_and_says_when_to_come_back():
    engine = scheduler(gap_ms=1_000)
    step = advance(engine, (submitted(5, 0),), 5)
    assert (step.plans, step.wake_ms) == ((), 5)
    step = advance(engine, (), 6)
    assert (step.plans, step.wake_ms) == ((plan_of(5, (start(0, 1, ((0, 0),)),)),), None)
    step = advance(engine, (submitted(9, 1), submitted(2_000, 2)), 2_000)
    assert [plan.time_ms for plan in step.plans] == [1_005]
    assert step.wake_ms == 2_005


def test_a_round_sees_all_events_of_its_instant():
    step = advance(scheduler(gap_ms=0), (submitted(5, 0), submitted(5, 1)), 6)
    assert [len(plan.actions) for plan in step.plans] == [2]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).map(sorted), st.data())
def test_how_events_are_cut_into_calls_changes_nothing(times, data):
    """One call with all events decides the same as many calls, at whatever times they come."""
    events = [submitted(time_ms, job) for job, time_ms in enumerate(times)]
    policy = replace(SKIP, period_ms=7)
    whole, cut = scheduler(policy, gap_ms=3), scheduler(policy, gap_ms=3)
    expected = list(advance(whole, events, 60).plans)
    found, rest = [], events
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        until = rest[count - 1].time_ms
        found += advance(cut, rest[:count], until).plans
        rest = rest[count:]
        if not rest or rest[0].time_ms > until:
            found += advance(cut, (), data.draw(st.integers(until, rest[0].time_ms if rest else 60))).plans
    found += advance(cut, (), 60).plans
    assert found == expected


# -- refusals ------------------------------------------------------------------------------------------------------


def test_a_refused_plan_is_decided_again_on_the_newer_state():
    journal, asked = Journal(), []
    engine = scheduler(journal=journal, gap_ms=0)
    lost = [Event(7, Kind.GPU_QUARANTINED, node=0, gpu=0)]

    def submit(result):
        asked.append(result.plan)
        return lost if len(asked) == 1 else None

    engine.observe(submitted(5, 0))
    result = engine.decide(5, submit)
    assert asked == [plan_of(5, (start(0, 1, ((0, 0),)),)), plan_of(7, (start(0, 1, ((0, 1),)),))]
    assert result.plan == asked[1]
    assert engine.state.gpus_of(0) == ((0, 1),)
    assert engine.state.attempt(0) == 1
    assert len(journal.lines) == 3  # the refused plan left no trace
    again = scheduler(gap_ms=0)
    assert all(line == now for line, now in replay_journal(journal.lines, again))


@pytest.mark.parametrize(("news_ms", "plans"), [
    (7, [plan_of(time_ms, (start(job, 1, ((0, job + 1),)),)) for job, time_ms in enumerate((7, 9, 11))]),
    (9, [plan_of(9, (start(0, 1, ((0, 1),)), start(1, 1, ((0, 2),)))), plan_of(11, (start(2, 1, ((0, 3),)),))]),
    (10, [plan_of(10, (start(0, 1, ((0, 1),)), start(1, 1, ((0, 2),)))), plan_of(11, (start(2, 1, ((0, 3),)),))]),
    (12, [plan_of(12, tuple(start(job, 1, ((0, job + 1),)) for job in range(3)))]),
])
def test_news_of_a_refused_plan_and_inputs_are_applied_in_one_order_of_time(news_ms, plans):
    refusals = [[Event(news_ms, Kind.GPU_QUARANTINED, node=0, gpu=0)]]
    journal = Journal()
    engine = scheduler(cluster="1x4xT4", journal=journal, gap_ms=0)
    inputs = [submitted(5, 0), submitted(9, 1), submitted(11, 2)]
    step = advance(engine, inputs, 13, lambda result: refusals.pop() if refusals else None)
    assert list(step.plans) == plans
    again = scheduler(cluster="1x4xT4", gap_ms=0)
    assert all(line == now for line, now in replay_journal(journal.lines, again))


def test_rounds_between_the_news_of_a_refused_plan_and_the_next_input_are_decided():
    refusals = [[Event(10, Kind.GPU_QUARANTINED, node=0, gpu=0)]]
    engine = scheduler(replace(SKIP, period_ms=3), gap_ms=0)
    inputs = [submitted(5, 0), submitted(9, 1), submitted(20, 2)]
    step = advance(engine, inputs, 21, lambda result: refusals.pop() if refusals else None)
    assert [plan.time_ms for plan in step.plans] == [10, 13, 16, 19, 20]


def test_a_result_says_what_it_was_decided_on():
    engine = scheduler(gap_ms=0)
    engine.observe(submitted(5, 0))
    result = engine.decide(5)
    assert result.snapshot.now_ms == 5
    assert result.sizes.gpus.tolist() == [1]
    assert list(zip(result.grants.node.tolist(), result.grants.gpu.tolist(), strict=True)) == [(0, 0)]
    assert result.job.tolist() == [0]


@pytest.mark.parametrize(("news", "said"), [
    ((), "was refused without an event"),
    ((Event(5, Kind.NODE_DRAIN, node=0),), f"{REFUSALS_MAX} plans were refused in turn"),
])
def test_a_driver_that_never_accepts_is_an_error(news, said):
    engine = scheduler(gap_ms=0)
    engine.observe(submitted(5, 0))
    with pytest.raises(InvariantError, match=said):
        engine.decide(5, lambda result: news)
    assert engine.state.attempt(0) == 0
