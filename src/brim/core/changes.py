"""What the actions of a plan change of what jobs have. Compiled: docs/decisions/0005. ``core/checks.py`` says it.

Shapes: J jobs, G ranks before the plan, A actions, K ranks that the plan grants, E kinds of event.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brim.compiled import in_place, internal, njit
from brim.core.actions import ACTIONS, WITH_SETTING, Bookings
from brim.core.arrays import BoolArray, IntArray, frozen
from brim.core.events import Kind
from brim.core.lifecycle import Phase
from brim.core.trace import NONE

FINE, UNKNOWN, TWICE, LATE, FENCE, BATCH, MOVED = range(7)
"""Faults of an action, in the order in which they are looked for."""
_TUNE: Final = int(Kind.TUNE)
GIVES_BACK, NEITHER, BOTH, TAKES = range(4)
"""Stages of a plan: what only frees comes first, what only takes comes last."""


class Rules(NamedTuple):
    """The rules of the kinds of action, by the kind of event that books them.

    Attributes:
        frees: Whether it may free what the job has (E,).
        takes: Whether it may take what the job does not have (E,).
        begins: Whether it begins a new attempt (E,).
        gives: Whether it gives a setting (E,).
        legal: Whether it is legal in each phase (E, phases).
    """

    frees: BoolArray
    takes: BoolArray
    begins: BoolArray
    gives: BoolArray
    legal: BoolArray


def _rules() -> Rules:
    frees, takes, begins, gives = (np.zeros(len(Kind), dtype=np.bool_) for _ in range(4))
    legal = np.zeros((len(Kind), len(Phase)), dtype=np.bool_)
    for action in ACTIONS:
        rule = action.rule
        frees[rule.books], takes[rule.books], begins[rule.books] = rule.frees, rule.takes, rule.begins_attempt
        gives[rule.books] = action in WITH_SETTING
        legal[rule.books, list(rule.phases)] = True
    return Rules(frozen(frees), frozen(takes), frozen(begins), frozen(gives), frozen(legal))


RULES: Final = _rules()


@in_place
def needs_beyond(one: IntArray, other: IntArray) -> bool:
    """Whether ranks hold a GPU, more of its share or a loader worker of some node than other ranks hold.

    Args:
        one: Node, gpu, share and loader workers of each rank (K, 4).
        other: The same of other ranks (L, 4).
    """
    for i in range(len(one)):
        places, share, workers = 0, 0, 0
        for k in range(len(one)):
            if one[k, 0] == one[i, 0]:
                places += one[k, 1] == one[i, 1]
                share += one[k, 2] if one[k, 1] == one[i, 1] else 0
                workers += one[k, 3]
        for k in range(len(other)):
            if other[k, 0] == one[i, 0]:
                places -= other[k, 1] == one[i, 1]
                share -= other[k, 2] if other[k, 1] == one[i, 1] else 0
                workers -= other[k, 3]
        if places > 0 or share > 0 or workers > 0:
            return True
    return False


@internal
def _stay(one: IntArray, other: IntArray) -> bool:
    """Whether all ranks are where the other ranks are, with the same shares."""
    if len(one) != len(other):
        return False
    odd = 0
    for i in range(len(one)):
        odd += one[i, 0] != other[i, 0] or one[i, 1] != other[i, 1]
    return odd == 0


@njit
def stages(
    booked: Bookings, rows: IntArray, held: tuple[IntArray, IntArray, IntArray, IntArray, IntArray],
    batch_now: IntArray, rules: Rules,
) -> tuple[IntArray, BoolArray]:
    """Where actions belong in a plan, and whether they leave all ranks where they are.

    Args:
        booked: The actions.
        rows: Row of the job of each (A,); J or more for none.
        held: Job, node, gpu, share and loader workers of each rank before the plan (G,); a job's stand together.
        batch_now: Batch that each job was last given (J,).
        rules: ``RULES``.

    Returns:
        Stage of each action, and whether it gives a job that holds ranks the same places (A,).
    """
    job, node, gpu, share, loaders = held
    stage, stays = np.empty(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    first = np.full(len(batch_now) + 1, len(job), np.int64)
    changes = False
    for a in range(len(rows)):
        changes |= rules.frees[booked.kind[a]] and rules.gives[booked.kind[a]]
    if changes:
        for i in range(len(job) - 1, -1, -1):
            first[job[i]] = i
    for a in range(len(rows)):
        kind, row = booked.kind[a], rows[a]
        frees, takes = rules.frees[kind], rules.takes[kind]
        if frees and rules.gives[kind] and row < len(batch_now) and first[row] < len(job):
            begin = end = first[row]
            while end < len(job) and job[end] == row:
                end += 1
            has = np.empty((end - begin, 4), np.int64)
            for i in range(begin, end):
                has[i - begin, 0], has[i - begin, 1] = node[i], gpu[i]
                has[i - begin, 2], has[i - begin, 3] = share[i], loaders[i]
            gets = booked.ranks[booked.first[a] : booked.first[a + 1]]
            stays[a], frees = _stay(gets, has), needs_beyond(has, gets)
            takes = needs_beyond(gets, has) or booked.batch[a] != batch_now[row]  # a batch takes memory of the GPUs
        if frees:
            stage[a] = BOTH if takes else GIVES_BACK
        else:
            stage[a] = TAKES if takes else NEITHER
    return stage, stays


@njit
def first_fault(
    booked: Bookings, rows: IntArray, numbers: tuple[IntArray, IntArray], stage: IntArray, stays: BoolArray,
    ids: IntArray, phase: IntArray, present: tuple[IntArray, IntArray], batches: tuple[IntArray, IntArray, IntArray],
    rules: Rules,
) -> tuple[int, int]:
    """The first fault of a plan that does not lie in its gangs, FINE if there is none, and the action's index.

    Args:
        booked: The actions.
        rows: Row of the job of each, where its id would be (A,).
        numbers: Attempt and sequence of each (A,); the latter is not read where an action gives no setting.
        stage: See ``stages`` (A,).
        stays: See ``stages`` (A,).
        ids: Job ids (J,).
        phase: Phases (J,).
        present: Present attempt and sequence (J,).
        batches: Smallest and largest batch, and the one asked for (J,).
        rules: ``RULES``.
    """
    seen = np.zeros(len(ids), np.bool_)
    least, most, asked = batches
    for a in range(len(rows)):
        kind, row = booked.kind[a], rows[a]
        if row >= len(ids) or ids[row] != booked.job[a]:
            return UNKNOWN, a
        if seen[row]:
            return TWICE, a
        seen[row] = True
        if a and stage[a] < stage[a - 1]:
            return LATE, a
        if not rules.legal[kind, phase[row]] or numbers[0][a] != present[0][row] + rules.begins[kind]:
            return FENCE, a
        if rules.gives[kind]:
            batch = booked.batch[a]
            if numbers[1][a] != present[1][row] + 1:
                return FENCE, a
            if batch != asked[row] and (least[row] == NONE or batch < least[row] or batch > most[row]):
                return BATCH, a
            if kind == _TUNE and not stays[a]:
                return MOVED, a
    return FINE, 0
