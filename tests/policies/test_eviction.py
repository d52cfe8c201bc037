"""Who has to leave for whom: no more than needed, from the end of the order, and for every kind of gang."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.actions import Preempt, Start
from brim.core.reasons import Reason
from brim.engine.round import run_round
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.place.parts import Consolidate, Fragmentation, Spread, WorstFit
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy, Sizes
from brim.testing import job, snapshot_of
from brim.testing.free_lists import FreeLists, PlaceRequest, pairs_by_job
from brim.testing.rules import beliefs_of, check_decision
from brim.testing.strategies import clusters, placed_jobs, snapshots
from brim.testing.text import describe


@dataclass(frozen=True)
class NewestFirst:
    """The last submitted first, running or not."""

    def __call__(self, snapshot, beliefs):
        return np.arange(len(snapshot.jobs))[::-1]


def newest(place=None) -> Policy:
    return Policy(name="newest", order=NewestFirst(), size=AsAsked(), place=place or Consolidate(), feed=Even(),
                  fill=NoFill())


def actions(snapshot, place=None) -> tuple[list[int], dict[int, tuple]]:
    plan = run_round(snapshot, beliefs_of(snapshot, newest()), newest(place)).plan
    preempted = [one.job for one in plan.actions if isinstance(one, Preempt)]
    return preempted, {one.job: one.setting.gpus for one in plan.actions if isinstance(one, Start)}


def test_the_last_in_the_order_leaves_first():
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0)]), job(on=[(1, 0)]), job(at=1), now=5)
    assert actions(snapshot) == ([0], {2: ((0, 0),)})


def test_worst_fit_places_after_every_preempted_job_has_left():
    """j4, then j3 are served; j3 alone would take node 0 (j0 leaves for it), j4 the node 1 that j1 and j2 leave."""
    snapshot = snapshot_of(
        "2x2xT4", job(on=[(0, 0)]), job(on=[(1, 0)]), job(on=[(1, 1)]), job(at=1, gpus=1), job(at=2, gpus=2), now=5
    )
    assert actions(snapshot, WorstFit()) == ([0, 1], {4: ((0, 0), (0, 1)), 3: ((1, 0),)})


def test_nobody_leaves_when_the_gang_fits():
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0)]), job(at=1), now=5)
    assert actions(snapshot) == ([], {1: ((1, 0),)})


def test_nobody_leaves_when_it_would_not_help():
    """j2 needs two GPUs and only the one of j0 could be freed: j1 comes before j2."""
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0)]), job(at=1, gpus=2), job(at=2, on=[(1, 0)]), now=5)
    assert actions(snapshot) == ([], {})


def test_who_turns_out_not_to_be_needed_stays():
    """j0 (1 GPU) is freed first and does not help; j1 (2 GPUs on one node) does, so j0 stays."""
    snapshot = snapshot_of("1x1xT4+1x2xV100", job(on=[(0, 0)]), job(on=[(1, 0), (1, 1)]),
                           job(at=1, gpus=2, gpu_type=""), now=5)
    assert actions(snapshot) == ([1], {2: ((1, 0), (1, 1))})


def test_a_whole_gpu_is_freed_of_the_shares_on_it():
    """Two halves run on the only GPU; a whole one that comes before both takes it."""
    snapshot = snapshot_of("1x1xT4", job(share=500, on=[(0, 0)]), job(share=500, on=[(0, 0)]), job(at=1), now=5)
    assert actions(snapshot) == ([0, 1], {2: ((0, 0),)})


def test_one_half_leaves_for_another_half():
    snapshot = snapshot_of("1x1xT4", job(share=500, on=[(0, 0)]), job(share=500, on=[(0, 0)]), job(at=1, share=500),
                           now=5)
    assert actions(snapshot) == ([0], {2: ((0, 0),)})


def test_a_gang_that_began_on_a_draining_node_can_still_be_made_to_leave():
    """j0 holds a GPU of a draining and one of an open node; freeing it gives the newcomer the open one."""
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0), (1, 0)]), job(at=1), now=5, draining=[0])
    assert actions(snapshot) == ([0], {1: ((1, 0),)})


def test_nobody_leaves_a_draining_node_for_nothing():
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)]), job(at=1), now=5, draining=[0])
    assert actions(snapshot) == ([], {})


def test_cores_and_memory_are_freed_too():
    """One GPU is free, but j0 holds all the cores."""
    snapshot = snapshot_of("1x2xT4:cpus=4", job(cpu=4_000, on=[(0, 0)]), job(at=1, cpu=1_000), now=5)
    assert actions(snapshot) == ([0], {1: ((0, 0),)})


def test_the_victim_and_the_reason_are_written_down():
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)]), job(at=1), now=5)
    result = run_round(snapshot, beliefs_of(snapshot, newest()), newest())
    assert (result.why.tolist(), result.blocker.tolist()) == ([Reason.PREEMPTED, Reason.RUNS], [1, -1])


PLACES = (Consolidate(), Spread(), Fragmentation())


@pytest.mark.cases(1)
@pytest.mark.parametrize("place", PLACES, ids=lambda part: type(part).__name__)
@given(data=st.data())
def test_no_victim_could_be_spared(place, data):
    """One gang comes first; without any one of its victims leaving, it would not fit anywhere."""
    cluster = data.draw(clusters(nodes_max=2))
    running = [one for one in data.draw(placed_jobs(cluster)) if one.on and one.phase != 4]
    ask = data.draw(placed_jobs(cluster, jobs_max=1).filter(lambda found: len(found) == 1))[0]
    waits = job(at=100, gpus=ask.gpus, share=ask.share, cpu=ask.cpu, mem=ask.mem, gpu_type=ask.gpu_type)
    snapshot = snapshot_of(cluster, *running, waits, now=100)
    preempted, started = actions(snapshot, place)
    row = len(running)
    everyone = FreeLists.of_snapshot(snapshot, gone=range(row))
    assert (row in started) == everyone.fits(PlaceRequest(snapshot, row))
    for spare_padding in preempted:
        others = [victim for victim in preempted if victim != spare_padding]
        assert not FreeLists.of_snapshot(snapshot, gone=others).fits(PlaceRequest(snapshot, row)), (
            f"{preempted} leave, {started} start; {spare_padding} could stay\n{describe(snapshot)}"
        )


@pytest.mark.cases(1)
@pytest.mark.parametrize("place", PLACES, ids=lambda part: type(part).__name__)
@given(snapshot=snapshots())
def test_every_rule_holds_when_the_newest_comes_first(place, snapshot):
    check_decision(snapshot, newest(place))


@given(snapshot=snapshots())
def test_grants_of_a_job_stand_together_by_node_then_gpu(snapshot):
    policy = newest()
    beliefs = beliefs_of(snapshot, policy)
    order = policy.order(snapshot, beliefs)
    grants = policy.place(snapshot, beliefs, order, policy.size(snapshot, beliefs, order))
    changes = np.flatnonzero(np.diff(grants.job)) + 1
    assert len(changes) + 1 == len(set(grants.job.tolist())) or not len(grants)
    for pairs in pairs_by_job(grants.job, grants.node, grants.gpu).values():
        assert pairs == sorted(pairs)


@dataclass(frozen=True)
class NotNow:
    """Gives nothing to some rows."""

    rows: tuple[int, ...]
    resizes_running = True

    def __call__(self, snapshot, beliefs, order):
        return Sizes(gpus=np.where(np.isin(np.arange(len(snapshot.jobs)), self.rows), 0, snapshot.jobs.gpus))


def test_a_size_of_nothing_takes_the_gpus_of_who_runs_and_keeps_back_who_waits():
    snapshot = snapshot_of("1x3xT4", job(on=[(0, 0)]), job(on=[(0, 1)]), job(at=1), job(at=1), now=5)
    policy = Policy(name="not now", order=NewestFirst(), size=NotNow((0, 2)), place=Consolidate(), feed=Even(),
                    fill=NoFill())
    result = run_round(snapshot, beliefs_of(snapshot, policy), policy)
    assert [one.job for one in result.plan.actions if isinstance(one, Preempt)] == [0]
    assert result.why.tolist() == [Reason.NOT_NOW, Reason.RUNS, Reason.NOT_NOW, Reason.RUNS]
