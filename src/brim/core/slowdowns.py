"""Slowdowns that jobs reported beside neighbours on their GPUs: means by the exact set of residents.

A job that reports several times in the same co-location counts once, with its latest report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from brim.core.arrays import frozen
from brim.core.tables import SlowdownTable
from brim.core.trace import NONE

NEIGHBOURS_MAX: Final = 3
"""Neighbours of a job in the largest set of which slowdowns are kept: four residents, as many as EaCO measured."""
SETS_KEPT: Final = 10_000
"""Sets that are kept; those that were seen the longest ago are forgotten. Ours: some megabytes."""


class ResidentKind(NamedTuple):
    """What slowdowns depend on of a job: its model and its global batch, NONE where it has none."""

    profile: int
    batch: int


class ResidentSet(NamedTuple):
    """A job among its neighbours on GPUs of one type.

    Attributes:
        who: The job.
        gpu_type: Code of the GPU type.
        others: Its neighbours, in increasing order.
    """

    who: ResidentKind
    gpu_type: int
    others: tuple[ResidentKind, ...]


class MeanRatio(NamedTuple):
    """Number, mean and sum of squared deviations of slowdowns."""

    jobs: int
    ratio: float
    squares: float

    def with_one(self, ratio: float) -> MeanRatio:
        """The mean with one more value."""
        jobs, off = self.jobs + 1, ratio - self.ratio
        mean = self.ratio + off / jobs
        return MeanRatio(jobs, mean, self.squares + off * (ratio - mean))


class SeenSlowdowns:
    """Reported slowdowns: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self) -> None:
        self._past: dict[ResidentSet, MeanRatio] = {}
        self._present: dict[int, tuple[ResidentSet, float]] = {}
        self._table: SlowdownTable | None = None

    def add(self, job: int, colocation: ResidentSet, ratio: float) -> None:
        """Add what a job reported in its present co-location."""
        if job in self._present and self._present[job][0] != colocation:
            self.over(job)
        self._present[job] = colocation, max(ratio, 1.0)  # below 1 is noise: nobody is faster for having neighbours
        self._table = None

    def over(self, job: int) -> None:
        """Keep what a job reported last: it has ended, or left this co-location."""
        told = self._present.pop(job, None)
        if told is None:
            return
        colocation, ratio = told
        self._past[colocation] = self._past.pop(colocation, MeanRatio(0, 0.0, 0.0)).with_one(ratio)
        if len(self._past) > SETS_KEPT:
            del self._past[next(iter(self._past))]
        self._table = None

    def renumber(self, rows: Mapping[int, int]) -> None:
        """Give every job another id."""
        self._present = {rows[job]: told for job, told in self._present.items()}

    def freeze(self) -> SlowdownTable:
        """Return the table."""
        if self._table is None:
            means = dict(self._past)
            for colocation, ratio in self._present.values():
                means[colocation] = means.get(colocation, MeanRatio(0, 0.0, 0.0)).with_one(ratio)
            self._table = _table_of(means)
        return self._table

    def plain(self) -> list[list[Any]]:
        """Everything as plain data for JSON: first the past in its order, then the present by job."""
        past = [[NONE, *_plain(colocation), *mean] for colocation, mean in self._past.items()]
        present = [[job, *_plain(colocation), 1, ratio, 0.0] for job, (colocation, ratio) in self._present.items()]
        return [*past, *present]

    @classmethod
    def of_plain(cls, rows: Sequence[Sequence[Any]]) -> SeenSlowdowns:
        """Read ``plain`` back."""
        seen = cls()
        for job, profile, batch, gpu_type, others, jobs, ratio, squares in rows:
            beside = tuple(ResidentKind(*one) for one in others)
            colocation = ResidentSet(ResidentKind(profile, batch), gpu_type, beside)
            if job == NONE:
                seen._past[colocation] = MeanRatio(jobs, ratio, squares)
            else:
                seen._present[job] = colocation, ratio
        return seen


def _plain(colocation: ResidentSet) -> list[Any]:
    return [*colocation.who, colocation.gpu_type, [list(one) for one in colocation.others]]


def _table_of(means: Mapping[ResidentSet, MeanRatio]) -> SlowdownTable:
    rows = sorted(means.items())
    others = np.full((len(rows), NEIGHBOURS_MAX, 2), NONE, dtype=np.int64)
    for row, (colocation, _) in enumerate(rows):
        others[row, : len(colocation.others)] = colocation.others
    who = np.array([(*colocation.who, colocation.gpu_type) for colocation, _ in rows], dtype=np.int64).reshape(-1, 3).T
    profile, batch, gpu_type = (frozen(np.ascontiguousarray(column)) for column in who)
    return SlowdownTable(
        profile=profile, batch=batch, gpu_type=gpu_type, others=frozen(others),
        count=frozen(np.array([mean.jobs for _, mean in rows], dtype=np.int64)),
        mean_ratio=frozen(np.array([mean.ratio for _, mean in rows], dtype=np.float64)),
        variance=frozen(np.array([mean.squares / max(mean.jobs - 1, 1) for _, mean in rows], dtype=np.float64)),
    )
