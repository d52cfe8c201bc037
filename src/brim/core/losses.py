"""Losses that jobs reported while they trained: what their convergence is believed from.

A job that goes on from a checkpoint makes some samples again; its newer reports replace those of before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from brim.core.arrays import FloatArray, frozen

POINTS_KEPT: Final = 128
"""Points that are kept of a job. When there are as many, neighbours are averaged, and each later point is the mean of
twice as many reports. Ours: 2 kB, and more than the three parameters of a curve take."""
_NOTHING: Final[FloatArray] = frozen(np.empty(0))


@dataclass(frozen=True, slots=True)
class ReportedLosses:
    """Losses by job.

    Attributes:
        jobs: Ids of the jobs that have reported any, in increasing order.
        points: Of each, samples in increasing order and losses, infinite where one was not finite (N,).
    """

    jobs: tuple[int, ...] = ()
    points: tuple[tuple[FloatArray, FloatArray], ...] = ()

    def of(self, job: int) -> tuple[FloatArray, FloatArray]:
        """Samples and losses of a job by its id; empty if it has reported none."""
        place = bisect_left(self.jobs, job)
        return self.points[place] if self.jobs[place : place + 1] == (job,) else (_NOTHING, _NOTHING)


@dataclass(slots=True)
class _OfJob:
    """Points of one job: each is the mean of ``stride`` reports, the last perhaps of fewer."""

    stride: int = 1
    samples: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    open_reports: int = 0
    """Reports in the last point while it is not complete, else 0."""
    newest: tuple[float, float] = (0.0, math.nan)

    def add(self, samples: float, loss: float) -> bool:
        """Add a report; return whether it tells anything."""
        if samples <= self.newest[0]:
            self._forget_from(samples)
        elif loss == self.newest[1] and math.isfinite(loss):  # reported once, told again with each report of progress
            return False
        self.newest = samples, loss
        if not self.open_reports:
            self.samples.append(samples)
            self.loss.append(loss)
        else:
            share = 1 / (self.open_reports + 1)
            self.samples[-1] += (samples - self.samples[-1]) * share
            is_finite = math.isfinite(loss) and math.isfinite(self.loss[-1])
            self.loss[-1] = self.loss[-1] + (loss - self.loss[-1]) * share if is_finite else math.inf
        self.open_reports = (self.open_reports + 1) % self.stride
        if len(self.samples) == POINTS_KEPT and not self.open_reports:
            self.samples, self.loss = _halved(self.samples), _halved(self.loss)
            self.stride *= 2
        return True

    def _forget_from(self, samples: float) -> None:
        """Forget points from so many samples on."""
        kept = sum(1 for one in self.samples if one < samples)
        del self.samples[kept:], self.loss[kept:]
        self.open_reports = 0


def _halved(points: list[float]) -> list[float]:
    return [(one + other) / 2 for one, other in zip(points[::2], points[1::2], strict=True)]


class LossBook:
    """Reported losses: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self, of_jobs: Iterable[tuple[int, Any]] = ()) -> None:
        self._of_job = {
            job: _OfJob(stride, list(samples), list(loss), open_reports, tuple(newest))
            for job, (stride, samples, loss, open_reports, newest) in of_jobs
        }
        self._points: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._frozen: ReportedLosses | None = None

    def add(self, job: int, samples: float, loss: float) -> None:
        """Note a loss; one without samples, or that is not a number, says nothing."""
        if samples > 0 and not math.isnan(loss) and self._of_job.setdefault(job, _OfJob()).add(samples, loss):
            self._points.pop(job, None)
            self._frozen = None

    def over(self, job: int) -> None:
        """Forget a job that has ended."""
        if self._of_job.pop(job, None) is not None:
            self._points.pop(job, None)
            self._frozen = None

    def renumber(self, rows: Mapping[int, int]) -> None:
        """Give every job another id."""
        self._of_job = {rows[job]: own for job, own in self._of_job.items()}
        self._points, self._frozen = {}, None

    def plain(self) -> list[tuple[int, Any]]:
        """Everything as plain data for JSON."""
        return [
            (job, (own.stride, own.samples, own.loss, own.open_reports, own.newest))
            for job, own in self._of_job.items()
        ]

    def freeze(self) -> ReportedLosses:
        """Return what was reported."""
        if self._frozen is None:
            for job in self._of_job.keys() - self._points.keys():
                own = self._of_job[job]
                self._points[job] = frozen(np.array(own.samples)), frozen(np.array(own.loss))
            jobs = tuple(sorted(self._of_job))
            self._frozen = ReportedLosses(jobs, tuple(map(self._points.__getitem__, jobs)))
        return self._frozen
