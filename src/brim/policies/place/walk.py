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

from brim.compiled import in_place, inline, internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.reasons import Reason
from brim.policies.place.free_resources import (
    CONSOLIDATE,
    CPU,
    GPUS,
    MEM,
    OPEN,
    SPREAD,
    TYPE,
    WHOLE,
    WHOLES,
    FreeResources,
    GangRequest,
    all_free,
    choose,
    copy_into,
    copy_of,
    give,
    give_all,
    has_too_few,
    pick,
    slots_of,
    take,
    take_all,
    withhold,
)

STOP: Final = 0
SKIP: Final = 1
RESERVE: Final = 2
_CLASSES: Final = 256
"""Rows for requests that a walk remembers, a power of two. Ours: clusters see fewer than a hundred different ones."""
_NEVER: Final = 1
_BESIDE: Final = 2
"""Results in ``WalkState.failed``: the request fits never again in this walk; or not beside the reservation."""

_RUNS, _TOO_FEW, _SHAPE = int(Reason.RUNS), int(Reason.TOO_FEW_FREE), int(Reason.SHAPE)
_BEHIND, _RESERVED = int(Reason.BEHIND), int(Reason.RESERVED)
_NOT_NOW, _PREEMPTED = int(Reason.NOT_NOW), int(Reason.PREEMPTED)


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


@in_place
def take_pairs(free: FreeResources, gang: GangRequest, pairs: IntArray) -> None:
    """Take the GPUs of (node, gpu) pairs."""
    for i in range(gang.gpus):
        take(free, gang, pairs[i, 0], pairs[i, 1])


@in_place
def take_in_turn(free: FreeResources, gangs: IntArray, pairs: IntArray) -> None:
    """Take the GPUs of (node, gpu) pairs for several gangs, whose pairs follow each other: ``put_in_turn``."""
    at = 0
    for a in range(len(gangs)):
        gang = GangRequest(gangs[a, 0], gangs[a, 1], gangs[a, 2], gangs[a, 3], gangs[a, 4])
        take_pairs(free, gang, pairs[at : at + gang.gpus])
        at += gang.gpus


@in_place
def put_in_turn(
    free: FreeResources, gangs: IntArray, width: int, classes: FloatArray, scratch: IntArray, pairs: IntArray
) -> int:
    """Choose and take GPUs for gangs, up to the first that fits nowhere or on more nodes than it fills.

    Args:
        free: Free resources.
        gangs: The fields of ``GangRequest`` of each gang (A, 5).
        width: Most GPUs of a node.
        classes: See ``choose``.
        scratch: See ``choose``.
        pairs: Output, (node, gpu) of the gangs that were placed; a row for every GPU of all gangs.

    Returns:
        Number of gangs that were placed.
    """
    at = 0
    for a in range(len(gangs)):
        gang = GangRequest(gangs[a, 0], gangs[a, 1], gangs[a, 2], gangs[a, 3], gangs[a, 4])
        mine = pairs[at : at + gang.gpus]
        if not choose(free, gang, CONSOLIDATE, classes, scratch, mine):
            return a
        nodes = 1
        for i in range(1, gang.gpus):
            nodes += mine[i, 0] != mine[i - 1, 0]
        if nodes > -(-gang.gpus // width):
            return a
        take_pairs(free, gang, mine)
        at += gang.gpus
    return len(gangs)


@in_place
def give_pairs(free: FreeResources, gang: GangRequest, pairs: IntArray) -> None:
    """Return the GPUs of (node, gpu) pairs."""
    for i in range(gang.gpus):
        give(free, gang, pairs[i, 0], pairs[i, 1])


class Held(NamedTuple):
    """Grants before the round (G rows); a job's rows are adjacent."""

    job: IntArray
    node: IntArray
    gpu: IntArray


class Reservation(NamedTuple):
    """Resources that a reservation leaves to other jobs; meaningless before there is one.

    Attributes:
        future: Resources that will be free when the reservation begins, without the reserved GPUs.
        joint: Resources that are free both now and then.
    """

    future: FreeResources
    joint: FreeResources


class WalkState(NamedTuple):
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
        failed: Requests that got nothing in this walk, each in the row of its hash, where a later one may take its
            place, and the result: ``_NEVER``, if it will not fit in this walk any more; or ``_BESIDE`` plus the grants
            written so far, if it fits, but not beside the reservation, which holds until another grant is written; 0 in
            an empty row (2^k, 6).
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
def new_walk(num_nodes: int, capacity: int, num_jobs: int, widest: int) -> WalkState:
    """Return a walk that has not begun, with space for ``capacity`` grants and gangs of up to ``widest`` GPUs."""
    return WalkState(
        np.full(1, -1, np.int64), np.full(1, np.inf), np.zeros(1, np.int64),
        np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.full(num_jobs, -1, np.int64),
        np.zeros(num_jobs, np.bool_), np.zeros(num_jobs, np.int64), np.full(num_jobs, -1, np.int64),
        np.zeros((2, num_nodes), np.int64), np.empty((widest, 2), np.int64), np.zeros((_CLASSES, 6), np.int64),
    )


@inline
def gang_of(jobs: Jobs, j: int) -> GangRequest:
    """The request of a job's gang."""
    return GangRequest(jobs.gpus[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])


@inline
def _row_of(gang: GangRequest) -> int:
    """The row of ``WalkState.failed`` for a request."""
    mixed = gang.gpus * 7 + gang.share + gang.cpu * 3 + gang.mem * 5 + gang.gpu_type * 11
    return (mixed ^ (mixed >> 8) ^ (mixed >> 16)) & (_CLASSES - 1)


@inline
def _result(failed: IntArray, row: int, gang: GangRequest) -> int:
    """The result in ``WalkState.failed`` of an equal request, or 0.

    ``_NEVER`` holds for the whole walk: what is free, and what the running jobs later in the order hold, together never
    grow. ``_BESIDE`` holds for jobs that end after the reservation begins, until a grant is written.
    """
    if (
        failed[row, 0] == gang.gpus and failed[row, 1] == gang.share and failed[row, 2] == gang.cpu
        and failed[row, 3] == gang.mem and failed[row, 4] == gang.gpu_type
    ):
        return failed[row, 5]
    return 0


@inline
def _note(failed: IntArray, row: int, gang: GangRequest, result: int) -> None:
    """Note in ``WalkState.failed`` that a request got nothing."""
    failed[row, 0], failed[row, 1], failed[row, 2] = gang.gpus, gang.share, gang.cpu
    failed[row, 3], failed[row, 4], failed[row, 5] = gang.mem, gang.gpu_type, result


@njit
def _reaches(free: FreeResources, w: WalkState, jobs: Jobs, gang: GangRequest, later: IntArray) -> bool:
    """Whether a type would have enough GPUs for a gang if all of ``later`` left. Most often the first of them do."""
    reach = free.total.copy()
    for t in range(len(reach)):
        if (gang.gpu_type < 0 or gang.gpu_type == t) and reach[t] >= gang.gpus:
            return True
    for v in later:
        if not w.leaves[v]:
            for i in range(w.first[v], w.first[v] + jobs.gpus[v]):
                n = w.node[i]
                t = free.node[n, TYPE]
                reach[t] += free.node[n, OPEN]  # shares of one GPU count more than once
                if (gang.gpu_type < 0 or gang.gpu_type == t) and reach[t] >= gang.gpus:
                    return True
    return False


@njit
def _evict_for(
    free: FreeResources, w: WalkState, jobs: Jobs, gang: GangRequest, later: IntArray, rule: int, classes: FloatArray
) -> bool:
    """Make running jobs of ``later``, which is in order, leave from the end until the gang fits; spare the others.

    On success, the gang's GPUs are in ``w.pairs`` and are taken, and ``w.leaves`` marks the victims. On failure,
    nothing has changed.
    """
    if gang.share == WHOLE and not _reaches(free, w, jobs, gang, later):
        return False  # the gang would not fit even if all of them left
    victims = np.empty(len(later), np.int64)
    num_victims, fits = 0, False
    for k in range(len(later) - 1, -1, -1):
        v = later[k]
        if w.leaves[v] or (gang.gpu_type >= 0 and free.node[w.node[w.first[v]], TYPE] != gang.gpu_type):
            continue
        give_all(free, gang_of(jobs, v), w.node, w.gpu, w.first[v])
        victims[num_victims] = v
        num_victims += 1
        if choose(free, gang, rule, classes, w.scratch, w.pairs):
            fits = True
            break
    if not fits:
        for k in range(num_victims):
            v = victims[k]
            take_all(free, gang_of(jobs, v), w.node, w.gpu, w.first[v])
        return False
    w.leaves[victims[num_victims - 1]] = True  # without this one the gang did not fit
    for k in range(num_victims - 2, -1, -1):  # the others are spared in order of importance
        v = victims[k]
        take_all(free, gang_of(jobs, v), w.node, w.gpu, w.first[v])
        w.leaves[v] = not choose(free, gang, rule, classes, w.scratch, w.pairs)
        if w.leaves[v]:
            give_all(free, gang_of(jobs, v), w.node, w.gpu, w.first[v])
    if num_victims > 1:
        choose(free, gang, rule, classes, w.scratch, w.pairs)
    take_pairs(free, gang, w.pairs)
    return True


@internal
def update_joint(free: FreeResources, future: FreeResources, joint: FreeResources, n: int) -> None:
    """Set node n of ``joint`` to what is free both now and in ``future``."""
    now, then, both = free.node[n], future.node[n], joint.node[n]
    for g in range(now[GPUS]):
        was = both[g] == WHOLE
        both[g] = min(now[g], then[g])
        gain = int(both[g] == WHOLE) - int(was)
        both[WHOLES] += gain
        joint.total[both[TYPE]] += gain * both[OPEN]
    both[CPU] = min(now[CPU], then[CPU])
    both[MEM] = min(now[MEM], then[MEM])


@internal
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
    free: FreeResources, reservation: Reservation, w: WalkState, jobs: Jobs, gang: GangRequest, rule: int,
    classes: FloatArray,
) -> None:
    """Find the earliest expected time at which the gang fits, and reserve its GPUs then.

    Args:
        free: Resources that are free now.
        reservation: Output.
        w: The walk; ``shadow_ms`` becomes infinite if the gang never fits.
        jobs: Job columns.
        gang: Request of the waiting gang.
        rule: Placement rule.
        classes: Task classes.

    Source:
        Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995 (EASY). Differs: reserves GPUs of nodes, not a count;
        of each node, first those that are busy now.
    """
    future = reservation.future
    copy_into(free, future)
    w.shadow_ms[0] = np.inf
    heap = np.flatnonzero((w.first >= 0) & ~w.leaves)  # the jobs that have GPUs
    size = len(heap)
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(heap, size, at, jobs.end_ms)
    while size:
        v, size = heap[0], size - 1
        heap[0] = heap[size]
        _sift_down(heap, size, 0, jobs.end_ms)
        give_all(future, gang_of(jobs, v), w.node, w.gpu, w.first[v])
        if size and jobs.end_ms[heap[0]] == jobs.end_ms[v]:
            continue  # what all leave that end at this moment is free then
        if choose(future, gang, rule, classes, w.scratch, w.pairs):
            reserve_pairs(free, reservation, w, gang, jobs.end_ms[v])
            return
    copy_into(free, reservation.joint)


@internal
def _busy_now_first(free: FreeResources, future: FreeResources, pairs: IntArray, gpus: int) -> None:
    """Exchange whole GPUs of ``pairs`` for others of their node, so that few are free now: a long job may have these.

    Args:
        free: Resources that are free now.
        future: Resources that are free then.
        pairs: Rows of (node, gpu), in increasing order; changed.
        gpus: How many rows count.
    """
    at = 0
    while at < gpus:
        n, end = pairs[at, 0], at + 1
        while end < gpus and pairs[end, 0] == n:
            end += 1
        for is_free in (False, True):
            for g in range(future.node[n, GPUS]):
                if at < end and future.node[n, g] == WHOLE and (free.node[n, g] == WHOLE) == is_free:
                    pairs[at, 1] = g
                    at += 1


@internal
def reserve_pairs(
    free: FreeResources, reservation: Reservation, w: WalkState, gang: GangRequest, time_ms: float
) -> None:
    """Reserve as many GPUs of each node as ``w.pairs`` has, all free in ``reservation.future``, from a time on."""
    if gang.share == WHOLE:
        _busy_now_first(free, reservation.future, w.pairs, gang.gpus)
    take_pairs(reservation.future, gang, w.pairs)
    w.shadow_ms[0] = time_ms
    copy_into(free, reservation.joint)
    for i in range(gang.gpus):  # on all other nodes, what is free now is free then
        update_joint(free, reservation.future, reservation.joint, w.pairs[i, 0])


@internal
def _serve(
    free: FreeResources, reservation: Reservation, w: WalkState, jobs: Jobs, j: int, gang: GangRequest, misfit: int,
    rule: int, classes: FloatArray, later: IntArray,
) -> None:
    """Find GPUs for one waiting job whose result is not known from an equal request, or note why it gets none.

    If the job starts, its grants are ``w.node[w.first[j]:]`` and ``w.gpu[w.first[j]:]``.

    Args:
        free: Resources that are free now.
        reservation: Resources that the reservation leaves, once there is one.
        w: The walk.
        jobs: Job columns.
        j: The job's row.
        gang: Request of its gang.
        misfit: STOP, SKIP or RESERVE.
        rule: Placement rule.
        classes: Task classes.
        later: Rows of running jobs after it in the order, which may have to leave.
    """
    head, failed, row = w.head[0], w.failed, _row_of(gang)
    fits = choose(free, gang, rule, classes, w.scratch, w.pairs)
    if fits and head >= 0 and jobs.end_ms[j] > w.shadow_ms[0]:
        if not choose(reservation.joint, gang, rule, classes, w.scratch, w.pairs):
            w.why[j], w.blocker[j] = _RESERVED, head
            _note(failed, row, gang, _BESIDE + w.used[0])
            return
        take_pairs(reservation.future, gang, w.pairs)
    if fits:
        take_pairs(free, gang, w.pairs)
    elif len(later):
        fits = _evict_for(free, w, jobs, gang, later, rule, classes)
        for v in later:
            if w.leaves[v] and w.why[v] == _RUNS:
                w.why[v], w.blocker[v] = _PREEMPTED, j
    if fits:
        start, pairs, node, gpu = w.used[0], w.pairs, w.node, w.gpu
        w.first[j] = start
        for i in range(gang.gpus):
            node[start + i], gpu[start + i] = pairs[i, 0], pairs[i, 1]
            if head >= 0:
                update_joint(free, reservation.future, reservation.joint, pairs[i, 0])
        w.used[0] = start + gang.gpus
        return
    _note(failed, row, gang, _NEVER)
    w.why[j], w.blocker[j] = _TOO_FEW if has_too_few(free, gang) else _SHAPE, head
    if head < 0 and misfit != SKIP:
        w.head[0] = j
        if misfit == RESERVE:
            reserve(free, reservation, w, jobs, gang, rule, classes)


@internal
def _serve_in_order(
    free: FreeResources, reservation: Reservation, w: WalkState, jobs: Jobs, order: IntArray, want: IntArray,
    owner: IntArray, runners: IntArray, misfit: int, rule: int, classes: FloatArray,
) -> None:
    """Let running jobs grow and serve waiting jobs, in order.

    Args:
        free: Resources that are free now.
        reservation: Resources that the reservation leaves, once there is one.
        w: The walk.
        jobs: Job columns.
        order: Job rows, first served first (J,).
        want: GPUs each job should have (J,).
        owner: Output, the job of each grant.
        runners: Rows of the jobs that hold GPUs, in order.
        misfit: STOP, SKIP or RESERVE.
        rule: Placement rule.
        classes: Task classes.
    """
    passed, end = 0, len(runners)
    for j in order:
        start, head = w.used[0], w.head[0]
        if jobs.holds[j]:
            passed += 1
            if want[j] > jobs.gpus[j] and not w.leaves[j] and head < 0:  # never past a job that blocks
                _grow(free, w, jobs, j, want[j], rule, classes)
        elif not jobs.waits[j]:
            continue
        elif want[j] == 0:
            w.why[j] = _NOT_NOW
        elif head >= 0 and misfit == STOP:
            w.why[j], w.blocker[j] = _BEHIND, head
        else:
            gang = gang_of(jobs, j)
            result = _result(w.failed, _row_of(gang), gang)
            if result == _NEVER:
                w.why[j], w.blocker[j] = _TOO_FEW if has_too_few(free, gang) else _SHAPE, head
            elif result == _BESIDE + start and jobs.end_ms[j] > w.shadow_ms[0]:
                w.why[j], w.blocker[j] = _RESERVED, head
            else:
                while end > passed and w.leaves[runners[end - 1]]:
                    end -= 1  # victims of the jobs before are passed once, not by every job
                _serve(free, reservation, w, jobs, j, gang, misfit, rule, classes, runners[passed:end])
        for i in range(start, w.used[0]):
            owner[i] = j


@internal
def _shrink(free: FreeResources, w: WalkState, jobs: Jobs, v: int, gpus: int, rule: int) -> None:
    """Shrink a running job to ``gpus`` GPUs: those on the fewest nodes, or for SPREAD on the most."""
    gang, first, size = gang_of(jobs, v), w.first[v], jobs.gpus[v]
    while size > gpus:
        last, best, begin = -1, 0, 0  # the last GPU of the node that loses a GPU
        for i in range(size):
            if i + 1 == size or w.node[first + i + 1] != w.node[first + i]:
                score = (i + 1 - begin) if rule == SPREAD else begin - i - 1
                if last < 0 or score >= best:
                    last, best = i, score
                begin = i + 1
        give(free, gang, w.node[first + last], w.gpu[first + last])
        for i in range(first + last, first + size - 1):
            w.node[i], w.gpu[i] = w.node[i + 1], w.gpu[i + 1]
        size -= 1
    jobs.gpus[v] = gpus


@internal
def _grow(free: FreeResources, w: WalkState, jobs: Jobs, v: int, gpus: int, rule: int, classes: FloatArray) -> bool:
    """Give a running job more GPUs of the type it has, on its own nodes first (not for SPREAD).

    On success, its GPUs are written again at the end of ``w.node`` and ``w.gpu``; on failure, nothing has changed.
    """
    first, size, share = w.first[v], jobs.gpus[v], jobs.share[v]
    kind = free.node[w.node[first], TYPE]
    pairs = w.pairs
    for i in range(size):
        pairs[i, 0], pairs[i, 1] = w.node[first + i], w.gpu[first + i]
        free.node[pairs[i, 0], pairs[i, 1]] -= WHOLE  # the rest of a GPU that it shares must not count as another GPU
    at = size
    if rule != SPREAD:
        for i in range(size):
            n = pairs[i, 0]
            if at < gpus and (i == 0 or n != pairs[i - 1, 0]):
                one = GangRequest(1, share, jobs.cpu[v], jobs.mem[v], kind)
                count = min(slots_of(free.node, n, one), gpus - at)
                pick(free, one, n, count, pairs, at)
                for k in range(at, at + count):
                    take(free, one, pairs[k, 0], pairs[k, 1])
                    free.node[pairs[k, 0], pairs[k, 1]] -= WHOLE
                at += count
    rest = GangRequest(gpus - at, share, jobs.cpu[v], jobs.mem[v], kind)
    fits = at == gpus or choose(free, rest, rule, classes, w.scratch, pairs[at:])
    for i in range(at):
        free.node[pairs[i, 0], pairs[i, 1]] += WHOLE
    if not fits:
        for k in range(size, at):
            give(free, rest, pairs[k, 0], pairs[k, 1])
        return False
    take_pairs(free, rest, pairs[at:])
    start = w.used[0]
    for k in range(gpus):  # insert in order of (node, gpu)
        i = start + k
        while i > start and (w.node[i - 1], w.gpu[i - 1]) > (pairs[k, 0], pairs[k, 1]):
            w.node[i], w.gpu[i] = w.node[i - 1], w.gpu[i - 1]
            i -= 1
        w.node[i], w.gpu[i] = pairs[k, 0], pairs[k, 1]
    w.first[v], jobs.gpus[v] = start, gpus
    w.used[0] = start + gpus
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
        rule: Placement rule of ``free_resources``.
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
    free = all_free(node_type, node_gpus, node_cpu, node_mem, node_open, num_types)
    withhold(free, withheld)
    reservation = Reservation(copy_of(free), copy_of(free)) if misfit == RESERVE else Reservation(free, free)
    w = new_walk(len(node_gpus), capacity, len(order), widest)
    w.used[0] = G
    owner = np.empty(capacity, np.int64)
    for i in range(G - 1, -1, -1):
        w.node[i], w.gpu[i], owner[i] = held.node[i], held.gpu[i], held.job[i]
        w.first[held.job[i]] = i
    runners, num_runners = np.empty(len(order), np.int64), 0
    for v in order:
        if jobs.holds[v]:
            runners[num_runners] = v
            num_runners += 1
            take_all(free, gang_of(jobs, v), w.node, w.gpu, w.first[v])
    for v in runners[:num_runners]:  # GPUs given back are free for all jobs
        if want[v] == 0:
            w.leaves[v] = True
            w.why[v] = _NOT_NOW
            give_all(free, gang_of(jobs, v), w.node, w.gpu, w.first[v])
        elif want[v] < jobs.gpus[v]:
            _shrink(free, w, jobs, v, want[v], rule)
    _serve_in_order(free, reservation, w, jobs, order, want, owner, runners[:num_runners], misfit, rule, classes)
    kept = np.empty(w.used[0], np.bool_)
    for i in range(len(kept)):
        j = owner[i]
        kept[i] = not w.leaves[j] and w.first[j] <= i < w.first[j] + jobs.gpus[j]
    rows = np.flatnonzero(kept)
    return owner[rows], w.node[rows], w.gpu[rows], w.why, w.blocker
