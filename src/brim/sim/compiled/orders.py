"""The shipped orders as sort keys: what each order part decides, for the compiled loop.

A part's order is a sort by (lead, key, tie). The keys equal those of the parts bit for bit, so every formula keeps the
order in which the part adds and divides; ``tests/sim/test_compiled_loop.py`` compares them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.runtime import UNKNOWN_RUN_MS
from brim.compiled import inline, internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.lifecycle import Phase
from brim.core.trace import NONE
from brim.core.usage import USAGE_HALF_LIFE_MS
from brim.policies.place.free_resources import WHOLE

ARRIVAL, SHORTEST_JOB, SHORTEST_REMAINING, LEAST_ATTAINED = range(4)
GITTINS, SERVICE_QUEUES, TWO_QUEUES, MAX_MIN = range(4, 8)
LIMITS, HISTORY, TRUE = range(3)
"""Sources of run times."""

(GPUS, SHARE, CPU, MEM, TYPE, SUBMIT, RUN, LIMIT, USER, AFTER, AFTER_MS, CLASS, GRANTS) = range(13)
"""Columns of ``LoopState.job`` that do not change. ``GRANTS`` says where the job's present GPUs are written, ``CLASS``
is its row of ``LoopState.classes``."""
(PHASE, SINCE, UNDER_WAY, PROGRESS, SERVICE, MEMO, PLACEMENTS, BEGIN, FROM, SAVED, TIE) = range(13, 24)
"""Columns that the state has too; then when an attempt got its GPUs, when it makes progress from, when its last save is
done, and the job's tie in the order."""
(INTERVAL, LAST_INTERVAL, INTERVAL_MS) = range(24, 27)
"""The attempt's present interval of equal pace, its last one, and when the present one began."""
(FIRST_START, FINISH, HELD_FOR, USEFUL, PREEMPTIONS, RESTARTS) = range(27, 33)
"""Columns of ``Replay``."""
COLUMNS: Final = 33
GONE: Final = -1
HELD, PENDING, STARTING, RUNNING, STOPPING = (int(phase) for phase in Phase)
_UNKNOWN_RUN_MS: Final = float(UNKNOWN_RUN_MS)
_HALF_LIFE_MS: Final = USAGE_HALF_LIFE_MS
_LATER: Final = 1 << 40
"""Above every job id."""


class OrderState(NamedTuple):
    """What an order part reads besides the job: its constants, and what ended jobs have left.

    Attributes:
        order: One of the orders above (1,).
        source: Source of run times (1,).
        ints: Constants of the part that are whole numbers: a quantum, a threshold, or a number of jobs (1,).
        floats: ``promote_ratio`` or ``horizon_ms``, then the half by which usage decays (2,).
        thresholds: Thresholds of ``ServiceQueues``, increasing.
        weight: Weight of each user (U,).
        usage: GPU time of ended attempts per user, decayed up to ``usage_ms`` (U,).
        usage_ms: Time up to which usage has decayed (1,).
        runs: Last and previous run time of each user (U, 2).
        edges: Bin edges of the histogram of service (B,).
        ended: Ended jobs by service (B,).
        rank: Gittins index by bin, with its sign changed (B,).
        stale: Whether a job has ended since ``rank`` was computed (1,).
        lead: Whether the job comes before all others (J,).
        key: Sort key (J,).
    """

    order: IntArray
    source: IntArray
    ints: IntArray
    floats: FloatArray
    thresholds: IntArray
    weight: FloatArray
    usage: FloatArray
    usage_ms: IntArray
    runs: IntArray
    edges: FloatArray
    ended: IntArray
    rank: FloatArray
    stale: BoolArray
    lead: BoolArray
    key: FloatArray


@inline
def holds(job: IntArray, j: int) -> bool:
    """Whether a job has GPUs."""
    return bool(job[j, PHASE] in (STARTING, RUNNING))


@inline
def run_now(job: IntArray, j: int, now_ms: int) -> int:
    """Time in which a job made progress, up to now."""
    run_ms: int = job[j, PROGRESS] + (now_ms - job[j, UNDER_WAY] if job[j, PHASE] == RUNNING else 0)
    return run_ms


@inline
def service_now(job: IntArray, j: int, now_ms: int) -> int:
    """GPU time that a job received, up to now."""
    held_ms = now_ms - job[j, SINCE] if holds(job, j) else 0
    service: int = job[j, SERVICE] + held_ms * job[j, GPUS] * job[j, SHARE] // WHOLE
    return service


@internal
def total_ms(job: IntArray, j: int, run_ms: int, runs: IntArray, source: int) -> float:
    """Estimated run time of a job: ``beliefs.runtime``."""
    last, previous, limit = runs[job[j, USER], 0], runs[job[j, USER], 1], job[j, LIMIT]
    history = _UNKNOWN_RUN_MS
    if last != NONE:
        history = (last + previous) / 2 if previous != NONE else float(last)
    if source == TRUE:
        estimate = float(job[j, RUN])
    elif limit == NONE:
        estimate = history
    elif source == HISTORY and last != NONE:
        estimate = min(history, float(limit))
    else:
        estimate = float(limit)
    return outlived(max(estimate, 1.0), run_ms)


@internal
def outlived(estimate_ms: float, run_ms: int) -> float:
    """``beliefs.runtime``: double an estimate until it lies above the time already run."""
    if run_ms >= estimate_ms:
        longer: float = estimate_ms * 2.0 ** (np.floor(np.log2(run_ms / estimate_ms)) + 1)
        return longer
    return estimate_ms


@inline
def bin_of(edges: FloatArray, service: float) -> int:
    """The bin of the histogram of service."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] <= service:
            low = middle + 1
        else:
            high = middle
    return low - 1


@internal
def decayed(o: OrderState, now_ms: int) -> float:
    """``core.usage``: what is left of usage since it was last added to, as a factor.

    The half is read from an array, because with a constant LLVM computes another function, which rounds differently.
    """
    left: float = o.floats[1] ** (max(now_ms - o.usage_ms[0], 0) / _HALF_LIFE_MS)
    return left


@internal
def use(o: OrderState, user: int, service: int, now_ms: int) -> None:
    """Add the GPU time of an attempt that has ended; only ``MaxMin`` reads it."""
    if o.order[0] == MAX_MIN:
        factor = decayed(o, now_ms)
        for u in range(len(o.usage)):
            o.usage[u] *= factor
        o.usage_ms[0] = now_ms
        o.usage[user] += service


@internal
def learn(o: OrderState, job: IntArray, j: int) -> None:
    """Note the run time and the service of a job that has finished."""
    runs, user = o.runs, job[j, USER]
    runs[user, 1], runs[user, 0] = runs[user, 0], job[j, PROGRESS]
    if o.order[0] == GITTINS:
        o.ended[bin_of(o.edges, job[j, SERVICE])] += 1
        o.stale[0] = True


@internal
def set_keys(o: OrderState, job: IntArray, alive: IntArray, size: int, now_ms: int) -> None:
    """Write lead, key and tie of the first ``size`` jobs of ``alive``, which are in order of submission."""
    order, key, lead, source = o.order[0], o.key, o.lead, o.source[0]
    if order == GITTINS and o.stale[0]:
        _set_ranks(o)
    if order == MAX_MIN:
        _set_shares(o, job, alive, size, now_ms)
    for i in range(size):
        j = alive[i]
        has = holds(job, j)
        job[j, TIE] = j
        if order <= SHORTEST_JOB:
            lead[j] = has
            if order == SHORTEST_JOB:
                key[j] = total_ms(job, j, run_now(job, j, now_ms), o.runs, source)
            continue
        if order in (SERVICE_QUEUES, TWO_QUEUES):
            key[j] = _queue_of(o, job, j, now_ms)
            continue
        if not has:
            job[j, TIE] += _LATER
        if order == SHORTEST_REMAINING:
            run_ms = run_now(job, j, now_ms)
            key[j] = total_ms(job, j, run_ms, o.runs, source) - run_ms
        elif order == LEAST_ATTAINED:
            key[j] = service_now(job, j, now_ms) // o.ints[0]
        elif order == GITTINS:
            key[j] = o.rank[bin_of(o.edges, service_now(job, j, now_ms))]


@internal
def _queue_of(o: OrderState, job: IntArray, j: int, now_ms: int) -> float:
    """``policies.order.tiresias``: a job's queue, or when it entered the second one."""
    service = service_now(job, j, now_ms)
    if o.order[0] == TWO_QUEUES:
        if job[j, MEMO] == 0 and service >= o.ints[0]:
            job[j, MEMO] = now_ms
        return float(job[j, MEMO])
    if o.floats[0] != 0.0 and job[j, PLACEMENTS] > 0:
        waited_ms = now_ms - job[j, SINCE] if job[j, PHASE] == PENDING else 0
        if waited_ms >= o.floats[0] * max(run_now(job, j, now_ms), 1000):
            job[j, MEMO] = service
    queue, received = 0, service - job[j, MEMO]
    while queue < len(o.thresholds) and o.thresholds[queue] <= received:
        queue += 1
    return float(queue)


@internal
def _set_ranks(o: OrderState) -> None:
    """``policies.order.attained.gittins_index`` with its sign changed, or the bin while too few jobs have ended."""
    edges, ended, rank = o.edges, o.ended, o.rank
    bins, all_ended = len(edges), 0
    for i in range(bins):
        all_ended += ended[i]
    o.stale[0] = False
    alive = all_ended
    for i in range(bins):
        rank[i] = i
        if all_ended < o.ints[0]:
            continue
        best, done, inside = 0.0, 0, 0.0
        for d in range(bins):
            upper = edges[d + 1] if d + 1 < bins else 2 * edges[bins - 1]
            span = max(upper - edges[i], 0.0)
            if d >= i:
                done += ended[d]
                inside += ended[d] * span
            spent = inside + (alive - done) * span
            if spent > 0:
                best = max(best, done / spent)
        rank[i] = -best
        alive -= ended[i]


@njit
def _set_shares(o: OrderState, job: IntArray, alive: IntArray, size: int, now_ms: int) -> None:
    """``policies.order.fair``: what each job's user would have received for each unit of weight."""
    users = len(o.usage)
    factor, held = decayed(o, now_ms), np.zeros(users)
    at = np.zeros(2 * users + 1, np.int64)
    for i in range(size):
        j = alive[i]
        o.lead[j] = False
        user, has = job[j, USER], holds(job, j)
        if has:
            held_ms = now_ms - job[j, SINCE]
            held[user] += held_ms * (job[j, GPUS] * job[j, SHARE] / WHOLE)
            o.lead[j] = held_ms < o.ints[0]
        at[2 * user + (1 if has else 2)] += 1
    for k in range(1, 2 * users + 1):
        at[k] += at[k - 1]
    within = np.empty(size, np.int64)  # by user, those with GPUs first, then by submission
    for i in range(size):
        j = alive[i]
        k = 2 * job[j, USER] + (0 if holds(job, j) else 1)
        within[at[k]] = j
        at[k] += 1
    total, before, last = 0.0, 0.0, -1
    for j in within:
        user = job[j, USER]
        if user != last:
            last, before = user, total
        total += job[j, GPUS] * job[j, SHARE] / WHOLE
        o.key[j] = ((o.usage[user] * factor + held[user]) + (total - before) * o.floats[0]) / o.weight[user]


@inline
def _precedes(job: IntArray, key: FloatArray, one: int, other: int) -> bool:
    return bool(key[one] < key[other] or (key[one] == key[other] and job[one, TIE] < job[other, TIE]))


_MOVES: Final = 8
"""Moves for each job after which sorting by insertion is given up. Ours: a merge sort takes log2(jobs) passes."""


@internal
def put_in_order(order: IntArray, size: int, job: IntArray, key: FloatArray) -> None:
    """Sort the first ``size`` jobs of ``order`` by (key, tie): by insertion, because most still are in order."""
    moves, at = _MOVES * size, 1
    while at < size and moves >= 0:
        j, i = order[at], at
        while i > 0 and _precedes(job, key, j, order[i - 1]):
            order[i] = order[i - 1]
            i -= 1
        order[i] = j
        moves -= at - i
        at += 1
    if at < size:
        _merge_sort(order, size, job, key)


@njit
def _merge_sort(order: IntArray, size: int, job: IntArray, key: FloatArray) -> None:
    spare = np.empty(size, np.int64)
    width = 1
    while width < size:
        for low in range(0, size - width, 2 * width):
            middle, high = low + width, min(low + 2 * width, size)
            for i in range(low, middle):
                spare[i] = order[i]
            one, other = low, middle
            at = low
            while one < middle:
                if other < high and _precedes(job, key, order[other], spare[one]):
                    order[at] = order[other]
                    other += 1
                else:
                    order[at] = spare[one]
                    one += 1
                at += 1
        width *= 2
