"""When rounds are due, and what a plan may not do."""

from __future__ import annotations

import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Plan, Preempt, Start
from brim.core.checks import check_plan
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.engine.explain import explain
from brim.engine.round import run_round
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import Trigger
from brim.errors import PlanError
from brim.policies.presets import PRESETS
from brim.testing import job, snapshot_of

BUSY = snapshot_of(
    "1x2xT4:cpus=4,mem=8GB+1x2xV100", job(on=[(0, 0)], cpu=3_000), job(at=1), job(at=1, gpus=2),
    job(at=1, gpu_type="V100"), job(at=1, cpu=2_000), job(at=1, after="j0"), job(at=1, share=700), job(at=1, share=700),
    job(at=1, mem=9_000), now=5, draining=[],
)
DRAINING = snapshot_of("2x1xT4", job(at=1), now=5, draining=[0])

REFUSED = {
    "unknown job": (BUSY, (Start(99, 1, ((0, 1),)),), "not in the snapshot"),
    "twice": (BUSY, (Start(1, 1, ((0, 1),)), Start(1, 1, ((1, 0),))), "acts twice"),
    "take before free": (BUSY, (Start(1, 1, ((0, 1),)), Preempt(0, 1)), "frees come before takes"),
    "stale preemption": (BUSY, (Preempt(0, 0),), "epoch 0"),
    "preempts who waits": (BUSY, (Preempt(1, 0),), "PENDING"),
    "starts who runs": (BUSY, (Start(0, 2, ((0, 1),)),), "RUNNING"),
    "starts who is held": (BUSY, (Start(5, 1, ((0, 1),)),), "HELD"),
    "stale start": (BUSY, (Start(1, 2, ((0, 1),)),), "epoch 2"),
    "half a gang": (BUSY, (Start(2, 1, ((1, 0),)),), "gang of 2"),
    "the same GPU twice": (BUSY, (Start(2, 1, ((1, 0), (1, 0))),), "gang of 2"),
    "not in order": (BUSY, (Start(2, 1, ((1, 1), (1, 0))),), "increasing order"),
    "no such GPU": (BUSY, (Start(1, 1, ((0, 2),)),), "does not exist"),
    "no such node": (BUSY, (Start(1, 1, ((2, 0),)),), "does not exist"),
    "mixed types": (BUSY, (Start(2, 1, ((0, 1), (1, 0))),), "types"),
    "wrong type": (BUSY, (Start(3, 1, ((0, 1),)),), "types"),
    "taken GPU": (BUSY, (Start(1, 1, ((0, 0),)),), "200 %"),
    "shares above the whole": (BUSY, (Start(6, 1, ((1, 0),)), Start(7, 1, ((1, 0),))), "140 %"),
    "cores": (BUSY, (Start(4, 1, ((0, 1),)),), "cores of node 0"),
    "memory": (BUSY, (Start(8, 1, ((0, 1),)),), "memory of node 0"),
    "draining node": (DRAINING, (Start(0, 1, ((0, 0),)),), "down or drains"),
}
ALLOWED = {
    "nothing": (BUSY, ()),
    "a start": (BUSY, (Start(1, 1, ((0, 1),)),)),
    "a gang": (BUSY, (Start(2, 1, ((1, 0), (1, 1))),)),
    "after a preemption": (BUSY, (Preempt(0, 1), Start(1, 1, ((0, 0),)))),
    "its cores after a preemption": (BUSY, (Preempt(0, 1), Start(4, 1, ((0, 0),)))),
    "a share": (BUSY, (Start(6, 1, ((1, 0),)), Start(7, 1, ((1, 1),)))),
    "an open node": (DRAINING, (Start(0, 1, ((1, 0),)),)),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_plan_that_could_not_be_applied_is_refused(case):
    snapshot, actions, said = REFUSED[case]
    with pytest.raises(PlanError, match=said):
        check_plan(snapshot, Plan(5_000, actions))


@pytest.mark.parametrize("case", sorted(ALLOWED))
def test_a_plan_that_can_be_applied_is_not(case):
    snapshot, actions = ALLOWED[case]
    check_plan(snapshot, Plan(5_000, actions))


def test_rounds_wait_for_the_gap_and_come_with_the_period():
    trigger = Trigger(gap_ms=1_000, period_ms=60_000)
    assert trigger.due_ms() is None
    trigger.note(Kind.SUBMITTED, 500)
    trigger.note(Kind.SUBMITTED, 700)
    assert trigger.due_ms() == 500
    trigger.done(500)
    assert trigger.due_ms() == 60_500
    trigger.note(Kind.FINISHED, 900)
    assert trigger.due_ms() == 1_500
    trigger.done(1_500)
    trigger.note(Kind.FINISHED, 9_000)
    assert trigger.due_ms() == 9_000


@pytest.mark.parametrize("kind", [Kind.STARTED, Kind.NODE_DRAIN, Kind.NODE_DOWN, Kind.PREEMPT, Kind.START])
def test_what_cannot_change_a_decision_is_no_cause_for_a_round(kind):
    trigger = Trigger(gap_ms=0, period_ms=0)
    trigger.note(kind, 5)
    assert trigger.due_ms() is None


def test_no_round_while_nobody_waits():
    scheduler = Scheduler(parse_cluster("1x1xT4"), PRESETS["las"], Beliefs(), users=("ann",), gap_ms=0)
    assert scheduler.due_ms() is None
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
    assert scheduler.due_ms() == 5
    scheduler.decide(5)
    scheduler.observe(Event(5, Kind.STARTED, 0))
    assert scheduler.due_ms() is None
    scheduler.observe(Event(9, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=9, gpus=1)))
    assert scheduler.due_ms() == 9
    scheduler.decide(9)
    assert scheduler.due_ms() == 9 + PRESETS["las"].period_ms


WORDS = {
    0: "has its 1 GPU", 1: "has its 1 GPU", 5: "waits for job 0 to end", 2: "needs 2 GPUs",
}


def test_every_job_is_explained_in_words():
    result = run_round(BUSY, Beliefs(), PRESETS["sjf"])
    for number in BUSY.jobs.id.tolist():
        said = explain(BUSY, result, number)
        assert said.startswith(f"job {number} ")
        assert WORDS.get(number, "") in said or result.why[number] == 0
