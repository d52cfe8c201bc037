"""Cores by marginal gain: known answers, properties, and the best of all divisions."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.loading import Loading
from brim.core.cluster import parse_cluster
from brim.core.events import Report
from brim.engine.round import run_round
from brim.errors import ConfigError
from brim.policies.feed.exhaustive import Exhaustive, speeds
from brim.policies.feed.shares import EqualPerJob, EqualPerRank, Fixed
from brim.policies.feed.throughput import LoaderPlacement, Throughput, by_gain, water_filling
from brim.policies.presets import PRESETS
from brim.sim.twin import ReplaySettings, replay
from brim.testing import check_policy, job, small_trace, snapshot_of
from tests.sampling import sample

LIGHT, HEAVY, GPU_ONLY, SERIAL = (
    np.array(row) for row in (
        (100.0, 0.01, 0.0, 0.0, 0.0, 20.0), (100.0, 0.04, 0.0, 0.0, 0.0, 20.0), (100.0, 1e-5, 0.0, 0.0, 0.0, 20.0),
        (100.0, 0.04, 0.02, 0.0, 0.0, 20.0),
    )
)
KINDS = {"light": LIGHT, "heavy": HEAVY, "gpu": GPU_ONLY, "serial": SERIAL}


def seats_on_one_node(ranks, cores):
    jobs = len(ranks)
    return LoaderPlacement(np.arange(jobs), np.zeros(jobs, dtype=np.int64), np.array(ranks), np.arange(jobs + 1),
                 np.array([cores]))


def divided(rows, cores, ranks=None, part=None, disk=np.inf):
    placement = seats_on_one_node(ranks or [1] * len(rows), cores)
    fixed = np.full(len(rows), -1)
    part = part or Throughput()
    return part.divide(np.arange(len(rows)), placement, np.array(rows), fixed, np.zeros_like(fixed), disk).tolist()


def workers_of(cluster, jobs, feed, believed=KINDS, **when):
    """Loader workers of jobs that hold GPUs, and the models behind their profile codes."""
    held = snapshot_of(cluster, *jobs, **when)
    models = tuple(dict.fromkeys(one.model for one in jobs if one.model))
    library = {code: believed[model] for code, model in enumerate(models) if model in believed}
    policy = replace(PRESETS["adloader"], feed=feed)
    result = run_round(held, Beliefs(loading=Loading(library)), policy)
    workers = np.zeros(len(jobs), dtype=np.int64)
    for action in result.plan:
        workers[action.job] = action.setting.loader_workers
    return workers.tolist()


@pytest.mark.parametrize(("rows", "cores", "expected"), [
    ((LIGHT, HEAVY), 5, [1, 4]),  # 4 : 1, and cores for both
    ((LIGHT, HEAVY), 20, [2, 5]),  # the knee is soft: one core more for each, then none gains a hundredth
    ((HEAVY, HEAVY), 4, [2, 2]),
    ((GPU_ONLY, HEAVY), 5, [1, 4]),
    ((SERIAL, HEAVY), 6, [2, 4]),  # the main process limits it to half of its speed, which two cores bring
    ((LIGHT, HEAVY), 1, [1, 0]),  # fewer cores than ranks: to whom the first brings most
    ((LIGHT,), 0, [0]),
])
def test_cores_go_where_they_bring_most(rows, cores, expected):
    assert divided(rows, cores) == expected


def test_what_a_worker_for_each_of_many_ranks_brings_counts_as_a_whole():
    """Sixteen ranks that want seven cores each: the second worker doubles their speed, at 0.9 % of it per core."""
    starved = np.array((1987.0, 0.003588, 0.0, 0.0, 0.0, 6.0))
    one, placement = np.zeros(1, dtype=np.int64), seats_on_one_node([16], 36)
    assert by_gain(one, placement, starved[None], np.full(1, np.inf), one - 1, one, 0.01).tolist() == [2]


def test_a_core_for_a_job_that_waits_for_storage_goes_to_another():
    """Two jobs read from a disk that feeds 50 samples/s of the first, which 2 workers deliver."""
    reads = HEAVY.copy()
    reads[3] = 1e6
    assert divided((reads, HEAVY), 8) == [4, 4]
    assert divided((reads, HEAVY), 7, disk=50e6) == [2, 5]


def test_storage_is_divided_by_water_filling():
    placement = seats_on_one_node([1, 1, 2], 8)
    given_ = water_filling(placement, np.array([10.0, 100.0, 100.0]), 100.0)
    assert given_.tolist() == [np.inf, 45.0, 22.5]  # the small demand whole, the rest equal for two jobs
    assert np.isinf(water_filling(placement, np.array([10.0, 20.0, 20.0]), 100.0)).all()


rows_of = st.builds(
    lambda rate, cpu, serial, knee: np.array((rate, cpu, serial, 0.0, 0.0, knee)),
    st.floats(10, 1000), st.floats(1e-4, 0.1), st.floats(0, 0.01), st.floats(2, 20),
)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(rows_of, min_size=1, max_size=4), spare=st.integers(0, 6))
def test_with_one_rank_each_no_division_of_the_cores_is_better_by_two_hundredths(rows, spare):
    cores = len(rows) + spare
    placement = seats_on_one_node([1] * len(rows), cores)
    ours, best = (np.array(divided(rows, cores, part=part)) for part in (Throughput(), Exhaustive()))
    assert ours.sum() <= cores
    mine, most = (speeds(placement, np.array(rows), each).sum() for each in (ours, best))
    assert mine >= most - 0.01 * (cores - ours.sum()) - 1e-9  # what stays free would bring less than 1 % a core
    everything = replace(Throughput(), gain_min=0.0)
    assert speeds(placement, np.array(rows), np.array(divided(rows, cores, part=everything))).sum() >= most - 1e-9


def test_the_answer_does_not_depend_on_the_order_of_the_jobs():
    rows, ids, cores = [HEAVY, LIGHT, HEAVY, SERIAL], np.array([3, 5, 7, 9]), 7
    placement, endless, free = seats_on_one_node([1] * 4, cores), np.full(4, np.inf), np.full(4, -1)
    none = np.zeros_like(free)
    there = by_gain(ids, placement, np.array(rows), endless, free, none, 0.01)
    back = by_gain(ids[::-1].copy(), placement, np.array(rows[::-1]), endless, free, none, 0.01)
    assert there.tolist() == back[::-1].tolist()


def test_jobs_on_several_nodes_need_a_core_on_each():
    """Job 0 has a rank on each of two nodes; the cores of node 1 are those of its main processes but one."""
    jobs = (job(on=[(0, 0), (1, 0)], model="heavy"), job(on=[(0, 1)], model="heavy"))
    assert workers_of("1x2xT4:cpus=8+1x2xT4:cpus=2", jobs, Throughput()) == [1, 5]


def test_cores_that_jobs_ask_for_and_ranks_on_cpu_are_left_to_them():
    jobs = (job(on=[(0, 0)], model="heavy", cpu=2500), job(on=[(0, 1), (0, -1)], model="light", cpu_ranks=1, cpu=1000))
    assert workers_of("1x2xT4:cpus=8", jobs, Throughput()) == [1, 1]  # 3.5 cores are left for three ranks
    assert workers_of("1x2xT4:cpus=10", jobs, Throughput()) == [3, 1]


def test_a_job_of_which_nothing_is_known_gets_an_equal_share_and_keeps_it():
    jobs = (job(on=[(0, 0)], model="heavy"), job(on=[(0, 1)]), job(on=[(0, 2)], model="gpu"))
    assert workers_of("1x4xT4:cpus=15", jobs, Throughput()) == [5, 3, 1]  # 12 for 4 GPUs: 3


def test_without_known_cores_nothing_is_decided():
    assert workers_of("1x4xT4", (job(on=[(0, 0)], model="heavy"),), Throughput()) == [0]


def test_a_reported_wait_brings_a_job_more_workers():
    report = Report(samples_done=1.0, samples_per_s=10.0, loader_wait_ratio=0.5)
    jobs = (job(on=[(0, 0)], loaders=2, report=report), job(on=[(0, 1)], model="gpu", loaders=2))
    assert workers_of("1x2xT4:cpus=12", jobs, Throughput(), now=100) == [6, 1]  # it wants 4 cores


@pytest.mark.parametrize(("seen", "workers", "wait", "remembered"), [
    ((0, 0), 2, 0.3, (2, 0.3)), ((1, 0.3), 2, 0.1, (2, 0.1)), ((1, 0.002), 1, 0.3, (1, 0.3)),
    ((1, 0.002), 2, 0.001, (1, 0.002)), ((1, 0.3), 2, 0.001, (1, 0.3)), ((1, 0.9), 2, 0.001, (2, 0.001)),
], ids=["first", "it still waits", "it waits now", "it waited neither way", "two are enough", "less than was thought"])
def test_a_job_that_does_not_wait_is_not_believed_to_need_all_its_workers(seen, workers, wait, remembered):
    """Without waiting, one worker more says nothing of what the job needs."""
    report = Report(samples_done=1.0, samples_per_s=10.0, loader_wait_ratio=wait)
    held = snapshot_of("1x2xT4:cpus=9", job(on=[(0, 0)], loaders=workers, report=report), now=100)
    memory = np.array([[workers, 0, seen[0], round(seen[1] * 1e6) + 1 if seen[0] else 0]])
    held = replace(held, jobs=replace(held.jobs, memo=memory))
    *_, had, waited = Throughput().remember(held)[0].tolist()
    assert (had, (waited - 1) / 1e6) == pytest.approx(remembered)


@pytest.mark.parametrize(("after_s", "changed_s", "expected"), [
    (10, (0, 0), [0, 3]), (31, (0, 0), [1, 4]), (31, (0, 6), [1, 4]), (31, (6, 0), [0, 3]),
], ids=["both lately", "long ago", "the one that gains lately", "the other lately"])
def test_a_running_job_has_no_fewer_workers_for_a_while(after_s, changed_s, expected):
    """Both have 2 of 5; 0 means that no action changed them. The free one goes where it brings most."""
    jobs = tuple(job(on=[(0, at)], model=model, loaders=2) for at, model in enumerate(("light", "heavy")))
    held = snapshot_of("1x2xT4:cpus=7", *jobs, now=after_s)
    memory = np.array([[2, 1000 * since_s, 0, 0] for since_s in changed_s])
    held = replace(held, memory=replace(held.memory, feed=memory))
    policy = replace(PRESETS["adloader"], feed=Throughput())
    plan = run_round(held, Beliefs(loading=Loading({0: LIGHT, 1: HEAVY})), policy).plan
    workers = [0, 0]
    for action in plan:
        workers[action.job] = action.setting.loader_workers
    assert workers == expected


def test_but_not_if_another_has_none():
    jobs = (job(on=[(0, 0)], model="heavy", loaders=4), job(on=[(0, 1)], model="heavy", loaders=0))
    held = snapshot_of("1x2xT4:cpus=6", *jobs, now=5)
    held = replace(held, memory=replace(held.memory, feed=np.array([[4, 0, 0, 0], [0, 0, 0, 0]])))
    plan = run_round(held, Beliefs(loading=Loading({0: HEAVY})), PRESETS["adloader"]).plan
    assert [action.setting.loader_workers for action in sorted(plan, key=lambda each: each.job)] == [2, 2]


@pytest.mark.parametrize(("feed", "expected"), [
    (EqualPerJob(), [2, 4]), (EqualPerRank(), [2, 2]), (Fixed(), [4, 4]), (Fixed(99), [11, 11]),
])
def test_baselines_divide_cores_by_counting(feed, expected):
    """8 cores beside the main processes; job 0 has two ranks."""
    held = snapshot_of("1x4xT4:cpus=11", job(on=[(0, 0), (0, 1)]), job(on=[(0, 2)]))
    assert feed(held, Beliefs(), held.grants).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("feed", [Throughput(), EqualPerJob(), EqualPerRank(), Fixed()])
def test_the_parts_conform(feed):
    check_policy(replace(PRESETS["adloader"], feed=feed), examples=sample(100, 6))


def test_a_library_without_loaders_is_refused():
    trace = small_trace(job(model="cifar10"))
    with pytest.raises(ConfigError, match="--library pollux: found no 'loading' table, which policy 'adloader' reads"):
        replay(trace, parse_cluster("1x1xT4:cpus=4"), PRESETS["adloader"], ReplaySettings(library="pollux"))


@pytest.mark.timing
def test_two_thousand_jobs_are_fed_in_a_tenth_of_a_second():
    rng = np.random.default_rng(0)
    jobs, nodes = 2000, 250
    rows = np.array(list(KINDS.values()))[rng.integers(0, 4, jobs)]
    placement = LoaderPlacement(
        np.arange(jobs), np.arange(jobs) // 8, np.ones(jobs, dtype=np.int64), np.arange(jobs + 1), np.full(nodes, 88)
    )
    arguments = np.arange(jobs), placement, rows, np.full(jobs, -1), np.zeros(jobs, dtype=np.int64), 1e9
    Throughput().divide(*arguments)
    began_s = time.process_time()
    for _ in range(5):
        Throughput().divide(*arguments)
    assert (time.process_time() - began_s) / 5 < 0.1
