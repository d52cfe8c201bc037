"""The difference between what jobs have and what a policy wants them to have, as a plan in the order of its stages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from brim.core.actions import Action, Preempt, Reject, Resize, Start, Tune, setting_in, stage_of
from brim.core.arrays import BoolArray, IntArray
from brim.core.setting import Rank, Setting
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants, JobTable
from brim.core.trace import NONE
from brim.policies.sockets import Sizes
from brim.units import WHOLE_GPU


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
    jobs = snapshot.jobs
    has = np.zeros(len(jobs), dtype=np.bool_)
    has[wanted.job] = True
    holds = jobs.holds
    keeps, coming = has & holds, has & ~holds
    moved = _moved(snapshot, wanted, keeps)
    stays = keeps & ~moved
    if not tunes_loaders:
        loaders = np.where(stays, jobs.loaders_now, loaders)
    batch, revocable = _batches(sizes, jobs), wanted.revocable_jobs(len(jobs))
    was_revocable = snapshot.grants.revocable_jobs(len(jobs))
    tuned = stays & ((batch != jobs.batch_now) | (loaders != jobs.loaders_now) | (revocable != was_revocable))
    settings = _settings(wanted, moved | coming | tuned, batch, loaders, revocable)
    analyse = sizes.analyse if len(sizes.analyse) else np.zeros(len(jobs), dtype=np.bool_)

    def numbers(row: int) -> tuple[int, int, int]:
        return int(jobs.id[row]), int(jobs.attempt[row]), int(jobs.sequence[row]) + 1

    actions: list[Action] = [Preempt(*numbers(row)[:2]) for row in np.flatnonzero(holds & ~has).tolist()]
    if len(sizes.reject):
        actions += [Reject(*numbers(row)[:2]) for row in np.flatnonzero(sizes.reject & ~holds & ~has).tolist()]
    actions += [Resize(*numbers(row), setting) for row, setting in settings.items() if moved[row]]
    for row, setting in settings.items():
        if coming[row]:
            job, attempt, sequence = numbers(row)
            actions.append(Start(job, attempt + 1, sequence, setting, bool(analyse[row])))
    actions += [Tune(*numbers(row), settings[row]) for row in np.flatnonzero(tuned).tolist()]
    return _staged(snapshot, actions) if moved.any() or tuned.any() else tuple(actions)


def _staged(snapshot: Snapshot, actions: Iterable[Action]) -> tuple[Action, ...]:
    """Order actions by what they free and take."""

    def stage(action: Action) -> int:
        changes = action.rule.frees and setting_in(action) is not None
        row = int(np.searchsorted(snapshot.jobs.id, action.job))
        return stage_of(action, snapshot.setting_of(row) if changes else None)

    return tuple(sorted(actions, key=stage))


def _moved(snapshot: Snapshot, wanted: Grants, keeps: BoolArray) -> BoolArray:
    """Which of the jobs that keep ranks are granted other places or shares than they have (J,)."""
    moved = np.zeros(len(keeps), dtype=np.bool_)
    held = snapshot.grants
    before, after = keeps[held.job], keeps[wanted.job]
    columns = (
        (held.job, wanted.job), (held.node, wanted.node), (held.gpu, wanted.gpu), (held.share_milli, wanted.share_milli)
    )
    if all(np.array_equal(was[before], will[after]) for was, will in columns):
        return moved  # the walk returns unchanged grants in the same order
    span, nodes = int(snapshot.nodes.gpus.max()) + 1, len(snapshot.nodes)  # one place more, for ranks on CPU
    was, will = (
        ((grants.job[rows] * nodes + grants.node[rows]) * span + grants.gpu[rows] + 1) * (WHOLE_GPU + 1)
        + grants.share_milli[rows]
        for grants, rows in ((held, before), (wanted, after))
    )
    places, which = np.unique(np.concatenate((was, will)), return_inverse=True)
    change = np.bincount(which[len(was) :], minlength=len(places)) - np.bincount(
        which[: len(was)], minlength=len(places)
    )
    moved[places[change != 0] // ((WHOLE_GPU + 1) * span * nodes)] = True
    return moved


def _batches(sizes: Sizes, jobs: JobTable) -> IntArray:
    """The batch of each job from now on (J,)."""
    if len(sizes.global_batch):
        return sizes.global_batch
    return np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)


def _settings(
    wanted: Grants, rows: BoolArray, batch: IntArray, loaders: IntArray, revocable: BoolArray
) -> dict[int, Setting]:
    """The settings wanted for the marked jobs, by job row, in the order of the grants."""
    ranks: dict[int, list[Rank]] = {}
    if rows.any():
        new = rows[wanted.job]
        job = wanted.job[new]
        columns = (job, wanted.node[new], wanted.gpu[new], wanted.share_milli[new], loaders[job])
        for row, *rank in zip(*(column.tolist() for column in columns), strict=True):
            ranks.setdefault(row, []).append(Rank(*rank))
    return {
        row: Setting(tuple(sorted(of_row)), int(batch[row]), bool(revocable[row])) for row, of_row in ranks.items()
    }
