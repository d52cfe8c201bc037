"""The walk down the order: which jobs keep their GPUs, start, leave or wait, and why. Compiled: docs/decisions/0005.

A running job keeps its GPUs. Jobs whose size has shrunk give GPUs back before the walk begins. A job whose size has
grown gets more GPUs when its turn comes, if enough are free, and otherwise keeps what it has. A waiting job takes free
GPUs; if there are too few, running jobs later in the order leave, from the end of the order, except those whose GPUs
turn out not to be needed. When a gang does not fit, the walk stops (STOP), continues (SKIP), or reserves the earliest
moment at which the gang fits and continues with jobs that do not delay it (RESERVE).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brim.compiled import inline, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.reasons import Why
from brim.policies.place.room import (
    CPU,
    GPUS,
    MEM,
    OPEN,
    SPREAD,
    TYPE,
    WHOLE,
    WHOLES,
    Ask,
    Room,
    choose,
    copy_into,
    copy_room,
    empty_room,
    give,
    hopeless,
    pick,
    slots_of,
    take,
    withhold,
)

STOP: Final = 0
SKIP: Final = 1
RESERVE: Final = 2
_CLASSES: Final = 256
"""Requests that a walk remembers, a power of two. Ours: clusters see fewer than a hundred different ones."""

_RUNS, _TOO_FEW, _SHAPE = int(Why.RUNS), int(Why.TOO_FEW_FREE), int(Why.SHAPE)
_BEHIND, _RESERVED, _NOT_NOW, _PREEMPTED = int(Why.BEHIND), int(Why.RESERVED), int(Why.NOT_NOW), int(Why.PREEMPTED)


class Jobs(NamedTuple):
    """Columns that the walk reads (J rows).

    Attributes:
        gpus: GPUs a job holds, or will have once it starts; the walk changes them when it resizes a running job.
        share: Thousandths of each of them.
        cpu: Milli-cores per GPU.
        mem: MiB per GPU.
        gpu_type: Type code, -1 for any.
        holds: Whether the job has GPUs.
        waits: Whether the job could be started now.
        end_ms: Expected end if the job runs from now on.
    """

    gpus: IntArray
    share: IntArray
    cpu: IntArray
    mem: IntArray
    gpu_type: IntArray
    holds: BoolArray
    waits: BoolArray
    end_ms: FloatArray


@njit
def take_pairs(room: Room, ask: Ask, pairs: IntArray) -> None:
    """Take the GPUs of (node, gpu) pairs from the room."""
    for i in range(ask.gpus):
        take(room, ask, pairs[i, 0], pairs[i, 1])


@njit
def give_pairs(room: Room, ask: Ask, pairs: IntArray) -> None:
    """Return the GPUs of (node, gpu) pairs to the room."""
    for i in range(ask.gpus):
        give(room, ask, pairs[i, 0], pairs[i, 1])


class Held(NamedTuple):
    """Grants before the round (G rows); a job's rows are adjacent."""

    job: IntArray
    node: IntArray
    gpu: IntArray


class Ahead(NamedTuple):
    """Resources that a reservation leaves to other jobs; meaningless before there is one.

    Attributes:
        future: Resources that will be free when the reservation begins, without the reserved GPUs.
        joint: Resources that are free both now and then.
    """

    future: Room
    joint: Room


class Course(NamedTuple):
    """State of a walk; the arrays change as it proceeds.

    Attributes:
        head: Row of the job that stops the walk or has the reservation, -1 before there is one (1,).
        shadow_ms: When the reservation begins (1,).
        used: Number of grants written to ``node`` and ``gpu`` (1,).
        node: Node of each grant.
        gpu: GPU index of each grant.
        first: Where each job's grants start, -1 for none (J,).
        leaves: Whether the job holds GPUs and must leave (J,).
        why: Reason code (J,).
        blocker: Row of the job that blocks it (J,).
        scratch: Scratch of ``choose`` (2, N).
        pairs: Scratch for one gang.
        failed: Requests that did not fit in this walk, each in the row of its hash; the last column is 1 where there is
            one, and a later request may take the place of an earlier one (2^k, 6).
    """

    head: IntArray
    shadow_ms: FloatArray
    used: IntArray
    node: IntArray
    gpu: IntArray
    first: IntArray
    leaves: BoolArray
    why: IntArray
    blocker: IntArray
    scratch: IntArray
    pairs: IntArray
    failed: IntArray


@njit
def set_out(num_nodes: int, capacity: int, num_jobs: int, widest: int) -> Course:
    """Return a walk that has not begun, with space for ``capacity`` grants and gangs of up to ``widest`` GPUs."""
    return Course(
        np.full(1, -1, np.int64), np.full(1, np.inf), np.zeros(1, np.int64),
        np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.full(num_jobs, -1, np.int64),
        np.zeros(num_jobs, np.bool_), np.zeros(num_jobs, np.int64), np.full(num_jobs, -1, np.int64),
        np.zeros((2, num_nodes), np.int64), np.empty((widest, 2), np.int64), np.zeros((_CLASSES, 6), np.int64),
    )


@inline
def ask_of(jobs: Jobs, j: int) -> Ask:
    """The request of a job's gang."""
    return Ask(jobs.gpus[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])


@njit
def give_all(room: Room, ask: Ask, node: IntArray, gpu: IntArray, first: int) -> None:
    """Return a gang's GPUs to the room."""
    for i in range(first, first + ask.gpus):
        give(room, ask, node[i], gpu[i])


@njit
def _take_all(room: Room, ask: Ask, node: IntArray, gpu: IntArray, first: int) -> None:
    for i in range(first, first + ask.gpus):
        take(room, ask, node[i], gpu[i])


@inline
def _row_of(ask: Ask) -> int:
    """The row of ``Course.failed`` for a request."""
    mixed = ask.gpus * 7 + ask.share + ask.cpu * 3 + ask.mem * 5 + ask.gpu_type * 11
    return (mixed ^ (mixed >> 8) ^ (mixed >> 16)) & (_CLASSES - 1)


@inline
def _has_failed(failed: IntArray, row: int, ask: Ask) -> bool:
    """Whether an equal request did not fit before in this walk.

    It does not fit now either: what is free, and what the running jobs later in the order hold, together never grow.
    """
    return (
        failed[row, 5] == 1 and failed[row, 0] == ask.gpus and failed[row, 1] == ask.share and failed[row, 2] == ask.cpu
        and failed[row, 3] == ask.mem and failed[row, 4] == ask.gpu_type
    )


@njit
def _evict_for(room: Room, c: Course, jobs: Jobs, ask: Ask, later: IntArray, rule: int, classes: FloatArray) -> bool:
    """Make running jobs of ``later``, which is in order, leave from the end until the gang fits; spare the others.

    On success, the gang's GPUs are in ``c.pairs`` and are taken, and ``c.leaves`` marks the victims. On failure,
    nothing has changed.
    """
    reach = room.total.copy()
    for v in later:
        if not c.leaves[v]:
            for i in range(c.first[v], c.first[v] + jobs.gpus[v]):
                n = c.node[i]
                reach[room.node[n, TYPE]] += room.node[n, OPEN]  # shares of one GPU count more than once
    if ask.share == WHOLE and (reach.max() if ask.gpu_type < 0 else reach[ask.gpu_type]) < ask.gpus:
        return False  # the gang would not fit even if all of them left
    victims = np.empty(len(later), np.int64)
    num_victims, fits = 0, False
    for k in range(len(later) - 1, -1, -1):
        v = later[k]
        if c.leaves[v] or (ask.gpu_type >= 0 and room.node[c.node[c.first[v]], TYPE] != ask.gpu_type):
            continue
        give_all(room, ask_of(jobs, v), c.node, c.gpu, c.first[v])
        victims[num_victims] = v
        num_victims += 1
        if choose(room, ask, rule, classes, c.scratch, c.pairs):
            fits = True
            break
    if not fits:
        for k in range(num_victims):
            v = victims[k]
            _take_all(room, ask_of(jobs, v), c.node, c.gpu, c.first[v])
        return False
    c.leaves[victims[num_victims - 1]] = True  # without this one the gang did not fit
    for k in range(num_victims - 2, -1, -1):  # the others are spared in order of importance
        v = victims[k]
        _take_all(room, ask_of(jobs, v), c.node, c.gpu, c.first[v])
        c.leaves[v] = not choose(room, ask, rule, classes, c.scratch, c.pairs)
        if c.leaves[v]:
            give_all(room, ask_of(jobs, v), c.node, c.gpu, c.first[v])
    if num_victims > 1:
        choose(room, ask, rule, classes, c.scratch, c.pairs)
    take_pairs(room, ask, c.pairs)
    return True


@njit
def meet(room: Room, future: Room, joint: Room, n: int) -> None:
    """Set node n of ``joint`` to what is free both now and in ``future``."""
    now, then, both = room.node[n], future.node[n], joint.node[n]
    for g in range(now[GPUS]):
        was = both[g] == WHOLE
        both[g] = min(now[g], then[g])
        gain = int(both[g] == WHOLE) - int(was)
        both[WHOLES] += gain
        joint.total[both[TYPE]] += gain * both[OPEN]
    both[CPU] = min(now[CPU], then[CPU])
    both[MEM] = min(now[MEM], then[MEM])


@njit
def _sift_down(heap: IntArray, size: int, at: int, end_ms: FloatArray) -> None:
    """Restore the heap of rows by (end, row) below ``at``. This compiles seconds faster than a library sort."""
    moved = heap[at]
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and (end_ms[heap[down + 1]], heap[down + 1]) < (end_ms[heap[down]], heap[down]):
            down += 1
        if (end_ms[moved], moved) < (end_ms[heap[down]], heap[down]):
            break
        heap[at] = heap[down]
        at = down
    if size:
        heap[at] = moved


@njit
def reserve(
    room: Room, ahead: Ahead, c: Course, jobs: Jobs, ask: Ask, rule: int, classes: FloatArray, runs: IntArray
) -> None:
    """Find the earliest expected time at which the gang fits, reserve its GPUs then, and set future and joint room.

    Args:
        room: Resources that are free now.
        ahead: Output.
        c: The walk; ``shadow_ms`` becomes infinite if the gang never fits.
        jobs: Job columns.
        ask: Request of the waiting gang.
        rule: Placement rule.
        classes: Task classes.
        runs: Rows of the jobs that have GPUs, in any order.

    Source:
        Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995 (EASY). Differs: reserves GPUs of nodes, not a count.
    """
    future = ahead.future
    copy_into(room, future)
    c.shadow_ms[0] = np.inf
    heap, size = runs.copy(), len(runs)
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(heap, size, at, jobs.end_ms)
    while size:
        v, size = heap[0], size - 1
        heap[0] = heap[size]
        _sift_down(heap, size, 0, jobs.end_ms)
        give_all(future, ask_of(jobs, v), c.node, c.gpu, c.first[v])
        if choose(future, ask, rule, classes, c.scratch, c.pairs):
            keep_free(room, ahead, c, ask, jobs.end_ms[v])
            return
    copy_into(room, ahead.joint)


@njit
def keep_free(room: Room, ahead: Ahead, c: Course, ask: Ask, time_ms: float) -> None:
    """Reserve the GPUs of ``c.pairs``, which are free in ``ahead.future``, from a time on."""
    take_pairs(ahead.future, ask, c.pairs)
    c.shadow_ms[0] = time_ms
    copy_into(room, ahead.joint)
    for i in range(ask.gpus):  # on all other nodes, what is free now is free then
        meet(room, ahead.future, ahead.joint, c.pairs[i, 0])


@njit
def serve(
    room: Room, ahead: Ahead, c: Course, jobs: Jobs, j: int, ask: Ask, misfit: int, rule: int, classes: FloatArray,
    later: IntArray, runs: IntArray,
) -> bool:
    """Serve one waiting job: find GPUs for it, or note why it gets none.

    Args:
        room: Resources that are free now.
        ahead: Resources that the reservation leaves, once there is one.
        c: The walk.
        jobs: Job columns.
        j: The job's row.
        ask: Request of its gang.
        misfit: STOP, SKIP or RESERVE.
        rule: Placement rule.
        classes: Task classes.
        later: Rows of running jobs after it in the order, which may have to leave.
        runs: Rows of the jobs that have GPUs, in any order; read only if the job gets the reservation.

    Returns:
        Whether the job starts; its grants are then ``c.node[c.first[j]:]`` and ``c.gpu[c.first[j]:]``.
    """
    head = c.head[0]
    if head >= 0 and misfit == STOP:
        c.why[j], c.blocker[j] = _BEHIND, head
        return False
    failed, row = c.failed, _row_of(ask)
    if _has_failed(failed, row, ask):
        c.why[j], c.blocker[j] = _TOO_FEW if hopeless(room, ask) else _SHAPE, head
        return False
    fits = choose(room, ask, rule, classes, c.scratch, c.pairs)
    if fits and head >= 0 and jobs.end_ms[j] > c.shadow_ms[0]:
        if not choose(ahead.joint, ask, rule, classes, c.scratch, c.pairs):
            c.why[j], c.blocker[j] = _RESERVED, head
            return False
        take_pairs(ahead.future, ask, c.pairs)
    if fits:
        take_pairs(room, ask, c.pairs)
    elif len(later):
        fits = _evict_for(room, c, jobs, ask, later, rule, classes)
        for v in later:
            if c.leaves[v] and c.why[v] == _RUNS:
                c.why[v], c.blocker[v] = _PREEMPTED, j
    if fits:
        start, pairs, node, gpu = c.used[0], c.pairs, c.node, c.gpu
        c.first[j] = start
        for i in range(ask.gpus):
            node[start + i], gpu[start + i] = pairs[i, 0], pairs[i, 1]
            if head >= 0:
                meet(room, ahead.future, ahead.joint, pairs[i, 0])
        c.used[0] = start + ask.gpus
        return True
    failed[row, 0], failed[row, 1], failed[row, 2] = ask.gpus, ask.share, ask.cpu
    failed[row, 3], failed[row, 4], failed[row, 5] = ask.mem, ask.gpu_type, 1
    c.why[j], c.blocker[j] = _TOO_FEW if hopeless(room, ask) else _SHAPE, head
    if head < 0 and misfit != SKIP:
        c.head[0] = j
        if misfit == RESERVE:
            reserve(room, ahead, c, jobs, ask, rule, classes, runs)
    return False


@njit
def _shrink(room: Room, c: Course, jobs: Jobs, v: int, gpus: int, rule: int) -> None:
    """Shrink a running job to ``gpus`` GPUs: those on the fewest nodes, or for SPREAD on the most."""
    ask, first, size = ask_of(jobs, v), c.first[v], jobs.gpus[v]
    while size > gpus:
        last, best, begin = -1, 0, 0  # the last GPU of the node that loses a GPU
        for i in range(size):
            if i + 1 == size or c.node[first + i + 1] != c.node[first + i]:
                score = (i + 1 - begin) if rule == SPREAD else begin - i - 1
                if last < 0 or score >= best:
                    last, best = i, score
                begin = i + 1
        give(room, ask, c.node[first + last], c.gpu[first + last])
        for i in range(first + last, first + size - 1):
            c.node[i], c.gpu[i] = c.node[i + 1], c.gpu[i + 1]
        size -= 1
    jobs.gpus[v] = gpus


@njit
def _grow(room: Room, c: Course, jobs: Jobs, v: int, gpus: int, rule: int, classes: FloatArray) -> bool:
    """Give a running job more GPUs of the type it has, on its own nodes first (not for SPREAD).

    On success, its GPUs are written again at the end of ``c.node`` and ``c.gpu``; on failure, nothing has changed.
    """
    first, size, share = c.first[v], jobs.gpus[v], jobs.share[v]
    kind = room.node[c.node[first], TYPE]
    pairs = c.pairs
    for i in range(size):
        pairs[i, 0], pairs[i, 1] = c.node[first + i], c.gpu[first + i]
        room.node[pairs[i, 0], pairs[i, 1]] -= WHOLE  # the rest of a GPU that it shares must not count as another GPU
    at = size
    if rule != SPREAD:
        for i in range(size):
            n = pairs[i, 0]
            if at < gpus and (i == 0 or n != pairs[i - 1, 0]):
                one = Ask(1, share, jobs.cpu[v], jobs.mem[v], kind)
                count = min(slots_of(room.node, n, one), gpus - at)
                pick(room, one, n, count, pairs, at)
                for k in range(at, at + count):
                    take(room, one, pairs[k, 0], pairs[k, 1])
                    room.node[pairs[k, 0], pairs[k, 1]] -= WHOLE
                at += count
    rest = Ask(gpus - at, share, jobs.cpu[v], jobs.mem[v], kind)
    fits = at == gpus or choose(room, rest, rule, classes, c.scratch, pairs[at:])
    for i in range(at):
        room.node[pairs[i, 0], pairs[i, 1]] += WHOLE
    if not fits:
        for k in range(size, at):
            give(room, rest, pairs[k, 0], pairs[k, 1])
        return False
    take_pairs(room, rest, pairs[at:])
    start = c.used[0]
    for k in range(gpus):  # insert in order of (node, gpu)
        i = start + k
        while i > start and (c.node[i - 1], c.gpu[i - 1]) > (pairs[k, 0], pairs[k, 1]):
            c.node[i], c.gpu[i] = c.node[i - 1], c.gpu[i - 1]
            i -= 1
        c.node[i], c.gpu[i] = pairs[k, 0], pairs[k, 1]
    c.first[v], jobs.gpus[v] = start, gpus
    c.used[0] = start + gpus
    return True


@njit
def walk(
    order: IntArray, want: IntArray, jobs: Jobs, held: Held, node_type: IntArray, node_gpus: IntArray,
    node_cpu: IntArray, node_mem: IntArray, node_open: BoolArray, withheld: BoolArray, num_types: int, misfit: int,
    rule: int, classes: FloatArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Walk down the order once.

    Args:
        order: Job rows, first served first (J,).
        want: GPUs each job should have; 0 means "not now" (J,).
        jobs: Job columns; ``gpus`` is the wanted size of waiting jobs and the present size of running jobs.
        held: Grants before the round.
        node_type: Type code per node (N,).
        node_gpus: GPUs per node (N,).
        node_cpu: Milli-cores per node (N,).
        node_mem: MiB per node (N,).
        node_open: Whether the node takes new jobs (N,).
        withheld: Whether a GPU takes no new jobs (N, W), or empty.
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
        if jobs.waits[j] or (jobs.holds[j] and want[j] > jobs.gpus[j]):
            capacity += want[j]
            widest = max(widest, want[j])
    room = empty_room(node_type, node_gpus, node_cpu, node_mem, node_open, num_types)
    withhold(room, withheld)
    ahead = Ahead(copy_room(room), copy_room(room)) if misfit == RESERVE else Ahead(room, room)
    c = set_out(len(node_gpus), capacity, len(order), widest)
    c.used[0] = G
    owner = np.empty(capacity, np.int64)
    for i in range(G - 1, -1, -1):
        c.node[i], c.gpu[i], owner[i] = held.node[i], held.gpu[i], held.job[i]
        c.first[held.job[i]] = i
    runners, num_runners = np.empty(len(order), np.int64), 0
    for v in order:
        if jobs.holds[v]:
            runners[num_runners] = v
            num_runners += 1
            _take_all(room, ask_of(jobs, v), c.node, c.gpu, c.first[v])
    for v in runners[:num_runners]:  # GPUs given back are free for all jobs
        if want[v] == 0:
            c.leaves[v] = True
            c.why[v] = _NOT_NOW
            give_all(room, ask_of(jobs, v), c.node, c.gpu, c.first[v])
        elif want[v] < jobs.gpus[v]:
            _shrink(room, c, jobs, v, want[v], rule)
    passed = 0
    for j in order:
        start = c.used[0]
        if jobs.holds[j]:
            passed += 1
            if want[j] > jobs.gpus[j] and not c.leaves[j] and c.head[0] < 0:  # never past a job that blocks
                _grow(room, c, jobs, j, want[j], rule, classes)
        elif not jobs.waits[j]:
            continue
        elif want[j] == 0:
            c.why[j] = _NOT_NOW
        else:
            runs = c.used[:0]
            if misfit == RESERVE and c.head[0] < 0:
                runs = np.flatnonzero((c.first >= 0) & ~c.leaves)
            later = runners[passed:num_runners]
            serve(room, ahead, c, jobs, j, ask_of(jobs, j), misfit, rule, classes, later, runs)
        owner[start : c.used[0]] = j
    kept = np.empty(c.used[0], np.bool_)
    for i in range(len(kept)):
        j = owner[i]
        kept[i] = not c.leaves[j] and c.first[j] <= i < c.first[j] + jobs.gpus[j]
    rows = np.flatnonzero(kept)
    return owner[rows], c.node[rows], c.gpu[rows], c.why, c.blocker
