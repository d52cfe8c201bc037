"""The compiled loop with whole rounds: every shipped order, dependencies, interruptions and their costs.

It handles the same events in the same order as the twin's general loop, and its rounds call the walk of the place
parts. A job is a row of one table, with what the state of the engine and the twin know about it. Python is called
every so many events and rounds, when an array is full, and for the paces of jobs that got GPUs.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from brim.compiled import in_place, inline, internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.events import Kind
from brim.core.reasons import Reason
from brim.core.trace import NONE
from brim.policies.place.free_resources import FRAGMENTATION, WHOLE, WORST_FIT
from brim.policies.place.walk import RESERVE, Held, Jobs, walk
from brim.sim.compiled.orders import (
    AFTER,
    AFTER_MS,
    BEGIN,
    CLASS,
    CPU,
    FINISH,
    FIRST_START,
    FROM,
    GONE,
    GPUS,
    GRANTS,
    HELD,
    HELD_FOR,
    INTERVAL,
    INTERVAL_MS,
    LAST_INTERVAL,
    MEM,
    PENDING,
    PHASE,
    PLACEMENTS,
    PREEMPTIONS,
    PROGRESS,
    RESTARTS,
    RUNNING,
    SAVED,
    SERVICE,
    SHARE,
    SINCE,
    STARTING,
    STOPPING,
    SUBMIT,
    TYPE,
    UNDER_WAY,
    USEFUL,
    USER,
    OrderState,
    holds,
    learn,
    put_in_order,
    run_now,
    set_keys,
    total_ms,
    use,
)
from brim.units import US_PER_MS

FINISHED, STOPPED, _SUBMITTED = int(Kind.FINISHED), int(Kind.STOPPED), int(Kind.SUBMITTED)
_ELIGIBLE, STARTED, _REPORTED = int(Kind.ELIGIBLE), int(Kind.STARTED), int(Kind.REPORTED)
_RUNS = int(Reason.RUNS)
NEVER: Final = np.iinfo(np.int64).max
SEQUENCES: Final = 1 << 56
"""Above every sequence number of an event."""

GOES_ON, OVER, IDLE, FULL, BEGAN = range(5)
"""Why the loop returned: it handled as many events as was asked; all jobs have ended; jobs wait and nothing will
happen; an array is full; jobs were started whose paces depend on their nodes."""

(GAP, PERIOD, FIXED, START_MS, SAVE_MS, RESTART_MS, MISFIT, RULE, TYPES, DEPENDENTS_MAX, PACED, GAP_US,
 GAP_JOB_US) = range(13)
"""Entries of ``LoopInputs.number``; ``PACED`` says whether paces were known before the replay began, and with
``GAP_JOB_US`` above 0 the gap is ``GAP_US`` and this much for each waiting job, if that is less than ``GAP``."""
NUM_SETTINGS: Final = 13
(HEAP, SEQUENCE, ARRIVED, ENDED, ALIVE, WAITING, HOLDING, GRANTED, RUNS, RUN_GPUS, NOW, APPLIED, SINCE_MS, LAST,
 ROUNDS, EVENTS, PROGRESSED, FUTILE, FUTILE_MS, BEGUN) = range(20)
"""Entries of ``LoopState.number``: entries of the heap, events pushed, jobs that arrived, ended, are in the tables,
wait, have GPUs; GPUs that these have; rows of the record; time of the loop, and of the last event that the state would
see; since when a round is wanted, when the last was, how many were, events and rounds; whether some job made lasting
progress, rounds that took GPUs before a job made any, and the time of the last of these; jobs that were started and
have not been paced."""
NUM_COUNTERS: Final = 20


class LoopInputs(NamedTuple):
    """What a replay does not change.

    Attributes:
        number: Settings, see above.
        node_type: Type code per node (N,).
        node_gpus: GPUs per node (N,).
        node_cpu: Milli-cores per node (N,).
        node_mem: MiB per node (N,).
        node_open: Whether the node takes jobs: all do (N,).
        withheld: Empty: no GPU is withheld (0, 0).
        offset: Number of the first GPU of each node (N + 1,).
        dependent: Jobs that wait for another job's end, in order of that job, then their own.
        first_dependent: Where each job's dependents begin (J + 1,).
    """

    number: IntArray
    node_type: IntArray
    node_gpus: IntArray
    node_cpu: IntArray
    node_mem: IntArray
    node_open: BoolArray
    withheld: BoolArray
    offset: IntArray
    dependent: IntArray
    first_dependent: IntArray


class LoopState(NamedTuple):
    """What a replay changes.

    Attributes:
        number: Counters, see above.
        job: Everything about each job, by the columns in ``orders`` (J, C).
        heap: Events to come: time, kind and sequence in one number, job, placement; a binary heap.
        alive: Jobs in the tables, in order of submission (J,).
        order: The same jobs in the order of the last round (J,).
        row_of: Row of each job in the tables of a round (J,).
        begun: The jobs that were started and have not been paced, in order of their start (J,).
        done: Work that each job has done up to its present interval, in the unit of the truth (J,).
        until: Work at which each of a job's intervals of equal pace ends, the last of which ends the job (J, I).
        per_ms: Work per ms in each of them (J, I).
        node: Node of every GPU that a job has, from its column ``GRANTS`` on.
        gpu: Index of that GPU on the node.
        leaving_ms: When the last job that was preempted leaves each GPU.
        run: Job, begin, end and first GPU of each interval in which a job held GPUs.
        run_gpu: Global GPU indices of these.
        classes: GPUs and share of each class of jobs, in increasing order, and how many are in the tables (M, 3).
    """

    number: IntArray
    job: IntArray
    heap: IntArray
    alive: IntArray
    order: IntArray
    row_of: IntArray
    begun: IntArray
    done: FloatArray
    until: FloatArray
    per_ms: FloatArray
    node: IntArray
    gpu: IntArray
    leaving_ms: IntArray
    run: IntArray
    run_gpu: IntArray
    classes: IntArray


@inline
def _comes_first(heap: IntArray, one: int, other: int) -> bool:
    return bool(heap[one, 0] < heap[other, 0] or (heap[one, 0] == heap[other, 0] and heap[one, 1] < heap[other, 1]))


@internal
def _swap(heap: IntArray, one: int, other: int) -> None:
    for column in range(4):
        heap[one, column], heap[other, column] = heap[other, column], heap[one, column]


@internal
def _push(s: LoopState, time_ms: int, kind: int, j: int, placement: int) -> None:
    heap, n = s.heap, s.number
    at = n[HEAP]
    n[HEAP] += 1
    n[SEQUENCE] += 1
    heap[at, 0], heap[at, 1], heap[at, 2], heap[at, 3] = time_ms, kind * SEQUENCES + n[SEQUENCE], j, placement
    while at > 0 and _comes_first(heap, at, (at - 1) // 2):
        _swap(heap, at, (at - 1) // 2)
        at = (at - 1) // 2


@internal
def _drop_first(heap: IntArray, n: IntArray) -> None:
    """Remove the first entry of the heap."""
    n[HEAP] -= 1
    size, at = n[HEAP], 0
    _swap(heap, 0, size)
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and _comes_first(heap, down + 1, down):
            down += 1
        if not _comes_first(heap, down, at):
            break
        _swap(heap, at, down)
        at = down


@internal
def _due_ms(n: IntArray, settings: IntArray) -> int:
    """``engine.trigger`` and ``engine.scheduler``: when the next round is due."""
    if n[WAITING] == 0:
        return NEVER
    due_ms, ran, gap_ms = int(NEVER), n[ROUNDS] > 0, settings[GAP]
    if settings[GAP_JOB_US]:
        gap_ms = min(gap_ms, (settings[GAP_US] + n[WAITING] * settings[GAP_JOB_US]) // US_PER_MS)
    if n[SINCE_MS] >= 0:
        due_ms = max(n[SINCE_MS], n[LAST] + gap_ms) if ran else n[SINCE_MS]
    if settings[PERIOD] and ran:
        due_ms = min(due_ms, n[LAST] + max(settings[PERIOD], gap_ms))
    if due_ms == NEVER:
        return NEVER
    due_ms = max(due_ms, n[APPLIED])
    if settings[FIXED]:
        due_ms = -(-due_ms // settings[PERIOD]) * settings[PERIOD]
    return int(due_ms)


@inline
def _note(n: IntArray) -> None:
    """Want a round after an event that wakes policies, unless no job waits."""
    if n[SINCE_MS] < 0 and n[WAITING] > 0:
        n[SINCE_MS] = n[NOW]


@internal
def _release(s: LoopState, o: OrderState, j: int) -> None:
    """``core.state``: take a job's GPUs away, and add what it had to the counts."""
    n, job = s.number, s.job
    service = (n[NOW] - job[j, SINCE]) * job[j, GPUS] * job[j, SHARE] // WHOLE
    job[j, PROGRESS] = run_now(job, j, n[NOW])
    job[j, SERVICE] += service
    n[HOLDING] -= 1
    n[GRANTED] -= job[j, GPUS]
    use(o, job[j, USER], service, n[NOW])


@in_place
def close_run(s: LoopState, inputs: LoopInputs, j: int, end_ms: int) -> None:
    """Record that a job held its GPUs until a time; one whose GPUs were not free before then never got them."""
    n, job, begin_ms = s.number, s.job, s.job[j, BEGIN]
    if end_ms < begin_ms:
        if job[j, FIRST_START] == begin_ms:
            job[j, FIRST_START] = NONE
        else:
            job[j, RESTARTS] -= 1
    elif end_ms > begin_ms:
        run, gpu, at, first = s.run, s.run_gpu, n[RUNS], n[RUN_GPUS]
        run[at, 0], run[at, 1], run[at, 2], run[at, 3] = j, begin_ms, end_ms, first
        for i in range(job[j, GPUS]):
            gpu[first + i] = inputs.offset[s.node[job[j, GRANTS] + i]] + s.gpu[job[j, GRANTS] + i]
        n[RUNS] += 1
        n[RUN_GPUS] += job[j, GPUS]
        job[j, HELD_FOR] += (end_ms - begin_ms) * job[j, GPUS] * job[j, SHARE] // WHOLE


@internal
def _keep(s: LoopState, j: int) -> None:
    """Keep the work that a job has done by now."""
    n, job, i = s.number, s.job, s.job[j, INTERVAL]
    done = min(s.done[j] + s.per_ms[j, i] * (n[NOW] - job[j, INTERVAL_MS]), s.until[j, i])
    if done > s.done[j]:
        n[PROGRESSED] = 1
    s.done[j] = done


@internal
def _go_on(s: LoopState, j: int, from_ms: int) -> None:
    """Begin an interval of equal pace: one in which the job has work left, unless it is the last."""
    job, i = s.job, s.job[j, INTERVAL]
    end_ms = from_ms + math.ceil((s.until[j, i] - s.done[j]) / s.per_ms[j, i])
    job[j, INTERVAL_MS] = from_ms
    _push(s, end_ms, FINISHED if i == job[j, LAST_INTERVAL] else _REPORTED, j, job[j, PLACEMENTS])


@in_place
def set_off(s: LoopState) -> None:
    """Expect the ends of the intervals in which the jobs that were started begin."""
    n = s.number
    for i in range(n[BEGUN]):
        _go_on(s, s.begun[i], s.job[s.begun[i], FROM])
    n[BEGUN] = 0


@internal
def _preempt(s: LoopState, inputs: LoopInputs, o: OrderState, j: int) -> None:
    """Preempt a job: it saves, if it has made progress, and leaves its GPUs."""
    n, job = s.number, s.job
    now_ms = gone_ms = n[NOW]
    _release(s, o, j)
    job[j, PHASE] = STOPPING
    job[j, PREEMPTIONS] += 1
    if now_ms > job[j, FROM]:
        gone_ms = job[j, SAVED] = now_ms + inputs.number[SAVE_MS]
        _keep(s, j)
        job[j, USEFUL] += (now_ms - job[j, FROM]) * job[j, GPUS] * job[j, SHARE] // WHOLE
        for i in range(job[j, GRANTS], job[j, GRANTS] + job[j, GPUS]):
            s.leaving_ms[inputs.offset[s.node[i]] + s.gpu[i]] = gone_ms
    elif now_ms > n[FUTILE_MS]:
        n[FUTILE] += 1
        n[FUTILE_MS] = now_ms
    close_run(s, inputs, j, gone_ms)
    _push(s, max(gone_ms, job[j, SAVED]), STOPPED, j, 0)


@internal
def _start(s: LoopState, inputs: LoopInputs, j: int) -> None:
    """Start a job: it begins once its GPUs are free, and makes progress after the start or restart."""
    n, job = s.number, s.job
    begin_ms = max(n[NOW], job[j, SAVED])
    for i in range(job[j, GRANTS], job[j, GRANTS] + job[j, GPUS]):
        begin_ms = max(begin_ms, s.leaving_ms[inputs.offset[s.node[i]] + s.gpu[i]])
    job[j, BEGIN] = begin_ms
    if job[j, FIRST_START] == NONE:
        job[j, FIRST_START] = begin_ms
        job[j, FROM] = begin_ms + inputs.number[START_MS]
    else:
        job[j, RESTARTS] += 1
        job[j, FROM] = begin_ms + inputs.number[RESTART_MS]
    job[j, PHASE], job[j, SINCE] = STARTING, n[NOW]
    job[j, PLACEMENTS] += 1
    n[WAITING] -= 1
    n[HOLDING] += 1
    n[GRANTED] += job[j, GPUS]
    _push(s, job[j, FROM], STARTED, j, job[j, PLACEMENTS])
    s.begun[n[BEGUN]] = j
    n[BEGUN] += 1


@internal
def _finish(s: LoopState, inputs: LoopInputs, o: OrderState, j: int) -> None:
    """End a job, and release those that waited for it."""
    n, job = s.number, s.job
    now_ms = n[NOW]
    job[j, USEFUL] += (now_ms - job[j, FROM]) * job[j, GPUS] * job[j, SHARE] // WHOLE
    close_run(s, inputs, j, now_ms)
    _release(s, o, j)
    learn(o, job, j)
    job[j, PHASE], job[j, FINISH] = GONE, now_ms
    s.classes[job[j, CLASS], 2] -= 1
    n[ENDED] += 1
    n[PROGRESSED] = 1
    for i in range(inputs.first_dependent[j], inputs.first_dependent[j + 1]):
        d = inputs.dependent[i]
        _push(s, max(now_ms + job[d, AFTER_MS], job[d, SUBMIT]), _ELIGIBLE, d, 0)


@internal
def _compact(jobs: IntArray, size: int, job: IntArray) -> int:
    """Drop the jobs that have ended; returns how many are left."""
    left = 0
    for i in range(size):
        if job[jobs[i], PHASE] != GONE:
            jobs[left] = jobs[i]
            left += 1
    return left


class _Table(NamedTuple):
    """The jobs of a round that have GPUs or wait for some, in order of submission (R rows).

    Attributes:
        id: Job of each row.
        order: Rows, first served first.
        jobs: What the walk reads of each job.
        held: The GPUs that they have.
    """

    id: IntArray
    order: IntArray
    jobs: Jobs
    held: Held


@njit
def _table(s: LoopState, inputs: LoopInputs, o: OrderState) -> _Table:
    """Bring the jobs in order and copy what the walk reads of them."""
    n, job, alive, lead, row_of, now_ms = s.number, s.job, s.alive, o.lead, s.row_of, s.number[NOW]
    R, G, reserves = n[WAITING] + n[HOLDING], n[GRANTED], inputs.number[MISFIT] == RESERVE
    ids, order, gpus, share = np.empty(R, np.int64), np.empty(R, np.int64), np.empty(R, np.int64), np.empty(R, np.int64)
    cpu, mem, gpu_type = np.empty(R, np.int64), np.empty(R, np.int64), np.empty(R, np.int64)
    has, waits, end_ms = np.empty(R, np.bool_), np.empty(R, np.bool_), np.zeros(R)
    held_job, held_node, held_gpu = np.empty(G, np.int64), np.empty(G, np.int64), np.empty(G, np.int64)
    r, g = 0, 0
    for i in range(n[ALIVE]):
        j = alive[i]
        has_gpus = holds(job, j)
        row_of[j] = NONE
        if not has_gpus and job[j, PHASE] != PENDING:
            continue
        row_of[j], ids[r], has[r], waits[r] = r, j, has_gpus, not has_gpus
        gpus[r], share[r], cpu[r], mem[r] = job[j, GPUS], job[j, SHARE], job[j, CPU], job[j, MEM]
        gpu_type[r] = job[j, TYPE]
        if reserves:
            run_ms = run_now(job, j, now_ms)
            end_ms[r] = now_ms + (total_ms(job, j, run_ms, o.runs, o.source[0]) - run_ms)
        if has_gpus:
            for k in range(job[j, GRANTS], job[j, GRANTS] + job[j, GPUS]):
                held_job[g], held_node[g], held_gpu[g] = r, s.node[k], s.gpu[k]
                g += 1
        r += 1
    at = 0
    for leads in (True, False):
        for i in range(n[ALIVE]):
            j = s.order[i]
            if lead[j] == leads and row_of[j] >= 0:
                order[at] = row_of[j]
                at += 1
    jobs = Jobs(gpus, share, cpu, mem, gpu_type, has, waits, end_ms)
    return _Table(ids, order, jobs, Held(held_job, held_node, held_gpu))


@njit
def _classes(s: LoopState, rule: int) -> FloatArray:
    """``policies.place.parts.task_classes``; none for a rule that does not read them."""
    kinds, present, total = s.classes, 0, 0
    if rule == FRAGMENTATION:
        for k in range(len(kinds)):
            present += kinds[k, 2] > 0
            total += kinds[k, 2]
    found, at = np.empty((present, 3)), 0
    for k in range(len(kinds)):
        if at < present and kinds[k, 2] > 0:
            found[at, 0], found[at, 1], found[at, 2] = kinds[k, 0], kinds[k, 1], kinds[k, 2] / total
            at += 1
    return found


@njit
def _of_those_who_stay(table: _Table, why: IntArray) -> tuple[IntArray, Jobs, Held]:
    """What the walk reads once the jobs that leave are gone: sizes, 0 for those that do not run, jobs, and grants."""
    jobs, held, rows, kept = table.jobs, table.held, len(table.id), 0
    want, stays = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    for r in range(rows):
        if why[r] == _RUNS:
            want[r], stays[r] = jobs.gpus[r], jobs.holds[r]
            kept += stays[r] * jobs.gpus[r]
    job, node, gpu = np.empty(kept, np.int64), np.empty(kept, np.int64), np.empty(kept, np.int64)
    at = 0
    for g in range(len(held.job)):
        if stays[held.job[g]]:
            job[at], node[at], gpu[at] = held.job[g], held.node[g], held.gpu[g]
            at += 1
    left = Jobs(jobs.gpus, jobs.share, jobs.cpu, jobs.mem, jobs.gpu_type, stays, jobs.waits, jobs.end_ms)
    return want, left, Held(job, node, gpu)


@internal
def _any_without(why: IntArray, marked: BoolArray | IntArray) -> bool:
    """Whether some marked row gets no GPUs."""
    without = 0
    for r in range(len(why)):
        without += bool(marked[r]) and why[r] != _RUNS
    return without > 0


@njit
def _round(s: LoopState, inputs: LoopInputs, o: OrderState) -> None:
    """Order the jobs, walk down the order, and carry out the difference: preempt, then start.

    ``WorstFit`` walks again once the GPUs of those that leave are free, and keeps the places of the first walk if a job
    then finds too few cores or too little memory. The walk is called here, because each function between it and the
    outermost one would be compiled together with it once more.
    """
    n, job, rule = s.number, s.job, inputs.number[RULE]
    size = _compact(s.alive, n[ALIVE], job)
    _compact(s.order, n[ALIVE], job)
    n[ALIVE] = size
    set_keys(o, job, s.alive, size, n[NOW])
    put_in_order(s.order, size, job, o.key)
    table, classes = _table(s, inputs, o), _classes(s, rule)
    want, jobs, held = table.jobs.gpus, table.jobs, table.held
    granted, node, gpu, why = inputs.offset, inputs.offset, inputs.offset, inputs.offset
    for again in (False, True):
        found = walk(
            table.order, want, jobs, held, inputs.node_type, inputs.node_gpus, inputs.node_cpu, inputs.node_mem,
            inputs.node_open, inputs.withheld, inputs.number[TYPES], inputs.number[MISFIT], rule, classes,
        )
        if again and _any_without(found[3], want):
            break
        granted, node, gpu = found[0], found[1], found[2]
        if again:
            break
        why = found[3]
        if rule != WORST_FIT or not _any_without(why, jobs.holds):
            break
        want, jobs, held = _of_those_who_stay(table, why)
    for r in range(len(table.id)):
        if table.jobs.holds[r] and why[r] != _RUNS:
            _preempt(s, inputs, o, table.id[r])
    g = 0
    while g < len(granted):
        r = granted[g]
        j, gpus = table.id[r], table.jobs.gpus[r]
        if table.jobs.waits[r]:
            for i in range(gpus):
                s.node[job[j, GRANTS] + i], s.gpu[job[j, GRANTS] + i] = node[g + i], gpu[g + i]
            _start(s, inputs, j)
        g += gpus
    n[LAST], n[SINCE_MS] = n[NOW], NONE
    n[ROUNDS] += 1
    if inputs.number[PACED]:
        set_off(s)


@internal
def _submit(s: LoopState, j: int) -> None:
    n, job = s.number, s.job
    n[ARRIVED] += 1
    s.alive[n[ALIVE]] = s.order[n[ALIVE]] = j
    n[ALIVE] += 1
    s.classes[job[j, CLASS], 2] += 1
    job[j, SINCE] = n[NOW]
    job[j, PHASE] = PENDING if job[j, AFTER] == NONE else HELD
    n[WAITING] += job[j, AFTER] == NONE


@internal
def _handle(s: LoopState, inputs: LoopInputs, o: OrderState, kind: int, j: int, placement: int) -> bool:
    """Handle an event of the heap; returns whether the state sees it, which it does not if the attempt has ended."""
    n, job = s.number, s.job
    if kind in (STOPPED, _ELIGIBLE):
        job[j, PHASE], job[j, SINCE] = PENDING, n[NOW]
        n[WAITING] += 1
        return True
    if not holds(job, j) or placement != job[j, PLACEMENTS]:
        return False
    if kind == FINISHED:
        _finish(s, inputs, o, j)
    elif kind == _REPORTED:
        s.done[j] = s.until[j, job[j, INTERVAL]]
        job[j, INTERVAL] += 1
        _go_on(s, j, n[NOW])
    else:
        job[j, PHASE], job[j, UNDER_WAY] = RUNNING, n[NOW]
    return True


@internal
def _is_full(s: LoopState, inputs: LoopInputs) -> bool:
    """Whether the next round or event might not find space for what it records."""
    n = s.number
    pushes = 2 * n[WAITING] + n[HOLDING] + inputs.number[DEPENDENTS_MAX]
    return bool(
        n[HEAP] + pushes > len(s.heap) or n[RUNS] + n[HOLDING] > len(s.run)
        or n[RUN_GPUS] + n[GRANTED] > len(s.run_gpu)
    )


@in_place
def advance(s: LoopState, inputs: LoopInputs, o: OrderState, events: int) -> int:
    """Handle events and rounds in order of time, until their number is a multiple of ``events``; returns why."""
    n, heap, job, jobs = s.number, s.heap, s.job, len(s.job)
    while n[ENDED] < jobs:
        if n[BEGUN]:
            return BEGAN
        if _is_full(s, inputs):
            return FULL
        next_ms = heap[0, 0] if n[HEAP] else NEVER
        kind = heap[0, 1] // SEQUENCES if n[HEAP] else STARTED
        if n[ARRIVED] < jobs:
            submit_ms = job[n[ARRIVED], SUBMIT]
            if submit_ms < next_ms or (submit_ms == next_ms and kind > _SUBMITTED):
                next_ms, kind = submit_ms, _SUBMITTED
        due_ms = _due_ms(n, inputs.number)
        if due_ms < next_ms:
            n[NOW] = due_ms
            _round(s, inputs, o)
        elif next_ms == NEVER:
            return IDLE
        else:
            n[NOW] = next_ms
            seen = True
            if kind == _SUBMITTED:
                _submit(s, n[ARRIVED])
            else:
                j, placement = heap[0, 2], heap[0, 3]
                _drop_first(heap, n)
                seen = _handle(s, inputs, o, kind, j, placement)
            if seen:
                n[APPLIED] = next_ms
                if kind not in (STARTED, _REPORTED):
                    _note(n)
        n[EVENTS] += 1
        if n[EVENTS] % events == 0:
            return GOES_ON
    return OVER


@in_place
def under_way_since(s: LoopState, now_ms: int) -> int:
    """When the first of the jobs that have GPUs began to make progress; ``now_ms`` if none did."""
    first_ms = now_ms
    for i in range(s.number[ALIVE]):
        if holds(s.job, s.alive[i]):
            first_ms = min(first_ms, s.job[s.alive[i], FROM])
    return first_ms
