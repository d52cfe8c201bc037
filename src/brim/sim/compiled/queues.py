"""The compiled loop with kept queues, for policies whose order is fixed when a job is submitted.

Such a policy (first come, shortest job by known estimates) never interrupts running jobs, so a round only serves the
queue, in order, from the free resources. The loop keeps the queue and the free resources between rounds instead of
building a snapshot for each, and places gangs with the same compiled ``choose`` as the place parts. Its results equal
those of the general loop bit for bit, which a property test checks. docs/decisions/0005 gives the reasons for it.

Unless the first job that does not fit ends the round, the waiting jobs are in one queue for each request (GPUs,
share, cores, memory, type). A request that does not fit is not tried again until a node on which some of it fits has
got something back, so a round costs what changes, however many jobs wait.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from brim.beliefs.runtime import TrueRunTimes
from brim.compiled import in_place, inline, internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.replay import Runs
from brim.core.trace import NONE, Trace
from brim.policies.order.shortest import ShortestJob
from brim.policies.place.free_resources import (
    FreeResources,
    GangRequest,
    all_free,
    choose,
    copy_into,
    copy_of,
    give_all,
    has_too_few,
    slots_of,
    take_all,
)
from brim.policies.place.parts import MISFIT, NO_CLASSES, Consolidate, Spread
from brim.policies.place.walk import (
    RESERVE,
    STOP,
    Jobs,
    Reservation,
    WalkState,
    gang_of,
    new_walk,
    reserve_pairs,
    take_pairs,
    update_joint,
)
from brim.sim.compiled.orders import outlived
from brim.sim.compiled.scenario import Scenario
from brim.sim.feasibility import checked_types
from brim.sim.loop import Progress
from brim.units import WHOLE_GPU

_EVENTS_PER_CALL: Final = 200_000
"""Events between two reports of progress: some 50 ms."""
_NEVER: Final = np.iinfo(np.int64).max


class _QueueState(NamedTuple):
    """The state that the loop keeps between calls.

    Attributes:
        heap: (end time, job) of running jobs, a binary heap (J, 2).
        queue: Waiting rows in order; those before ``QUEUE_HEAD`` have left (J,). With a queue for each request, these
            follow each other, each with space for all of its jobs, and ``QUEUE_TAIL`` is the number of waiting jobs.
        first_start_ms: First start (J,).
        finish_ms: End (J,).
        number: Scalars, indexed by the names below.
        request_of: Request of each job (J,).
        request: One row for each of the R requests, with the columns named below (R, 5).
        active: Requests of waiting jobs, in no order (R,).
        freed: Nodes that got something back since the last round, in no order (N,).
        is_freed: Whether a node is among them (N,).
        shortest_ms: No job that waits with a request is estimated to take less (R,).
        begun: Rows in order of their start (J,).
        expected: Running rows that make progress, by their expected end, which is in ``Jobs.end_ms`` (J,).
    """

    heap: IntArray
    queue: IntArray
    first_start_ms: IntArray
    finish_ms: IntArray
    number: IntArray
    request_of: IntArray
    request: IntArray
    active: IntArray
    freed: IntArray
    is_freed: BoolArray
    shortest_ms: FloatArray
    begun: IntArray
    expected: IntArray


_HEAP_SIZE, _QUEUE_HEAD, _QUEUE_TAIL, _ARRIVED, _ENDED, _SINCE, _LAST, _NOW, _ROUNDS, _GRANTS = range(10)
_ACTIVE, _FREED, _BEGUN, _UNDER_WAY, _EXPECTED = range(10, 15)
_FIRST, _END, _CURSOR, _STATE, _STUCK = range(5)
"""Columns of ``request``: where its queue begins and ends, the next job to look at in this round, one of the states
below, and whether it does not fit since before this round."""
_OPEN, _SHORT, _OVER = range(3)
"""States of a request in a round: any of its jobs may start; only those that end before the reservation; none."""


@inline
def _push(heap: IntArray, at: int, time_ms: int, job: int) -> None:
    """Add an end to a heap of ``at`` entries."""
    while at > 0:
        up = (at - 1) // 2
        if heap[up, 0] <= time_ms:
            break
        heap[at, 0], heap[at, 1] = heap[up, 0], heap[up, 1]
        at = up
    heap[at, 0], heap[at, 1] = time_ms, job


@inline
def _pop(heap: IntArray, size: int) -> int:
    """Remove the earliest end, leaving ``size`` entries; returns its job."""
    job = heap[0, 1]
    time_ms, moved = heap[size, 0], heap[size, 1]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and heap[down + 1, 0] < heap[down, 0]:
            down += 1
        if heap[down, 0] >= time_ms:
            break
        heap[at, 0], heap[at, 1] = heap[down, 0], heap[down, 1]
        at = down
    heap[at, 0], heap[at, 1] = time_ms, moved
    return job


@inline
def _enqueue(queue: IntArray, head: int, tail: int, job: int, key: FloatArray) -> None:
    """Insert into queue[head:tail] by (key, row)."""
    low, high = head, tail
    if tail > head and key[queue[tail - 1]] <= key[job]:
        low = tail  # the usual case: the row is last
    while low < high:
        middle = (low + high) // 2
        if key[queue[middle]] <= key[job]:
            low = middle + 1
        else:
            high = middle
    for i in range(tail, low, -1):
        queue[i] = queue[i - 1]
    queue[low] = job


@inline
def _earlier(one: int, other: int, key: FloatArray) -> int:
    """Which of two jobs comes first in the order; -1 is none."""
    if one < 0 or key[other] < key[one] or (key[other] == key[one] and other < one):
        return other
    return one


@internal
def _round(
    s: _QueueState, free: FreeResources, reservation: Reservation, w: WalkState, jobs: Jobs, run_ms: IntArray,
    estimate_ms: FloatArray, key: FloatArray, start_ms: int, misfit: int, rule: int, classes: FloatArray,
) -> None:
    """Serve the queues from the resources that are free at ``NOW``, in order, and skip jobs that do not fit.

    With RESERVE, the first job that does not fit, the head, gets a reservation. It is only made once another job fits.
    """
    n, queue, request, active = s.number, s.queue, s.request, s.active
    now_ms = n[_NOW]
    _unstick(s, free, jobs)
    head, reserved = -1, False
    for a in range(n[_ACTIVE]):
        r = active[a]
        request[r, _CURSOR] = request[r, _FIRST]
        request[r, _STATE] = _OVER if request[r, _STUCK] else _OPEN
        if request[r, _STUCK]:
            head = _earlier(head, queue[request[r, _FIRST]], key)
    while True:
        j, r = -1, -1
        for a in range(n[_ACTIVE]):
            if request[active[a], _STATE] != _OVER:
                other = queue[request[active[a], _CURSOR]]
                if _earlier(j, other, key) == other:
                    j, r = other, active[a]
        if j < 0:
            break
        gang = gang_of(jobs, j)
        if not choose(free, gang, rule, classes, w.scratch, w.pairs):
            request[r, _STATE], request[r, _STUCK] = _OVER, 1
            head = _earlier(head, j, key)
            continue
        if misfit == RESERVE and head >= 0 and _earlier(head, j, key) == head:
            if not reserved:
                reserved = True
                _reserve(s, free, reservation, w, jobs, estimate_ms, start_ms, gang_of(jobs, head), rule, classes)
                choose(free, gang, rule, classes, w.scratch, w.pairs)
            if now_ms + estimate_ms[j] > w.shadow_ms[0]:
                if request[r, _STATE] == _SHORT or not choose(
                    reservation.joint, gang, rule, classes, w.scratch, w.pairs
                ):
                    request[r, _STATE] = _SHORT
                    _look_on(s, r, estimate_ms, w.shadow_ms[0])
                    continue
                take_pairs(reservation.future, gang, w.pairs)
        take_pairs(free, gang, w.pairs)
        _begin(s, w, j, gang.gpus, now_ms + start_ms + run_ms[j])
        if reserved:
            for i in range(gang.gpus):
                update_joint(free, reservation.future, reservation.joint, w.pairs[i, 0])
        _leave_queue(s, r)


@internal
def _unstick(s: _QueueState, free: FreeResources, jobs: Jobs) -> None:
    """Find the requests that may fit again: some of the gang fits on a node that got something back."""
    n, request = s.number, s.request
    for a in range(n[_ACTIVE]):
        r = s.active[a]
        if request[r, _STUCK]:
            gang = gang_of(jobs, s.queue[request[r, _FIRST]])
            for i in range(n[_FREED]):
                if slots_of(free.node, s.freed[i], gang) > 0:
                    request[r, _STUCK] = 0
                    break
    for i in range(n[_FREED]):
        s.is_freed[s.freed[i]] = False
    n[_FREED] = 0


@njit
def _reserve(
    s: _QueueState, free: FreeResources, reservation: Reservation, w: WalkState, jobs: Jobs, estimate_ms: FloatArray,
    start_ms: int, gang: GangRequest, rule: int, classes: FloatArray,
) -> None:
    """As ``walk.reserve``, with the expected ends kept in order between rounds."""
    n, expected, begun, end_ms = s.number, s.expected, s.begun, jobs.end_ms
    now_ms = n[_NOW]
    _get_under_way(s, jobs, estimate_ms, start_ms)
    while n[_EXPECTED] and end_ms[expected[0]] <= now_ms:  # it outlives its estimate
        v = expected[0]
        _forget(s, jobs, v)
        _expect(s, jobs, v, s.first_start_ms[v] + start_ms, estimate_ms[v])
    starting = begun[n[_UNDER_WAY] : n[_BEGUN]].copy()
    for i in range(len(starting)):
        v, at = starting[i], i
        end_ms[v] = now_ms + estimate_ms[v]
        while at > 0 and (end_ms[v], v) < (end_ms[starting[at - 1]], starting[at - 1]):
            starting[at] = starting[at - 1]
            at -= 1
        starting[at] = v
    copy_into(free, reservation.future)
    w.shadow_ms[0] = np.inf
    i, k = 0, 0
    while i < n[_EXPECTED] or k < len(starting):
        if k == len(starting) or (
            i < n[_EXPECTED] and (end_ms[expected[i]], expected[i]) < (end_ms[starting[k]], starting[k])
        ):
            v = expected[i]
            i += 1
        else:
            v = starting[k]
            k += 1
        give_all(reservation.future, gang_of(jobs, v), w.node, w.gpu, w.first[v])
        if (i < n[_EXPECTED] and end_ms[expected[i]] == end_ms[v]) or (
            k < len(starting) and end_ms[starting[k]] == end_ms[v]
        ):
            continue  # what all leave that end at this moment is free then
        if choose(reservation.future, gang, rule, classes, w.scratch, w.pairs):
            reserve_pairs(free, reservation, w, gang, end_ms[v])
            return


@internal
def _get_under_way(s: _QueueState, jobs: Jobs, estimate_ms: FloatArray, start_ms: int) -> None:
    """Expect the ends of the jobs that have begun to make progress by ``NOW``."""
    n = s.number
    while n[_UNDER_WAY] < n[_BEGUN]:
        v = s.begun[n[_UNDER_WAY]]
        from_ms = s.first_start_ms[v] + start_ms
        if from_ms > n[_NOW]:
            break
        _expect(s, jobs, v, from_ms, estimate_ms[v])
        n[_UNDER_WAY] += 1


@internal
def _expect(s: _QueueState, jobs: Jobs, v: int, from_ms: int, estimate_ms: float) -> None:
    """Insert a job that makes progress since ``from_ms`` among the expected ends."""
    n, expected = s.number, s.expected
    jobs.end_ms[v] = from_ms + outlived(estimate_ms, n[_NOW] - from_ms)
    at = _place_among(s, jobs, v)
    for i in range(n[_EXPECTED], at, -1):
        expected[i] = expected[i - 1]
    expected[at] = v
    n[_EXPECTED] += 1


@internal
def _forget(s: _QueueState, jobs: Jobs, v: int) -> None:
    """Remove a job from the expected ends."""
    n, expected = s.number, s.expected
    n[_EXPECTED] -= 1
    for i in range(_place_among(s, jobs, v), n[_EXPECTED]):
        expected[i] = expected[i + 1]


@internal
def _place_among(s: _QueueState, jobs: Jobs, v: int) -> int:
    """How many of the expected ends come before that of a job, by (end, row)."""
    low, high = 0, s.number[_EXPECTED]
    while low < high:
        middle = (low + high) // 2
        other = s.expected[middle]
        if (jobs.end_ms[other], other) < (jobs.end_ms[v], v):
            low = middle + 1
        else:
            high = middle
    return low


@internal
def _begin(s: _QueueState, w: WalkState, j: int, gpus: int, end_ms: int) -> None:
    """Start a job on the GPUs of ``w.pairs``."""
    n, start = s.number, w.used[0]
    w.first[j] = start
    for i in range(gpus):
        w.node[start + i], w.gpu[start + i] = w.pairs[i, 0], w.pairs[i, 1]
    w.used[0] = start + gpus
    s.first_start_ms[j] = n[_NOW]
    s.begun[n[_BEGUN]] = j
    n[_BEGUN] += 1
    _push(s.heap, n[_HEAP_SIZE], end_ms, j)
    n[_HEAP_SIZE] += 1


@internal
def _look_on(s: _QueueState, r: int, estimate_ms: FloatArray, shadow_ms: float) -> None:
    """Move the cursor of a request to its next job that would end by ``shadow_ms``."""
    queue, request, now_ms = s.queue, s.request, s.number[_NOW]
    at, end = request[r, _CURSOR] + 1, request[r, _END]
    if now_ms + s.shortest_ms[r] > shadow_ms:
        at = end
    while at < end and now_ms + estimate_ms[queue[at]] > shadow_ms:
        at += 1
        if at == end:  # learn what would have said so at once
            s.shortest_ms[r] = np.inf
            for i in range(request[r, _FIRST], end):
                s.shortest_ms[r] = min(s.shortest_ms[r], estimate_ms[queue[i]])
    request[r, _CURSOR] = at
    if at >= end:
        request[r, _STATE] = _OVER


@internal
def _leave_queue(s: _QueueState, r: int) -> None:
    """Remove the job at the cursor of a request, and move the cursor to the next."""
    n, queue, request = s.number, s.queue, s.request
    first, at = request[r, _FIRST], request[r, _CURSOR]
    for i in range(at, first, -1):
        queue[i] = queue[i - 1]
    request[r, _FIRST], request[r, _CURSOR] = first + 1, at + 1
    if at + 1 >= request[r, _END]:
        request[r, _STATE] = _OVER
    if first + 1 == request[r, _END]:
        n[_ACTIVE] -= 1
        for a in range(n[_ACTIVE]):
            if s.active[a] == r:
                s.active[a] = s.active[n[_ACTIVE]]
                break
    n[_QUEUE_TAIL] -= 1


@in_place
def _advance(
    s: _QueueState, free: FreeResources, reservation: Reservation, w: WalkState, jobs: Jobs, submit_ms: IntArray,
    run_ms: IntArray, estimate_ms: FloatArray, key: FloatArray, start_ms: int, gap_ms: int, misfit: int, rule: int,
    classes: FloatArray, events: int,
) -> bool:
    """Handle up to ``events`` events and the rounds between them; returns whether every job has ended.

    The strict order is served here, the others in ``_round``.
    """
    n, heap, queue, shortest_ms = s.number, s.heap, s.queue, s.shortest_ms
    request_of, request, active, freed, is_freed = s.request_of, s.request, s.active, s.freed, s.is_freed
    first_start_ms, finish_ms = s.first_start_ms, s.finish_ms
    gpus, share, cpu, mem, gpu_type = jobs.gpus, jobs.share, jobs.cpu, jobs.mem, jobs.gpu_type
    grant_node, grant_gpu, first, scratch, pairs = w.node, w.gpu, w.first, w.scratch, w.pairs
    size, head, tail, used = n[_HEAP_SIZE], n[_QUEUE_HEAD], n[_QUEUE_TAIL], n[_GRANTS]
    arrived, ended, since_ms, last_ms, rounds = n[_ARRIVED], n[_ENDED], n[_SINCE], n[_LAST], n[_ROUNDS]
    J, now_ms = len(submit_ms), n[_NOW]
    while ended < J and events > 0:
        due_ms = _NEVER
        if tail > head and since_ms >= 0:
            due_ms = max(since_ms, last_ms + gap_ms) if rounds else since_ms
        end_ms = heap[0, 0] if size else _NEVER
        arrival_ms = submit_ms[arrived] if arrived < J else _NEVER
        if due_ms < min(end_ms, arrival_ms):
            now_ms, last_ms, since_ms = due_ms, due_ms, -1
            rounds += 1
            if misfit != STOP:
                n[_HEAP_SIZE], n[_QUEUE_HEAD], n[_QUEUE_TAIL], n[_NOW] = size, head, tail, now_ms
                _round(s, free, reservation, w, jobs, run_ms, estimate_ms, key, start_ms, misfit, rule, classes)
                size, tail = n[_HEAP_SIZE], n[_QUEUE_TAIL]
                continue
            while tail > head:
                j = queue[head]
                gang = GangRequest(gpus[j], share[j], cpu[j], mem[j], gpu_type[j])
                if has_too_few(free, gang) or not choose(free, gang, rule, classes, scratch, pairs):
                    break
                first[j] = used
                for i in range(gang.gpus):
                    grant_node[used], grant_gpu[used] = pairs[i, 0], pairs[i, 1]
                    used += 1
                take_all(free, gang, grant_node, grant_gpu, first[j])
                first_start_ms[j] = now_ms
                _push(heap, size, now_ms + start_ms + run_ms[j], j)
                size += 1
                head += 1
            continue
        events -= 1
        if end_ms <= arrival_ms:
            now_ms = end_ms
            size -= 1
            j = _pop(heap, size)
            finish_ms[j] = end_ms
            ended += 1
            if misfit == RESERVE:
                n[_NOW] = now_ms
                _get_under_way(s, jobs, estimate_ms, start_ms)
                _forget(s, jobs, j)
            gang = GangRequest(gpus[j], share[j], cpu[j], mem[j], gpu_type[j])
            give_all(free, gang, grant_node, grant_gpu, first[j])
            if misfit != STOP:
                for i in range(first[j], first[j] + gang.gpus):
                    if not is_freed[grant_node[i]]:
                        is_freed[grant_node[i]] = True
                        freed[n[_FREED]] = grant_node[i]
                        n[_FREED] += 1
        else:
            now_ms = arrival_ms
            if misfit == STOP:
                _enqueue(queue, head, tail, arrived, key)
            else:
                r = request_of[arrived]
                if request[r, _FIRST] == request[r, _END]:
                    active[n[_ACTIVE]], request[r, _STUCK], shortest_ms[r] = r, 0, np.inf
                    n[_ACTIVE] += 1
                shortest_ms[r] = min(shortest_ms[r], estimate_ms[arrived])
                _enqueue(queue, request[r, _FIRST], request[r, _END], arrived, key)
                request[r, _END] += 1
            tail += 1
            arrived += 1
        if since_ms < 0 and tail > head:
            since_ms = now_ms
    n[_HEAP_SIZE], n[_QUEUE_HEAD], n[_QUEUE_TAIL], n[_GRANTS] = size, head, tail, used
    n[_ARRIVED], n[_ENDED], n[_SINCE], n[_LAST], n[_ROUNDS] = arrived, ended, since_ms, last_ms, rounds
    n[_NOW] = now_ms
    return ended == J


def run_queues(scenario: Scenario, on_progress: Progress) -> dict[str, Any]:
    """Replay without leaving compiled code; same columns as the general loop.

    Raises:
        ConfigError: a job could not run even on the empty cluster.
    """
    trace, cluster, policy, overheads = scenario.trace, scenario.cluster, scenario.policy, scenario.overheads
    assert isinstance(policy.place, Consolidate | Spread)  # as eligible_loop checked
    J, run_ms = len(trace), scenario.truth.run_ms
    gpu_type = checked_types(trace, cluster)
    is_known = isinstance(scenario.run_times, TrueRunTimes)
    estimate_ms = np.maximum(run_ms if is_known else trace.time_limit_ms, 1).astype(float)
    key = estimate_ms if isinstance(policy.order, ShortestJob) else np.zeros(J)
    everything = np.ones(cluster.num_nodes, dtype=np.bool_)
    free = all_free(cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, everything,
                      len(cluster.gpu_types))
    reservation = Reservation(copy_of(free), copy_of(free))
    walk_state = new_walk(cluster.num_nodes, int(trace.gpus.sum()), J, int(trace.gpus.max(initial=1)))
    nobody = np.zeros(0, dtype=np.bool_)
    jobs = Jobs(trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib, gpu_type, nobody, nobody, np.zeros(J))
    request_of = np.zeros(J, dtype=np.int64) if policy.place.misfit == "stop" else _requests(trace, gpu_type)
    counts = np.bincount(request_of)
    request = np.zeros((len(counts), 5), dtype=np.int64)
    request[:, _FIRST] = request[:, _END] = np.cumsum(counts) - counts
    state = _QueueState(
        heap=np.zeros((J + 1, 2), dtype=np.int64), queue=np.zeros(J, dtype=np.int64),
        first_start_ms=np.full(J, NONE, dtype=np.int64), finish_ms=np.full(J, NONE, dtype=np.int64),
        number=np.zeros(15, dtype=np.int64),
        request_of=request_of, request=request, active=np.zeros(len(request), dtype=np.int64),
        freed=np.zeros(cluster.num_nodes, dtype=np.int64), is_freed=np.zeros(cluster.num_nodes, dtype=np.bool_),
        shortest_ms=np.full(len(request), np.inf), begun=np.zeros(J, dtype=np.int64),
        expected=np.zeros(J, dtype=np.int64),
    )
    state.number[_SINCE] = -1
    over = partial = False
    while not over and not partial:
        over = _advance(
            state, free, reservation, walk_state, jobs, trace.submit_ms, run_ms, estimate_ms, key, overheads.start_ms,
            scenario.gap_ms, MISFIT[policy.place.misfit], policy.place.rule, NO_CLASSES, _EVENTS_PER_CALL,
        )
        partial = not on_progress(int(state.number[_ENDED]), int(state.number[_NOW])) and not over
    return _columns(trace, cluster, run_ms, state, walk_state, partial)


def _requests(trace: Trace, gpu_type: IntArray) -> IntArray:
    """Number each job's request (J,): equal for jobs that ask for the same."""
    request_of = np.zeros(len(trace), dtype=np.int64)
    for column in (trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib, gpu_type):
        values, place = np.unique(column, return_inverse=True)
        if len(values) > 1:
            request_of = np.unique(request_of * len(values) + place, return_inverse=True)[1]
    return request_of


def _columns(
    trace: Trace, cluster: Cluster, run_ms: IntArray, state: _QueueState, walk_state: WalkState, partial: bool,
) -> dict[str, Any]:
    now_ms = int(state.number[_NOW])
    start, finish = state.first_start_ms, state.finish_ms
    over, begun = finish != NONE, start != NONE
    end = np.where(over, finish, now_ms)
    held_ms = np.where(begun, end - start, 0)
    moved_ms = np.where(over, run_ms, 0)
    weight = trace.gpus * trace.share_milli
    job = np.flatnonzero(held_ms > 0)
    job = job[np.argsort(start[job], kind="stable")]  # by start, then row
    counts = trace.gpus[job]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    picks: IntArray | slice = slice(0, int(offsets[-1]))  # grants are in order of start, unless a run had no length
    if not np.array_equal(walk_state.first[job], offsets[:-1]):
        picks = np.repeat(walk_state.first[job] - offsets[:-1], counts) + np.arange(offsets[-1])
    none = np.zeros(len(trace), dtype=np.int64)
    columns = {
        "first_start_ms": start, "finish_ms": finish, "service_gpu_ms": held_ms * weight // WHOLE_GPU,
        "useful_gpu_ms": moved_ms * weight // WHOLE_GPU, "lost_gpu_ms": none, "preemptions": none, "restarts": none,
        "resizes": none, "failed": none, "rejected": none, "unmeasured": none,
        "rejected_ms": np.full(len(trace), NONE, dtype=np.int64),
    }
    return {
        **{name: frozen(column) for name, column in columns.items()},
        "runs": Runs(
            job=frozen(job), start_ms=frozen(start[job]), end_ms=frozen(end[job]),
            share_milli=frozen(trace.share_milli[job]), first_gpu=frozen(offsets),
            gpu=frozen(cluster.gpu_offset_N[walk_state.node[picks]] + walk_state.gpu[picks]),
            cores_milli=frozen(trace.cpu_milli[job] * np.diff(offsets)),
        ),
        "end_ms": now_ms, "partial": partial, "rounds": int(state.number[_ROUNDS]), "round_s": np.zeros(0),
    }
