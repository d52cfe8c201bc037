"""Places of workers and servers: a search that is compiled finds what a plain one finds, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.policies.place.gang_places import (
    CPU,
    EXTRA,
    MEM,
    OPEN,
    RANK_COLUMNS,
    TYPE,
    change,
    fits,
    num_gpus,
    search,
    write_ranks,
)
from tests.sampling import sample

WORKER, SERVER = -1, -2


@dataclass
class Node:
    gpus: list[int]
    cpu: int
    mem: int
    gpu_type: int
    is_open: bool


@st.composite
def clusters(draw):
    width = draw(st.integers(1, 4))
    node = st.builds(
        Node, gpus=st.lists(st.sampled_from((1000, 1000, 500, 300, 0, -5)), min_size=width, max_size=width),
        cpu=st.integers(-1, 9), mem=st.integers(-1, 9), gpu_type=st.integers(0, 1),
        is_open=st.sampled_from((True, True, False)),
    )
    return draw(st.lists(node, min_size=2, max_size=5))


@st.composite
def requests(draw):
    """In the order of the columns of ``gang_places``."""
    few = st.integers(0, 3)
    gpus, workers, servers = draw(st.sampled_from((2, 4, 1, 3, 6, 0))), draw(few), draw(few)
    return (gpus, workers, draw(few), servers, draw(few), draw(st.sampled_from((1000, 500, 300))), draw(few), draw(few),
            draw(st.sampled_from((-1, 0, 1))))


def table(nodes):
    made = np.zeros((len(nodes), len(nodes[0].gpus) + EXTRA), dtype=np.int64)
    for row, node in zip(made, nodes, strict=True):
        row[: len(node.gpus)], row[CPU], row[MEM], row[TYPE], row[OPEN] = (
            node.gpus, node.cpu, node.mem, node.gpu_type, node.is_open,
        )
    return made


def plain_search(nodes, asked, known):
    """Ranks, as tuples, or None."""
    gpus, workers, worker_milli, servers, server_milli, share, rank_milli, mib, gpu_type = asked
    cpu, mem, near, ranks = [node.cpu for node in nodes], [node.mem for node in nodes], set(known), []
    free = [sum(left >= share for left in node.gpus) for node in nodes]

    def spread(count, milli, most, wanted):
        fit = []
        for n, node in enumerate(nodes):
            limits = [most[n], *([cpu[n] // milli] if milli else []), *([mem[n] // mib] if mib else [])]
            fit.append(max(min(limits), 0) if node.is_open else 0)
        taken, left = {}, count
        for n in sorted(range(len(nodes)), key=lambda n: (n not in near, -wanted[n], -cpu[n])):
            if left and fit[n]:
                taken[n] = min(left, fit[n])
                left -= taken[n]
        for n, number in taken.items():
            cpu[n] -= number * milli
            mem[n] -= number * mib
            near.add(n)
        return None if left else taken

    of_type = [left if gpu_type in (-1, node.gpu_type) else 0 for left, node in zip(free, nodes, strict=True)]
    found = spread(gpus, rank_milli, of_type, [min(left, gpus) for left in free])
    if found is None:
        return None
    for n, number in found.items():
        fullest = sorted((left, gpu) for gpu, left in enumerate(nodes[n].gpus) if left >= share)[:number]
        ranks += [(n, gpu, share, rank_milli, mib) for _, gpu in fullest]
    for count, kind, milli in ((workers, WORKER, worker_milli), (servers, SERVER, server_milli)):
        found = spread(count, milli, [count] * len(nodes), [0] * len(nodes))
        if found is None:
            return None
        ranks += [(n, kind, milli, milli, mib) for n, number in found.items() for _ in range(number)]
    return sorted(ranks)


@settings(max_examples=sample(2_000, 300))
@given(nodes=clusters(), asked=requests(), known=st.sets(st.integers(0, 4)))
def test_the_search_finds_what_a_plain_one_finds(nodes, asked, known):
    known = sorted(node for node in known if node < len(nodes))
    rows = table(nodes)
    ranks_known = np.array([(node, 0, 0, 0, 0) for node in known], dtype=np.int64).reshape(-1, RANK_COLUMNS)
    assert num_gpus(rows, asked[5]) == sum(left >= asked[5] for node in nodes if node.is_open for left in node.gpus)
    found = None
    if search(rows, np.array(asked), asked[-1], ranks_known):
        ranks = np.zeros((asked[0] + asked[1] + asked[3], RANK_COLUMNS), dtype=np.int64)
        write_ranks(rows, np.array(asked), ranks)
        found = [tuple(rank) for rank in ranks.tolist()]
    assert found == plain_search(nodes, asked, known)
    if found is None:
        return
    before = rows[:, : -EXTRA + 2].copy()  # GPUs, cores, memory
    assert (MEM, CPU) == (1 - EXTRA, -EXTRA)
    taken = np.zeros_like(before)
    for node, gpu, share, cores, mib in found:
        taken[node, CPU + EXTRA - 2] += cores
        taken[node, MEM + EXTRA - 2] += mib
        if gpu >= 0:
            taken[node, gpu] += share
    change(rows, ranks, -1)
    assert rows[:, : -EXTRA + 2].tolist() == (before - taken).tolist()
    change(rows, ranks, 1)
    assert rows[:, : -EXTRA + 2].tolist() == before.tolist()
    is_gpu = np.arange(before.shape[1]) < before.shape[1] - 2
    enough = ((before >= taken) | (is_gpu & (taken == 0)))[[rank[0] for rank in found]].all()
    assert fits(rows, ranks) == enough
    for node, column in zip(*np.nonzero(taken), strict=True):
        if enough:
            rows[node, column] = taken[node, column] - 1
            assert not fits(rows, ranks)
            rows[node, column] = before[node, column]
