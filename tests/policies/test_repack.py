"""Repack: who keeps its size stays, gangs stand together, nobody moves for nothing, nothing is given twice."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.reasons import Reason
from brim.policies.order.arrival import Arrival
from brim.policies.place.repack import Repack, _enough
from brim.policies.sockets import Sizes
from brim.testing import job, snapshot_of
from brim.testing.free_lists import pairs_by_job
from brim.testing.rules import check_grants
from brim.testing.strategies import clusters, snapshots


def elastic(gpus_max=64, **changes):
    return job(**({"gpus": 1, "gpus_min": 1, "gpus_max": gpus_max, "batch": 8, "batch_min": 8, "batch_max": 512,
                   "local_batch_min": 1, "local_batch_max": 64} | changes))


def placed(snapshot, *gpus, beliefs=None):
    """Where each row stands, and the grants."""
    sizes = Sizes(gpus=np.array(gpus, dtype=np.int64))
    grants = Repack()(snapshot, beliefs or Beliefs(), Arrival()(snapshot, Beliefs()), sizes)
    check_grants(snapshot, grants, resizes=True)
    return pairs_by_job(grants.job, grants.node, grants.gpu), grants


def nodes(pairs):
    return len({node for node, _ in pairs})


@st.composite
def mixes(draw, capacity, width, jobs_max=10):
    """Sizes that fit together, none for a job now and then, with a sum of at most the capacity."""
    fitting = [2**k for k in range(10) if 2**k <= width] + [width * many for many in range(2, capacity // width + 1)]
    sizes = []
    for _ in range(draw(st.integers(1, jobs_max))):
        could = [0, *(size for size in fitting if size <= capacity - sum(sizes))]
        sizes.append(draw(st.sampled_from(could)))
    return sizes


@st.composite
def two_rounds(draw):
    """A cluster of equal nodes, what jobs hold (placed by Repack itself, in some order) and what they are to have."""
    count, width = draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 4, 8)))
    before = draw(mixes(count * width, width))
    here, _ = placed(snapshot_of(f"{count}x{width}xT4", *(elastic() for _ in before)), *before)
    jobs = [elastic(on=here.get(row, ())) for row in draw(st.permutations(range(len(before))))]
    after = [
        size if not keeps else min(size, len(one.on)) for one, size, keeps in zip(
            jobs, draw(mixes(count * width, width, len(jobs)).filter(lambda sizes: len(sizes) == len(jobs))),
            draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs))), strict=True,
        )
    ]
    return snapshot_of(f"{count}x{width}xT4", *jobs), after, width


@given(two_rounds())
def test_sizes_that_fit_together_are_all_placed_each_on_the_fewest_nodes(case):
    snapshot, want, width = case
    found, _ = placed(snapshot, *want)
    assert [len(found.get(row, ())) for row in range(len(want))] == want
    assert all(nodes(found[row]) == -(-size // width) for row, size in enumerate(want) if size)


@given(two_rounds())
def test_who_keeps_its_size_moves_only_for_a_larger_gang_placed_anew(case):
    snapshot, want, _ = case
    found, _ = placed(snapshot, *want)
    held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    anew = [size for row, size in enumerate(want) if size and size != len(held.get(row, ()))]
    for row, pairs in held.items():
        if len(pairs) == want[row] and want[row] >= max(anew, default=0):
            assert found[row] == pairs


@given(two_rounds())
def test_who_is_resized_in_place_keeps_its_gpus_on_a_node(case):
    snapshot, want, _ = case
    plain, _ = placed(snapshot, *want)
    found, _ = placed(snapshot, *want, beliefs=Beliefs(in_place_ms=200.0))
    counts = [{row: Counter(node for node, _ in pairs) for row, pairs in one.items()} for one in (plain, found)]
    assert counts[0] == counts[1]
    held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    for row, pairs in held.items():
        for node, count in counts[1].get(row, {}).items():
            own = {pair for pair in pairs if pair[0] == node}
            assert len(own & set(found[row])) == min(len(own), count)


@given(two_rounds())
def test_nobody_moves_when_nobody_is_resized(case):
    snapshot, _, _ = case
    held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    found, _ = placed(snapshot, *snapshot.jobs.gpus_now.tolist())
    assert found == held


@given(st.lists(st.lists(st.sampled_from((1, 2, 4)), max_size=8), min_size=1, max_size=3), st.sampled_from((2, 4, 8)))
def test_one_gang_moves_the_fewest_gpus_and_none_where_there_is_room(nodes_hold, gang):
    """Small jobs hold one GPU or as many as the gang, so that whoever moves makes nobody else move."""
    width, jobs, free, movable = 8, [], [], []
    for node, sizes in enumerate(nodes_hold):
        at, small = 0, 0
        for size in (one if one == 1 else gang for one in sizes):
            if at + size <= width:
                jobs.append(elastic(on=[(node, gpu) for gpu in range(at, at + size)]))
                at, small = at + size, small + (size == 1)
        free.append(width - at)
        movable.append(small)
    snapshot = snapshot_of(f"{len(free)}x{width}xT4", *jobs, elastic(at=1), now=2)
    sizes = [*snapshot.jobs.gpus_now[:-1].tolist(), gang]
    if sum(sizes) > len(free) * width:
        return
    found, _ = placed(snapshot, *sizes)
    held = pairs_by_job(snapshot.grants.job, snapshot.grants.node, snapshot.grants.gpu)
    moved = sum(len(pairs) for row, pairs in held.items() if found[row] != pairs)
    assert nodes(found[len(jobs)]) == 1
    assert moved == min(max(gang - left, 0) for left, small in zip(free, movable, strict=True) if left + small >= gang)


@example([8, 5, 2, 2, 1], 9)
@given(st.lists(st.integers(1, 8), max_size=7), st.integers(-1, 12))
def test_of_a_node_s_jobs_those_with_the_fewest_gpus_go_then_the_fewest_jobs(sizes, gpus):
    jobs = [(size, row) for row, size in enumerate(sizes)]
    every = [
        (sum(size for size, _ in some), len(some)) for many in range(len(jobs) + 1) for some in combinations(jobs, many)
    ]
    could = [key for key in every if key[0] >= gpus]
    found = _enough(jobs, gpus)
    assert (None if found is None else (sum(sizes[row] for row in found), len(found))) == min(could, default=None)
    assert found is None or len(set(found)) == len(found)


def test_a_larger_gang_makes_the_job_with_the_fewest_gpus_move():
    snapshot = snapshot_of(
        "2x4xT4", elastic(on=[(0, 0), (0, 1)]), elastic(on=[(0, 2)]), elastic(on=[(1, 0)]), elastic(at=1), now=2,
    )
    found, _ = placed(snapshot, 2, 1, 1, 4)
    assert found == {0: [(0, 0), (0, 1)], 1: [(0, 2)], 2: [(0, 3)], 3: [(1, 0), (1, 1), (1, 2), (1, 3)]}


def test_a_gang_of_several_nodes_gets_whole_ones():
    snapshot = snapshot_of("3x2xT4", elastic(on=[(0, 0)]), elastic(on=[(2, 1)]), elastic(at=1), now=2)
    found, _ = placed(snapshot, 1, 1, 4)
    assert nodes(found[2]) == 2
    assert nodes(found[0] + found[1]) == 1


def test_a_gang_of_any_type_clears_nodes_of_one_type():
    snapshot = snapshot_of("2x2xT4+1x2xV100", elastic(on=[(0, 0)]), elastic(on=[(1, 0)]), elastic(at=1), now=2)
    found, _ = placed(snapshot, 1, 1, 4)
    assert found == {0: [(2, 0)], 1: [(2, 1)], 2: [(0, 0), (0, 1), (1, 0), (1, 1)]}


def test_nobody_moves_where_that_would_not_bring_the_gang_together():
    """Cores of a node suffice for one GPU of the gang, whoever leaves."""
    snapshot = snapshot_of(
        "2x2xT4:cpus=2", elastic(on=[(0, 0)]), elastic(on=[(1, 0)]), elastic(at=1, cpu=2000), now=2,
    )
    assert placed(snapshot, 1, 1, 2)[0] == {0: [(0, 0)], 1: [(1, 0)], 2: [(0, 1), (1, 1)]}


def test_nobody_moves_for_a_gang_that_finds_no_room_even_so():
    snapshot = snapshot_of("1x4xT4:cpus=2", elastic(on=[(0, 3)]), job(at=1, gpus=4, cpu=1000), now=2)
    found, grants = placed(snapshot, 1, 4)
    assert (found, grants.why.tolist()) == ({0: [(0, 3)]}, [0, int(Reason.TOO_FEW_FREE)])


def test_a_job_that_cannot_grow_keeps_what_it_has():
    snapshot = snapshot_of("1x2xT4+1x2xV100", elastic(gpu_type="T4", on=[(0, 0)]), elastic(on=[(0, 1)]))
    assert placed(snapshot, 3, 1)[0] == {0: [(0, 0)], 1: [(0, 1)]}


def test_a_waiting_job_for_which_there_is_no_room_gets_what_there_is_and_at_least_its_fewest():
    snapshot = snapshot_of(
        "1x4xT4+1x2xV100", elastic(gpu_type="T4", on=[(0, 0)]), elastic(at=1, gpu_type="T4"),
        elastic(at=2, gpu_type="T4", gpus=2, gpus_min=2), now=3,
    )
    found, grants = placed(snapshot, 1, 4, 2)
    assert found[0] == [(0, 0)]  # there is no room elsewhere for who runs: it does not make way
    assert [len(found.get(row, ())) for row in range(3)] == [1, 3, 0]
    assert grants.why[2] == int(Reason.TOO_FEW_FREE)


@pytest.mark.parametrize(("limit", "each"), [("cpus=4", {"cpu": 1000}), ("mem=4GiB", {"mem": 1024})])
def test_what_a_job_had_is_given_back_to_it_only_if_cores_and_memory_are_left_too(limit, each):
    """It is to shrink to two halves of GPUs; a gang of three came first and left one core, or one GiB."""
    snapshot = snapshot_of(
        f"1x4xT4:{limit}", elastic(on=[(0, 0), (0, 1), (0, 2)], share=500, gpus_min=2, **each),
        job(at=1, gpus=3, share=500, **each), now=2,
    )
    found, grants = placed(snapshot, 2, 3)
    assert [len(found.get(row, ())) for row in range(2)] == [0, 3]
    assert grants.why.tolist() == [int(Reason.TOO_FEW_FREE), 0]


def test_no_job_as_large_as_the_gang_moves_for_it():
    three = [[(node, gpu) for gpu in range(3)] for node in range(2)]
    snapshot = snapshot_of("2x4xT4", elastic(on=three[0]), elastic(on=three[1]), elastic(at=1), now=2)
    assert placed(snapshot, 3, 3, 2)[0] == {0: three[0], 1: three[1], 2: [(0, 3), (1, 3)]}


def test_who_stands_on_a_node_that_drains_keeps_it_and_nobody_comes():
    snapshot = snapshot_of("2x2xT4", elastic(on=[(0, 0)]), elastic(at=1), elastic(at=2), now=3, draining=[0])
    found, _ = placed(snapshot, 1, 1, 1)
    assert found == {0: [(0, 0)], 1: [(1, 0)], 2: [(1, 1)]}


def test_who_shares_a_gpu_does_not_move_for_others():
    snapshot = snapshot_of("2x2xT4", elastic(share=500, on=[(0, 0)]), elastic(share=500, on=[(1, 1)]), elastic(at=1))
    found, _ = placed(snapshot, 1, 1, 2)
    assert found == {0: [(0, 0)], 1: [(1, 1)], 2: [(0, 1), (1, 0)]}


@pytest.mark.parametrize("elastic_too", [False, True])
@given(data=st.data())
def test_nothing_is_over_granted_whatever_the_sizes(data, elastic_too):
    cluster = data.draw(clusters(groups_max=2, nodes_max=2))
    snapshot = data.draw(snapshots(cluster=cluster, elastic_too=elastic_too))
    jobs, want = snapshot.jobs, []
    for row in range(len(jobs)):
        one = jobs[row]
        sizes = (0, one.gpus_min, one.gpus_max, one.gpus_now, (one.gpus_min + one.gpus_max) // 2)
        could = [size for size in sizes if size == 0 or one.gpus_min <= size <= one.gpus_max]
        want.append(data.draw(st.sampled_from(could)))
    placed(snapshot, *want)
