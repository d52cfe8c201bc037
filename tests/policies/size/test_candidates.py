"""Which sizes a job is offered, and what rate and batch each has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.policies.size.candidates import candidates
from brim.testing import job, snapshot_of
from brim.testing.strategies import snapshots
from tests.policies.size.known import (
    PERFECT,
    UNKNOWN,
    KnownSpeeds,
    best_rate,
    elastic,
    one_batch,
    rate,
    with_columns,
)

TYPICAL = (0.02, 0.004, 0.03, 0.01, 0.1, 0.03, 1.5)


def table(cluster, *jobs, parameters=None, seen=(), state=None, **how):
    snapshot = snapshot_of(cluster, *jobs, now=100, **(state or {}))
    speeds = KnownSpeeds(parameters or (TYPICAL,) * len(jobs), seen).of_jobs(snapshot)
    return candidates(snapshot, speeds, **({"gpus_max": 64} | how))


def offered(found, row=0):
    return np.flatnonzero(np.isfinite(found.rate_JG[row])).tolist()


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 12])
def test_a_rate_is_that_of_the_best_batch_by_the_formula(gpus):
    one = elastic(gpus_max=16)
    found = table("4x4xT4", one)
    expected = best_rate(TYPICAL, one, gpus, 4, accumulation=True)
    assert found.rate_JG[0, gpus] == pytest.approx(expected, rel=1e-12)
    assert rate(TYPICAL, one, gpus, int(found.batch_JG[0, gpus]), 4, accumulation=True) == pytest.approx(expected)


def test_noise_discounts_large_batches_and_can_be_left_out():
    one = elastic()
    snapshot = with_columns(snapshot_of("2x4xT4", one, now=1), grad_var=[6.0], grad_sqr=[0.5])
    speeds = KnownSpeeds((TYPICAL,)).of_jobs(snapshot)
    with_noise, without = (candidates(snapshot, speeds, gpus_max=8, noise=noise) for noise in (True, False))
    assert with_noise.rate_JG[0, 8] == pytest.approx(best_rate(TYPICAL, one, 8, 4, accumulation=True, var=6, sqr=0.5))
    assert without.rate_JG[0, 8] == pytest.approx(best_rate(TYPICAL, one, 8, 4, accumulation=True))


def test_a_fixed_batch_is_evaluated_and_no_other():
    one = elastic(batch=96)
    found = table("2x4xT4", one, batch=np.array([96]))
    assert found.batch_JG[0, offered(found)].tolist() == [96] * 4
    for gpus in offered(found):
        assert found.rate_JG[0, gpus] == pytest.approx(rate(TYPICAL, one, gpus, 96, 4, accumulation=True))


@pytest.mark.parametrize(("width", "least", "most", "expected"), [
    (4, 1, 16, [1, 2, 4, 8, 12, 16]),
    (8, 1, 16, [1, 2, 4, 8, 16]),
    (6, 1, 12, [1, 2, 4, 6, 12]),
    (1, 1, 4, [1, 2, 3, 4]),
    (8, 3, 8, [4, 8]),
    (8, 5, 7, [5]),  # no size that fits together lies between: the fewest
    (4, 9, 11, [9]),
])
def test_sizes_are_powers_of_two_up_to_a_node_and_whole_nodes_above(width, least, most, expected):
    assert offered(table(f"16x{width}xT4", elastic(gpus=least, gpus_min=least, gpus_max=most))) == expected


def test_a_policy_s_limit_does_not_shut_out_a_job_that_needs_more():
    assert offered(table("16x4xT4", elastic(gpus=20, gpus_min=20, gpus_max=40), gpus_max=8)) == [20]
    assert offered(table("16x4xT4", elastic(gpus_max=40), gpus_max=8)) == [1, 2, 4, 8]


@pytest.mark.parametrize(("least", "seen", "expected"), [(1, 1, [1, 2]), (1, 2, [1, 2, 4]), (4, 1, [4, 8])])
def test_growth_is_limited_by_the_most_gpus_seen_or_the_fewest_allowed(least, seen, expected):
    found = table("4x4xT4", elastic(gpus=least, gpus_min=least, gpus_max=16), seen=(seen,), growth=2)
    assert offered(found) == expected


@pytest.mark.parametrize(("seen", "expected"), [(0, [2, 8]), (2, [2, 8]), (8, [2, 8, 12]), (12, [2, 8, 12])])
def test_growth_reaches_the_next_size_that_a_job_lists(seen, expected):
    found = table("4x4xT4", elastic(gpus=2, gpus_min=2, gpus_max=12, sizes=(2, 8, 12)), seen=(seen,), growth=2)
    assert offered(found) == expected


@pytest.mark.parametrize(("one", "state", "expected"), [
    ({"gpu_type": "T4"}, {}, [1, 2, 4]),
    ({"gpu_type": "V100"}, {}, [1, 2, 4, 8]),
    ({"cpu": 4000}, {}, [1, 2, 4]),  # one per node of 4 cores
    ({"mem": 4096}, {}, [1, 2, 4, 8]),  # two on each V100 node, and no T4 node limits it to less
    ({"gpu_type": "V100"}, {"down": [1, 2]}, [1, 2, 4]),
    ({"gpu_type": "V100"}, {"draining": [1, 2, 3]}, [1, 2]),
    ({"gpus": 8, "gpus_min": 8, "gpus_max": 9, "gpu_type": "V100"}, {"draining": [4]}, []),
    ({"gpus": 3, "gpus_min": 3, "gpus_max": 3, "gpu_type": "V100"}, {"down": [1, 2, 3]}, []),
])
def test_nobody_is_offered_more_than_open_nodes_of_one_type_could_give(one, state, expected):
    cluster = "1x4xT4:cpus=16,mem=16GiB+4x2xV100:cpus=4,mem=8GiB"
    assert offered(table(cluster, elastic(**one), state=state)) == expected


def test_a_job_nobody_knows_is_offered_its_fewest_gpus_at_its_smallest_batch():
    found = table("4x4xT4", elastic(gpus=3, gpus_min=3, batch=128), parameters=(UNKNOWN,))
    assert (offered(found), found.batch_JG[0, 4], found.rate_JG[0, 4], found.fitted[0]) == ([4], 64, 1.0, False)


def test_a_rigid_job_is_offered_what_was_asked():
    found = table("4x4xT4", job(gpus=3, batch=48))
    assert (offered(found), found.batch_JG[0, 3], found.rate_JG[0, 3], found.fitted[0]) == ([3], 48, 1.0, False)


def test_a_job_whose_batches_no_size_can_split_counts_as_rigid():
    one = elastic(gpus=5, gpus_max=8, batch=70, batch_min=65, batch_max=70, local_batch_min=71, local_batch_max=80)
    found = table("2x4xT4", one)
    assert (offered(found), found.batch_JG[0, 5], found.fitted[0]) == ([5], 70, False)


def test_without_accumulation_only_who_could_not_run_otherwise_accumulates():
    able, unable = elastic(batch=128, batch_min=128), elastic(batch=1024, batch_min=1024, batch_max=2048)
    found = table("2x4xT4", able, unable, accumulation=False)
    assert offered(found, 0) == [2, 4, 8]
    assert found.rate_JG[0, 2] == pytest.approx(best_rate(TYPICAL, able, 2, 4, accumulation=False))
    assert offered(found, 1) == [1, 2, 4, 8]
    assert found.rate_JG[1, 4] == pytest.approx(best_rate(TYPICAL, unable, 4, 4, accumulation=True))


def test_speedups_are_relative_to_the_fewest_gpus_a_job_may_run_on():
    found = table("2x4xT4", one_batch(gpus=2, gpus_min=2), parameters=(PERFECT,))
    assert found.speedup.tolist() == pytest.approx([1, 2, 4])


@pytest.mark.parametrize("one", [one_batch(), job(gpus=2)])
def test_who_holds_gpus_of_a_node_that_drains_is_left_alone(one):
    here = elastic(on=[(0, 0), (0, 1)], batch_now=80)
    found = table("2x4xT4", here, job(on=[(0, 2), (1, 3)]), one, state={"draining": [0]})
    assert (found.stays.tolist(), found.capacity) == ([2, 2, 0], 3)  # a gang that stays has one of four
    assert not found.active[:2].any()
    snapshot = snapshot_of("2x4xT4", here, job(on=[(0, 2), (1, 3)]), one, now=100, draining=[0])
    sizes = found.sizes(np.array([0, 0, 2]), snapshot)
    assert sizes.gpus.tolist() == [2, 2, 2]
    assert sizes.global_batch[0] == 80


@given(snapshot=snapshots(elastic_too=True), data=st.data())
def test_whatever_is_offered_is_allowed_and_within_reach(snapshot, data):
    jobs, nodes = snapshot.jobs, snapshot.nodes
    assume(len(jobs))
    known = data.draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs)))
    speeds = KnownSpeeds(tuple(TYPICAL if one else UNKNOWN for one in known)).of_jobs(snapshot)
    found = candidates(snapshot, speeds, gpus_max=8)
    for row in range(len(jobs)):
        one = jobs[row]
        sizes = offered(found, row)
        assert bool(sizes) == (found.least[row] > 0)
        assert not sizes or found.active[row]
        slots: dict[int, int] = {}
        for node in np.flatnonzero(nodes.is_open).tolist():
            fits = [int(nodes.gpus[node])]
            fits += [int(nodes.cpu_milli[node]) // one.cpu_milli] if one.cpu_milli else []
            fits += [int(nodes.mem_mib[node]) // one.mem_mib] if one.mem_mib else []
            if one.gpu_type in (-1, nodes.gpu_type[node]):
                slots[int(nodes.gpu_type[node])] = slots.get(int(nodes.gpu_type[node]), 0) + min(fits)
        assert all(size <= max(slots.values(), default=0) for size in sizes)
        for size in sizes:
            assert one.gpus_min <= size <= one.gpus_max
            batch = int(found.batch_JG[row, size])
            assert batch == one.batch or one.batch_min <= batch <= one.batch_max
