"""Equal nodes and GPUs exchanged in a plan: the same plan to every job, with no more moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.core.tables import Grants
from brim.policies.place.renaming import renamed, touched
from brim.testing import job, snapshot_of

CLUSTER = "3x2xV100+2x4xT4"
WIDTHS = (2, 2, 2, 4, 4)
PLACES = [(node, gpu) for node, width in enumerate(WIDTHS) for gpu in range(width)]


def snapshot_with(gangs):
    return snapshot_of(CLUSTER, *(job(gpus=max(len(gang), 1), on=sorted(gang)) for gang in gangs), now=10)


def grants_of(gangs):
    rows = sorted((row, *place) for row, gang in enumerate(gangs) for place in gang)
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    empty = np.zeros(len(gangs), dtype=np.int64)
    return Grants(
        job=columns[0].copy(), node=columns[1].copy(), gpu=columns[2].copy(),
        share_milli=np.full(len(rows), 1000), why=empty, blocker=empty - 1,
    )


def shapes(grants):
    """Per job: type of its nodes, and how many GPUs it has on each of them, whatever the node is called."""
    found = Counter()
    for row in np.unique(grants.job).tolist():
        on = Counter(grants.node[grants.job == row].tolist())
        found[row, tuple(sorted((node >= 3, count) for node, count in on.items()))] += 1
    return found


@st.composite
def gangs(draw, count=4):
    places = draw(st.permutations(PLACES))
    sizes = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    ends = np.cumsum([0, *sizes]).tolist()
    return [places[first:end] for first, end in pairwise(ends)]


@given(gangs(), gangs())
def test_every_job_gets_the_same_up_to_names_and_no_more_jobs_move(before, after):
    snapshot, wanted = snapshot_with(before), grants_of(after)
    found = renamed(snapshot, wanted)
    assert shapes(found) == shapes(wanted)
    assert len({*zip(found.node.tolist(), found.gpu.tolist(), strict=True)}) == len(wanted)
    assert all(gpu < WIDTHS[node] for node, gpu in zip(found.node.tolist(), found.gpu.tolist(), strict=True))
    assert touched(snapshot, found).sum() <= touched(snapshot, wanted).sum()


@given(gangs(), st.permutations(range(3)), st.permutations(range(2)), st.data())
def test_who_only_gets_other_names_stays(before, of_v100, of_t4, data):
    name = [*of_v100, *(3 + node for node in of_t4)]
    index = [data.draw(st.permutations(range(width))) for width in WIDTHS]
    after = [[(name[node], index[name[node]][gpu]) for node, gpu in gang] for gang in before]
    snapshot = snapshot_with(before)
    assert not touched(snapshot, renamed(snapshot, grants_of(after))).any()


def test_nodes_exchanged_in_a_circle_stay():
    """Each job goes to the node after its own: exchanged backwards, everybody would move."""
    before = [[(node, gpu) for gpu in range(2)] for node in range(3)]
    snapshot = snapshot_with(before)
    assert not touched(snapshot, renamed(snapshot, grants_of([*before[1:], before[0]]))).any()


def test_nodes_that_take_no_jobs_keep_their_names():
    snapshot = snapshot_of("2x1xT4", job(on=[(0, 0)]), now=10)
    other = grants_of([[(1, 0)]])
    assert not touched(snapshot, renamed(snapshot, other)).any()
    closed = replace(snapshot, nodes=replace(snapshot.nodes, is_open=np.array([False, True])))
    assert renamed(closed, other) is other
