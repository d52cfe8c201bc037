"""How far jobs are from their target loss, as far as the losses that they have reported say it.

Shapes: J jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.convergence import CannotSay, convergence
from brim.core.arrays import BoolArray, FloatArray
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE

MILLION: Final = 1_000_000
SURE: Final = 1.0
"""Widest interval of the samples until the target, over all samples until then, of a job that counts as predictable.
Ours, not chosen on data: a classifier of such curves is to take its place."""


class Outlook(NamedTuple):
    """What is believed of jobs that train towards a loss (J,).

    Attributes:
        samples_left: Samples until the target, never more than the job's user planned; NaN where nothing can be said.
        is_predictable: Whether the curve through its losses says where the job ends.
    """

    samples_left: FloatArray
    is_predictable: BoolArray


@dataclass(slots=True)
class SeenProgress:
    """Curves through reported losses, fitted anew when a job has reported enough more; equal losses give equal answers.

    Attributes:
        fits: By job: samples by its newest report when it was fitted, samples until the target from there on, and how
            sure that is.
    """

    fits: dict[int, tuple[float, float, bool]] = field(default_factory=dict)

    def of_jobs(self, snapshot: Snapshot) -> Outlook:
        """The outlook of each job."""
        jobs = snapshot.jobs
        left, sure = np.full(len(jobs), np.nan), np.zeros(len(jobs), dtype=np.bool_)
        known = set(jobs.id.tolist())
        self.fits = {job: fit for job, fit in self.fits.items() if job in known}
        rows = np.searchsorted(jobs.id, np.array(snapshot.losses.jobs, dtype=np.int64))
        for row, job in zip(rows.tolist(), snapshot.losses.jobs, strict=True):
            if row < len(jobs) and jobs.id[row] == job and jobs.target_loss_ppm[row] != NONE:
                at, until, is_sure = self._fit(snapshot, job, float(jobs.target_loss_ppm[row]) / MILLION)
                left[row], sure[row] = max(at + until - float(jobs.samples_done[row]), 0.0), is_sure
        planned = np.where(jobs.samples_max == NONE, np.inf, jobs.samples_max - jobs.samples_done)
        return Outlook(np.minimum(left, np.maximum(planned, 0.0)), sure)

    def _fit(self, snapshot: Snapshot, job: int, target: float) -> tuple[float, float, bool]:
        samples, loss = snapshot.losses.of(job)
        newest = float(samples[-1])
        if self.fits.get(job, (np.nan,))[0] != newest:
            self.fits[job] = _fitted(samples, loss, newest, target)
        return self.fits[job]


def _fitted(samples: FloatArray, loss: FloatArray, newest: float, target: float) -> tuple[float, float, bool]:
    found = convergence(samples, loss)
    if isinstance(found, CannotSay):
        return newest, np.nan, False
    until = found.samples_left(target)
    spread = (until.high - until.low) / max(until.value + newest, 1.0) if np.isfinite(until.high) else np.inf
    return newest, until.value, bool(spread < SURE)
