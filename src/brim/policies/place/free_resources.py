"""Free resources of the nodes, and the choice of GPUs for one gang. Compiled: docs/decisions/0005.

Everything here works on plain arrays, so that the scheduling round and the compiled loops of the twin share it.
Shapes: N nodes, W the largest number of GPUs on a node, T GPU types, M task classes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brim.compiled import in_place, inline, internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray

WHOLE: Final = 1000
"""Thousandths of a whole GPU (``units.WHOLE_GPU``; compiled code needs it as a global of its own module)."""
CONSOLIDATE: Final = 0
SPREAD: Final = 1
FRAGMENTATION: Final = 2
WORST_FIT: Final = 3


class FreeResources(NamedTuple):
    """Free resources: two arrays rather than eight, so that calls have few arguments.

    Attributes:
        node: One row per node (N, W + 6): thousandths free of each GPU (0 where there is none), then the columns
            ``GPUS`` to ``OPEN``.
        total: Wholly free GPUs of open nodes by type (T,).
    """

    node: IntArray
    total: IntArray


GPUS: Final = -6
"""Column of ``node``: GPUs of the node, free or not."""
WHOLES: Final = -5
"""Column of ``node``: GPUs of the node that are wholly free."""
CPU: Final = -4
"""Column of ``node``: milli-cores free."""
MEM: Final = -3
"""Column of ``node``: MiB free."""
TYPE: Final = -2
"""Column of ``node``: GPU type code of the node."""
OPEN: Final = -1
"""Column of ``node``: 1 if the node takes new jobs, 0 if it is draining or down."""
EXTRA: Final = 6
"""Columns of ``node`` that are not GPUs."""


class GangRequest(NamedTuple):
    """The request of one gang: GPUs, thousandths of each, milli-cores and MiB per GPU, type code or -1."""

    gpus: int
    share: int
    cpu: int
    mem: int
    gpu_type: int


@njit
def all_free(
    node_type: IntArray, gpus: IntArray, cpu: IntArray, mem: IntArray, is_open: BoolArray, types: int
) -> FreeResources:
    """What is free on nodes on which nothing runs."""
    node = np.zeros((len(gpus), gpus.max() + EXTRA), np.int64)
    total = np.zeros(types, np.int64)
    for n in range(len(gpus)):
        row = node[n]
        row[: gpus[n]] = WHOLE
        row[GPUS], row[WHOLES], row[CPU], row[MEM] = gpus[n], gpus[n], cpu[n], mem[n]
        row[TYPE], row[OPEN] = node_type[n], is_open[n]
        if is_open[n]:
            total[node_type[n]] += gpus[n]
    return FreeResources(node, total)


@in_place
def withhold(free: FreeResources, withheld: BoolArray) -> None:
    """Take withheld GPUs out of what is free for good: jobs that hold them may leave, but nothing fits there.

    Args:
        free: Nodes on which nothing runs.
        withheld: Whether each GPU is withheld (N, W), or empty.
    """
    for n in range(len(withheld)):
        row = free.node[n]
        for g in range(row[GPUS]):
            if withheld[n, g]:
                row[g] = 0
                row[WHOLES] -= 1
                free.total[row[TYPE]] -= row[OPEN]


@njit
def copy_of(free: FreeResources) -> FreeResources:
    """Return an independent copy."""
    return FreeResources(free.node.copy(), free.total.copy())


@internal
def copy_into(free: FreeResources, other: FreeResources) -> None:
    """Copy what is free over another set of arrays. Plain loops, because assigning arrays takes seconds to compile."""
    for n in range(len(free.node)):
        for column in range(free.node.shape[1]):
            other.node[n, column] = free.node[n, column]
    for t in range(len(free.total)):
        other.total[t] = free.total[t]


@inline
def take(free: FreeResources, gang: GangRequest, node: int, gpu: int) -> None:
    """Take one GPU of a gang."""
    nodes = free.node
    before = nodes[node, gpu]
    nodes[node, gpu] = before - gang.share
    if before == WHOLE:
        nodes[node, WHOLES] -= 1
        free.total[nodes[node, TYPE]] -= nodes[node, OPEN]
    nodes[node, CPU] -= gang.cpu
    nodes[node, MEM] -= gang.mem


@inline
def give(free: FreeResources, gang: GangRequest, node: int, gpu: int) -> None:
    """Return one GPU of a gang: the inverse of ``take``."""
    nodes = free.node
    after = nodes[node, gpu] + gang.share
    nodes[node, gpu] = after
    if after == WHOLE:
        nodes[node, WHOLES] += 1
        free.total[nodes[node, TYPE]] += nodes[node, OPEN]
    nodes[node, CPU] += gang.cpu
    nodes[node, MEM] += gang.mem


@internal
def give_all(free: FreeResources, gang: GangRequest, node: IntArray, gpu: IntArray, first: int) -> None:
    """Return a gang's GPUs."""
    for i in range(first, first + gang.gpus):
        give(free, gang, node[i], gpu[i])


@internal
def take_all(free: FreeResources, gang: GangRequest, node: IntArray, gpu: IntArray, first: int) -> None:
    """Take a gang's GPUs: the inverse of ``give_all``."""
    for i in range(first, first + gang.gpus):
        take(free, gang, node[i], gpu[i])


@inline
def slots_of(node: IntArray, n: int, gang: GangRequest) -> int:
    """How many GPUs of this gang fit on one node; 0 if the node is closed or of another type."""
    count = 0
    if node[n, OPEN] and (gang.gpu_type < 0 or node[n, TYPE] == gang.gpu_type):
        if gang.share == WHOLE:
            count = node[n, WHOLES]
        else:
            for g in range(node[n, GPUS]):
                count += node[n, g] >= gang.share
        if gang.cpu > 0:
            count = min(count, max(node[n, CPU], 0) // gang.cpu)
        if gang.mem > 0:
            count = min(count, max(node[n, MEM], 0) // gang.mem)
    return count


@internal
def slots(free: FreeResources, gang: GangRequest, gpu_type: int, most: IntArray) -> int:
    """Write how many GPUs of this gang fit on each node of one type into ``most`` (N,); return the sum."""
    node = free.node
    total = 0
    for n in range(len(node)):
        most[n] = slots_of(node, n, gang) if node[n, TYPE] == gpu_type else 0
        total += most[n]
    return total


@inline
def has_too_few(free: FreeResources, gang: GangRequest) -> bool:
    """Quick test: whether no type has enough wholly free GPUs. False when only a search can decide."""
    if gang.share != WHOLE:
        return False
    most = 0
    for t in range(len(free.total)):
        if gang.gpu_type < 0 or gang.gpu_type == t:
            most = max(most, free.total[t])
    return most < gang.gpus


@inline
def tightest_gpu(row: IntArray, share: int) -> int:
    """The GPU of a node with the smallest sufficient free share, -1 if none."""
    best = -1
    for g in range(row[GPUS]):
        if row[g] >= share and (best < 0 or row[g] < row[best]):
            best = g
    return best


@internal
def stranded(free: IntArray, whole: int, classes: FloatArray) -> float:
    """Expected free thousandths of a node that a task drawn from the classes cannot use.

    Args:
        free: Thousandths free of each GPU of the node.
        whole: How many of them are wholly free.
        classes: GPUs, share and weight (summing to 1) of each class (M, 3).

    Source:
        Weng et al., Beware of Fragmentation, USENIX ATC 2023 (fragmentation measure). Differs: a class larger than a
        node counts as one that needs whole nodes.
    """
    free_milli, lost = 0, 0.0
    for g in range(len(free)):
        free_milli += free[g]
    for m in range(len(classes)):
        if classes[m, 1] == WHOLE:
            usable = whole * WHOLE if whole >= min(classes[m, 0], len(free)) else 0
        else:
            usable = 0
            for g in range(len(free)):
                if free[g] >= classes[m, 1]:
                    usable += free[g]
        lost += classes[m, 2] * (free_milli - usable)
    return lost


@njit
def stranded_growth(free: FreeResources, gang: GangRequest, node: int, classes: FloatArray) -> float:
    """Growth of the node's stranded share if the whole gang were placed there."""
    left_milli = free.node[node, : free.node[node, GPUS]].copy()
    whole = free.node[node, WHOLES]
    before = stranded(left_milli, whole, classes)
    if gang.share == WHOLE:
        left = gang.gpus
        for g in range(len(left_milli)):
            if left and left_milli[g] == WHOLE:
                left_milli[g] = 0
                left -= 1
        whole -= gang.gpus
    else:
        taken = np.zeros(len(left_milli), np.bool_)
        for _ in range(gang.gpus):
            best = -1
            for g in range(len(left_milli)):
                if not taken[g] and left_milli[g] >= gang.share and (best < 0 or left_milli[g] < left_milli[best]):
                    best = g
            taken[best] = True
            whole -= left_milli[best] == WHOLE
            left_milli[best] -= gang.share
    return stranded(left_milli, whole, classes) - before


@internal
def best_fit(free: FreeResources, gang: GangRequest) -> int:
    """Node with the fewest GPUs left over among those that fit the whole gang, -1 if none; ties: the lowest index.

    A gang that shares GPUs gets the fullest GPU on which it fits, on the node with the fewest wholly free GPUs.
    """
    node, best = free.node, -1
    if gang.share == WHOLE:
        fewest = node.shape[1]  # above every number of GPUs of a node
        for n in range(len(node)):
            more = node[n, WHOLES] - gang.gpus
            if 0 <= more < fewest and slots_of(node, n, gang) >= gang.gpus:
                best, fewest = n, more
                if more == 0:
                    break
        return best
    best_left = np.inf
    for n in range(len(node)):
        if slots_of(node, n, gang) < gang.gpus:
            continue
        left = node[n, tightest_gpu(node[n], gang.share)] + node[n, WHOLES] / (WHOLE + 1.0)
        if left < best_left:
            best, best_left = n, left
    return best


@internal
def least_stranded(free: FreeResources, gang: GangRequest, classes: FloatArray) -> int:
    """Node whose stranded share grows least among those that fit the whole gang, -1 if none; ties: lowest index."""
    best, best_growth = -1, np.inf
    for n in range(len(free.node)):
        if slots_of(free.node, n, gang) >= gang.gpus:
            growth = stranded_growth(free, gang, n, classes)
            if growth < best_growth:
                best, best_growth = n, growth
    return best


@internal
def fewest_nodes(most: IntArray, gpus: int, counts: IntArray) -> int:
    """Divide a gang among as few nodes as possible; fill ``counts`` (N,) and return the number of nodes.

    The nodes on which most fit come first; the last piece is placed where it fits best.

    Args:
        most: GPUs of the gang that fit on each node (N,); their sum is at least ``gpus``.
        gpus: GPUs of the gang.
        counts: Output: GPUs taken of each node (N,).
    """
    counts[:] = 0
    left, used, level = gpus, 0, 0
    for n in range(len(most)):
        level = max(level, most[n])
    while True:  # whole nodes, largest first, until the rest fits on one
        lower, one_takes_it = 0, False
        for n in range(len(most)):
            if most[n] == level:
                if left > level:
                    counts[n] = level
                    left -= level
                    used += 1
                else:
                    one_takes_it = True
            elif lower < most[n] < level:
                lower = most[n]
        if one_takes_it or left <= lower:
            break
        level = lower
    best = -1
    for n in range(len(most)):
        if most[n] >= left and not counts[n] and (best < 0 or most[n] < most[best]):
            best = n
    counts[best] = left
    return used + 1


@inline
def _largest(most: IntArray) -> int:
    """The place of the largest number, the first of equal ones."""
    best = 0
    for n in range(1, len(most)):
        if most[n] > most[best]:
            best = n
    return best


@internal
def most_even(most: IntArray, gpus: int, counts: IntArray) -> None:
    """Place a gang's GPUs one by one on the node with most left; fill ``counts`` (N,) and change ``most``."""
    counts[:] = 0
    for _ in range(gpus):
        best = _largest(most)
        most[best] -= 1
        counts[best] += 1


@internal
def emptiest_first(most: IntArray, gpus: int, counts: IntArray) -> None:
    """Take all a gang can use of the node with most left, then of the next; fill ``counts`` (N,), change ``most``."""
    counts[:] = 0
    left = gpus
    while left:
        best = _largest(most)
        counts[best] = min(most[best], left)
        left -= counts[best]
        most[best] = 0


@internal
def pick(free: FreeResources, gang: GangRequest, node: int, count: int, pairs: IntArray, at: int) -> None:
    """Write ``count`` (node, gpu) pairs of one node, in increasing order, from row ``at``."""
    row = free.node[node]
    last_free, last_gpu = -1, -1  # of the last GPU picked; the next is the next in (free, index)
    for k in range(count):
        best = -1
        for g in range(row[GPUS]):
            if row[g] < gang.share or (row[g], g) <= (last_free, last_gpu):
                continue
            if best < 0 or row[g] < row[best]:
                best = g
                if row[g] == gang.share:
                    break
        last_free, last_gpu = row[best], best
        i = at + k
        while i > at and pairs[i - 1, 1] > best:
            pairs[i, 1] = pairs[i - 1, 1]
            i -= 1
        pairs[i, 1] = best
        pairs[at + k, 0] = node


@in_place
def choose(
    free: FreeResources, gang: GangRequest, rule: int, classes: FloatArray, scratch: IntArray, pairs: IntArray
) -> bool:
    """Choose GPUs of one type for one gang, and write ``gang.gpus`` pairs in increasing order.

    Args:
        free: Free resources.
        gang: Request of the gang.
        rule: CONSOLIDATE (fewest nodes, best fit), SPREAD (most free first, one GPU at a time), FRAGMENTATION (least
            stranded) or WORST_FIT (most free first, whole nodes).
        classes: Task classes (M, 3) of ``stranded``, read by FRAGMENTATION only.
        scratch: Two values per node (2, N).
        pairs: Output, at least ``gang.gpus`` rows of (node, gpu).

    Returns:
        Whether the gang fits.
    """
    if has_too_few(free, gang):
        return False
    packs = rule in (CONSOLIDATE, FRAGMENTATION)
    if packs:
        node = least_stranded(free, gang, classes) if rule == FRAGMENTATION else best_fit(free, gang)
        if node >= 0:
            pick(free, gang, node, gang.gpus, pairs, 0)
            return True
        if gang.gpus == 1:
            return False
    most, counts = scratch[0], scratch[1]
    best_type, best, counted = -1, 0, -1
    for t in range(len(free.total)):
        if gang.gpu_type >= 0 and t != gang.gpu_type:
            continue
        total = slots(free, gang, t, most)
        if total < gang.gpus:
            continue
        score = -total
        if packs:
            score, counted = fewest_nodes(most, gang.gpus, counts), t
        if best_type < 0 or score < best:
            best_type, best = t, score
    if best_type < 0:
        return False
    if counted != best_type:
        slots(free, gang, best_type, most)
        if packs:
            fewest_nodes(most, gang.gpus, counts)
        elif rule == SPREAD:
            most_even(most, gang.gpus, counts)
        else:
            emptiest_first(most, gang.gpus, counts)
    at = 0
    for n in range(len(counts)):
        if counts[n]:
            pick(free, gang, n, counts[n], pairs, at)
            at += counts[n]
    return True
