"""Models of a job's remaining work: what ended jobs tell about it, or the truth for oracles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.ended_work import TOTALS_KEPT
from brim.core.snapshot import Snapshot
from brim.core.state import SERVICE_EDGES_GPU_MS
from brim.core.trace import NONE
from brim.units import MS_PER_MIN

QUANTILES: Final[FloatArray] = frozen((np.arange(15) + 0.5) / 15)
"""Probabilities that less is left, of the columns in which a belief is given: the middles of equal parts. Ours: with
few, who has more left would change in jumps as a job runs, and two jobs of which nothing is known would take turns."""
UNKNOWN_GPU_MS: Final = 30 * MS_PER_MIN
"""Median GPU time that a new job is believed to need while no job has ended. Ours."""
OTHERS: Final = 1.0
"""Weight of all ended jobs together, beside 1 for each ended job of the same model. Ours: one of its like tells as much
about a job as everybody else."""
BEYOND: Final[FloatArray] = frozen(1.0 / (1.0 - (np.arange(5) + 0.5) / 5))
"""Totals of jobs that outlive all that ended of their model, over the most that one has done so far: the middles of
five equal parts of P(T > t) = 1/t."""
ALIKE: Final = 1.05
"""A job that needs at most this many times the work of an ended one may be the same work. Ours."""


class Work(Protocol):
    """A model of remaining work."""

    def left_gpu_ms(self, snapshot: Snapshot, per_sample: FloatArray) -> FloatArray:
        """GPU time that each job is believed to need yet on its fewest GPUs, >= 0, at ``QUANTILES`` (J, Q).

        Args:
            snapshot: Snapshot of the cluster.
            per_sample: GPU time of one sample (``Report.samples_done``) there, in ms, NaN where not known (J,).
        """
        ...


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """A job needs what ended jobs needed that needed more than it has had: those of its model, and, less, all others.

    Of its model, jobs count by their samples; of other jobs, the service that they received counts, beside the run time
    of the job. Jobs that run have not ended yet at what they have done, and say that jobs may need more (Kaplan,
    Meier): without them, the jobs that have ended would make all others look short, because the short ones end first.
    Jobs that have outlived all that ended need more than x times the most that one has done with probability 1 / x. A
    job that has outlived all others, too, has more than x times what it has done left with probability 1 / (1 + x).

    Source:
        Ours. Jobs that still run: Kaplan, Meier, Nonparametric Estimation from Incomplete Observations, JASA 1958. The
        distribution beyond all that is known: Harchol-Balter, Downey, Exploiting Process Lifetime Distributions, ACM
        TOCS 1997 (P(T > t) ~ 1/t).
    """

    def left_gpu_ms(self, snapshot: Snapshot, per_sample: FloatArray) -> FloatArray:
        """See ``Work``."""
        jobs = snapshot.jobs
        measured = per_sample > 0
        done = np.where(measured, jobs.samples_done * np.where(measured, per_sample, 0.0), jobs.run_ms * jobs.gpus)
        model = np.where(measured, jobs.profile, NONE)
        keys = np.stack((model, done, np.where(model != NONE, per_sample, 0.0)), axis=1)
        alike, first, row_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        samples, own_weight = _of_models(snapshot, model[first])
        others, weight = _others(snapshot.ended_service, jobs.service_gpu_ms[jobs.service_gpu_ms > 0])
        left = _left(
            np.hstack((np.tile(others, (len(alike), 1)), samples * alike[:, 2:])),
            np.hstack((np.tile(weight, (len(alike), 1)), own_weight)), alike[:, 1],
        )
        return left[row_of.reshape(-1)]


def _others(ended: IntArray, running: IntArray) -> tuple[FloatArray, FloatArray]:
    """Service of jobs, GPU ms, and weights, ``OTHERS`` in all; none while no job has ended.

    Args:
        ended: Ended jobs by bins of ``SERVICE_EDGES_GPU_MS``.
        running: Service, GPU ms, of jobs that have not ended.
    """
    upper = np.append(SERVICE_EDGES_GPU_MS[1:], 2 * SERVICE_EDGES_GPU_MS[-1])
    held = np.flatnonzero(ended)
    if not len(held):
        return np.empty(0), np.empty(0)
    middle = (SERVICE_EDGES_GPU_MS[held] + upper[held]) / 2
    stands_for, outlive = survival(middle, running, ended[held])
    beyond = max(float(middle[-1]), float(running.max(initial=0))) * BEYOND
    weight = np.append(stands_for, np.full(len(BEYOND), outlive / len(BEYOND)))
    return np.append(middle, beyond), OTHERS * weight / weight.sum()


def _of_models(snapshot: Snapshot, model: IntArray) -> tuple[FloatArray, FloatArray]:
    """Totals, in samples, that speak of jobs of these models (R,), and their weights, 0 where there are none (R, T)."""
    jobs = snapshot.jobs
    totals, weights = (np.zeros((len(model), TOTALS_KEPT + len(BEYOND))) for _ in range(2))
    for code in np.unique(model[model != NONE]).tolist():
        rows = np.flatnonzero(model == code)[:, None]
        ended, running = snapshot.ended_work.of(code), jobs.samples_done[jobs.profile == code]
        stands_for, others = survival(ended, running[running > 0])
        totals[rows, : len(ended)], weights[rows, : len(ended)] = ended, stands_for
        totals[rows, TOTALS_KEPT:], weights[rows, TOTALS_KEPT:] = running.max() * BEYOND, others / len(BEYOND)
    return totals, weights


def survival(ended: FloatArray, running: FloatArray | IntArray, count: IntArray | int = 1) -> tuple[FloatArray, float]:
    """How many jobs ended ones stand for, (E,), and how many outlive them all; together all that ended and run.

    This is the estimate of Kaplan and Meier: each running job is one of those that end after what it has done.

    Args:
        ended: Work of ended jobs, ascending (E,).
        running: Work that others have done so far (R,).
        count: How many jobs each entry of ``ended`` is (E,).
    """
    gone = np.broadcast_to(np.asarray(count, dtype=np.float64), ended.shape)
    jobs = float(gone.sum()) + len(running)
    at_risk = jobs - (np.cumsum(gone) - gone) - np.searchsorted(np.sort(running), ended, side="left")
    survives = np.append(1.0, np.cumprod(1.0 - gone / at_risk))
    return jobs * survives[:-1] * gone / at_risk, float(jobs * survives[-1])


def _left(total: FloatArray, weight: FloatArray, done: FloatArray) -> FloatArray:
    """Quantiles of what is left, of totals with weights (R, T), for jobs that have done so much (R, Q)."""
    just_outlived = (total <= done[:, None]) & (done[:, None] < total * ALIKE)
    total = np.where(just_outlived, done[:, None] * ALIKE, total)
    weight = np.where(total > done[:, None], weight, 0.0)
    order = np.argsort(np.where(weight > 0, total, np.inf), axis=1, kind="stable")
    total, weight = np.take_along_axis(total, order, axis=1), np.take_along_axis(weight, order, axis=1)
    ends = np.cumsum(weight, axis=1)
    at = (ends[:, None, :] < QUANTILES[:, None] * ends[:, -1:, None]).sum(axis=2)
    known = np.take_along_axis(total, np.minimum(at, total.shape[1] - 1), axis=1) - done[:, None]
    again = np.maximum(done, UNKNOWN_GPU_MS)[:, None] * QUANTILES / (1.0 - QUANTILES)
    left: FloatArray = np.where(ends[:, -1:] > 0, known, again)
    return left


@dataclass(frozen=True, slots=True)
class TrueWork:
    """The true work by job id, for policies that declare themselves oracles."""

    total_samples: FloatArray

    def left_gpu_ms(self, snapshot: Snapshot, per_sample: FloatArray) -> FloatArray:
        """See ``Work``; NaN where it is not known, never negative, even after rounding."""
        left = np.maximum(self.total_samples[snapshot.jobs.id] - snapshot.jobs.samples_done, 0.0) * per_sample
        return np.repeat(left[:, None], len(QUANTILES), axis=1)
