"""What a job may ask beyond a number of GPUs, GPUs that are withheld one by one, and ranks on CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Preempt, plan_of
from brim.core.checks import check_plan, check_snapshot
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report
from brim.core.state import ClusterState
from brim.core.trace import NONE, JobClass
from brim.engine.explain import explain
from brim.engine.journal import event_record, read_event
from brim.engine.round import run_round
from brim.engine.scheduler import Scheduler
from brim.errors import ConfigError, InvariantError, PlanError
from brim.policies.place.energy_sharing import BestPartners, EnergySharing
from brim.policies.place.packing import PackedPairs, RandomPairs
from brim.policies.place.parts import Consolidate, Fragmentation, Spread, WorstFit
from brim.policies.place.repack import Repack
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.presets import PARTS, PRESETS
from brim.policies.sockets import Sizes
from brim.testing import job, snapshot_of
from brim.testing.rules import check_grants, watched
from brim.testing.strategies import placed_jobs

from .plans import resize, start

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
PLACES = (
    Consolidate("skip"), Consolidate("reserve"), Spread("skip"), Fragmentation("skip"), WorstFit("skip"), Repack(),
    EnergySharing(), BestPartners(), PackedPairs(), RandomPairs(), WorkersAndServers(),
)
ON_GPU = [place for place in PLACES if not getattr(place, "places_on_cpu", False)]
"""What they are not asked to place they leave alone; the others place ranks on CPU as the sizes say."""
LISTED = snapshot_of("2x4xT4", job(on=[(0, 0), (0, 1)], sizes=(1, 2, 4)), job(gpus=2, sizes=(2, 3)), now=5)


def test_every_place_part_is_tried():
    assert {type(place) for place in PLACES} == set(PARTS["place"])


# -- lists of sizes ------------------------------------------------------------------------------------------------


def test_a_job_runs_on_the_sizes_that_it_lists_and_on_no_others():
    for gpus, allowed in ((0, [False, False]), (1, [True, False]), (2, [True, True]), (3, [False, True]),
                          (4, [True, False]), (5, [False, False])):
        assert LISTED.jobs.allows(np.full(2, gpus)).tolist() == allowed
    assert [LISTED.jobs.sizes_of(row) for row in range(2)] == [(1, 2, 4), (2, 3)]
    assert (LISTED.jobs.gpus_min.tolist(), LISTED.jobs.gpus_max.tolist()) == ([1, 2], [4, 3])


@pytest.mark.parametrize(("action", "said"), [
    (resize(0, 2, ((0, 0), (0, 1), (0, 2))), "a gang of 1 or 2 or 4 GPUs"),
    (start(1, 1, tuple((1, gpu) for gpu in range(4))), "a gang of 2 or 3 GPUs"),
])
def test_a_plan_with_a_size_between_two_that_are_listed_is_refused(action, said):
    with pytest.raises(PlanError, match=said):
        check_plan(LISTED, plan_of(5_000, (action,)))


def test_a_gang_of_one_gpu_is_named_in_the_singular():
    with pytest.raises(PlanError, match="asks for a gang of 1 GPU, plan grants"):
        check_plan(snapshot_of("1x4xT4", job(), now=5), plan_of(5_000, (start(0, 1, ((0, 0), (0, 1))),)))


def test_a_plan_with_a_listed_size_is_not():
    check_plan(LISTED, plan_of(5_000, (start(1, 1, ((1, 0), (1, 1), (1, 2))),)))


class ThreeEach:
    """Three GPUs for every job."""

    resizes_running = True

    def __call__(self, snapshot, beliefs, order):
        return Sizes(gpus=np.full(len(snapshot.jobs), 3))


def test_a_size_part_is_held_to_the_list():
    with pytest.raises(PlanError, match="size: job 0 runs on 1 or 2 or 4 GPUs, found 3"):
        run_round(LISTED, Beliefs(), replace(SKIP, size=ThreeEach()))


@pytest.mark.cases(7)
@pytest.mark.parametrize("name", [name for name, policy in PRESETS.items() if policy.resizes_running])
@given(st.data())
def test_elastic_presets_choose_listed_sizes_only(name, data):
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True).map(sorted).map(tuple))
    common = {"batch": 32, "batch_min": 8, "batch_max": 64, "local_batch_min": 1, "local_batch_max": 64}
    asked = data.draw(st.sampled_from(sizes))
    snapshot = snapshot_of("2x4xT4", *(job(gpus=asked, sizes=sizes, **common) for _ in range(3)), now=5)
    policy = replace(PRESETS[name], oracle=False)
    if name == "optimus":
        return  # it needs the remaining work of each job, which no snapshot has
    for action in run_round(snapshot, Beliefs(), policy).plan.actions:
        assert len(action.setting.gpus) in sizes


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1), (0, 1)])
def test_a_list_of_sizes_that_is_not_in_order_is_refused(sizes):
    with pytest.raises(ConfigError, match="expected numbers of GPUs in increasing order"):
        JobSpec(id=0, user=0, submit_ms=0, gpus=1, sizes=sizes)


@pytest.mark.parametrize("limits", [{"gpus_min": 1}, {"gpus_max": 9}, {"gpus_min": 5, "gpus_max": 8}])
def test_limits_other_than_the_ends_of_the_listed_sizes_are_refused(limits):
    with pytest.raises(ConfigError, match=r"expected the ends of its sizes \(4, 8\)"):
        JobSpec(id=0, user=0, submit_ms=0, gpus=4, sizes=(4, 8), **limits)
    JobSpec(id=0, user=0, submit_ms=0, gpus=4, sizes=(4, 8), gpus_min=4, gpus_max=8)


# -- priority, class, deadline, observations -----------------------------------------------------------------------


def test_priority_class_deadline_and_observations_reach_the_tables_and_survive_the_journal():
    spec = JobSpec(id=0, user=0, submit_ms=0, gpus=1, sizes=(1, 4), priority=7, job_class=JobClass.PADDING,
                   deadline_ms=9_000, cpu_ranks_max=2)
    told = Report(samples_done=1, samples_per_s=2, loss=0.25, slowdown_ratio=1.5)
    events = [Event(0, Kind.SUBMITTED, 0, spec=spec), start_event(), Event(2, Kind.STARTED, 0),
              Event(3, Kind.REPORTED, 0, report=told), Event(4, Kind.GPU_QUARANTINED, node=0, gpu=1)]
    state, again = (ClusterState(parse_cluster("1x2xT4"), ("ann",)) for _ in range(2))
    for event in events:
        state.apply(event)
        again.apply(read_event(event_record(event)))
    for snapshot in (state.freeze(5), again.freeze(5)):
        one = snapshot.jobs[0]
        assert (one.priority, one.job_class, one.deadline_ms, one.cpu_ranks_max) == (7, JobClass.PADDING, 9_000, 2)
        assert (one.loss, one.slowdown_ratio) == (0.25, 1.5)
        assert snapshot.jobs.sizes_of(0) == (1, 4)
        assert snapshot.nodes.withheld.tolist() == snapshot.nodes.quarantined.tolist() == [[False, True]]


def start_event():
    return Event(1, Kind.START, 0, setting=start(0, 1, ((0, 0),)).setting)


def test_what_is_not_asked_is_neutral():
    one = snapshot_of("1x1xT4", job(), now=5).jobs[0]
    assert (one.priority, one.job_class, one.deadline_ms, one.size_list, one.cpu_ranks_max) == (
        0, JobClass.REGULAR, NONE, NONE, 0,
    )
    assert np.isnan(one.loss)
    assert np.isnan(one.slowdown_ratio)


# -- single GPUs ---------------------------------------------------------------------------------------------------


@pytest.mark.cases(4)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{type(place).__name__}-{getattr(place, 'misfit', '')}")
@given(st.data())
def test_no_place_part_starts_a_job_on_a_withheld_gpu(place, data):
    cluster = parse_cluster("2x3xT4+1x2xV100")
    jobs = data.draw(placed_jobs(cluster))
    places = [(node, gpu) for node, count in enumerate((3, 3, 2)) for gpu in range(count)]
    withheld = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=6))
    snapshot = snapshot_of(cluster, *jobs, now=100, withheld=withheld)
    check_snapshot(snapshot)
    policy = watched(replace(SKIP, place=place), lambda now, grants: check_grants(now, grants, resizes=True))
    result = run_round(snapshot, Beliefs(), policy)
    had = {(row, node, gpu) for row, node, gpu in zip(
        *(column.tolist() for column in (snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)), strict=True,
    )}
    for row, node, gpu in zip(
        *(column.tolist() for column in (result.grants.job, result.grants.node, result.grants.gpu)), strict=True,
    ):
        assert (node, gpu) not in withheld or (row, node, gpu) in had


def test_a_job_stays_on_a_gpu_that_is_withheld_and_nobody_follows_it():
    snapshot = snapshot_of("1x2xT4", job(on=[(0, 0)]), job(gpus=2), job(), now=5, withheld=[(0, 0)])
    result = run_round(snapshot, Beliefs(), SKIP)
    assert result.plan.actions == (start(2, 1, ((0, 1),)),)
    assert explain(snapshot, result, 1) == "job 1 needs 2 GPUs; 0 are free; it would start with 2 more."
    with pytest.raises(PlanError, match="GPU 0 of node 0, which is withheld"):
        check_plan(snapshot, plan_of(5_000, (Preempt(0, 1), start(2, 1, ((0, 0),)))))


def test_a_gpu_that_opens_causes_a_round_and_one_that_closes_causes_none():
    scheduler = Scheduler(parse_cluster("1x1xT4"), SKIP, Beliefs(), users=("ann",), gap_ms=0)
    scheduler.observe(Event(0, Kind.GPU_WITHHELD, node=0, gpu=0))
    scheduler.observe(Event(5, Kind.SUBMITTED, 0, spec=JobSpec(id=0, user=0, submit_ms=5, gpus=1)))
    assert scheduler.decide(5).plan.actions == ()
    scheduler.observe(Event(6, Kind.GPU_QUARANTINED, node=0, gpu=0))
    assert scheduler.due_ms() is None
    scheduler.observe(Event(7, Kind.GPU_OPENED, node=0, gpu=0))
    assert scheduler.due_ms() == 7
    assert scheduler.decide(7).plan.actions == (start(0, 1, ((0, 0),)),)


@pytest.mark.parametrize(("node", "gpu"), [(0, 2), (1, 0), (-1, 0), (0, -1)])
def test_a_gpu_that_does_not_exist_is_not_withheld(node, gpu):
    state = ClusterState(parse_cluster("1x2xT4"))
    with pytest.raises(InvariantError, match="which does not exist"):
        state.apply(Event(0, Kind.GPU_WITHHELD, node=node, gpu=gpu))


# -- ranks on CPU --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: f"{type(place).__name__}-{getattr(place, 'misfit', '')}")
def test_place_parts_leave_ranks_on_cpu_where_they_are_and_count_their_cores(place):
    ranks = job(on=[(0, NONE), (0, NONE), (0, 0)], cpu=1_000, cpu_ranks=2, loaders=1)
    snapshot = snapshot_of("1x3xT4:cpus=4", ranks, job(cpu=1_000), job(cpu=1_000), now=5)
    check_snapshot(snapshot)
    result = run_round(snapshot, Beliefs(), replace(SKIP, place=place))
    (begun,) = result.plan.actions  # three of four cores are held
    assert begun.job == 1
    assert result.snapshot.setting_of(0).gpus == ((0, 0),)
    assert snapshot.jobs.gpus_now.tolist() == [1, 0, 0]


@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: f"{type(place).__name__}-{getattr(place, 'misfit', '')}")
def test_place_parts_leave_a_job_alone_that_has_only_ranks_on_cpu(place):
    ranks = job(on=[(0, NONE), (0, NONE)], gpus=0, cpu=1_000, cpu_ranks=2, loaders=1)
    snapshot = snapshot_of("1x3xT4:cpus=3", ranks, job(cpu=1_000), job(cpu=1_000), now=5)
    check_snapshot(snapshot)
    result = run_round(snapshot, Beliefs(), replace(SKIP, place=place))
    (begun,) = result.plan.actions  # two of three cores are held
    assert begun.job == 1
    assert result.why.tolist()[:2] == [0, 0]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{type(place).__name__}-{getattr(place, 'misfit', '')}")
def test_place_parts_keep_the_revocable_mark_of_jobs_that_stay(place):
    marked = job(on=[(0, 1), (0, NONE)], cpu_ranks=1, revocable=True) if place in ON_GPU else job(
        on=[(0, 1)], revocable=True)
    snapshot = snapshot_of("1x3xT4", job(on=[(0, 0)]), marked, job(), now=5)
    result = run_round(snapshot, Beliefs(), replace(SKIP, place=place))
    assert [action.job for action in result.plan.actions] == [2]
    assert result.grants.revocable_jobs(3).tolist() == [False, True, False]
