from __future__ import annotations

from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.reports.bounds import bounds, last_completion, sum_of_completions
from brim.reports.metrics import measure
from tests.sampling import sample

from .fakes import drawn_replay, drawn_trace

INFINITY = 10**9


def best_schedules(release, run, gpus, num_gpus):
    """Least sum of completions and least makespan over all preemptive schedules in unit slots, by exhaustion."""
    jobs = range(len(run))

    @cache
    def least(now, left):
        alive = [j for j in jobs if left[j]]
        if not alive:
            return 0, 0
        ready = [j for j in alive if release[j] <= now]
        if not ready:
            return least(now + 1, left)
        total, last = INFINITY, INFINITY
        for size in range(1, len(ready) + 1):
            for chosen in combinations(ready, size):
                if sum(gpus[j] for j in chosen) > num_gpus:
                    continue
                after = tuple(left[j] - (j in chosen) for j in jobs)
                ended = sum(now + 1 for j in chosen if left[j] == 1)
                rest, rest_last = least(now + 1, after)
                total = min(total, ended + rest)
                last = min(last, max(rest_last, now + 1 if ended else 0))
        return total, last

    return least(0, tuple(run))


@st.composite
def instances(draw):
    size = draw(st.integers(1, 4))
    num_gpus = draw(st.integers(1, 3))
    run = draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    gpus = draw(st.lists(st.integers(1, num_gpus), min_size=size, max_size=size))
    release = sorted(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))
    return release, run, gpus, num_gpus


@settings(deadline=None, max_examples=sample(300, 100))
@given(instances())
def test_no_schedule_of_a_tiny_instance_beats_the_bounds(instance):
    release, run, gpus, num_gpus = instance
    arrays = [np.array(values, dtype=np.float64) for values in (release, run, gpus)]
    total, last = best_schedules(release, run, gpus, num_gpus)
    assert sum_of_completions(*arrays, num_gpus) <= total * (1 + 1e-12) + 1e-9
    assert last_completion(*arrays, num_gpus) <= last + 1e-9


@settings(deadline=None, max_examples=sample(100, 33))
@given(instances())
def test_on_one_gpu_the_bound_is_the_optimum(instance):
    release, run, gpus, _ = instance
    arrays = [np.array(values, dtype=np.float64) for values in (release, run, [1] * len(gpus))]
    total, last = best_schedules(release, run, [1] * len(gpus), 1)
    assert sum_of_completions(*arrays, 1) == pytest.approx(total)
    assert last_completion(*arrays, 1) == pytest.approx(last)


def test_equal_jobs_together_reach_the_eastman_even_isaacs_bound():
    """Four one-GPU jobs of 2 s on two GPUs end at 2, 2, 4, 4: mean 3. SRPT alone says 1, 2, 3, 4: mean 2.5."""
    assert sum_of_completions(np.zeros(4), np.full(4, 2.0), np.ones(4), 2) == pytest.approx(12.0)


def trace_of_runs(**columns):
    size = len(columns["gpus"])
    return trace_of(name="t", format="test", job_id=[f"j{i}" for i in range(size)], **columns)


def test_bounds_of_a_trace_are_in_seconds_from_submission():
    trace = trace_of_runs(submit_ms=[0, 60_000], gpus=[1, 1], run_ms=[10_000, 20_000])
    found = bounds(trace, parse_cluster("1x1xT4"))
    assert (found.jct_mean_s, found.makespan_s) == pytest.approx((15.0, 80.0))


def test_a_job_cannot_end_before_the_one_it_waits_for():
    trace = trace_of_runs(submit_ms=[0, 0], gpus=[1, 1], run_ms=[10_000, 20_000], after=[-1, 0], after_ms=[0, 5_000])
    found = bounds(trace, parse_cluster("1x8xT4"))
    assert found.jct_mean_s == pytest.approx((10 + 35) / 2)
    assert found.makespan_s == 35.0


def test_gangs_of_more_than_half_the_cluster_follow_one_another():
    trace = trace_of_runs(submit_ms=[0, 0], gpus=[5, 5], run_ms=[10_000, 10_000])
    assert bounds(trace, parse_cluster("1x8xT4")).makespan_s == 20.0


def test_shares_count_as_shares_and_left_out_jobs_do_not_count():
    trace = trace_of_runs(
        submit_ms=[0, 0, 0], gpus=[1, 1, 1], run_ms=[10_000, 10_000, 99_000], share_milli=[500, 500, 1000]
    )
    found = bounds(trace, parse_cluster("1x1xT4"), counted=np.array([True, True, False]))
    assert (found.jct_mean_s, found.makespan_s) == pytest.approx((10.0, 10.0))


def test_nothing_counted_has_no_bound_and_unrecorded_run_times_count_as_none():
    trace = trace_of_runs(submit_ms=[0], gpus=[1])
    assert bounds(trace, parse_cluster("1x1xT4"), counted=np.array([False])).jct_mean_s is None
    assert bounds(trace, parse_cluster("1x1xT4")).jct_mean_s == 0.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cluster", ["1x2xT4", "4x8xT4"])
def test_replays_of_drawn_traces_respect_the_bounds(seed, cluster):
    trace = drawn_trace(300, seed=seed, load_gpus=parse_cluster(cluster).num_gpus)
    replay = drawn_replay(trace, cluster, "fifo")
    found, metrics = bounds(trace, replay.cluster), measure(replay)
    assert found.jct_mean_s <= metrics.jct_mean_s
    assert found.makespan_s <= metrics.makespan_s


def best_elastic_schedules(release, work, speed, num_gpus):
    """The same for jobs of whole units of work that may change their GPUs in every slot; ``speed[j][g]`` per slot.

    Speeds do not fall with GPUs, so that leaving GPUs free gains nothing.
    """
    jobs = range(len(work))

    @cache
    def least(now, left):
        if not any(left):
            return 0, 0
        sizes = [range(len(speed[j])) if left[j] and release[j] <= now else (0,) for j in jobs]
        total, last = INFINITY, INFINITY
        used = min(num_gpus, sum(len(size) - 1 for size in sizes))
        for given_gpus in product(*sizes):
            if sum(given_gpus) != used:
                continue
            after = tuple(max(0, left[j] - speed[j][given_gpus[j]]) for j in jobs)
            ended = sum(now + 1 for j in jobs if left[j] and not after[j])
            rest, rest_last = least(now + 1, after)
            total, last = min(total, ended + rest), min(last, max(rest_last, now + 1 if ended else 0))
        return total, last

    return least(0, tuple(work))


@st.composite
def elastic_instances(draw):
    size, num_gpus = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    release = sorted(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    work = draw(st.lists(st.integers(1, 5), min_size=size, max_size=size))
    speed = [
        [0, *np.maximum.accumulate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=num_gpus))).tolist()]
        for _ in range(size)
    ]
    return release, work, speed, num_gpus


@settings(deadline=None, max_examples=sample(100, 33))
@given(elastic_instances())
def test_no_schedule_of_a_tiny_elastic_instance_beats_the_bounds(instance):
    release, work, speed, num_gpus = instance
    total, last = best_elastic_schedules(release, work, speed, num_gpus)
    run = np.array([amount / max(row) for amount, row in zip(work, speed, strict=True)])
    gpu_time = np.array([
        amount * min(gpus / per_slot for gpus, per_slot in enumerate(row) if gpus)
        for amount, row in zip(work, speed, strict=True)
    ])
    most = np.array([len(row) - 1.0 for row in speed])
    start = np.array(release, dtype=np.float64)
    assert sum_of_completions(start, run, most, num_gpus, gpu_time) <= total * (1 + 1e-12) + 1e-9
    assert last_completion(start, run, np.ones(len(work)), num_gpus, gpu_time) <= last + 1e-9


def test_jobs_that_could_all_use_the_whole_cluster_are_bound_by_their_work():
    """Two jobs of 4 GPU-s at once on 2 GPUs, at best: one after the other on both GPUs end at 2 and 4."""
    arrays = np.zeros(2), np.full(2, 2.0), np.full(2, 2.0)
    assert sum_of_completions(*arrays, 2, np.full(2, 4.0)) == pytest.approx(6.0)


def test_a_job_that_asks_for_most_of_the_cluster_but_may_shrink_does_not_block_it():
    run, gpu_time = np.full(2, 4.0), np.full(2, 4.0)
    assert last_completion(np.zeros(2), run, np.array([2.0, 2.0]), 2, gpu_time) == 8.0
    assert last_completion(np.zeros(2), run, np.array([1.0, 1.0]), 2, gpu_time) == 4.0
