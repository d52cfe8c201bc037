"""Step times that jobs reported: means by job and configuration, merged by model once a job has ended.

Only steps of jobs that had their GPUs alone: what neighbours cost is in ``slowdowns``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from brim.core.arrays import IntArray, frozen, replaced
from brim.core.events import Sample
from brim.core.tables import SeenSteps
from brim.core.trace import NONE

PROFILES_KEPT: Final = 10_000
"""Models whose step times are kept when no job of theirs is left; the ones that ended jobs the longest ago are
forgotten. Ours: some megabytes; no trace names so many models."""
_Key = tuple[int, int, int]
"""Nodes, GPUs, local batch."""
_Mean = tuple[int, float, float]
"""Samples, mean step time, mean synchronisation time."""


class SeenStepTimes:
    """Reported step times: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self) -> None:
        self._of_job: dict[int, dict[_Key, _Mean]] = {}
        self._profile: dict[int, int] = {}
        self._of_profile: dict[int, dict[_Key, _Mean]] = {}
        self._rows: dict[int, bytes] = {}  # of a job in the table; those of its last report are made when it is read
        self._columns: tuple[IntArray, SeenSteps] | None = None

    def add(self, job: int, profile: int, seen: Iterable[Sample]) -> None:
        """Add the step times that a job reported."""
        means = self._of_job.setdefault(job, {})
        self._profile[job] = profile
        for sample in seen:
            if _merge(means, (sample.nodes, sample.gpus, sample.local_batch), (1, sample.step_s, sample.sync_s)):
                self._columns = None
                self._rows.pop(job, None)

    def num_sizes(self, job: int) -> int:
        """On how many numbers of GPUs a job has reported."""
        return len({gpus for _, gpus, _ in self._of_job.get(job, ())})

    def step_s(self, job: int, profile: int, key: _Key) -> float:
        """Mean step time of a job, else of jobs of its model that have ended, else of one that has not; else NaN."""
        alike = (other for other, trains in sorted(self._profile.items()) if trains == profile != NONE)
        tables = (self._of_job.get(job, {}), self._of_profile.get(profile, {}), *map(self._of_job.__getitem__, alike))
        return next((means[key][1] for means in tables if key in means), math.nan)

    def over(self, job: int, *, learns: bool = True) -> None:
        """Remove a job that has ended; its step times are kept under its model, if others are to learn from them."""
        means = self._of_job.pop(job, None)
        if means is None:
            return
        profile = self._profile.pop(job)
        self._rows.pop(job, None)
        if profile != NONE and learns:
            past = self._of_profile[profile] = self._of_profile.pop(profile, {})
            for key, mean in means.items():
                _merge(past, key, mean)
            if len(self._of_profile) > PROFILES_KEPT:
                del self._of_profile[next(iter(self._of_profile))]
        self._columns = None

    def renumber(self, rows: Mapping[int, int]) -> None:
        """Give every job another id."""
        self._of_job = {rows[job]: means for job, means in self._of_job.items()}
        self._profile = {rows[job]: profile for job, profile in self._profile.items()}
        self._rows, self._columns = {}, None

    def freeze(self, rows_of: Callable[[IntArray], IntArray]) -> SeenSteps:
        """Return the table; ``rows_of`` gives the rows of the job table for job ids."""
        if self._columns is None:
            self._columns = self._build()
        jobs, table = self._columns
        if not len(jobs):
            return replaced(table)
        rows = np.full(len(table.job), NONE, dtype=np.int64)
        rows[: len(jobs)] = rows_of(jobs)  # the rows of jobs that have ended follow
        return replaced(table, job=frozen(rows))

    def _build(self) -> tuple[IntArray, SeenSteps]:
        for job in self._of_job.keys() - self._rows.keys():
            self._rows[job] = _rows(job, self._profile[job], self._of_job[job])
        past = [_rows(NONE, profile, means) for profile, means in sorted(self._of_profile.items())]
        rows = b"".join([*(self._rows[job] for job in sorted(self._of_job)), *past])
        block = np.frombuffer(rows).reshape(-1, 7).T
        job, profile, nodes, gpus, local_batch = (frozen(column.astype(np.int64)) for column in block[:5])
        return job[job != NONE], SeenSteps(
            job=job, profile=profile, nodes=nodes, gpus=gpus, local_batch=local_batch, step_s=frozen(block[5]),
            sync_s=frozen(block[6]),
        )


def _rows(job: int, profile: int, means: dict[_Key, _Mean]) -> bytes:
    """Rows of the table, the memory of an array of floats (S, 7)."""
    rows = [(job, profile, *key, step_s, sync_s) for key, (_, step_s, sync_s) in sorted(means.items())]
    return np.array(rows, dtype=np.float64).tobytes()


def _merge(means: dict[_Key, _Mean], key: _Key, mean: _Mean) -> bool:
    """Merge samples into a mean; return whether this adds a row or changes its times."""
    count, step_s, sync_s = means.get(key, (0, 0.0, 0.0))
    more, step, sync = mean
    total = count + more
    merged = means[key] = (total, step_s + (step - step_s) * more / total, sync_s + (sync - sync_s) * more / total)
    return not count or merged[1:] != (step_s, sync_s)
