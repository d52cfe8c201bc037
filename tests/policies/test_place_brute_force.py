"""The place rules against every possible placement on tiny clusters."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import cluster_of
from brim.core.snapshot import Snapshot
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate, Fragmentation, Spread, WorstFit, task_classes
from brim.policies.size.as_asked import AsAsked
from brim.testing import job, snapshot_of
from brim.testing.free_lists import FreeLists, PlaceRequest
from brim.testing.strategies import clusters, placed_jobs
from brim.testing.text import describe


def placed(place, snapshot: Snapshot, row: int) -> list[tuple[int, int]]:
    """GPUs the part gives to one waiting row when it alone waits."""
    order = Arrival()(snapshot, Beliefs())
    want = AsAsked()(snapshot, Beliefs(), order)
    grants = place(snapshot, Beliefs(), order, want)
    mine = grants.job == row
    return list(zip(grants.node[mine].tolist(), grants.gpu[mine].tolist(), strict=True))


def options(snapshot: Snapshot, row: int) -> list[tuple[tuple[int, int], ...]]:
    """Every whole gang of one type on free GPUs of open nodes."""
    free_lists, request = FreeLists.of_snapshot(snapshot), PlaceRequest(snapshot, row)
    found = []
    for name in sorted(set(free_lists.types)):
        if request.gpu_type not in ("", name):
            continue
        free = [
            (node, gpu) for node, kind in enumerate(free_lists.types) if kind == name and free_lists.is_open[node]
            for gpu, left in enumerate(free_lists.free[node]) if left >= request.share
        ]
        found += [
            gang for gang in combinations(free, request.gpus)
            if all(count <= free_lists.slots(request, n) for n, count in Counter(node for node, _ in gang).items())
        ]
    return found


def nodes_of(gang) -> list[int]:
    return sorted({node for node, _ in gang})


@st.composite
def one_waits(draw, **how) -> Snapshot:
    """Some hold GPUs, exactly one waits (the last row)."""
    cluster = draw(clusters(groups_max=2, nodes_max=2, gpus_max=3))
    jobs = [one for one in draw(placed_jobs(cluster, jobs_max=4)) if one.on and one.phase != 4]
    (new,) = draw(placed_jobs(cluster, jobs_max=1).filter(lambda found: len(found) == 1))
    jobs.append(job(at=100, gpus=new.gpus, share=new.share, cpu=new.cpu, mem=new.mem, gpu_type=new.gpu_type))
    return snapshot_of(cluster, *jobs, now=100)


RULES = (Consolidate(), Spread(), Fragmentation(), WorstFit())


@pytest.mark.parametrize("place", RULES, ids=lambda part: type(part).__name__)
@given(snapshot=one_waits())
def test_a_gang_is_placed_exactly_when_it_fits(place, snapshot):
    row = len(snapshot.jobs) - 1
    got, could = placed(place, snapshot, row), options(snapshot, row)
    assert bool(got) == bool(could)
    assert not got or tuple(got) in could


@given(snapshot=one_waits())
def test_consolidate_uses_the_fewest_nodes_possible(snapshot):
    row = len(snapshot.jobs) - 1
    could = options(snapshot, row)
    assume(could)
    assert len(nodes_of(placed(Consolidate(), snapshot, row))) == min(len(nodes_of(gang)) for gang in could)


@given(snapshot=one_waits())
def test_on_one_node_consolidate_leaves_the_fewest_whole_gpus_over(snapshot):
    """Best fit: among the single nodes that take the gang, one with the fewest wholly free GPUs."""
    row = len(snapshot.jobs) - 1
    assume(snapshot.jobs.share_milli[row] == 1000)
    single = [gang for gang in options(snapshot, row) if len(nodes_of(gang)) == 1]
    assume(single)
    free_lists = FreeLists.of_snapshot(snapshot)

    def whole(gang) -> int:
        return free_lists.free[gang[0][0]].count(1000)

    assert whole(placed(Consolidate(), snapshot, row)) == min(whole(gang) for gang in single)


@given(snapshot=one_waits())
def test_a_share_goes_to_the_fullest_gpu_that_takes_it(snapshot):
    row = len(snapshot.jobs) - 1
    assume(snapshot.jobs.share_milli[row] < 1000 and snapshot.jobs.gpus[row] == 1)
    could = options(snapshot, row)
    assume(could)
    free_lists = FreeLists.of_snapshot(snapshot)
    ((node, gpu),) = placed(Consolidate(), snapshot, row)
    assert free_lists.free[node][gpu] == min(free_lists.free[n][g] for ((n, g),) in could)


@given(snapshot=one_waits())
def test_spread_is_the_most_even(snapshot):
    """What is left on the nodes of the type is as level as any placement on that type can make it."""
    row = len(snapshot.jobs) - 1
    could = options(snapshot, row)
    assume(could)
    free_lists, request = FreeLists.of_snapshot(snapshot), PlaceRequest(snapshot, row)
    got = placed(Spread(), snapshot, row)
    kind = free_lists.types[got[0][0]]

    def left(gang) -> list[int]:
        used = Counter(node for node, _ in gang)
        same = [node for node, name in enumerate(free_lists.types) if name == kind and free_lists.is_open[node]]
        return sorted((free_lists.slots(request, node) - used[node] for node in same), reverse=True)

    assert left(got) == min(left(gang) for gang in could if free_lists.types[gang[0][0]] == kind)


@given(snapshot=one_waits())
def test_worst_fit_fills_the_nodes_with_the_most_room_one_after_the_other(snapshot):
    """Of all nodes of the type it takes the roomiest, and only from the last one less than all."""
    row = len(snapshot.jobs) - 1
    got = placed(WorstFit(), snapshot, row)
    assume(got)
    free_lists, request = FreeLists.of_snapshot(snapshot), PlaceRequest(snapshot, row)
    kind = free_lists.types[got[0][0]]
    same = [node for node, name in enumerate(free_lists.types) if name == kind and free_lists.is_open[node]]
    left, want = int(snapshot.jobs.gpus[row]), Counter()
    for node in sorted(same, key=lambda node: (-free_lists.slots(request, node), node)):
        want[node] = min(left, free_lists.slots(request, node))
        left -= want[node]
    assert Counter(node for node, _ in got) == +want


def stranded_milli(free: list[int], classes: list[tuple[int, int, float]]) -> float:
    """The measure of the fragmentation paper for one node, written from its definition."""
    lost = 0.0
    for gpus, share, weight in classes:
        if share == 1000:
            whole = free.count(1000)
            usable = 1000 * whole if whole >= min(gpus, len(free)) else 0
        else:
            usable = sum(one for one in free if one >= share)
        lost += weight * (sum(free) - usable)
    return lost


@given(snapshot=one_waits())
def test_fragmentation_strands_the_least_on_one_node(snapshot):
    row = len(snapshot.jobs) - 1
    request = PlaceRequest(snapshot, row)
    single = [gang for gang in options(snapshot, row) if len(nodes_of(gang)) == 1]
    assume(single)
    free_lists = FreeLists.of_snapshot(snapshot)
    classes = [tuple(row) for row in task_classes(snapshot).tolist()]
    if request.share < 1000:  # inside a node a share goes to the fullest GPUs, whatever the rule
        tightest = {}
        for node in {gang[0][0] for gang in single}:
            enough = sorted((left, gpu) for gpu, left in enumerate(free_lists.free[node]) if left >= request.share)
            tightest[node] = enough[: request.gpus]
        single = [gang for gang in single
                  if sorted(free_lists.free[n][g] for n, g in gang) == [left for left, _ in tightest[gang[0][0]]]]

    def growth(gang) -> float:
        node = gang[0][0]
        after = list(free_lists.free[node])
        for _, gpu in gang:
            after[gpu] -= request.share
        return stranded_milli(after, classes) - stranded_milli(free_lists.free[node], classes)

    got = placed(Fragmentation(), snapshot, row)
    assert len(nodes_of(got)) == 1
    best = min(single, key=growth)
    assert growth(got) == pytest.approx(growth(best)), f"{got}, better {best}\n{describe(snapshot)}"


def test_fragmentation_counts_the_gpus_of_the_node_not_of_the_widest():
    """On a 2-GPU node beside 4-GPU nodes, a 4-GPU class uses the whole small node (it spans nodes)."""
    snapshot = snapshot_of(
        "1x4xT4+1x2xT4", job(gpus=4, on=[(0, 0), (0, 1), (0, 2), (0, 3)]), job(at=1, gpus=1), now=5,
    )
    assert placed(Fragmentation(), snapshot, 1) == [(1, 0)]


@given(snapshot=one_waits())
def test_the_same_gang_is_placed_the_same_whoever_asks_first(snapshot):
    row = len(snapshot.jobs) - 1
    for place in RULES:
        assert placed(place, snapshot, row) == placed(place, snapshot, row)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3))
def test_free_resources_count_what_is_given_away(groups):
    """``take`` and ``give`` are inverses, and the totals always equal the sums over nodes."""
    from brim.core.cluster import NodeGroup
    from brim.policies.place.free_resources import GPUS, WHOLES, GangRequest, all_free, give, take

    cluster = cluster_of(tuple(NodeGroup(count=c, gpus=g, gpu_type=f"T{i}") for i, (c, g) in enumerate(groups)))
    is_open = np.arange(cluster.num_nodes) % 3 != 2
    free = all_free(cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, is_open,
                    len(cluster.gpu_types))
    before = [column.copy() for column in free]
    rng = np.random.default_rng(len(groups))
    taken = []
    for _ in range(20):
        node = int(rng.integers(cluster.num_nodes))
        gpu, share = int(rng.integers(cluster.gpus_N[node])), int(rng.choice([1000, 500, 250]))
        if free.node[node, gpu] >= share:
            gang = GangRequest(1, share, 10, 20, -1)
            take(free, gang, node, gpu)
            taken.append((gang, node, gpu))
        for kind in range(len(cluster.gpu_types)):
            nodes = [n for n in range(cluster.num_nodes) if cluster.gpu_type_N[n] == kind]
            assert free.total[kind] == sum(int(free.node[n, WHOLES]) for n in nodes if is_open[n])
        assert free.node[:, WHOLES].tolist() == [(free.node[n, :GPUS] == 1000).sum() for n in range(cluster.num_nodes)]
    for gang, node, gpu in taken[::-1]:
        give(free, gang, node, gpu)
    for one, other in zip(before, free, strict=True):
        assert one.tolist() == other.tolist()
