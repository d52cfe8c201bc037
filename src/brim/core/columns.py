"""What moves numbers between the columns of ``ClusterState``. Compiled: docs/decisions/0005.

Shapes: C and F the integer and float columns of a job, S slots for jobs, J jobs that have not ended, G ranks that are
granted, R rows of the grants (``GRANT_ROWS``), A actions.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.compiled import internal, njit
from brim.core.actions import Bookings
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Kind
from brim.core.lifecycle import Phase
from brim.core.tables import JOB_COLUMNS, JOB_FLOAT_COLUMNS
from brim.core.trace import NONE
from brim.units import MS_PER_S, WHOLE_GPU

GRANT_ROWS: Final = ("job id", "node", "gpu", "share_milli", "loader_workers", "revocable")
OF_RANKS: Final = slice(1, 5)
REVOCABLE: Final = 5

FINE, UNKNOWN, TWICE, PHASE, MOVED = range(5)
"""Why an action cannot be booked."""
IMPOSSIBLE: Final = -2
"""Phase after an event that cannot happen; NONE is that of a job that has ended."""

_GPU, _SHARE, _LOADERS = 2, 3, 4
_RANK_GPU, _RANK_SHARE, _RANK_LOADERS = 1, 2, 3
_PREEMPT_KIND, _RESIZE_KIND, _START_KIND, _TUNE_KIND = (
    int(kind) for kind in (Kind.PREEMPT, Kind.RESIZE, Kind.START, Kind.TUNE)
)
_PHASE, _ATTEMPT, _SEQUENCE, _PLACEMENTS, _FIRST, _SINCE, _RUNNING_SINCE, _RUN, _SERVICE, _STALLED = (
    JOB_COLUMNS.index(name) for name in (
        "phase", "attempt", "sequence", "placements", "first_start_ms", "since_ms", "running_since_ms", "run_ms",
        "service_gpu_ms", "stalled_ms",
    )
)
_GPUS_NOW, _SHARE_NOW, _LOADERS_NOW, _BATCH_NOW = (
    JOB_COLUMNS.index(name) for name in ("gpus_now", "share_now", "loaders_now", "batch_now")
)
_DONE, _PACE, _SLOWDOWN, _LOADER_WAIT = (
    JOB_FLOAT_COLUMNS.index(name) for name in ("samples_done", "samples_per_s", "slowdown_ratio", "loader_wait_ratio")
)
_STARTING, _RUNNING = int(Phase.STARTING), int(Phase.RUNNING)


@njit
def living(
    block: IntArray, floats: FloatArray, reported_ms: IntArray, used: int, now_ms: int
) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
    """Copy the columns of the jobs that have not ended, with run time, service and progress up to ``now_ms``.

    Args:
        block: Integer columns (C, S).
        floats: Float columns (F, S).
        reported_ms: When ``samples_done`` was true (S,).
        used: Slots in use, of jobs or of holes.
        now_ms: Time of the copy.

    Returns:
        Integer columns (C, J) and float columns (F, J), then the slot of each row (J,) and the row of each slot
        (used,).
    """
    count = 0
    for slot in range(used):
        count += block[_PHASE, slot] != NONE
    kept, row_of_slot = np.empty(count, np.int64), np.zeros(used, np.int64)
    first, runs, row = np.empty(count + 1, np.int64), 0, 0  # rows at which runs of adjacent slots begin
    for slot in range(used):
        if block[_PHASE, slot] != NONE:
            if row == 0 or kept[row - 1] != slot - 1:
                first[runs] = row
                runs += 1
            kept[row], row_of_slot[slot] = slot, row
            row += 1
    first[runs] = count
    ints, reals = np.empty((len(block), count), np.int64), np.empty((len(floats), count))
    for c in range(len(block)):  # whole runs, because a gather of single rows is several times slower
        for r in range(runs):
            begin, length, slot = first[r], first[r + 1] - first[r], kept[first[r]]
            for i in range(length):
                ints[c, begin + i] = block[c, slot + i]
    for c in range(len(floats)):
        for r in range(runs):
            begin, length, slot = first[r], first[r + 1] - first[r], kept[first[r]]
            for i in range(length):
                reals[c, begin + i] = floats[c, slot + i]
    for row in range(count):
        phase, gained = ints[_PHASE, row], 0.0
        if phase == _RUNNING:
            ints[_RUN, row] += now_ms - ints[_RUNNING_SINCE, row]
            gained = reals[_PACE, row] * (now_ms - reported_ms[kept[row]]) / MS_PER_S
        if phase in (_STARTING, _RUNNING):
            held_ms = now_ms - ints[_SINCE, row]
            ints[_SERVICE, row] += held_ms * ints[_GPUS_NOW, row] * ints[_SHARE_NOW, row] // WHOLE_GPU
        reals[_DONE, row] += gained
    return ints, reals, kept, row_of_slot


@njit
def held_now(granted: IntArray, count: int, slot_of: IntArray, row_of_slot: IntArray) -> tuple[IntArray, bool]:
    """Copy the grants.

    Args:
        granted: Rows of ``GRANT_ROWS`` (R, at least ``count``).
        count: Ranks that are granted: G.
        slot_of: Slot of each job id.
        row_of_slot: Row of the job table of each slot.

    Returns:
        The grants with rows of the job table instead of job ids (R, G), and whether one of them is revocable.
    """
    held, revocable = np.empty((len(granted), count), np.int64), False
    for i in range(count):
        held[0, i] = row_of_slot[slot_of[granted[0, i]]]
        revocable |= granted[REVOCABLE, i] != 0
    for r in range(1, len(granted)):
        for i in range(count):
            held[r, i] = granted[r, i]
    return held, revocable


@njit
def ranks_of(granted: IntArray, count: int, job: int) -> tuple[int, int]:
    """Where the grants of a job begin and end; equal if it has none."""
    begin = 0
    while begin < count and granted[0, begin] != job:
        begin += 1
    end = begin
    while end < count and granted[0, end] == job:
        end += 1
    return begin, end


@njit
def release(
    block: IntArray, floats: FloatArray, reported_ms: IntArray, granted: IntArray, count: int, slot_of: IntArray,
    slots: IntArray, now_ms: int,
) -> tuple[int, IntArray]:
    """Remove the grants of the jobs in some slots (L,), and add run time, progress and service of their placements.

    Returns:
        Ranks that are still granted, and the service of each placement in GPU-ms (L,).
    """
    leaves, service = np.zeros(block.shape[1], np.bool_), np.empty(len(slots), np.int64)
    for i in range(len(slots)):
        slot = slots[i]
        leaves[slot] = True
        held_ms = now_ms - block[_SINCE, slot]
        service[i] = held_ms * block[_GPUS_NOW, slot] * block[_SHARE_NOW, slot] // WHOLE_GPU
        if block[_PHASE, slot] == _RUNNING:
            block[_RUN, slot] += now_ms - block[_RUNNING_SINCE, slot]
            if floats[_PACE, slot] != 0.0:
                floats[_DONE, slot] += floats[_PACE, slot] * (now_ms - reported_ms[slot]) / MS_PER_S
        block[_GPUS_NOW, slot] = block[_SHARE_NOW, slot] = block[_LOADERS_NOW, slot] = 0
        block[_SERVICE, slot] += service[i]
        floats[_SLOWDOWN, slot] = np.nan
    kept = 0
    for i in range(count):
        if not leaves[slot_of[granted[0, i]]]:
            if kept != i:
                for r in range(len(granted)):
                    granted[r, kept] = granted[r, i]
            kept += 1
    return kept, service


@internal
def _grant(
    block: IntArray, granted: IntArray, count: int, slot: int, job: int, ranks: IntArray, batch: int, revocable: bool,
    starts: bool, now_ms: int,
) -> None:
    """Append the ranks of a gang (K, 4) to the grants; there is room for them."""
    gpus, share_milli = 0, 0
    for i in range(len(ranks)):
        at = count + i
        granted[0, at], granted[REVOCABLE, at] = job, revocable
        for k in range(4):
            granted[1 + k, at] = ranks[i, k]
        if granted[_GPU, at] >= 0:
            gpus += 1
            share_milli = max(share_milli, granted[_SHARE, at])
    block[_ATTEMPT, slot] += starts
    block[_SEQUENCE, slot] += 1
    block[_PLACEMENTS, slot] += 1
    block[_GPUS_NOW, slot], block[_SHARE_NOW, slot] = gpus, share_milli
    block[_LOADERS_NOW, slot] = granted[_LOADERS, count] if len(ranks) else 0
    block[_BATCH_NOW, slot], block[_SINCE, slot] = batch, now_ms
    if block[_FIRST, slot] == NONE:
        block[_FIRST, slot] = now_ms


@internal
def _stays(granted: IntArray, begin: int, end: int, ranks: IntArray) -> bool:
    """Whether these ranks are where those that are granted are."""
    if end - begin != len(ranks):
        return False
    for i in range(len(ranks)):
        for k in range(2):
            if granted[1 + k, begin + i] != ranks[i, k]:
                return False
    return True


@internal
def _settle(block: IntArray, floats: FloatArray, slot: int, now_ms: int) -> int:
    """Add the service of a job that keeps its GPUs until now, and count anew from now on; returns it in GPU-ms."""
    floats[_SLOWDOWN, slot] = np.nan  # another share tells of other neighbours
    held_ms = now_ms - block[_SINCE, slot]
    service: int = held_ms * block[_GPUS_NOW, slot] * block[_SHARE_NOW, slot] // WHOLE_GPU
    block[_SERVICE, slot] += service
    block[_SINCE, slot] = now_ms
    if block[_PHASE, slot] == _STARTING:
        block[_STALLED, slot] += held_ms
    return service


@internal
def _tune(
    block: IntArray, granted: IntArray, begin: int, slot: int, ranks: IntArray, batch: int, revocable: bool
) -> None:
    """Change what a job has besides the places of its ranks."""
    share_milli = 0
    for i in range(len(ranks)):
        granted[_SHARE, begin + i], granted[_LOADERS, begin + i] = ranks[i, _RANK_SHARE], ranks[i, _RANK_LOADERS]
        granted[REVOCABLE, begin + i] = revocable
        if ranks[i, _RANK_GPU] >= 0:
            share_milli = max(share_milli, ranks[i, _RANK_SHARE])
    block[_SHARE_NOW, slot] = share_milli
    block[_SEQUENCE, slot] += 1
    block[_LOADERS_NOW, slot] = ranks[0, _RANK_LOADERS] if len(ranks) else 0
    block[_BATCH_NOW, slot] = batch


@njit
def bookable(
    block: IntArray, granted: IntArray, count: int, slot_of: IntArray, booked: Bookings, after: IntArray
) -> tuple[int, int, IntArray]:
    """Find the first action that cannot be booked; see ``book``.

    Returns:
        What is wrong with it (FINE if nothing is), its index, and the slot of the job of each action (A,).
    """
    slots, acted = np.empty(len(booked.job), np.int64), np.zeros(block.shape[1], np.bool_)
    for a in range(len(booked.job)):
        job, kind = booked.job[a], booked.kind[a]
        slots[a] = slot_of[job] if 0 <= job < len(slot_of) else NONE
        if slots[a] == NONE:
            return UNKNOWN, a, slots
        if acted[slots[a]]:
            return TWICE, a, slots
        acted[slots[a]] = True
        if after[block[_PHASE, slots[a]], kind] == IMPOSSIBLE:
            return PHASE, a, slots
        if kind == _TUNE_KIND:
            begin, end = ranks_of(granted, count, job)
            if not _stays(granted, begin, end, booked.ranks[booked.first[a] : booked.first[a + 1]]):
                return MOVED, a, slots
    return FINE, 0, slots


@njit
def book(
    block: IntArray, floats: FloatArray, reported_ms: IntArray, granted: IntArray, count: int, slot_of: IntArray,
    booked: Bookings, slots: IntArray, after: IntArray, now_ms: int,
) -> tuple[int, IntArray, IntArray]:
    """Book actions that ``bookable`` has found in order: jobs first leave what they give up, then others take it.

    Args:
        block: Integer columns (C, S).
        floats: Float columns (F, S).
        reported_ms: When ``samples_done`` was true (S,).
        granted: Rows of ``GRANT_ROWS``, with room for the ranks of all actions.
        count: Ranks that are granted.
        slot_of: Slot of each job id.
        booked: The actions.
        slots: Slot of the job of each (A,).
        after: Phase after each kind of event in each phase.
        now_ms: Time of the actions.

    Returns:
        Ranks that are granted now, the slots of the jobs that gave up what they held, or whose share changed (L,), and
        the service of both until now in GPU-ms.
    """
    gives_up, reshared = np.zeros(len(slots), np.bool_), np.zeros(len(slots), np.bool_)
    for a in range(len(slots)):
        gives_up[a] = booked.kind[a] in (_PREEMPT_KIND, _RESIZE_KIND)
        if booked.kind[a] == _TUNE_KIND:
            for rank in booked.ranks[booked.first[a] : booked.first[a + 1]]:
                reshared[a] |= rank[_RANK_GPU] >= 0 and rank[_RANK_SHARE] != block[_SHARE_NOW, slots[a]]
    leaving, staying = slots[gives_up], slots[reshared]
    count, left_service = release(block, floats, reported_ms, granted, count, slot_of, leaving, now_ms)
    service = np.zeros(len(leaving) + len(staying), np.int64)
    service[: len(leaving)] = left_service
    for i in range(len(staying)):
        service[len(leaving) + i] = _settle(block, floats, staying[i], now_ms)
    for a in range(len(slots)):
        kind, slot, ranks = booked.kind[a], slots[a], booked.ranks[booked.first[a] : booked.first[a + 1]]
        if len(ranks) and ranks[0, _RANK_LOADERS] != block[_LOADERS_NOW, slot]:
            floats[_LOADER_WAIT, slot] = np.nan  # what was reported with other loader workers says nothing now
        if kind in (_START_KIND, _RESIZE_KIND):
            _grant(
                block, granted, count, slot, booked.job[a], ranks, booked.batch[a], booked.revocable[a],
                kind == _START_KIND, now_ms,
            )
            count += len(ranks)
        elif kind == _TUNE_KIND:
            begin, _ = ranks_of(granted, count, booked.job[a])
            _tune(block, granted, begin, slot, ranks, booked.batch[a], booked.revocable[a])
        block[_PHASE, slot] = after[block[_PHASE, slot], kind]
    return count, np.concatenate((leaving, staying)), service
