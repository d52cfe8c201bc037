"""The difference between what jobs have and what a policy wants them to have, as a plan in the order of its stages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from brim.core.actions import Action, Preempt, Reject, Resize, Start, Tune, setting_in, stage_of
from brim.core.arrays import BoolArray, IntArray
from brim.core.setting import Rank, Setting
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.engine.rows import PREEMPTED, REJECTED, RESIZED, STARTED, TUNED, changes
from brim.policies.sockets import Sizes


def difference(
    snapshot: Snapshot, sizes: Sizes, wanted: Grants, loaders: IntArray, *, tunes_loaders: bool = True
) -> tuple[Action, ...]:
    """Compare the setting of every job with the one it is to have, and return what changes it into the other.

    A job that has GPUs and is granted none is preempted; one that has none and is granted some is started. One whose
    ranks are granted other places or another share is resized. One whose ranks stay, and that gets another batch, other
    loader workers, or becomes revocable or regular, is tuned.

    Args:
        snapshot: What jobs have.
        sizes: GPUs and batches wanted.
        wanted: Places wanted.
        loaders: Loader workers wanted per rank (J,).
        tunes_loaders: Whether running jobs whose ranks stay may get other loader workers; if not, they keep theirs.
    """
    jobs, held = snapshot.jobs, snapshot.grants
    count, became, batch, workers, revocable = changes(
        held.job, held.node, held.gpu, held.share_milli, held.revocable,
        wanted.job, wanted.node, wanted.gpu, wanted.share_milli, wanted.revocable,
        jobs.phase, jobs.batch_now, jobs.batch, sizes.global_batch, jobs.loaders_now, loaders, sizes.reject,
        tunes_loaders,
    )
    if not count:
        return ()
    rows = np.flatnonzero(became)
    numbers = dict(zip(rows.tolist(), zip(
        became[rows].tolist(), jobs.id[rows].tolist(), jobs.attempt[rows].tolist(), jobs.sequence[rows].tolist(),
        strict=True,
    ), strict=True))
    settings = _settings(wanted, became >= RESIZED, batch, workers, revocable)
    actions: list[Action] = [Preempt(job, attempt) for what, job, attempt, _ in numbers.values() if what == PREEMPTED]
    actions += [Reject(job, attempt) for what, job, attempt, _ in numbers.values() if what == REJECTED]
    starts: list[Action] = []
    for row, setting in settings.items():
        what, job, attempt, sequence = numbers[row]
        if what == RESIZED:
            actions.append(Resize(job, attempt, sequence + 1, setting))
        elif what == STARTED:
            analyse = bool(len(sizes.analyse)) and bool(sizes.analyse[row])
            starts.append(Start(job, attempt + 1, sequence + 1, setting, analyse))
    tunes = [
        Tune(job, attempt, sequence + 1, settings[row])
        for row, (what, job, attempt, sequence) in numbers.items() if what == TUNED
    ]
    plan = (*actions, *starts, *tunes)
    return _staged(snapshot, plan) if (became == RESIZED).any() or tunes else plan


def _staged(snapshot: Snapshot, actions: Iterable[Action]) -> tuple[Action, ...]:
    """Order actions by what they free and take."""

    def stage(action: Action) -> int:
        changes = action.rule.frees and setting_in(action) is not None
        row = int(np.searchsorted(snapshot.jobs.id, action.job))
        return stage_of(action, snapshot.setting_of(row) if changes else None)

    return tuple(sorted(actions, key=stage))


def _settings(
    wanted: Grants, rows: BoolArray, batch: IntArray, loaders: IntArray, revocable: BoolArray
) -> dict[int, Setting]:
    """The settings wanted for the marked jobs, by job row, in the order of the grants."""
    ranks: dict[int, list[Rank]] = {}
    new = np.flatnonzero(rows[wanted.job])
    job = wanted.job[new]
    columns = (job, wanted.node[new], wanted.gpu[new], wanted.share_milli[new], loaders[job])
    for row, *rank in zip(*(column.tolist() for column in columns), strict=True):
        ranks.setdefault(row, []).append(Rank(*rank))
    return {
        row: Setting(tuple(sorted(of_row)), int(batch[row]), bool(revocable[row])) for row, of_row in ranks.items()
    }
