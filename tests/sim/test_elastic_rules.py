"""Policies that resize, held to the rules; and policies that break one of them each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import plan_of
from brim.core.arrays import frozen
from brim.core.cluster import parse_cluster
from brim.core.lifecycle import Phase
from brim.core.replay import Replay
from brim.engine.round import RoundResult
from brim.policies.presets import PRESETS
from brim.policies.sockets import Policy, Sizes
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import PolicyViolation, check_policy, job, rules, small_trace, snapshot_of
from brim.testing.elastic import Line, ToyTruth, restless, scripted
from tests.engine.plans import resize, tune

SNAPSHOT = snapshot_of(
    "2x2xT4", job(on=[(0, 0)], gpus_min=1, gpus_max=3, batch=32, batch_min=8, batch_max=64), job(on=[(0, 1)]),
    job(gpus=1, gpus_min=1, gpus_max=2, phase=Phase.STOPPING, on=[(1, 0)]), job(at=1), now=5, draining=[1],
)


def broken_rule(policy: Policy) -> str:
    with pytest.raises(PolicyViolation) as found:
        rules.check_decision(SNAPSHOT, policy)
    return found.value.rule


def wanting(*, reject: tuple[int, ...] = (), **jobs) -> Policy:
    return scripted(Line(at=0, has={int(name[1:]): want for name, want in jobs.items()}, reject=reject))


STAYS = {"j0": (((0, 0),), 32), "j1": (((0, 1),), -1)}


def test_a_policy_that_never_sits_still_keeps_every_rule():
    check_policy(restless(calm_ms=150_000, period_ms=20_000), examples=15)


def test_who_leaves_all_as_it_is_does_nothing():
    decision = rules.decide(SNAPSHOT, Beliefs(), wanting(**STAYS))
    rules.check_stays(SNAPSHOT, decision)
    rules.check_actions(SNAPSHOT, wanting(**STAYS), decision.result)
    assert decision.result.plan.actions == ()


@pytest.mark.parametrize(("policy", "rule"), [
    (wanting(**STAYS | {"j0": (((0, 0),), 65)}), rules.SOUND),
    (wanting(**STAYS | {"j0": (((0, 0), (1, 0)), 32)}), rules.SOUND),
    (wanting(**STAYS | {"j1": (((0, 1), (1, 1)), -1)}), rules.SOUND),
    (wanting(**STAYS | {"j0": (((0, 0), (0, 1)), 32)}), rules.OVER_GRANT),
    (wanting(**STAYS, reject=(2,)), rules.SOUND),
], ids=["batch", "closed node", "rigid job", "taken GPU", "rejects who stops"])
def test_what_no_plan_may_do_is_found(policy, rule):
    assert broken_rule(policy) == rule


@pytest.mark.parametrize("changed", [{"j0": (((0, 0),), 64)}, {"j0": ((), 32), "j1": (((0, 0),), -1)}],
                         ids=["tunes", "moves"])
def test_who_says_it_never_resizes_does_not(changed):
    policy = wanting(**STAYS | changed)

    @dataclass(frozen=True)
    class Still:
        size: Callable
        resizes_running: ClassVar[bool] = False

        def __call__(self, snapshot, beliefs, order) -> Sizes:
            return self.size(snapshot, beliefs, order)

    assert broken_rule(replace(policy, size=Still(policy.size))) == rules.STAYS


@pytest.mark.parametrize(("action", "rule"), [
    (resize(0, 2, ((0, 0),), 32), rules.FOR_NOTHING), (tune(0, 1, ((0, 0),), 32), rules.FOR_NOTHING),
    (tune(0, 1, ((0, 0),), 7), rules.BATCH), (resize(1, 2, ((1, 0),), 3), rules.BATCH),
])
def test_an_engine_that_restarts_for_nothing_would_be_found(action, rule):
    none = np.zeros(len(SNAPSHOT.jobs), dtype=np.int64)
    result = RoundResult(
        plan=plan_of(5_000, (action,)), snapshot=SNAPSHOT, order=none, sizes=Sizes(gpus=none), grants=SNAPSHOT.grants,
        why=none, blocker=none, memory={},
    )
    with pytest.raises(PolicyViolation, match=rule):
        rules.check_actions(SNAPSHOT, restless(calm_ms=0), result)


@dataclass(frozen=True)
class ByModelCode:
    """Jobs in the order in which the trace happens to list the models."""

    def __call__(self, snapshot, beliefs):
        return np.lexsort((snapshot.jobs.profile, ~snapshot.jobs.holds))


def test_who_orders_by_the_numbers_of_models_is_found():
    snapshot = snapshot_of("1x1xT4", job(model="bert"), job(model="resnet"), now=5)
    with pytest.raises(PolicyViolation, match="the models numbered in reverse"):
        rules.check_decision(snapshot, replace(PRESETS["fifo"], order=ByModelCode(), name="models"))


@dataclass(frozen=True)
class AsSeen:
    """A batch that depends on the number of rows in the table of steps: pure, and free of any order."""

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order) -> Sizes:
        jobs = snapshot.jobs
        few = len(snapshot.seen) % 2
        batch = np.where(jobs.batch_min < 0, jobs.batch, jobs.batch_min if few else jobs.batch_max)
        return Sizes(gpus=np.where(jobs.holds, jobs.gpus_now, jobs.gpus), global_batch=batch)


def test_a_policy_may_decide_on_what_jobs_have_told():
    check_policy(replace(PRESETS["fifo"], size=AsSeen(), period_ms=20_000, name="seen"), examples=15)


def test_a_job_in_two_places_would_be_found():
    jobs = (job(run=10, gpus_min=1, gpus_max=2),)
    trace = small_trace(*jobs)
    outcome: Replay = replay(
        trace, parse_cluster("2x2xT4"),
        scripted(Line(at=0, has={0: (((0, 0),), -1)}), Line(at=3, has={0: (((1, 0),), -1)})),
        ReplaySettings(overheads=Overheads(save_ms=500), gap_ms=0), truth=ToyTruth(trace, {"j0": jobs[0]}),
    )
    rules.check_one_place(outcome)
    early = replace(outcome.runs, start_ms=frozen(outcome.runs.start_ms - np.array([0, 1])))
    with pytest.raises(PolicyViolation, match=rules.ONE_PLACE):
        rules.check_one_place(replace(outcome, runs=early))
