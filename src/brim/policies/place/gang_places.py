"""Places for gangs with workers and servers on CPU. Compiled: docs/decisions/0005.

Everything works on one table of the nodes (N, W + 12) and on tables of ranks (R, 5), and checks no bounds. Shapes: N
nodes, W GPUs of the widest node, R ranks.
"""

from __future__ import annotations

from typing import Final

from brim.compiled import in_place, internal
from brim.core.arrays import IntArray

_ON_CPU: Final = -1
"""``core.setting.ON_CPU`` (compiled code needs it as a global of its own module)."""
_SERVER: Final = -2
"""``core.setting.SERVER``."""
_ANY: Final = -1
"""``core.trace.NONE``, for a GPU type."""

NODE, GPU, SHARE, CORES, MIB = range(5)
"""Columns of ranks: place, thousandths of the GPU (milli-cores of a rank on CPU), milli-cores and MiB of the node."""
RANK_COLUMNS: Final = 5
"""How many these are."""

GPUS, CPU_WORKERS, WORKER_MILLI, SERVERS, SERVER_MILLI, SHARE_MILLI, RANK_MILLI, RANK_MIB, GPU_TYPE = range(9)
"""Columns of what a job is to have: GPUs, workers on CPU and servers with the milli-cores of each, thousandths of each
GPU with its milli-cores, MiB of each rank, GPU type code."""

CPU: Final = -12
"""Column of nodes: milli-cores free. Counted from the end, as all that follow the thousandths free of each GPU."""
MEM: Final = -11
"""Column of nodes: MiB free."""
TYPE: Final = -10
"""Column of nodes: GPU type code."""
OPEN: Final = -9
"""Column of nodes: 1 if the node takes new jobs."""
_LEFT_CPU, _LEFT_MEM, _NEAR, _FREE, _FITS = range(-8, -3)
"""Columns of nodes in which a search writes: milli-cores and MiB that the gang leaves, whether it has ranks there, GPUs
with enough left, ranks that fit."""
_TAKEN: Final = -3
"""Column of nodes: GPUs that the gang found takes; after it workers on CPU, and servers."""
EXTRA: Final = 12
"""Columns of nodes that are not GPUs."""


@in_place
def num_gpus(nodes: IntArray, share: int) -> int:
    """GPUs of open nodes of which so much is left."""
    count = 0
    for n in range(len(nodes)):
        if nodes[n, OPEN]:
            count += _num_free(nodes, n, share)
    return count


@internal
def _num_free(nodes: IntArray, n: int, share: int) -> int:
    count = 0
    for gpu in range(nodes.shape[1] - EXTRA):
        if nodes[n, gpu] >= share:
            count += 1
    return count


@in_place
def change(nodes: IntArray, ranks: IntArray, sign: int) -> None:
    """Give ranks what they take (sign -1), or take it back (1)."""
    for r in range(len(ranks)):
        n = ranks[r, NODE]
        nodes[n, CPU] += sign * ranks[r, CORES]
        nodes[n, MEM] += sign * ranks[r, MIB]
        if ranks[r, GPU] >= 0:
            nodes[n, ranks[r, GPU]] += sign * ranks[r, SHARE]


@in_place
def fits(nodes: IntArray, ranks: IntArray) -> bool:
    """Whether these places are free."""
    for r in range(len(ranks)):
        n = ranks[r, NODE]
        nodes[n, _LEFT_CPU], nodes[n, _LEFT_MEM] = nodes[n, CPU], nodes[n, MEM]
    for r in range(len(ranks)):
        n = ranks[r, NODE]
        if ranks[r, GPU] >= 0 and nodes[n, ranks[r, GPU]] < ranks[r, SHARE]:
            return False
        nodes[n, _LEFT_CPU] -= ranks[r, CORES]
        nodes[n, _LEFT_MEM] -= ranks[r, MIB]
        if nodes[n, _LEFT_CPU] < 0 or nodes[n, _LEFT_MEM] < 0:
            return False
    return True


@in_place
def search(nodes: IntArray, asked: IntArray, gpu_type: int, known: IntArray) -> bool:
    """Find places for a gang: on the nodes of known ranks first, then on those with the most that it can use.

    What it takes of each node is written into ``nodes``, for ``write_ranks``.

    Args:
        nodes: See the module.
        asked: What the gang is to have (9,).
        gpu_type: Of its GPUs, -1 for any.
        known: Ranks near which it is to be.
    """
    for n in range(len(nodes)):
        nodes[n, _LEFT_CPU], nodes[n, _LEFT_MEM] = nodes[n, CPU], nodes[n, MEM]
        nodes[n, _NEAR], nodes[n, _FREE] = 0, _num_free(nodes, n, asked[SHARE_MILLI])
        for kind in range(3):
            nodes[n, _TAKEN + kind] = 0
    for r in range(len(known)):
        nodes[known[r, NODE], _NEAR] = 1
    for n in range(len(nodes)):
        of_type = gpu_type == _ANY or nodes[n, TYPE] == gpu_type
        nodes[n, _FITS] = _num_fit(nodes, asked, n, asked[RANK_MILLI], nodes[n, _FREE] if of_type else 0)
        nodes[n, _FREE] = min(nodes[n, _FREE], asked[GPUS])
    if not _spread(nodes, asked, 0, asked[GPUS], asked[RANK_MILLI]):
        return False
    for kind in range(1, 3):
        count, milli = asked[GPUS + 2 * kind - 1], asked[GPUS + 2 * kind]
        if count > 0:
            for n in range(len(nodes)):
                nodes[n, _FITS], nodes[n, _FREE] = _num_fit(nodes, asked, n, milli, count), 0
            if not _spread(nodes, asked, kind, count, milli):
                return False
    return True


@internal
def _num_fit(nodes: IntArray, asked: IntArray, n: int, milli: int, most: int) -> int:
    """How many ranks of so many milli-cores fit on a node, at most so many."""
    if not nodes[n, OPEN]:
        return 0
    count = most
    if milli:
        count = min(count, nodes[n, _LEFT_CPU] // milli)
    if asked[RANK_MIB]:
        count = min(count, nodes[n, _LEFT_MEM] // asked[RANK_MIB])
    return max(count, 0)


@internal
def _spread(nodes: IntArray, asked: IntArray, kind: int, count: int, milli: int) -> bool:
    """Give ranks of a kind to as few nodes as can be: near ones, then those with most GPUs, then with most cores."""
    left = count
    for n in range(len(nodes)):
        left -= nodes[n, _FITS]
    if left > 0:
        return False
    left = count
    while left > 0:
        best = -1
        for n in range(len(nodes)):
            if nodes[n, _FITS] > 0 and (best < 0 or _comes_before(nodes, n, best)):
                best = n
        taken = min(left, nodes[best, _FITS])
        nodes[best, _FITS] = 0
        nodes[best, _TAKEN + kind] = taken
        left -= taken
    for n in range(len(nodes)):
        taken = nodes[n, _TAKEN + kind]
        if taken:
            nodes[n, _LEFT_CPU] -= taken * milli
            nodes[n, _LEFT_MEM] -= taken * asked[RANK_MIB]
            nodes[n, _NEAR] = 1
    return True


@internal
def _comes_before(nodes: IntArray, n: int, other: int) -> bool:
    for column in (_NEAR, _FREE, _LEFT_CPU):
        if nodes[n, column] != nodes[other, column]:
            return bool(nodes[n, column] > nodes[other, column])
    return False


@in_place
def write_ranks(nodes: IntArray, asked: IntArray, ranks: IntArray) -> None:
    """Write the ranks of the gang that was found: by node, then servers, workers on CPU, and the fullest GPUs."""
    r, share = 0, asked[SHARE_MILLI]
    for n in range(len(nodes)):
        for kind, gpu in ((2, _SERVER), (1, _ON_CPU)):
            milli = asked[GPUS + 2 * kind]
            for _ in range(nodes[n, _TAKEN + kind]):
                ranks[r, NODE], ranks[r, GPU], ranks[r, SHARE] = n, gpu, milli
                ranks[r, CORES], ranks[r, MIB] = milli, asked[RANK_MIB]
                r += 1
        missing = nodes[n, _TAKEN]
        if missing == 0:
            continue
        last_left, last_gpu = -1, -1  # of the GPUs that it gets, the one with most left
        for _ in range(missing):
            next_left, next_gpu = -1, -1
            for gpu in range(nodes.shape[1] - EXTRA):
                left = nodes[n, gpu]
                after = left > last_left or (left == last_left and gpu > last_gpu)
                if left >= share and after and (next_gpu < 0 or left < next_left):
                    next_left, next_gpu = left, gpu
            last_left, last_gpu = next_left, next_gpu
        for gpu in range(nodes.shape[1] - EXTRA):
            left = nodes[n, gpu]
            if share <= left and (left < last_left or (left == last_left and gpu <= last_gpu)):
                ranks[r, NODE], ranks[r, GPU], ranks[r, SHARE] = n, gpu, share
                ranks[r, CORES], ranks[r, MIB] = asked[RANK_MILLI], asked[RANK_MIB]
                r += 1
