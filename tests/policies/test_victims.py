"""Whose GPUs regular jobs get: free ones, then those by which padding jobs lose least. Starts cost 30 s here."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Action, Preempt, Resize, Start
from brim.core.cluster import parse_cluster
from brim.core.events import Report
from brim.core.trace import JobClass
from brim.engine.round import run_round
from brim.policies.fill.victims import Loss, _chosen
from brim.policies.presets import find_policy
from brim.sim.overheads import Overheads, PaddingCosts
from brim.sim.twin import ReplaySettings, replay
from brim.testing.builders import Job, job, small_trace, snapshot_of

PADDING = JobClass.PADDING


def pad(*on: int, at: float = 0, **fields) -> Job:
    """A padding job on some GPUs of the node since some time."""
    return job(at=at, on=[(0, gpu) for gpu in on], job_class=PADDING, revocable=True, **fields)


def decided(cluster: str, *jobs: Job) -> dict[int, Action]:
    """What fifo with padding decides at 200 s, by job."""
    return {action.job: action for action in run_round(
        snapshot_of(cluster, *jobs, now=200), Beliefs(), find_policy("fifo+padding"),
    ).plan}


def test_the_padding_job_that_began_last_gives_way_since_it_has_done_least():
    plan = decided("1x2xT4", pad(0), pad(1, at=100), job(at=200))
    assert {number: type(action) for number, action in plan.items()} == {1: Preempt, 2: Start}
    assert plan[2].setting.gpus == ((0, 1),)


def test_one_that_saves_when_it_is_told_gives_way_before_one_that_does_not():
    plan = decided("1x2xT4", pad(0, at=100), pad(1, report=Report(samples_done=64.0, samples_per_s=1.0)), job(at=200))
    assert plan[2].setting.gpus == ((0, 1),)


def test_one_that_only_shrinks_gives_way_before_one_that_has_to_leave():
    plan = decided("1x3xT4", pad(0), pad(1, 2, gpus=2, gpus_min=1, gpus_max=2, batch=8), job(at=200))
    assert {number: type(action) for number, action in plan.items()} == {1: Resize, 2: Start}


def test_a_gang_that_would_all_leave_for_one_gpu_loses_more_than_a_job_of_one():
    """One GPU: 2 x 230 s against 230 s. Two GPUs: 2 x 230 s against 3 x 230 s."""
    gang, single = pad(0, 1, gpus=2), pad(2)
    assert set(decided("1x3xT4", gang, single, job(at=200))) == {1, 2}
    assert set(decided("1x3xT4", gang, single, job(at=200, gpus=2))) == {0, 2}


def test_a_free_gpu_comes_first_and_other_grants_stay():
    plan = decided("1x3xT4", pad(0), job(on=[(0, 1)]), job(at=200))
    assert set(plan) == {2}
    assert plan[2].setting.gpus == ((0, 2),)


@given(data=st.data())
def test_the_choice_is_the_best_of_all(data):
    owner = {gpu: row for gpu in range(6) if (row := data.draw(st.integers(-1, 2))) >= 0}
    loss = {}
    for row in set(owner.values()):
        gpus = sum(one == row for one in owner.values()) + data.draw(st.integers(0, 2))  # some are on other nodes
        sizes = tuple(sorted(data.draw(st.sets(st.integers(1, gpus))) | {gpus}))
        growth, leaving = (float(data.draw(st.integers(1, 50))) for _ in range(2))
        loss[row] = Loss(gpus=gpus, sizes=sizes, growth_ms=growth, leaving_ms=growth + leaving)
    count = data.draw(st.integers(1, 6))

    def total(gpus) -> float:
        return sum(one.of(sum(owner.get(gpu) == row for gpu in gpus)) for row, one in loss.items())

    chosen = _chosen(count, list(range(6)), owner, loss, dict.fromkeys(loss, 0))
    assert len(set(chosen)) == count
    assert total(chosen) == min(total(gpus) for gpus in combinations(range(6), count))


def test_in_the_twin_the_older_padding_job_is_left_alone_and_what_is_lost_is_least():
    trace = small_trace(
        job(run=300, job_class=PADDING, name="old"), job(at=100, run=300, job_class=PADDING, name="young"),
        job(at=200, run=50, name="regular"),
    )
    costs = ReplaySettings(overheads=Overheads(save_ms=4_000, padding=PaddingCosts(grace_ms=1_000)))
    found = replay(trace, parse_cluster("1x2xT4"), find_policy("fifo+padding"), costs)
    old, young, regular = (trace.job_id.index(name) for name in ("old", "young", "regular"))
    assert (found.preemptions[old], found.preemptions[young]) == (0, 1)
    assert found.first_start_ms[regular] == 201_000
    assert found.lost_gpu_ms[old] == 0
    assert found.finish_ms[old] == 300_000


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_a_loss_counts_a_growth_while_it_can_run_on_what_is_left_and_a_start_after_that(taken):
    one = Loss(gpus=3, sizes=(2, 3), growth_ms=5.0, leaving_ms=70.0)
    assert one.of(taken) == [0.0, 15.0, 210.0, 210.0][taken]
