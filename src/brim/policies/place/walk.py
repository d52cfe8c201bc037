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
from brim.policies.place.room import WHOLE, Ask, Classes, Room, choose, copy_room, empty_room, give, hopeless, take

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


class Course(NamedTuple):
    """Where a walk stands; the arrays change as it goes on.

    Attributes:
        room: What is free now.
        future: What will be free when the reservation begins, without the GPUs reserved; read after a reservation.
        joint: What is free both now and then.
        head: Row of the job that stops the walk or has the reservation, -1 before there is one (1,).
        shadow_ms: When the reservation begins (1,).
        used: Grants written to ``node`` and ``gpu`` (1,).
        node: Node of each grant.
        gpu: GPU index of each grant.
        first: Where each job's grants start, -1 for none (J,).
        leaves: Holds GPUs and must leave (J,).
        why: Reason code (J,).
        blocker: Row of the job it stands behind (J,).
        counts: Scratch (N,).
        pairs: Scratch for one gang.
    """

    room: Room
    future: Room
    joint: Room
    head: IntArray
    shadow_ms: FloatArray
    used: IntArray
    node: IntArray
    gpu: IntArray
    first: IntArray
    leaves: BoolArray
    why: IntArray
    blocker: IntArray
    counts: IntArray
    pairs: IntArray


@njit(cache=True)
def set_out(room: Room, capacity: int, num_jobs: int, widest: int) -> Course:
    """A walk about to begin, with space for ``capacity`` grants and gangs of up to ``widest`` GPUs."""
    return Course(
        room, copy_room(room), copy_room(room), np.full(1, -1, np.int64), np.full(1, np.inf), np.zeros(1, np.int64),
        np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.full(num_jobs, -1, np.int64),
        np.zeros(num_jobs, np.bool_), np.zeros(num_jobs, np.int64), np.full(num_jobs, -1, np.int64),
        np.zeros(len(room.whole), np.int64), np.empty((widest, 2), np.int64),
    )


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
def _evict_for(c: Course, jobs: Jobs, ask: Ask, later: IntArray, rule: int, classes: Classes) -> bool:
    """Make jobs in ``later`` (they run, in order) leave from the end until the gang fits; who is not needed stays.

    On success the gang's GPUs stand in ``c.pairs`` and are taken, and ``c.leaves`` marks the victims; on failure
    nothing has changed.
    """
    room = c.room
    reach = room.total.copy()
    for v in later:
        if not c.leaves[v]:
            for i in range(c.first[v], c.first[v] + jobs.gpus[v]):
                reach[room.node_type[c.node[i]]] += room.is_open[c.node[i]]  # shares of one GPU count more than once
    if ask.share == WHOLE and (reach.max() if ask.gpu_type < 0 else reach[ask.gpu_type]) < ask.gpus:
        return False  # not even with all of them gone
    victims = np.empty(len(later), np.int64)
    num_victims, fits = 0, False
    for k in range(len(later) - 1, -1, -1):
        v = later[k]
        if c.leaves[v] or (ask.gpu_type >= 0 and room.node_type[c.node[c.first[v]]] != ask.gpu_type):
            continue
        _give_all(room, _ask(jobs, v), c.node, c.gpu, c.first[v])
        victims[num_victims] = v
        num_victims += 1
        if choose(room, ask, rule, classes, c.counts, c.pairs):
            fits = True
            break
    if fits:
        for i in range(ask.gpus):
            take(room, ask, c.pairs[i, 0], c.pairs[i, 1])
    for k in range(num_victims - 1, -1, -1):  # the most important first
        v = victims[k]
        c.leaves[v] = not _take_back(room, _ask(jobs, v), c.node, c.gpu, c.first[v])
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
def _reserve(c: Course, jobs: Jobs, ask: Ask, rule: int, classes: Classes, runs: IntArray) -> None:
    """Find the earliest expected time at which the gang fits, reserve its GPUs there, and set future and joint room.

    Args:
        c: The walk; ``shadow_ms`` becomes infinite if the gang never fits.
        jobs: Job columns.
        ask: The gang that waits.
        rule: Placement rule.
        classes: Task classes.
        runs: Rows of the jobs that have GPUs, in increasing order.

    Source:
        Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995 (EASY). Differs: reserves GPUs of nodes, not a count.
    """
    room, future = c.room, c.future
    future.free[:], future.whole[:], future.total[:] = room.free, room.whole, room.total
    future.cpu[:], future.mem[:] = room.cpu, room.mem
    c.shadow_ms[0] = np.inf
    for r in np.argsort(jobs.end_ms[runs], kind="mergesort"):
        v = runs[r]
        _give_all(future, _ask(jobs, v), c.node, c.gpu, c.first[v])
        if choose(future, ask, rule, classes, c.counts, c.pairs):
            for i in range(ask.gpus):
                take(future, ask, c.pairs[i, 0], c.pairs[i, 1])
            c.shadow_ms[0] = jobs.end_ms[v]
            break
    c.joint.free[:], c.joint.whole[:], c.joint.total[:] = room.free, room.whole, room.total
    for n in range(len(room.whole)):
        _meet(room, future, c.joint, n)


@njit(cache=True)
def serve(
    c: Course, jobs: Jobs, j: int, ask: Ask, misfit: int, rule: int, classes: Classes, later: IntArray, runs: IntArray
) -> bool:
    """Serve one waiting job: find it GPUs, or note why it gets none.

    Args:
        c: The walk.
        jobs: Job columns.
        j: The job's row.
        ask: Its gang.
        misfit: STOP, SKIP or RESERVE.
        rule: Placement rule.
        classes: Task classes.
        later: Rows of running jobs behind it in the order, which may be made to leave.
        runs: Rows of the jobs that have GPUs, in increasing order; read when the job is to get the reservation.

    Returns:
        Whether it starts; its grants are then ``c.node[c.first[j]:]`` and ``c.gpu[c.first[j]:]``.
    """
    head, room = c.head[0], c.room
    if head >= 0 and misfit == STOP:
        c.why[j], c.blocker[j] = _BEHIND, head
        return False
    fits = choose(room, ask, rule, classes, c.counts, c.pairs)
    if fits and head >= 0 and jobs.end_ms[j] > c.shadow_ms[0]:
        if not choose(c.joint, ask, rule, classes, c.counts, c.pairs):
            c.why[j], c.blocker[j] = _RESERVED, head
            return False
        for i in range(ask.gpus):
            take(c.future, ask, c.pairs[i, 0], c.pairs[i, 1])
    if fits:
        for i in range(ask.gpus):
            take(room, ask, c.pairs[i, 0], c.pairs[i, 1])
    elif len(later):
        fits = _evict_for(c, jobs, ask, later, rule, classes)
        for v in later:
            if c.leaves[v] and c.why[v] == _RUNS:
                c.why[v], c.blocker[v] = _PREEMPTED, j
    if fits:
        start = c.used[0]
        c.first[j] = start
        for i in range(ask.gpus):
            c.node[start + i], c.gpu[start + i] = c.pairs[i, 0], c.pairs[i, 1]
            if head >= 0:
                _meet(room, c.future, c.joint, c.pairs[i, 0])
        c.used[0] = start + ask.gpus
        return True
    c.why[j], c.blocker[j] = _TOO_FEW if hopeless(room, ask) else _SHAPE, head
    if head < 0 and misfit != SKIP:
        c.head[0] = j
        if misfit == RESERVE:
            _reserve(c, jobs, ask, rule, classes, runs)
    return False


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
    G = len(held.job)
    capacity, widest = G, 1
    for j in range(len(order)):
        if jobs.waits[j]:
            capacity += want[j]
            widest = max(widest, want[j])
    room = empty_room(node_type, node_gpus, node_cpu, node_mem, node_open, num_types)
    c = set_out(room, capacity, len(order), widest)
    c.node[:G], c.gpu[:G], c.used[0] = held.node, held.gpu, G
    for i in range(G - 1, -1, -1):
        c.first[held.job[i]] = i
    runners = order[jobs.holds[order]]
    for v in runners:
        _take_all(room, _ask(jobs, v), c.node, c.gpu, c.first[v])
    owner = np.empty(capacity, np.int64)
    owner[:G] = held.job
    passed = 0
    for j in order:
        if jobs.holds[j]:
            passed += 1
            if want[j] == 0 and not c.leaves[j]:
                c.leaves[j] = True
                c.why[j] = _NOT_NOW
                _give_all(room, _ask(jobs, j), c.node, c.gpu, c.first[j])
        elif not jobs.waits[j]:
            continue
        elif want[j] == 0:
            c.why[j] = _NOT_NOW
        else:
            ask = Ask(want[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])
            runs = c.used[:0]
            if misfit == RESERVE and c.head[0] < 0:
                runs = np.flatnonzero((c.first >= 0) & ~c.leaves)
            start = c.used[0]
            if serve(c, jobs, j, ask, misfit, rule, classes, runners[passed:], runs):
                owner[start : c.used[0]] = j
    kept = np.ones(c.used[0], np.bool_)
    for i in range(G):
        kept[i] = not c.leaves[held.job[i]]
    rows = np.flatnonzero(kept)
    return owner[rows], c.node[rows], c.gpu[rows], c.why, c.blocker
