"""What a round reads row by row: whether answers are possible, what they change, and why jobs wait.

Compiled: docs/decisions/0005. Each check returns where the first fault is; ``engine/answers.py`` makes the sentence.
Shapes: J jobs, N nodes, H grants before the round, G grants wanted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.compiled import in_place, internal, njit
from brim.core.arrays import BoolArray, IntArray
from brim.core.events import Kind
from brim.core.lifecycle import Phase
from brim.core.reasons import SHARES, Reason
from brim.core.setting import SERVER
from brim.core.trace import NONE
from brim.units import WHOLE_GPU

FINE: Final = -1
"""Fault of an answer that has none."""
BLOCKER, WHY, INCREASING, JOB, NOWHERE, SHARE, REVOCABLE = range(7)
"""Faults of grants, in the order in which they are looked for."""
PREEMPT, REJECT, RESIZE, START, TUNE = (
    int(kind) for kind in (Kind.PREEMPT, Kind.REJECT, Kind.RESIZE, Kind.START, Kind.TUNE)
)
"""What becomes of a job: the kind of event that books it."""

_FIRST_SHARES, _LAST_SHARES = int(min(SHARES)), int(max(SHARES))
_STARTING, _RUNNING = int(Phase.STARTING), int(Phase.RUNNING)
_WHY_RUNS, _WHY_NOT_NOW, _LAST_WHY = int(Reason.RUNS), int(Reason.NOT_NOW), int(max(Reason))


@njit
def is_permutation(order: IntArray) -> bool:
    """Whether every row is there once."""
    seen = np.zeros(len(order), np.bool_)
    for row in order:
        if row < 0 or row >= len(order) or seen[row]:
            return False
        seen[row] = True
    return True


@in_place
def plainly_allowed(gpus: IntArray, asked: IntArray, least: IntArray, most: IntArray, size_list: IntArray) -> bool:
    """Whether each job gets nothing, what it asked for, or, if it has no list of sizes, a number between its limits."""
    for j in range(len(gpus)):
        within = size_list[j] == NONE and least[j] <= gpus[j] <= most[j]
        if not within and gpus[j] != 0 and gpus[j] != asked[j]:
            return False
    return True


@njit
def all_or_nothing(job: IntArray, gpu: IntArray, want: IntArray) -> bool:
    """Whether each job is granted no GPU, or as many as wanted (J,)."""
    counts = np.zeros(len(want), np.int64)
    for i in range(len(job)):
        counts[job[i]] += gpu[i] >= 0
    odd = 0
    for j in range(len(want)):
        odd += counts[j] != 0 and counts[j] != want[j]
    return odd == 0


@njit
def grants_fault(
    job: IntArray, node: IntArray, gpu: IntArray, share_milli: IntArray, why: IntArray, blocker: IntArray,
    revocable: BoolArray, node_gpus: IntArray,
) -> tuple[int, int]:
    """The first fault of grants, FINE if there is none, and its row.

    Args:
        job: Row of the job of each grant (G,).
        node: Node (G,).
        gpu: Index on the node, below 0 for a rank on CPU (G,).
        share_milli: Thousandths of that GPU, or milli-cores of a rank on CPU (G,).
        why: Reason codes (J,).
        blocker: Rows of jobs, -1 for none (J,).
        revocable: Whether each grant is revocable (G,), or empty.
        node_gpus: GPUs of each node (N,).
    """
    jobs = len(why)
    for j in range(jobs):
        if blocker[j] < -1 or blocker[j] >= jobs:
            return BLOCKER, j
    for j in range(jobs):
        if why[j] < 0 or why[j] > _LAST_WHY:
            return WHY, j
    for i in range(len(job) - 1):
        if job[i] == job[i + 1]:
            again = node[i] == node[i + 1] and gpu[i + 1] < gpu[i] + (gpu[i] >= 0)
            if node[i + 1] < node[i] or again:
                return INCREASING, i
    for i in range(len(job)):
        if job[i] < 0 or job[i] >= jobs:
            return JOB, i
    for i in range(len(job)):
        n = node[i]
        if n < 0 or n >= len(node_gpus) or gpu[i] < SERVER or gpu[i] >= node_gpus[n]:
            return NOWHERE, i
    share_of, revocable_of = np.zeros((jobs, 3), np.int64), np.zeros(jobs, np.bool_)
    for i in range(len(job)):
        share_of[job[i], -min(gpu[i], 0)] = share_milli[i]
        if len(revocable):
            revocable_of[job[i]] |= revocable[i]
    for i in range(len(job)):
        share = share_milli[i]
        on_gpu = gpu[i] >= 0
        if share < on_gpu or (on_gpu and share > WHOLE_GPU) or share != share_of[job[i], -min(gpu[i], 0)]:
            return SHARE, i
    for i in range(len(revocable)):
        if revocable[i] != revocable_of[job[i]]:
            return REVOCABLE, i
    return FINE, FINE


@internal
def _has_moved(
    j: int, held_job: IntArray, held_node: IntArray, held_gpu: IntArray, job: IntArray, node: IntArray, gpu: IntArray
) -> bool:
    """Whether a job is granted other ranks than it has, in whatever order; their numbers are equal."""
    for i in range(len(job)):
        if job[i] != j:
            continue
        change = 0
        for k in range(len(job)):
            change += job[k] == j and node[k] == node[i] and gpu[k] == gpu[i]
        for k in range(len(held_job)):
            change -= held_job[k] == j and held_node[k] == node[i] and held_gpu[k] == gpu[i]
        if change != 0:
            return True
    return False


@njit
def changes(
    held_job: IntArray, held_node: IntArray, held_gpu: IntArray, held_share: IntArray, held_revocable: BoolArray,
    job: IntArray, node: IntArray, gpu: IntArray, share_milli: IntArray, revocable: BoolArray, phase: IntArray,
    batch_now: IntArray, batch_asked: IntArray, batch_wanted: IntArray, loaders_now: IntArray, loaders: IntArray,
    reject: BoolArray, tunes_loaders: bool,
) -> tuple[int, IntArray, IntArray, IntArray, BoolArray]:
    """Compare what jobs have with what they are to have.

    Args:
        held_job: Grants before the round (H,), as are the next three.
        held_node: Node.
        held_gpu: Index on the node.
        held_share: Thousandths.
        held_revocable: (H,), or empty.
        job: Grants wanted (G,), as are the next three.
        node: Node.
        gpu: Index on the node.
        share_milli: Thousandths.
        revocable: (G,), or empty.
        phase: Phase of each job (J,).
        batch_now: Batch it was last given (J,).
        batch_asked: Batch it asked for (J,).
        batch_wanted: Batches wanted (J,), or empty.
        loaders_now: Loader workers of its ranks (J,).
        loaders: Loader workers wanted (J,).
        reject: Jobs to reject (J,), or empty.
        tunes_loaders: Whether jobs whose ranks stay get other loader workers.

    Returns:
        Number of jobs that change; for each job the kind of event that books its change, NONE for no change (J,); then
        batch, loader workers and revocability from now on.
    """
    size = len(phase)
    became, batch, workers = np.full(size, NONE), np.empty(size, np.int64), np.empty(size, np.int64)
    was_revocable, will_revoke = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    at, rest, same = np.zeros(size, np.int64), np.zeros(size, np.int64), np.ones(size, np.bool_)
    has, had_share, will_share = np.zeros(size, np.bool_), np.zeros((size, 3), np.int64), np.zeros((size, 3), np.int64)
    for i in range(len(held_job) - 1, -1, -1):
        j = held_job[i]
        at[j] = i
        rest[j] += 1
        kind = -min(held_gpu[i], 0)  # ranks on GPU, workers on CPU, parameter servers: those of a kind have one share
        had_share[j, kind] = max(had_share[j, kind], held_share[i])
        if len(held_revocable):
            was_revocable[j] |= held_revocable[i]
    for i in range(len(job)):
        j = job[i]
        has[j] = True
        k = at[j]
        at[j] += 1
        rest[j] -= 1
        kind = -min(gpu[i], 0)
        will_share[j, kind] = max(will_share[j, kind], share_milli[i])
        same[j] &= k < len(held_job) and held_job[k] == j and held_node[k] == node[i] and held_gpu[k] == gpu[i]
        if len(revocable):
            will_revoke[j] |= revocable[i]
    count = 0
    for j in range(size):
        holds = phase[j] in (_STARTING, _RUNNING)
        workers[j] = loaders[j]
        batch[j] = batch_asked[j] if batch_now[j] == NONE else batch_now[j]
        if len(batch_wanted):
            batch[j] = batch_wanted[j]
        if holds and not has[j]:
            became[j] = PREEMPT
        elif holds:
            moved = rest[j] != 0 or (not same[j] and _has_moved(j, held_job, held_node, held_gpu, job, node, gpu))
            if moved:
                became[j] = RESIZE
            else:
                if not tunes_loaders:
                    workers[j] = loaders_now[j]
                other = will_revoke[j] != was_revocable[j]
                for kind in range(3):
                    other |= will_share[j, kind] != had_share[j, kind]
                if batch_now[j] != NONE or len(batch_wanted):  # else the batch is the job's own, which it has reported
                    other |= batch[j] != batch_now[j]
                if other or workers[j] != loaders_now[j]:
                    became[j] = TUNE
        elif has[j]:
            became[j] = START
        elif len(reject) and reject[j]:
            became[j] = REJECT
        count += became[j] != NONE
    return count, became, batch, workers, will_revoke


@njit
def reasons(job: IntArray, why: IntArray, blocker: IntArray, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Why each job waits, and the id of the job that blocks it (J,): jobs with grants run.

    A job without grants for which no reason is given is NOT_NOW.
    """
    said, by = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    has = np.zeros(len(ids), np.bool_)
    for j in job:
        has[j] = True
    for j in range(len(ids)):
        if has[j]:
            said[j], by[j] = why[j] if _FIRST_SHARES <= why[j] <= _LAST_SHARES else _WHY_RUNS, NONE
        else:
            said[j] = _WHY_NOT_NOW if why[j] == _WHY_RUNS else why[j]
            by[j] = ids[blocker[j]] if blocker[j] >= 0 else NONE
    return said, by
