"""The walk down the order: who keeps, who starts, who must leave, who waits and why. Compiled: docs/decisions/0005.

A job that runs keeps its GPUs. A job that waits takes free GPUs; if there are too few and jobs later in the order run,
those are made to leave, from the end of the order, and every one that turns out not to be needed stays. At a misfit the
walk stops (STOP), goes on (SKIP), or reserves the earliest moment the gang fits and goes on with whoever does not delay
it (RESERVE).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.reasons import Why
from brim.policies.place.room import WHOLE, Ask, Classes, Room, choose, empty_room, give, hopeless, take

STOP: Final = 0
SKIP: Final = 1
RESERVE: Final = 2

_RUNS, _TOO_FEW, _SHAPE = int(Why.RUNS), int(Why.TOO_FEW_FREE), int(Why.SHAPE)
_BEHIND, _RESERVED, _NOT_NOW, _PREEMPTED = int(Why.BEHIND), int(Why.RESERVED), int(Why.NOT_NOW), int(Why.PREEMPTED)


class Jobs(NamedTuple):
    """Columns the walk reads (J rows). ``end_ms`` is the expected end if the job runs from now on."""

    gpus: IntArray
    share: IntArray
    cpu: IntArray
    mem: IntArray
    gpu_type: IntArray
    holds: BoolArray
    waits: BoolArray
    end_ms: FloatArray


class Held(NamedTuple):
    """Grants before the round (G rows); a job's rows stand together."""

    job: IntArray
    node: IntArray
    gpu: IntArray


@njit(cache=True)
def _ask(jobs: Jobs, j: int) -> Ask:
    return Ask(jobs.gpus[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])


@njit(cache=True)
def _give_all(room: Room, ask: Ask, node: IntArray, gpu: IntArray, first: int) -> None:
    for i in range(first, first + ask.gpus):
        give(room, ask, node[i], gpu[i])


@njit(cache=True)
def _take_all(room: Room, ask: Ask, node: IntArray, gpu: IntArray, first: int) -> None:
    for i in range(first, first + ask.gpus):
        take(room, ask, node[i], gpu[i])


@njit(cache=True)
def _take_back(room: Room, ask: Ask, node: IntArray, gpu: IntArray, first: int) -> bool:
    """Take a gang's old GPUs again if all of them are still free."""
    for i in range(first, first + ask.gpus):
        n = node[i]
        if room.free[n, gpu[i]] < ask.share or room.cpu[n] < ask.cpu or room.mem[n] < ask.mem:
            for k in range(first, i):
                give(room, ask, node[k], gpu[k])
            return False
        take(room, ask, n, gpu[i])
    return True


@njit(cache=True)
def _evict_for(
    room: Room, jobs: Jobs, held: Held, first: IntArray, ask: Ask, later: IntArray, leaves: BoolArray, rule: int,
    classes: Classes, counts: IntArray, pairs: IntArray,
) -> bool:
    """Make jobs in ``later`` (they run, in order) leave from the end until the gang fits; who is not needed stays.

    On success the gang's GPUs are taken and ``leaves`` marks the victims; on failure nothing has changed.
    """
    reach = room.total.copy()
    for v in later:
        if not leaves[v] and jobs.share[v] == WHOLE and room.is_open[held.node[first[v]]]:
            reach[room.node_type[held.node[first[v]]]] += jobs.gpus[v]
    if ask.share == WHOLE and (reach.max() if ask.gpu_type < 0 else reach[ask.gpu_type]) < ask.gpus:
        return False  # not even with all of them gone
    victims = np.empty(len(later), np.int64)
    num_victims, fits = 0, False
    for k in range(len(later) - 1, -1, -1):
        v = later[k]
        if leaves[v] or (ask.gpu_type >= 0 and room.node_type[held.node[first[v]]] != ask.gpu_type):
            continue
        _give_all(room, _ask(jobs, v), held.node, held.gpu, first[v])
        victims[num_victims] = v
        num_victims += 1
        if choose(room, ask, rule, classes, counts, pairs):
            fits = True
            break
    if fits:
        for i in range(ask.gpus):
            take(room, ask, pairs[i, 0], pairs[i, 1])
    for k in range(num_victims - 1, -1, -1):  # the most important first
        v = victims[k]
        leaves[v] = not _take_back(room, _ask(jobs, v), held.node, held.gpu, first[v])
    return fits


@njit(cache=True)
def _meet(room: Room, future: Room, joint: Room, n: int) -> None:
    """Set node n of ``joint`` to what is free both now and in ``future``."""
    for g in range(room.free.shape[1]):
        was = joint.free[n, g] == WHOLE
        joint.free[n, g] = min(room.free[n, g], future.free[n, g])
        gain = int(joint.free[n, g] == WHOLE) - int(was)
        joint.whole[n] += gain
        joint.total[joint.node_type[n]] += gain * joint.is_open[n]
    joint.cpu[n] = min(room.cpu[n], future.cpu[n])
    joint.mem[n] = min(room.mem[n], future.mem[n])


@njit(cache=True)
def copy_room(room: Room) -> Room:
    """An independent copy."""
    return Room(
        room.free.copy(), room.whole.copy(), room.cpu.copy(), room.mem.copy(), room.total.copy(), room.node_type,
        room.is_open,
    )


@njit(cache=True)
def reserve(
    room: Room, jobs: Jobs, runs: IntArray, node: IntArray, gpu: IntArray, first: IntArray, ask: Ask, rule: int,
    classes: Classes, counts: IntArray, pairs: IntArray,
) -> tuple[float, Room]:
    """Earliest expected time at which the gang fits, and what will be free then beside it.

    Args:
        room: What is free now.
        jobs: Job columns.
        runs: Rows of the jobs that hold GPUs (R).
        node: Node of each of their GPUs.
        gpu: GPU index of each.
        first: Where each job's GPUs start in ``node`` and ``gpu``, by job row (J).
        ask: The gang that waits.
        rule: Placement rule.
        classes: Task classes.
        counts: Scratch (N,).
        pairs: Scratch for the gang's GPUs.

    Returns:
        (time in ms, infinite if it never fits; room at that time with the gang placed).

    Source:
        Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995 (EASY). Differs: reserves GPUs of nodes, not a count.
    """
    future = copy_room(room)
    for r in np.argsort(jobs.end_ms[runs], kind="mergesort"):
        v = runs[r]
        _give_all(future, _ask(jobs, v), node, gpu, first[v])
        if choose(future, ask, rule, classes, counts, pairs):
            for i in range(ask.gpus):
                take(future, ask, pairs[i, 0], pairs[i, 1])
            return jobs.end_ms[v], future
    return np.inf, future


@njit(cache=True)
def walk(
    order: IntArray, want: IntArray, jobs: Jobs, held: Held, node_type: IntArray, node_gpus: IntArray,
    node_cpu: IntArray, node_mem: IntArray, node_open: BoolArray, num_types: int, misfit: int, rule: int,
    classes: Classes,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Walk down the order once.

    Args:
        order: Job rows, first served first (J,).
        want: GPUs each job should have; 0 for not now (J,).
        jobs: Job columns.
        held: Grants before the round.
        node_type: Type code per node (N,).
        node_gpus: GPUs per node (N,).
        node_cpu: Milli-cores per node (N,).
        node_mem: MiB per node (N,).
        node_open: Whether the node takes new jobs (N,).
        num_types: GPU types in the cluster.
        misfit: STOP, SKIP or RESERVE.
        rule: Placement rule of ``room``.
        classes: Task classes.

    Returns:
        (job, node, gpu) of the grants after the round (G',), then why and blocker per job (J,).
    """
    J = len(order)
    room = empty_room(node_type, node_gpus, node_cpu, node_mem, node_open, num_types)
    first = np.full(J, -1, np.int64)
    for i in range(len(held.job)):
        if first[held.job[i]] < 0:
            first[held.job[i]] = i
    runners = np.empty(J, np.int64)
    num_runners, widest = 0, 1
    capacity = len(held.job)
    for k in range(J):
        j = order[k]
        if jobs.holds[j]:
            runners[num_runners] = j
            num_runners += 1
            _take_all(room, _ask(jobs, j), held.node, held.gpu, first[j])
        elif jobs.waits[j]:
            capacity += want[j]
            widest = max(widest, want[j])
    why = np.zeros(J, np.int64)
    blocker = np.full(J, -1, np.int64)
    leaves = np.zeros(J, np.bool_)
    counts = np.zeros(len(node_gpus), np.int64)
    pairs = np.empty((widest, 2), np.int64)
    # Grants of this round: those held come first, so that a position in ``held`` is one here.
    job, node, gpu = np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    G = len(held.job)
    job[:G], node[:G], gpu[:G] = held.job, held.node, held.gpu
    passed, head = 0, -1  # runners walked past; the job that stops the walk or has the reservation
    shadow_ms, future, joint = np.inf, room, room
    for k in range(J):
        j = order[k]
        if jobs.holds[j]:
            passed += 1
            if want[j] == 0 and not leaves[j]:
                leaves[j] = True
                why[j] = _NOT_NOW
                _give_all(room, _ask(jobs, j), node, gpu, first[j])
            continue
        if not jobs.waits[j]:
            continue
        if want[j] == 0:
            why[j] = _NOT_NOW
            continue
        if head >= 0 and misfit == STOP:
            why[j], blocker[j] = _BEHIND, head
            continue
        ask = Ask(want[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])
        fits = choose(room, ask, rule, classes, counts, pairs)
        if fits and head >= 0 and jobs.end_ms[j] > shadow_ms:
            fits = choose(joint, ask, rule, classes, counts, pairs)
            if not fits:
                why[j], blocker[j] = _RESERVED, head
                continue
            for i in range(ask.gpus):
                take(future, ask, pairs[i, 0], pairs[i, 1])
        if fits:
            for i in range(ask.gpus):
                take(room, ask, pairs[i, 0], pairs[i, 1])
        elif passed < num_runners:
            fits = _evict_for(
                room, jobs, held, first, ask, runners[passed:num_runners], leaves, rule, classes, counts, pairs
            )
            if fits:
                for v in runners[passed:num_runners]:
                    if leaves[v] and why[v] == _RUNS:
                        why[v], blocker[v] = _PREEMPTED, j
        if fits:
            first[j] = G
            for i in range(ask.gpus):
                job[G], node[G], gpu[G] = j, pairs[i, 0], pairs[i, 1]
                G += 1
                if head >= 0 and misfit == RESERVE:
                    _meet(room, future, joint, pairs[i, 0])
            continue
        why[j] = _TOO_FEW if hopeless(room, ask) else _SHAPE
        if head >= 0:
            blocker[j] = head
        elif misfit != SKIP:
            head = j
            if misfit == RESERVE:
                runs = np.array([v for v in range(J) if first[v] >= 0 and not leaves[v]], np.int64)
                shadow_ms, future = reserve(room, jobs, runs, node, gpu, first, ask, rule, classes, counts, pairs)
                joint = copy_room(room)
                for n in range(len(node_gpus)):
                    _meet(room, future, joint, n)
    kept = np.ones(G, np.bool_)
    for i in range(len(held.job)):
        kept[i] = not leaves[held.job[i]]
    rows = np.flatnonzero(kept)
    return job[:G][rows], node[:G][rows], gpu[:G][rows], why, blocker
