"""Padding jobs kept out of the sight of Order, Size and Place, and put back for Fill and Feed.

What regular jobs get is decided as if there were no padding jobs; what is left is then filled. Shapes: J jobs of the
round, V those that are visible.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from brim.core.arrays import ArrayT, BoolArray, IntArray, frozen, replaced, table_of
from brim.core.cluster import UNLIMITED
from brim.core.joins import JoinTimes
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.snapshot import Memory, Snapshot
from brim.core.sums import CORE_MILLI
from brim.core.tables import EMPTY, JOB_COLUMNS, JOB_FLOAT_COLUMNS, NOBODY, Grants, JobTable
from brim.core.trace import NONE, JobClass
from brim.engine.answers import Seen
from brim.errors import PlanError
from brim.policies.sockets import SIZES_ON_CPU, Policy, Sizes

_JOBS: Final = attrgetter(*JOB_COLUMNS, *JOB_FLOAT_COLUMNS, "memo")
_OF_STEPS: Final = ("job", "profile", "nodes", "gpus", "local_batch", "step_s", "sync_s")
_OF_GRANTS: Final = ("node", "gpu", "share_milli")
_WHY_OF_PHASE: Final = {int(Phase.HELD): int(Reason.HELD), int(Phase.STOPPING): int(Reason.STOPPING)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What hides the padding jobs of a round.

    Attributes:
        padding: Which jobs are padding jobs (J,).
        rows: Rows of the others (V,).
        snapshot: The round's snapshot with every job.
        view: The snapshot without padding jobs and their grants; the same object if there are none.
    """

    padding: BoolArray
    rows: IntArray
    snapshot: Snapshot
    view: Snapshot

    @property
    def any(self) -> bool:
        """Whether there is a padding job to hide."""
        return self.view is not self.snapshot

    def column(self, seen: ArrayT, others: int = 0) -> ArrayT:
        """A column, or block, of the visible jobs as one of all jobs, with ``others`` for padding jobs (J, ...)."""
        if not self.any:
            return seen
        column: Any = np.full((len(self.padding), *seen.shape[1:]), others, dtype=seen.dtype)
        column[self.rows] = seen
        made: ArrayT = frozen(column)
        return made

    def sizes(self, seen: Sizes) -> Sizes:
        """Sizes with those of padding jobs, which are 0: the fill part decides them. They keep their batch."""
        if not self.any:
            return seen
        jobs, batch = self.snapshot.jobs, seen.global_batch
        if len(batch):
            kept = np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)
            batch = frozen(np.where(self.padding, kept, self.column(batch)))
        return Sizes(
            gpus=self.column(seen.gpus), global_batch=batch,
            analyse=self.column(seen.analyse) if len(seen.analyse) else seen.analyse,
            reject=self.column(seen.reject) if len(seen.reject) else seen.reject,
            **{name: self.column(column) if len(column := getattr(seen, name)) else column for name in SIZES_ON_CPU},
        )

    def grants(self, seen: Grants) -> Grants:
        """Grants of visible jobs in rows of all jobs; a padding job has none, and waits because it has none yet."""
        if not self.any:
            return seen
        phases = self.snapshot.jobs.phase
        why = np.full(len(self.padding), int(Reason.NOT_NOW))
        for phase, reason in _WHY_OF_PHASE.items():
            why[phases == phase] = reason
        why[self.rows] = seen.why
        blocker = np.where(seen.blocker == NONE, NONE, self.rows[seen.blocker] if len(self.rows) else NONE)
        return replaced(
            seen, job=frozen(self.rows[seen.job]), why=frozen(why), blocker=frozen(self.column(blocker, NONE)),
        )

    def only_padding(self, theirs: ArrayT, others: ArrayT) -> ArrayT:
        """One column, or block, for padding jobs, another for the others (J, ...)."""
        column: Any = others.copy()
        column[self.padding] = theirs[self.padding]
        made: ArrayT = frozen(column)
        return made

    def left_to_padding(self, seen: Seen, wanted: Grants, loaders: IntArray) -> tuple[Seen, Grants]:
        """What a Feed that counts cores sees of padding jobs: their GPUs alone, with the cores that others leave.

        Args:
            seen: The snapshot that it would see.
            wanted: All grants.
            loaders: Loader workers of the others per rank (J,).
        """
        jobs, nodes, theirs = self.snapshot.jobs, self.snapshot.nodes, self.padding[wanted.job]
        job, node = wanted.job[~theirs], wanted.node[~theirs]
        takes = np.maximum(jobs.cpu_milli[job], CORE_MILLI) + loaders[job] * CORE_MILLI
        left = np.maximum(nodes.cpu_milli - np.bincount(node, takes, len(nodes)).astype(np.int64), 0)
        rest = replaced(
            nodes, gpus=frozen(np.maximum(np.bincount(wanted.node[theirs], minlength=len(nodes)), 1)),
            cpu_milli=frozen(np.where(nodes.cpu_milli < UNLIMITED, left, nodes.cpu_milli)),
        )
        columns = ("job", "node", "gpu", "share_milli", *(["revocable"] if len(wanted.revocable) else []))
        grants = replaced(wanted, **{name: frozen(getattr(wanted, name)[theirs]) for name in columns})
        return Seen(replaced(seen.snapshot, nodes=rest)), grants

    def check_filled(self, placed: Grants, wanted: Grants) -> None:
        """Check that only padding jobs were added.

        Raises:
            PlanError: the fill part gave a GPU to a job that is no padding job.
        """
        if wanted is placed:
            return
        odd = np.setdiff1d(wanted.job[~self.padding[wanted.job]], placed.job)
        if len(odd):
            raise PlanError(
                f"job {self.snapshot.jobs.id[odd[0]]} is no padding job: a part that takes padding jobs adds no others"
            )


def hidden(snapshot: Snapshot, policy: Policy) -> Hidden:
    """Hide the padding jobs of a snapshot, if the policy's fill part takes them."""
    jobs = snapshot.jobs
    padding: BoolArray = jobs.job_class == int(JobClass.PADDING)
    if not policy.takes_padding or not padding.any():
        nobody = np.zeros(len(jobs), dtype=np.bool_)
        return Hidden(padding=nobody, rows=np.arange(len(jobs)), snapshot=snapshot, view=snapshot)
    rows = np.flatnonzero(~padding)
    return Hidden(padding=padding, rows=rows, snapshot=snapshot, view=_without(snapshot, padding, rows))


def _without(snapshot: Snapshot, padding: BoolArray, rows: IntArray) -> Snapshot:
    """The snapshot with only these rows of the job table, and what belongs to them."""
    jobs, held, seen = snapshot.jobs, snapshot.grants, snapshot.seen
    new_row = np.full(len(jobs) + 1, NONE, dtype=np.int64)  # the last cell is for jobs that have ended
    new_row[rows] = np.arange(len(rows))
    stays = ~padding[held.job]
    steps = (seen.job == NONE) | ~padding[np.maximum(seen.job, 0)] if len(seen) else NOBODY
    columns: dict[str, Any] = {name: getattr(seen, name)[steps] for name in _OF_STEPS}
    columns["job"] = new_row[columns["job"]]
    return replaced(
        snapshot,
        jobs=table_of(JobTable, (*(frozen(column[rows]) for column in _JOBS(jobs)), jobs.size_lists)),
        grants=Grants(
            job=frozen(new_row[held.job[stays]]),
            **{name: frozen(getattr(held, name)[stays]) for name in _OF_GRANTS}, why=EMPTY, blocker=EMPTY,
            loader_workers=frozen(held.loaders[stays]),
            revocable=_marks(held.revocable[stays]) if len(held.revocable) else NOBODY,
        ),
        seen=replaced(seen, **{name: frozen(column) for name, column in columns.items()}),
        joins=JoinTimes(),
        memory=Memory(**{
            field.name: frozen(stored[rows]) if len(stored) else stored
            for field in fields(Memory) for stored in (getattr(snapshot.memory, field.name),)
        }),
    )


def _marks(revocable: BoolArray) -> BoolArray:
    """Marks of what is revocable; empty if nothing is, as in the snapshot of a state without padding jobs."""
    return frozen(revocable) if revocable.any() else NOBODY


class Reasons(NamedTuple):
    """Why the jobs of a round wait.

    Attributes:
        job: Ids of the jobs, increasing (J,).
        why: ``Reason`` code of each (J,).
        blocker: Id of the job that blocks it, -1 for none (J,).
    """

    job: IntArray
    why: IntArray
    blocker: IntArray


NO_REASONS: Final = Reasons(EMPTY, EMPTY, EMPTY)


def as_held(view: Snapshot, before: Reasons) -> tuple[Sizes, Grants]:
    """Answers of Size and Place that change nothing: regular jobs keep what they have, and wait as before.

    Args:
        view: The snapshot without padding jobs.
        before: Why the jobs of the last round waited.
    """
    jobs, held = view.jobs, view.grants
    why, blocker = np.zeros(len(jobs), dtype=np.int64), np.full(len(jobs), NONE)
    at = _rows(before.job, jobs.id)
    said = ~jobs.holds & (at != NONE)
    why[said], blocker[said] = before.why[at[said]], _rows(jobs.id, before.blocker[at[said]])
    why[~jobs.holds & (why == 0)] = int(Reason.NOT_NOW)
    order = np.lexsort((held.gpu, held.node, held.job))
    placed = Grants(
        job=frozen(held.job[order]), **{name: frozen(getattr(held, name)[order]) for name in _OF_GRANTS},
        why=frozen(why), blocker=frozen(blocker),
        revocable=frozen(held.revocable[order]) if len(held.revocable) else NOBODY,
    )
    return Sizes(gpus=jobs.gpus_now), placed


def _rows(ids: IntArray, wanted: IntArray) -> IntArray:
    """Where these ids are among increasing ones, NONE for one that is not there."""
    if not len(ids):
        return np.full(len(wanted), NONE)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, NONE)
