"""The compiled lane: the twin's event loop for policies whose order is fixed when a job is submitted.

Such a policy (first come, shortest job by known estimates) never interrupts who runs, so a round is: serve the queue in
its order with what is free. The lane keeps the queue and the free resources between rounds instead of building a
snapshot for each, and calls the same compiled ``serve`` as the place parts do. Its results equal the general loop's bit
for bit, which a property test shows; why it exists: docs/decisions/0005.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit

from brim.beliefs.runtime import RunTimes, TrueRunTimes, UserLimits
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.replay import Runs
from brim.core.trace import NONE, Trace
from brim.policies.order.arrival import Arrival
from brim.policies.order.shortest import ShortestJob
from brim.policies.place.parts import MISFIT, NO_CLASSES, Consolidate, Spread
from brim.policies.place.room import Ask, Classes, empty_room, give
from brim.policies.place.walk import RESERVE, STOP, Course, Jobs, serve, set_out
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy
from brim.sim.overheads import Faults, Overheads
from brim.sim.truth import check_fits, type_codes
from brim.units import WHOLE_GPU

_EVENTS_PER_CALL: Final = 200_000
"""Events between two looks at progress: some 50 ms."""
_NEVER: Final = np.iinfo(np.int64).max


def can_take_lane(policy: Policy, trace: Trace, faults: Faults, believed: RunTimes) -> bool:
    """Whether the policy's order is fixed at submission here, and nothing interrupts a job."""
    fixed = not policy.asks_run_times or isinstance(believed, TrueRunTimes) or (
        isinstance(believed, UserLimits) and bool((trace.time_limit_ms != NONE).all())
    )
    return (
        fixed and isinstance(policy.order, Arrival | ShortestJob) and isinstance(policy.place, Consolidate | Spread)
        and isinstance(policy.size, AsAsked) and not policy.period_ms and not faults.any
        and bool((trace.after == NONE).all())
    )


class _Books(NamedTuple):
    """What the lane keeps between calls.

    Attributes:
        heap: (end time, job) of running jobs, a binary heap (J, 2).
        queue: Waiting rows in order; those before ``QUEUE_HEAD`` are gone (J,).
        running: Rows that run, in no order (J,).
        place_of: Where a running row stands in ``running`` (J,).
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


_HEAP_SIZE, _QUEUE_HEAD, _QUEUE_TAIL, _RUNNING, _ARRIVED, _ENDED, _SINCE, _LAST, _NOW, _ROUNDS = range(10)


@njit(cache=True)
def _push(b: _Books, time_ms: int, job: int) -> None:
    heap, at = b.heap, b.number[_HEAP_SIZE]
    b.number[_HEAP_SIZE] += 1
    while at > 0:
        up = (at - 1) // 2
        if heap[up, 0] <= time_ms:
            break
        heap[at, 0], heap[at, 1] = heap[up, 0], heap[up, 1]
        at = up
    heap[at, 0], heap[at, 1] = time_ms, job


@njit(cache=True)
def _pop(b: _Books) -> int:
    """Remove the earliest end; returns its job."""
    heap = b.heap
    b.number[_HEAP_SIZE] -= 1
    size, job = b.number[_HEAP_SIZE], heap[0, 1]
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


@njit(cache=True)
def _enqueue(b: _Books, job: int, key: FloatArray) -> None:
    """Insert by (key, row)."""
    low, high = b.number[_QUEUE_HEAD], b.number[_QUEUE_TAIL]
    while low < high:
        middle = (low + high) // 2
        if key[b.queue[middle]] <= key[job]:
            low = middle + 1
        else:
            high = middle
    for i in range(b.number[_QUEUE_TAIL], low, -1):
        b.queue[i] = b.queue[i - 1]
    b.queue[low] = job
    b.number[_QUEUE_TAIL] += 1


@njit(cache=True)
def _outlived(estimate_ms: float, run_ms: int) -> float:
    """``beliefs.runtime``: double an estimate until it lies above the time already run."""
    if run_ms >= estimate_ms:
        return estimate_ms * 2.0 ** (np.floor(np.log2(run_ms / estimate_ms)) + 1)
    return estimate_ms


@njit(cache=True)
def _round(
    b: _Books, c: Course, jobs: Jobs, run_ms: IntArray, estimate_ms: FloatArray, start_ms: int, misfit: int, rule: int,
    classes: Classes,
) -> None:
    """Serve the queue with what is free at ``NOW``."""
    now_ms = b.number[_NOW]
    if misfit == RESERVE:
        for i in range(b.number[_RUNNING]):
            v = b.running[i]
            ran_ms = max(0, now_ms - b.first_start_ms[v] - start_ms)
            jobs.end_ms[v] = now_ms + (_outlived(estimate_ms[v], ran_ms) - ran_ms)
        for i in range(b.number[_QUEUE_HEAD], b.number[_QUEUE_TAIL]):
            jobs.end_ms[b.queue[i]] = now_ms + estimate_ms[b.queue[i]]
    c.head[0] = -1
    kept = b.number[_QUEUE_HEAD]
    nobody = b.running[:0]
    for i in range(b.number[_QUEUE_HEAD], b.number[_QUEUE_TAIL]):
        j = b.queue[i]
        runs = nobody
        if misfit == RESERVE and c.head[0] < 0:
            runs = np.sort(b.running[: b.number[_RUNNING]])
        ask = Ask(jobs.gpus[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])
        if serve(c, jobs, j, ask, misfit, rule, classes, nobody, runs):
            b.first_start_ms[j] = now_ms
            b.place_of[j] = b.number[_RUNNING]
            b.running[b.number[_RUNNING]] = j
            b.number[_RUNNING] += 1
            _push(b, now_ms + start_ms + run_ms[j], j)
        elif misfit == STOP:
            kept = i  # everybody before it has started
            break
        else:
            b.queue[kept] = j
            kept += 1
        if misfit == STOP:
            kept = i + 1
    if misfit == STOP:
        b.number[_QUEUE_HEAD] = kept
    else:
        b.number[_QUEUE_TAIL] = kept
    b.number[_ROUNDS] += 1
    b.number[_LAST], b.number[_SINCE] = now_ms, -1


@njit(cache=True)
def _advance(
    b: _Books, c: Course, jobs: Jobs, submit_ms: IntArray, run_ms: IntArray, estimate_ms: FloatArray, key: FloatArray,
    start_ms: int, gap_ms: int, misfit: int, rule: int, classes: Classes, events: int,
) -> bool:
    """Handle up to ``events`` events and the rounds between them; returns whether every job is over."""
    n = b.number
    J = len(submit_ms)
    while n[_ENDED] < J and events > 0:
        waits = n[_QUEUE_TAIL] > n[_QUEUE_HEAD]
        due_ms = _NEVER
        if waits and n[_SINCE] >= 0:
            due_ms = max(n[_SINCE], n[_LAST] + gap_ms) if n[_ROUNDS] else n[_SINCE]
        end_ms = b.heap[0, 0] if n[_HEAP_SIZE] else _NEVER
        arrival_ms = submit_ms[n[_ARRIVED]] if n[_ARRIVED] < J else _NEVER
        if due_ms < min(end_ms, arrival_ms):
            n[_NOW] = due_ms
            _round(b, c, jobs, run_ms, estimate_ms, start_ms, misfit, rule, classes)
            continue
        events -= 1
        if end_ms <= arrival_ms:
            n[_NOW] = end_ms
            j = _pop(b)
            b.finish_ms[j] = end_ms
            n[_ENDED] += 1
            n[_RUNNING] -= 1
            last = b.running[n[_RUNNING]]
            b.running[b.place_of[j]] = last
            b.place_of[last] = b.place_of[j]
            ask = Ask(jobs.gpus[j], jobs.share[j], jobs.cpu[j], jobs.mem[j], jobs.gpu_type[j])
            for i in range(c.first[j], c.first[j] + jobs.gpus[j]):
                give(c.room, ask, c.node[i], c.gpu[i])
        else:
            n[_NOW] = arrival_ms
            _enqueue(b, n[_ARRIVED], key)
            n[_ARRIVED] += 1
        if n[_SINCE] < 0 and n[_QUEUE_TAIL] > n[_QUEUE_HEAD]:
            n[_SINCE] = n[_NOW]
    return n[_ENDED] == J


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
    assert isinstance(policy.place, Consolidate | Spread)  # noqa: S101 - can_take_lane said so
    J = len(trace)
    gpu_type = type_codes(trace, cluster)[trace.gpu_type] if J else trace.gpu_type
    check_fits(trace, cluster, gpu_type)
    estimate_ms = np.maximum(run_ms if isinstance(believed, TrueRunTimes) else trace.time_limit_ms, 1).astype(float)
    key = estimate_ms if isinstance(policy.order, ShortestJob) else np.zeros(J)
    everything = np.ones(cluster.num_nodes, dtype=np.bool_)
    room = empty_room(cluster.gpu_type_N, cluster.gpus_N, cluster.cpu_milli_N, cluster.mem_mib_N, everything,
                      len(cluster.gpu_types))
    course = set_out(room, int(trace.gpus.sum()), J, int(trace.gpus.max(initial=1)))
    nobody = np.zeros(0, dtype=np.bool_)
    jobs = Jobs(trace.gpus, trace.share_milli, trace.cpu_milli, trace.mem_mib, gpu_type, nobody, nobody, np.zeros(J))
    empty = [np.full(J, NONE, dtype=np.int64) for _ in range(5)]
    books = _Books(np.zeros((J + 1, 2), dtype=np.int64), *empty, np.zeros(10, dtype=np.int64))
    books.number[_SINCE] = -1
    over = partial = False
    while not over and not partial:
        over = _advance(
            books, course, jobs, trace.submit_ms, run_ms, estimate_ms, key, overheads.start_ms, gap_ms,
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
    job = job[np.lexsort((job, start[job]))]
    counts = trace.gpus[job]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    picks = np.repeat(course.first[job] - offsets[:-1], counts) + np.arange(offsets[-1])
    none = np.zeros(len(trace), dtype=np.int64)
    columns = {
        "first_start_ms": start, "finish_ms": finish, "service_gpu_ms": held_ms * weight // WHOLE_GPU,
        "useful_gpu_ms": moved_ms * weight // WHOLE_GPU, "lost_gpu_ms": none, "preemptions": none, "restarts": none,
        "failed": none,
    }
    return {
        **{name: frozen(column) for name, column in columns.items()},
        "runs": Runs(
            job=frozen(job), start_ms=frozen(start[job]), end_ms=frozen(end[job]), first_gpu=frozen(offsets),
            gpu=frozen(cluster.gpu_offset_N[course.node[picks]] + course.gpu[picks]),
        ),
        "end_ms": now_ms, "partial": partial, "rounds": int(books.number[_ROUNDS]), "round_s": np.zeros(0),
    }
