"""The difference between what jobs have and what a policy wants them to have, as a plan in the order of its stages."""

from __future__ import annotations

import numpy as np

from brim.core.actions import Bookings, Plan, plan_of
from brim.core.arrays import IntArray
from brim.core.changes import RULES, stages
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.core.trace import NONE
from brim.engine.rows import PREEMPT, REJECT, RESIZE, START, TUNE, changes
from brim.policies.sockets import Sizes


def difference(
    snapshot: Snapshot, sizes: Sizes, wanted: Grants, loaders: IntArray, *, tunes_loaders: bool = True
) -> Plan:
    """Compare the setting of every job with the one it is to have, and return what changes it into the other.

    A job that has GPUs and is granted none is preempted; one that has none and is granted some is started. One whose
    ranks are granted other places is resized. One whose ranks stay, and that gets another share of its GPUs, another
    batch, other loader workers, or becomes revocable or regular, is tuned.

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
        return plan_of(snapshot.now_ms)
    rows = np.flatnonzero(became != NONE)
    preempted, rejected, tuned = (rows[became[rows] == kind] for kind in (PREEMPT, REJECT, TUNE))
    changed = became[wanted.job]
    new = np.flatnonzero(RULES.gives[changed] & (changed != NONE))
    granted = wanted.job[new]
    first = np.zeros(len(became), dtype=np.int64)
    first[granted[::-1]] = np.arange(len(new))[::-1]  # the jobs that get another setting, in the order of the grants
    gangs = granted[first[granted] == np.arange(len(new))]
    acted = np.concatenate((
        preempted, rejected, gangs[became[gangs] == RESIZE], gangs[became[gangs] == START], tuned,
    ))
    place = np.zeros(len(became), dtype=np.int64)
    place[acted] = np.arange(len(acted))
    new = new[np.lexsort((wanted.gpu[new], wanted.node[new], place[granted]))]
    kind = became[acted]
    gives, starts = RULES.gives[kind], kind == START
    counts = np.bincount(place[granted], minlength=len(acted))
    job = wanted.job[new]
    plan = Plan(
        time_ms=snapshot.now_ms, attempt=jobs.attempt[acted] + starts,
        sequence=np.where(gives, jobs.sequence[acted] + 1, NONE),
        analyse=starts & (sizes.analyse[acted] if len(sizes.analyse) else False),
        bookings=Bookings(
            kind=kind, job=jobs.id[acted], batch=np.where(gives, batch[acted], NONE),
            revocable=gives & revocable[acted], first=np.concatenate(([0], np.cumsum(counts))),
            ranks=np.column_stack((wanted.node[new], wanted.gpu[new], wanted.share_milli[new], workers[job])),
        ),
    )
    return _staged(snapshot, plan) if len(tuned) or (kind == RESIZE).any() else plan


def _staged(snapshot: Snapshot, plan: Plan) -> Plan:
    """Order actions by what they free and take."""
    jobs, held, booked = snapshot.jobs, snapshot.grants, plan.bookings
    stage, _ = stages(
        booked, np.searchsorted(jobs.id, booked.job),
        (held.job, held.node, held.gpu, held.share_milli, held.loaders), jobs.batch_now, RULES,
    )
    return plan.in_order(np.argsort(stage, kind="stable"))
