"""Free resources of the nodes, and the choice of GPUs for one gang. Compiled: docs/decisions/0005.

Everything here works on plain arrays, so that the scheduling round and the compiled lane of the twin share it.
Shapes: N nodes, W the largest number of GPUs on a node, T GPU types, M task classes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit

from brim.core.arrays import BoolArray, FloatArray, IntArray

WHOLE: Final = 1000
"""Thousandths of a GPU in a whole one (``units.WHOLE_GPU``; compiled code wants it as a global of its own module)."""
CONSOLIDATE: Final = 0
SPREAD: Final = 1
FRAGMENTATION: Final = 2


class Room(NamedTuple):
    """What is free.

    Attributes:
        free: Thousandths free of each GPU (N, W); 0 where there is no GPU.
        whole: GPUs that are wholly free (N,).
        cpu: Milli-cores free (N,).
        mem: MiB free (N,).
        total: Wholly free GPUs of open nodes by type (T,).
        node_type: Type code of each node (N,).
        is_open: Whether the node takes new jobs (N,); a node that drains or is down does not.
    """

    free: IntArray
    whole: IntArray
    cpu: IntArray
    mem: IntArray
    total: IntArray
    node_type: IntArray
    is_open: BoolArray


class Ask(NamedTuple):
    """What one gang asks: GPUs, thousandths of each, milli-cores and MiB per GPU, type code or -1."""

    gpus: int
    share: int
    cpu: int
    mem: int
    gpu_type: int


@njit(cache=True)
def empty_room(
    node_type: IntArray, gpus: IntArray, cpu: IntArray, mem: IntArray, is_open: BoolArray, types: int
) -> Room:
    """All nodes with nothing running."""
    width = gpus.max()
    free = np.zeros((len(gpus), width), np.int64)
    whole = np.zeros(len(gpus), np.int64)
    total = np.zeros(types, np.int64)
    for n in range(len(gpus)):
        free[n, : gpus[n]] = WHOLE
        whole[n] = gpus[n]
        if is_open[n]:
            total[node_type[n]] += gpus[n]
    return Room(free, whole, cpu.copy(), mem.copy(), total, node_type, is_open)


@njit(cache=True)
def copy_room(room: Room) -> Room:
    """An independent copy."""
    return Room(
        room.free.copy(), room.whole.copy(), room.cpu.copy(), room.mem.copy(), room.total.copy(), room.node_type,
        room.is_open,
    )


@njit(cache=True)
def take(room: Room, ask: Ask, node: int, gpu: int) -> None:
    """Give one GPU of a gang away."""
    before = room.free[node, gpu]
    room.free[node, gpu] = before - ask.share
    if before == WHOLE:
        room.whole[node] -= 1
        room.total[room.node_type[node]] -= room.is_open[node]
    room.cpu[node] -= ask.cpu
    room.mem[node] -= ask.mem


@njit(cache=True)
def give(room: Room, ask: Ask, node: int, gpu: int) -> None:
    """Take one GPU of a gang back: the inverse of ``take``."""
    after = room.free[node, gpu] + ask.share
    room.free[node, gpu] = after
    if after == WHOLE:
        room.whole[node] += 1
        room.total[room.node_type[node]] += room.is_open[node]
    room.cpu[node] += ask.cpu
    room.mem[node] += ask.mem


@njit(cache=True)
def slots(room: Room, ask: Ask, node: int) -> int:
    """How many GPUs of this gang the node could take."""
    if ask.share == WHOLE:
        count = room.whole[node]
    else:
        count = 0
        for g in range(room.free.shape[1]):
            count += room.free[node, g] >= ask.share
    if ask.cpu > 0:
        count = min(count, max(room.cpu[node], 0) // ask.cpu)
    if ask.mem > 0:
        count = min(count, max(room.mem[node], 0) // ask.mem)
    return count


@njit(cache=True)
def hopeless(room: Room, ask: Ask) -> bool:
    """Quick test: no type has enough wholly free GPUs. False when only a search can tell."""
    if ask.share != WHOLE:
        return False
    if ask.gpu_type >= 0:
        return room.total[ask.gpu_type] < ask.gpus
    return room.total.max() < ask.gpus


@njit(cache=True)
def tightest_gpu(room: Room, ask: Ask, node: int) -> int:
    """Smallest sufficient free share on the node, for a gang that shares; -1 if none."""
    best = -1
    for g in range(room.free.shape[1]):
        if room.free[node, g] >= ask.share and (best < 0 or room.free[node, g] < room.free[node, best]):
            best = g
    return best


@njit(cache=True)
def stranded(free: IntArray, whole: int, class_gpus: IntArray, class_share: IntArray, weight: FloatArray) -> float:
    """Expected thousandths of a node that a task drawn from the classes cannot use as they lie.

    Source:
        Weng et al., Beware of Fragmentation, USENIX ATC 2023 (fragmentation measure). Differs: a class larger than a
        node counts as one that needs whole nodes.
    """
    free_milli = free.sum()
    lost = 0.0
    for m in range(len(weight)):
        if class_share[m] == WHOLE:
            usable = whole * WHOLE if whole >= min(class_gpus[m], len(free)) else 0
        else:
            usable = 0
            for g in range(len(free)):
                if free[g] >= class_share[m]:
                    usable += free[g]
        lost += weight[m] * (free_milli - usable)
    return lost


class Classes(NamedTuple):
    """Task classes of the present jobs, for the fragmentation rule: GPUs, share, and weight summing to 1 (M,)."""

    gpus: IntArray
    share: IntArray
    weight: FloatArray


@njit(cache=True)
def stranded_growth(room: Room, ask: Ask, node: int, classes: Classes) -> float:
    """Growth of the node's stranded share if the whole gang went there."""
    before = stranded(room.free[node], room.whole[node], classes.gpus, classes.share, classes.weight)
    free = room.free[node].copy()
    whole = room.whole[node]
    if ask.share == WHOLE:
        left = ask.gpus
        for g in range(len(free)):
            if left and free[g] == WHOLE:
                free[g] = 0
                left -= 1
        whole -= ask.gpus
    else:
        g = tightest_gpu(room, ask, node)
        whole -= free[g] == WHOLE
        free[g] -= ask.share
    return stranded(free, whole, classes.gpus, classes.share, classes.weight) - before


@njit(cache=True)
def one_node(room: Room, ask: Ask, rule: int, classes: Classes) -> int:
    """Best node that takes the whole gang, -1 if none. Ties go to the lowest index."""
    best, best_score = -1, np.inf
    for n in range(len(room.whole)):
        if not room.is_open[n] or (ask.gpu_type >= 0 and room.node_type[n] != ask.gpu_type):
            continue
        if ask.share == WHOLE and room.whole[n] < ask.gpus:
            continue
        if slots(room, ask, n) < ask.gpus:
            continue
        if rule == FRAGMENTATION:
            score = stranded_growth(room, ask, n, classes)
        elif ask.share == WHOLE:
            score = float(room.whole[n] - ask.gpus)
        else:  # fill the fullest shared GPU first, on the node with the fewest whole ones
            score = room.free[n, tightest_gpu(room, ask, n)] + room.whole[n] / (WHOLE + 1.0)
        if score < best_score:
            best, best_score = n, score
            if score == 0.0 and rule == CONSOLIDATE:
                break
    return best


@njit(cache=True)
def fewest_nodes(room: Room, ask: Ask, gpu_type: int, counts: IntArray) -> int:
    """Spread a gang over as few nodes of one type as possible; fills counts (N,), returns nodes used, 0 if it misfits.

    Largest nodes first; the last piece goes where it fits best.
    """
    caps = np.zeros(len(room.whole), np.int64)
    for n in range(len(caps)):
        if room.is_open[n] and room.node_type[n] == gpu_type:
            caps[n] = slots(room, ask, n)
    counts[:] = 0
    if caps.sum() < ask.gpus:
        return 0
    left, used = ask.gpus, 0
    while left > 0:
        best = -1
        for n in range(len(caps)):
            if caps[n] == 0 or counts[n]:
                continue
            if best < 0:
                best = n
            elif caps[best] >= left:
                if left <= caps[n] < caps[best]:
                    best = n
            elif caps[n] > caps[best]:
                best = n
        counts[best] = min(caps[best], left)
        left -= counts[best]
        used += 1
    return used


@njit(cache=True)
def most_even(room: Room, ask: Ask, gpu_type: int, counts: IntArray) -> int:
    """Give the gang's GPUs out one by one to the node with most left; fills counts (N,), returns free GPUs of the type."""
    caps = np.zeros(len(room.whole), np.int64)
    for n in range(len(caps)):
        if room.is_open[n] and room.node_type[n] == gpu_type:
            caps[n] = slots(room, ask, n)
    counts[:] = 0
    total = caps.sum()
    if total < ask.gpus:
        return 0
    for _ in range(ask.gpus):
        best = caps.argmax()
        caps[best] -= 1
        counts[best] += 1
    return total


@njit(cache=True)
def pick(room: Room, ask: Ask, node: int, count: int, pairs: IntArray, at: int) -> None:
    """Write ``count`` (node, gpu) pairs of one node, in increasing order, from row ``at``."""
    chosen = np.zeros(room.free.shape[1], np.bool_)
    for _ in range(count):
        best = -1
        for g in range(len(chosen)):
            if chosen[g] or room.free[node, g] < ask.share:
                continue
            if ask.share == WHOLE:
                best = g
                break
            if best < 0 or room.free[node, g] < room.free[node, best]:
                best = g
        chosen[best] = True
    for g in range(len(chosen)):
        if chosen[g]:
            pairs[at, 0] = node
            pairs[at, 1] = g
            at += 1


@njit(cache=True)
def choose(room: Room, ask: Ask, rule: int, classes: Classes, counts: IntArray, pairs: IntArray) -> bool:
    """Choose GPUs for one gang; writes ``ask.gpus`` pairs in increasing order. A gang never mixes GPU types.

    Args:
        room: What is free.
        ask: The gang.
        rule: CONSOLIDATE (fewest nodes, best fit), SPREAD (most free first) or FRAGMENTATION (least stranded).
        classes: Task classes, read by FRAGMENTATION only.
        counts: Scratch (N,).
        pairs: Output, at least ``ask.gpus`` rows of (node, gpu).

    Returns:
        Whether the gang fits.
    """
    if hopeless(room, ask):
        return False
    if rule != SPREAD:
        node = one_node(room, ask, rule, classes)
        if node >= 0:
            pick(room, ask, node, ask.gpus, pairs, 0)
            return True
        if ask.gpus == 1:
            return False
    best_type, best = -1, 0
    for t in range(len(room.total)):
        if ask.gpu_type >= 0 and t != ask.gpu_type:
            continue
        if rule == SPREAD:
            score = most_even(room, ask, t, counts)
            better = score > best
        else:
            score = fewest_nodes(room, ask, t, counts)
            better = score > 0 and (best == 0 or score < best)
        if better:
            best_type, best = t, score
    if best_type < 0:
        return False
    if rule == SPREAD:
        most_even(room, ask, best_type, counts)
    else:
        fewest_nodes(room, ask, best_type, counts)
    at = 0
    for n in range(len(counts)):
        if counts[n]:
            pick(room, ask, n, counts[n], pairs, at)
            at += counts[n]
    return True
