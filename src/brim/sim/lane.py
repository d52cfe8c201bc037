"""The compiled lane: the twin's event loop for policies whose order is fixed when a job is submitted.

Such a policy (first come, shortest job by known estimates) never interrupts running jobs, so a round only serves the
queue, in order, from the free resources. The lane keeps the queue and the free resources between rounds instead of
building a snapshot for each, and calls the same compiled ``serve`` as the place parts. Its results equal those of the
general loop bit for bit, which a property test checks. docs/decisions/0005 gives the reasons for the lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from brim.beliefs.runtime import RunTimes, TrueRunTimes, UserLimits
from brim.compiled import inline, njit
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.replay import Runs
from brim.core.trace import NONE, Trace
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.order.shortest import ShortestJob
from brim.policies.place.parts import MISFIT, NO_CLASSES, Consolidate, Spread
from brim.policies.place.room import Ask, Room, choose, copy_room, empty_room, give, hopeless, take
from brim.policies.place.walk import RESERVE, STOP, Ahead, Course, Jobs, ask_of, serve, set_out
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy
from brim.sim.overheads import Faults, Overheads
from brim.sim.truth import check_fits, type_codes
from brim.units import WHOLE_GPU

_EVENTS_PER_CALL: Final = 200_000
"""Events between two reports of progress: some 50 ms."""
_NEVER: Final = np.iinfo(np.int64).max


def can_take_lane(policy: Policy, trace: Trace, faults: Faults, believed: RunTimes) -> bool:
    """Whether the policy's order is fixed at submission in this replay, and nothing interrupts a job.

    Types are compared exactly, because the lane implements only the parts it knows, and a subclass may differ.
    """
    fixed = not policy.asks_run_times or type(believed) is TrueRunTimes or (
        type(believed) is UserLimits and bool((trace.time_limit_ms != NONE).all())
    )
    return (
        type(policy) is Policy and type(policy.order) in (Arrival, ShortestJob) and type(policy.size) is AsAsked
        and type(policy.place) in (Consolidate, Spread) and type(policy.feed) is Even and type(policy.fill) is NoFill
        and getattr(policy.place, "misfit", "") in MISFIT and fixed and not policy.period_ms and not policy.gap_ms
        and not faults.any
        and bool((trace.after == NONE).all())
    )


class _Books(NamedTuple):
    """The state that the lane keeps between calls.

    Attributes:
        heap: (end time, job) of running jobs, a binary heap (J, 2).
        queue: Waiting rows in order; those before ``QUEUE_HEAD`` have left (J,).
        running: Running rows, in no order (J,).
        place_of: Position of a running row in ``running`` (J,).
        first_start_ms: First start (J,).
        finish_ms: End (J,).
        number: Scalars, indexed by the names below.
    """

    heap: IntArray
    queue: IntArray
    running: IntArray
    place_of: IntArray
    first_start_ms: IntArray
    finish_ms: IntArray
    number: IntArray


_HEAP_SIZE, _QUEUE_HEAD, _QUEUE_TAIL, _RUNNING, _ARRIVED, _ENDED, _SINCE, _LAST, _NOW, _ROUNDS, _GRANTS = range(11)


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


@njit
def _outlived(estimate_ms: float, run_ms: int) -> float:
    """``beliefs.runtime``: double an estimate until it lies above the time already run."""
    if run_ms >= estimate_ms:
        return estimate_ms * 2.0 ** (np.floor(np.log2(run_ms / estimate_ms)) + 1)
    return estimate_ms


@njit
def _round(
    b: _Books, room: Room, ahead: Ahead, c: Course, jobs: Jobs, run_ms: IntArray, estimate_ms: FloatArray,
    start_ms: int, misfit: int, rule: int, classes: FloatArray,
) -> None:
    """Serve the queue from the resources that are free at ``NOW``, and skip jobs that do not fit."""
    n, queue, running = b.number, b.queue, b.running
    now_ms, head, tail = n[_NOW], n[_QUEUE_HEAD], n[_QUEUE_TAIL]
    if misfit == RESERVE:
        for v in running[: n[_RUNNING]]:
            ran_ms = max(0, now_ms - b.first_start_ms[v] - start_ms)
            jobs.end_ms[v] = now_ms + (_outlived(estimate_ms[v], ran_ms) - ran_ms)
        for j in queue[head:tail]:
            jobs.end_ms[j] = now_ms + estimate_ms[j]
    c.head[0] = -1
    for row in range(len(c.failed)):
        c.failed[row, 5] = 0
    kept = head
    nobody = running[:0]
    for i in range(head, tail):
        j = queue[i]
        runs = nobody
        if misfit == RESERVE and c.head[0] < 0:
            runs = running[: n[_RUNNING]]
        if serve(room, ahead, c, jobs, j, ask_of(jobs, j), misfit, rule, classes, nobody, runs):
            b.first_start_ms[j] = now_ms
            b.place_of[j] = n[_RUNNING]
            running[n[_RUNNING]] = j
            n[_RUNNING] += 1
            _push(b.heap, n[_HEAP_SIZE], now_ms + start_ms + run_ms[j], j)
            n[_HEAP_SIZE] += 1
        else:
            queue[kept] = j
            kept += 1
    n[_QUEUE_TAIL] = kept


@njit
def _advance(
    b: _Books, room: Room, ahead: Ahead, c: Course, jobs: Jobs, submit_ms: IntArray, run_ms: IntArray,
    estimate_ms: FloatArray, key: FloatArray, start_ms: int, gap_ms: int, misfit: int, rule: int,
    classes: FloatArray, events: int,
) -> bool:
    """Handle up to ``events`` events and the rounds between them; returns whether every job has ended.

    Arrays have local names, and the strict order is served in this function, because compiled code counts references to
    all arrays of a tuple that it passes to a function, which would cost more than the serving.
    """
    n, heap, queue, running, place_of = b.number, b.heap, b.queue, b.running, b.place_of
    first_start_ms, finish_ms = b.first_start_ms, b.finish_ms
    gpus, share, cpu, mem, gpu_type = jobs.gpus, jobs.share, jobs.cpu, jobs.mem, jobs.gpu_type
    grant_node, grant_gpu, first, scratch, pairs = c.node, c.gpu, c.first, c.scratch, c.pairs
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
                _round(b, room, ahead, c, jobs, run_ms, estimate_ms, start_ms, misfit, rule, classes)
                size, tail = n[_HEAP_SIZE], n[_QUEUE_TAIL]
                continue
            while tail > head:
                j = queue[head]
                ask = Ask(gpus[j], share[j], cpu[j], mem[j], gpu_type[j])
                if hopeless(room, ask) or not choose(room, ask, rule, classes, scratch, pairs):
                    break
                first[j] = used
                for i in range(ask.gpus):
                    grant_node[used], grant_gpu[used] = pairs[i, 0], pairs[i, 1]
                    take(room, ask, pairs[i, 0], pairs[i, 1])
                    used += 1
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
            if misfit != STOP:
                n[_RUNNING] -= 1
                last = running[n[_RUNNING]]
                running[place_of[j]] = last
                place_of[last] = place_of[j]
            ask = Ask(gpus[j], share[j], cpu[j], mem[j], gpu_type[j])
            for i in range(first[j], first[j] + ask.gpus):
                give(room, ask, grant_node[i], grant_gpu[i])
        else:
            now_ms = arrival_ms
            _enqueue(queue, head, tail, arrived, key)
            tail += 1
            arrived += 1
        if since_ms < 0 and tail > head:
            since_ms = now_ms
    n[_HEAP_SIZE], n[_QUEUE_HEAD], n[_QUEUE_TAIL], n[_GRANTS] = size, head, tail, used
    n[_ARRIVED], n[_ENDED], n[_SINCE], n[_LAST], n[_ROUNDS] = arrived, ended, since_ms, last_ms, rounds
    n[_NOW] = now_ms
    return ended == J


def run_lane(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    run_ms: IntArray,
    believed: RunTimes,
    overheads: Overheads,
    gap_ms: int,
    on_progress: Callable[[int, int], bool] | None,
) -> dict[str, Any]:
    """Replay without leaving compiled code; same columns as the general loop.

    Raises:
        ConfigError: a job could not run even on the empty cluster.
    """
    assert isinstance(policy.place, Consolidate | Spread)  # as can_take_lane checked
    J = len(trace)
    gpu_type = type_codes(trace, cluster)[trace.gpu_type] if J else trace.gpu_type
    check_fits(trace, cluster, gpu_type)
    estimate_ms = np.maximum(run_ms if isinstance(believed, TrueRunTimes) else trace.time_limit_ms, 1).astype(float)
    key = estimate_ms if isinstance(policy.order, ShortestJob) else np.zeros(J)
    everything = np.ones(cluster.num_nodes, dtype=np.bool_)
    room = empty_room(cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, everything,
                      len(cluster.gpu_types))
    ahead = Ahead(copy_room(room), copy_room(room))
    course = set_out(cluster.num_nodes, int(trace.gpus.sum()), J, int(trace.gpus.max(initial=1)))
    nobody = np.zeros(0, dtype=np.bool_)
    jobs = Jobs(trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib, gpu_type, nobody, nobody, np.zeros(J))
    books = _Books(
        heap=np.zeros((J + 1, 2), dtype=np.int64), queue=np.zeros(J, dtype=np.int64),
        running=np.zeros(J, dtype=np.int64), place_of=np.zeros(J, dtype=np.int64),
        first_start_ms=np.full(J, NONE, dtype=np.int64), finish_ms=np.full(J, NONE, dtype=np.int64),
        number=np.zeros(11, dtype=np.int64),
    )
    books.number[_SINCE] = -1
    over = partial = False
    while not over and not partial:
        over = _advance(
            books, room, ahead, course, jobs, trace.submit_ms, run_ms, estimate_ms, key, overheads.start_ms, gap_ms,
            MISFIT[policy.place.misfit], policy.place.rule, NO_CLASSES, _EVENTS_PER_CALL,
        )
        if on_progress:
            partial = not on_progress(int(books.number[_ENDED]), int(books.number[_NOW])) and not over
    return _columns(trace, cluster, run_ms, overheads, books, course, partial)


def _columns(
    trace: Trace, cluster: Cluster, run_ms: IntArray, overheads: Overheads, books: _Books, course: Course,
    partial: bool,
) -> dict[str, Any]:
    now_ms = int(books.number[_NOW])
    start, finish = books.first_start_ms, books.finish_ms
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
    if not np.array_equal(course.first[job], offsets[:-1]):
        picks = np.repeat(course.first[job] - offsets[:-1], counts) + np.arange(offsets[-1])
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
            gpu=frozen(cluster.gpu_offset_N[course.node[picks]] + course.gpu[picks]),
        ),
        "end_ms": now_ms, "partial": partial, "rounds": int(books.number[_ROUNDS]), "round_s": np.zeros(0),
    }
