"""The difference between what jobs have and what a policy wants them to have, as a plan in the order of its stages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap

import numpy as np

from brim.core.actions import Action, Plan, Preempt, Reject, Resize, Start, Tune
from brim.core.arrays import BoolArray, IntArray
from brim.core.changes import RULES, stages
from brim.core.setting import Rank, Setting
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, Grants
from brim.engine.rows import PREEMPTED, REJECTED, RESIZED, STARTED, TUNED, changes
from brim.policies.sockets import Sizes


def difference(
    snapshot: Snapshot, sizes: Sizes, wanted: Grants, loaders: IntArray, *, tunes_loaders: bool = True
) -> Plan:
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
        return Plan(snapshot.now_ms)
    rows = np.flatnonzero(became)
    what = became[rows]

    def numbers(at: IntArray) -> Iterable[tuple[int, int, int]]:
        return zip(jobs.id[at].tolist(), jobs.attempt[at].tolist(), jobs.sequence[at].tolist(), strict=True)

    def ending(kind: type[Preempt | Reject], code: int) -> list[Action]:
        return [kind(job, attempt) for job, attempt, _ in numbers(rows[what == code])]

    row_of_gang, settings = _settings(wanted, became >= RESIZED, batch, workers, revocable)
    becomes = became[row_of_gang]

    def changing(kind: type[Resize | Tune], at: IntArray) -> list[Action]:
        return [
            kind(job, attempt, sequence + 1, settings[gang])
            for gang, (job, attempt, sequence) in zip(at.tolist(), numbers(row_of_gang[at]), strict=True)
        ]

    resized, started, tuned = (np.flatnonzero(becomes == code) for code in (RESIZED, STARTED, TUNED))
    begun = row_of_gang[started]
    analyse = sizes.analyse[begun] if len(sizes.analyse) else np.zeros(len(begun), dtype=np.bool_)
    plan = Plan(snapshot.now_ms, (
        *ending(Preempt, PREEMPTED), *ending(Reject, REJECTED), *changing(Resize, resized), *(
            Start(job, attempt + 1, sequence + 1, settings[gang], measured)
            for gang, measured, (job, attempt, sequence) in zip(
                started.tolist(), analyse.tolist(), numbers(begun), strict=True
            )
        ), *changing(Tune, tuned[np.argsort(row_of_gang[tuned])]),
    ))
    return _staged(snapshot, plan) if len(resized) or len(tuned) else plan


def _staged(snapshot: Snapshot, plan: Plan) -> Plan:
    """Order actions by what they free and take."""
    jobs, held, booked = snapshot.jobs, snapshot.grants, plan.bookings
    stage, _ = stages(
        booked, np.searchsorted(jobs.id, booked.job),
        (held.job, held.node, held.gpu, held.share_milli, held.loaders), jobs.batch_now, RULES,
    )
    if (stage[1:] >= stage[:-1]).all():
        return plan
    return Plan(plan.time_ms, tuple(plan.actions[at] for at in np.argsort(stage, kind="stable").tolist()))


def _settings(
    wanted: Grants, rows: BoolArray, batch: IntArray, loaders: IntArray, revocable: BoolArray
) -> tuple[IntArray, list[Setting]]:
    """The rows of the marked jobs that are granted ranks, in the order of the grants, and the settings they get."""
    new = np.flatnonzero(rows[wanted.job])
    if not len(new):
        return EMPTY, []
    job = wanted.job[new]
    first = np.empty(len(rows), dtype=np.int64)
    first[job[::-1]] = np.arange(len(new))[::-1]
    order = np.lexsort((wanted.gpu[new], wanted.node[new], first[job]))
    new, job = new[order], job[order]
    columns = (wanted.node[new], wanted.gpu[new], wanted.share_milli[new], loaders[job])
    ranks = list(starmap(Rank, zip(*(column.tolist() for column in columns), strict=True)))
    begin = np.flatnonzero(np.diff(job, prepend=-1))
    of_gang, ends = job[begin], [*begin[1:].tolist(), len(job)]
    return of_gang, [
        Setting(tuple(ranks[start:stop]), size, mark) for start, stop, size, mark in zip(
            begin.tolist(), ends, batch[of_gang].tolist(), revocable[of_gang].tolist(), strict=True
        )
    ]
