"""What moves numbers between the columns of ``ClusterState``. Compiled: docs/decisions/0005.

Shapes: C and F the integer and float columns of a job, S slots for jobs, J jobs that have not ended, G ranks that are
granted, R rows of the grants (``GRANT_ROWS``).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.compiled import njit
from brim.core.arrays import FloatArray, IntArray
from brim.core.lifecycle import Phase
from brim.core.tables import JOB_COLUMNS, JOB_FLOAT_COLUMNS
from brim.core.trace import NONE
from brim.units import MS_PER_S, WHOLE_GPU

GRANT_ROWS: Final = ("job id", "node", "gpu", "share_milli", "loader_workers", "revocable")
OF_RANKS: Final = slice(1, 5)
REVOCABLE: Final = 5

_GPU, _SHARE, _LOADERS = 2, 3, 4
_PHASE, _ATTEMPT, _SEQUENCE, _PLACEMENTS, _FIRST, _SINCE, _RUNNING_SINCE, _RUN, _SERVICE = (
    JOB_COLUMNS.index(name) for name in (
        "phase", "attempt", "sequence", "placements", "first_start_ms", "since_ms", "running_since_ms", "run_ms",
        "service_gpu_ms",
    )
)
_GPUS_NOW, _SHARE_NOW, _LOADERS_NOW, _BATCH_NOW = (
    JOB_COLUMNS.index(name) for name in ("gpus_now", "share_now", "loaders_now", "batch_now")
)
_DONE, _PACE = (JOB_FLOAT_COLUMNS.index(name) for name in ("samples_done", "samples_per_s"))
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
    for r in range(runs):  # whole runs, because a gather of single rows is several times slower
        begin, length, slot = first[r], first[r + 1] - first[r], kept[first[r]]
        for c in range(len(block)):
            for i in range(length):
                ints[c, begin + i] = block[c, slot + i]
        for c in range(len(floats)):
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
def grant(
    block: IntArray, granted: IntArray, count: int, slot: int, job: int, ranks: IntArray, batch: int, revocable: bool,
    starts: bool, now_ms: int,
) -> None:
    """Append the ranks of a gang, (node, gpu, share, loader workers) in turn, to the grants; there is room for them."""
    gpus, share_milli = 0, 0
    for i in range(len(ranks) // 4):
        at = count + i
        granted[0, at], granted[REVOCABLE, at] = job, revocable
        for k in range(4):
            granted[1 + k, at] = ranks[4 * i + k]
        gpus += granted[_GPU, at] != NONE
        share_milli = max(share_milli, granted[_SHARE, at])
    block[_ATTEMPT, slot] += starts
    block[_SEQUENCE, slot] += 1
    block[_PLACEMENTS, slot] += 1
    block[_GPUS_NOW, slot], block[_SHARE_NOW, slot] = gpus, share_milli
    block[_LOADERS_NOW, slot] = granted[_LOADERS, count] if len(ranks) else 0
    block[_BATCH_NOW, slot], block[_SINCE, slot] = batch, now_ms
    if block[_FIRST, slot] == NONE:
        block[_FIRST, slot] = now_ms


@njit
def release(
    block: IntArray, floats: FloatArray, reported_ms: IntArray, granted: IntArray, count: int, slot: int, job: int,
    now_ms: int,
) -> tuple[int, int]:
    """Remove a job's grants, and add run time, progress and service of the placement to the job.

    Returns:
        Ranks that are still granted, and the service of the placement in GPU-ms.
    """
    begin, end = ranks_of(granted, count, job)
    gap = end - begin
    for r in range(len(granted)):
        for i in range(begin, count - gap):
            granted[r, i] = granted[r, i + gap]
    held_ms = now_ms - block[_SINCE, slot]
    service = held_ms * block[_GPUS_NOW, slot] * block[_SHARE_NOW, slot] // WHOLE_GPU
    if block[_PHASE, slot] == _RUNNING:
        block[_RUN, slot] += now_ms - block[_RUNNING_SINCE, slot]
        if floats[_PACE, slot] != 0.0:
            floats[_DONE, slot] += floats[_PACE, slot] * (now_ms - reported_ms[slot]) / MS_PER_S
    block[_GPUS_NOW, slot] = block[_SHARE_NOW, slot] = block[_LOADERS_NOW, slot] = 0
    block[_SERVICE, slot] += service
    return count - gap, service
