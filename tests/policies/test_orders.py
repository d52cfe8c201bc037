"""Orders at their edges: thresholds, promotion, weights, ties, and the Gittins index from its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import TrueRunTimes
from brim.core.arrays import frozen
from brim.core.state import SERVICE_EDGES_GPU_MS
from brim.core.trace import NONE
from brim.policies.feed.even import Even
from brim.policies.order.arrival import Arrival
from brim.policies.order.attained import Gittins, LeastAttained, gittins_index
from brim.policies.order.fair import MaxMin
from brim.policies.order.shortest import ShortestJob, ShortestRemaining
from brim.policies.order.tiresias import ServiceQueues, TwoQueues
from brim.policies.presets import PRESETS
from brim.testing import job, snapshot_of
from brim.testing.strategies import snapshots


def with_columns(snapshot, **columns):
    """The snapshot with some columns of its job table set by hand."""
    arrays = {name: frozen(np.array(values, dtype=np.int64)) for name, values in columns.items()}
    return replace(snapshot, jobs=replace(snapshot.jobs, **arrays))


def waiting(count: int, **columns):
    snapshot = snapshot_of("1x8xT4", *(job(at=row) for row in range(count)), now=1_000)
    return with_columns(snapshot, **columns)


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", sorted(PRESETS))
@given(snapshot=snapshots())
def test_an_order_is_a_permutation(name, snapshot):
    run_ms = np.arange(100, dtype=np.int64) * 997 % 60_000
    beliefs = Beliefs(run_times=TrueRunTimes(run_ms)) if PRESETS[name].oracle else Beliefs()
    part = PRESETS[name].order
    if (columns := getattr(part, "memory_columns", 1)) > 1:
        snapshot = with_columns(snapshot, memo=np.zeros((len(snapshot.jobs), columns)))
    order = part(snapshot, beliefs)
    assert sorted(order.tolist()) == list(range(len(snapshot.jobs)))


@given(snapshot=snapshots())
def test_who_runs_comes_first_where_nobody_is_interrupted(snapshot):
    for part in (Arrival(), ShortestJob()):
        holds = snapshot.jobs.holds[part(snapshot, Beliefs())]
        assert holds.tolist() == sorted(holds.tolist(), reverse=True)


def test_a_service_of_exactly_the_threshold_stands_in_the_next_queue():
    snapshot = waiting(3, service_gpu_ms=[3_250_000, 3_249_999, 36_000_000])
    assert ServiceQueues()(snapshot, Beliefs()).tolist() == [1, 0, 2]


def test_the_second_queue_is_in_the_order_of_entering_it():
    """The third job got there first; the second and the fourth enter in the same round, by submission."""
    part = TwoQueues(threshold_gpu_ms=100)
    before = waiting(4, service_gpu_ms=[99, 100, 100, 100], memo=[0, 0, 700, 0])
    memo = part.remember(before)
    assert memo.tolist() == [0, 1_000_000, 700, 1_000_000]
    assert part(with_columns(before, memo=memo), Beliefs()).tolist() == [0, 2, 1, 3]


def test_a_promoted_job_starts_again_in_the_first_queue():
    """Run 100 s, waiting for 800 s: promoted; the memo is its service, which no longer counts."""
    columns = {
        "service_gpu_ms": [5_000_000, 5_000_000, 5_000_000, 0], "run_ms": [100_000] * 4,
        "since_ms": [200_000, 200_001, 200_000, 0], "attempt": [1, 1, 1, 0],
    }
    snapshot = waiting(4, **columns)
    memo = ServiceQueues().remember(snapshot)
    assert memo.tolist() == [5_000_000, 0, 5_000_000, 0]  # j1 has waited 1 ms too little; j3 never ran
    assert ServiceQueues()(with_columns(snapshot, memo=memo.tolist()), Beliefs()).tolist() == [0, 2, 3, 1]


def test_who_runs_is_not_promoted_and_a_ratio_of_nothing_promotes_nobody():
    running = snapshot_of("1x1xT4", job(on=[(0, 0)]), now=1_000)
    assert ServiceQueues().remember(running).tolist() == [0]
    starved = waiting(1, service_gpu_ms=[5], run_ms=[1], since_ms=[0], attempt=[1])
    assert ServiceQueues().remember(starved).tolist() == [5]
    assert ServiceQueues(promote_ratio=0).remember(starved).tolist() == [0]


def test_least_attained_counts_whole_quanta_and_prefers_who_runs():
    snapshot = snapshot_of("1x1xT4", job(), job(on=[(0, 0)]), job(), now=1_000)
    one_hour = 3_600_000
    for service, want in (([0, one_hour - 1, 0], [1, 0, 2]), ([0, one_hour, 0], [0, 2, 1])):
        assert LeastAttained()(with_columns(snapshot, service_gpu_ms=service), Beliefs()).tolist() == want


def test_shortest_remaining_prefers_who_runs_at_a_tie_and_the_earlier_otherwise():
    snapshot = snapshot_of("1x1xT4", job(), job(on=[(0, 0)], at=0, start=10), job(), now=10)
    beliefs = Beliefs(run_times=TrueRunTimes(np.array([5_000, 5_000, 5_000])))
    assert ShortestRemaining()(snapshot, beliefs).tolist() == [1, 0, 2]


def test_weights_of_users_divide_what_they_have_received():
    """Ann has 3 h and weight 4, Bob 1 h and weight 1: (3 + 1) / 4 = 1 before (1 + 1) / 1 = 2."""
    snapshot = snapshot_of("1x8xT4", job(user="bob"), job(user="ann"), now=0)
    users = replace(snapshot.users, usage_gpu_ms=frozen(np.array([3_600_000.0, 3 * 3_600_000.0])))
    snapshot = replace(snapshot, users=users)
    assert MaxMin()(snapshot, Beliefs()).tolist() == [0, 1]
    assert MaxMin(weights=(("ann", 4.0),))(snapshot, Beliefs()).tolist() == [1, 0]


def test_users_take_turns():
    """Six jobs of Ann, two of Bob, nothing received yet: alternating until Bob has no more."""
    jobs = [job(user="ann") for _ in range(4)] + [job(user="bob") for _ in range(2)]
    assert MaxMin()(snapshot_of("1x8xT4", *jobs, now=0), Beliefs()).tolist() == [0, 4, 1, 5, 2, 3]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=12))
def test_the_gittins_index_is_the_best_ratio_of_ends_to_time(counts):
    """G(a) = max over d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a], summed job by job."""
    ended = np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64)
    ended[: len(counts)] = counts
    upper = np.append(SERVICE_EDGES_GPU_MS[1:], 2 * SERVICE_EDGES_GPU_MS[-1])
    ends = [upper[i] for i, count in enumerate(counts) for _ in range(count)]
    for i, got in enumerate(gittins_index(ended)[: len(counts)]):
        start = SERVICE_EDGES_GPU_MS[i]
        alive = [end - start for end in ends if end > start]
        ratios = [sum(one <= d for one in alive) / sum(min(one, d) for one in alive) for d in set(alive)]
        assert got == pytest.approx(max(ratios, default=0.0))


def test_gittins_believes_the_histogram_once_enough_jobs_have_ended():
    """Sixty jobs ended with 1,000 GPU-s: who has 900 of them is nearly done and comes before who has none."""
    snapshot = waiting(2, service_gpu_ms=[0, 900_000])
    ended = np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64)
    ended[np.searchsorted(SERVICE_EDGES_GPU_MS, 1_000_000, side="right") - 1] = 60
    assert Gittins()(snapshot, Beliefs()).tolist() == [0, 1]
    assert Gittins()(replace(snapshot, ended_service=frozen(ended)), Beliefs()).tolist() == [1, 0]
    assert Gittins(jobs_min=61)(replace(snapshot, ended_service=frozen(ended)), Beliefs()).tolist() == [0, 1]


@pytest.mark.parametrize(("cluster", "want"), [
    ("1x4xT4:cpus=32", 7), ("1x4xT4:cpus=4", 1), ("1x4xT4:cpus=2", 1), ("1x4xT4", 0),
])
def test_loader_workers_are_the_cores_per_gpu_less_one(cluster, want):
    snapshot = snapshot_of(cluster, job(on=[(0, 0)]), now=0)
    assert Even()(snapshot, Beliefs(), snapshot.grants).tolist() == [want]


def test_a_gang_feeds_at_the_pace_of_its_scarcest_node():
    snapshot = snapshot_of("1x2xT4:cpus=32+1x2xT4:cpus=8", job(on=[(0, 0), (1, 0)]), job(), now=0)
    assert Even()(snapshot, Beliefs(), snapshot.grants).tolist() == [3, 0]
    assert snapshot.jobs.gpu_type.tolist() == [NONE, NONE]
