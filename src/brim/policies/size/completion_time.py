"""Choose GPUs and batch of all jobs so that their completion times, as predicted, add up to the least."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.work import UNKNOWN_GPU_MS
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.policies.size.candidates import Candidates, candidates, per_sample_ms
from brim.policies.size.goodput import best_values, restart_ms
from brim.policies.sockets import Sizes, Worth
from brim.units import MS_PER_S

LEAST_START_MS: Final = MS_PER_S
"""No start is free: of equal jobs, those that run go on. Ours."""
TINY: Final = 1e-9
"""Speed-up of a job that cannot run. Ours."""


@dataclass(frozen=True, slots=True)
class CompletionTime:
    """Least sum of predicted completion times, and optionally of GPU time.

    Let V be the least sum of completion times that can still be reached, and r the remaining work of a job, as time on
    its fewest GPUs. Whatever the sizes are now, V falls at the rate ``sum of dV/dr * speedup`` (Hamilton, Jacobi,
    Bellman), so the best sizes are a knapsack, solved exactly. A job that runs a second longer on g GPUs costs one
    second of its own, and makes those jobs wait that come after it: of i jobs that are expected to have more left, on K
    GPUs, about g i / K seconds. With the best g for the rest of its life,

        dV/dr = min over g of (1 + g * (congestion * i / K + gpu_price)) / speedup(g).

    So jobs with little left come first where GPUs are short, jobs that hardly speed up are given few GPUs, and a
    cluster that is almost empty serves everybody at full speed.

    A job that would start or change does nothing while it does so: its speed-up is less by the part of ``horizon_ms``
    that this takes, of what it has left if that is shorter, of twice the time of the change if that is longer. A job
    that is stopped does that later, and repeats what it has not saved.

    Attributes:
        gpus_max: Most GPUs of a job.
        growth: A job may get this many times the most GPUs on which a job of its model has reported.
        horizon_ms: Time for which sizes are expected to last.
        congestion: How many jobs a job delays, over those expected to have more left. Where no job comes and speed-ups
            are g^p, it is p in the exact solution; jobs that come later make it more.
        gpu_price: What a second of a GPU is worth, in seconds of one job's completion: 0 to minimise completion times
            only, more to save energy or money.

    Source:
        Ours. The exact solution for equal speed-ups g^p and known work: Berg, Vesilo, Harchol-Balter, heSRPT,
        Performance Evaluation 2020. The search is that of Effective Elastic Scaling (MASCOTS 2020), speed-ups are of
        goodput as in Pollux (OSDI 2021), step times are shared by the jobs of a model. The constants were chosen on
        workloads 1 to 3 of Pollux (docs/decisions/0022).
    """

    resizes_running: ClassVar[bool] = True
    gpus_max: int = 64
    growth: int = 4
    horizon_ms: int = 300 * MS_PER_S
    congestion: float = 2.0
    gpu_price: float = 0.0

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        return self.with_worth(snapshot, beliefs, order)[0]

    def with_worth(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> tuple[Sizes, Worth]:
        """See ``WholePlan``."""
        fall = self._fall(snapshot, beliefs)
        job, gpus = fall.found.possible
        value = fall.of(job, fall.found.speedup, restarts=gpus != snapshot.jobs.gpus_now[job]) - self.gpu_price * gpus
        return best_values(snapshot, beliefs, fall.found, value, fall.without_gpus), partial(self._worth, fall)

    def _worth(self, fall: _Fall, gpus: IntArray, restarts: BoolArray) -> FloatArray:
        """How fast V falls under P plans, and GPU time (P,); see ``Worth``."""
        found, some = fall.found, np.flatnonzero((gpus > 0).any(axis=0))
        rate, gpus = found.rate_JG[some], gpus[:, some]  # of jobs that have GPUs in some plan: few, in a long queue
        speedup, row = np.where(np.isfinite(rate), rate, 0.0), np.arange(len(some))
        speedup = np.maximum.accumulate(speedup, axis=1) / np.maximum(speedup[row, found.least[some]], TINY)[:, None]
        at = speedup[row, np.minimum(gpus, speedup.shape[1] - 1)]
        value = np.tile(fall.without_gpus, (len(gpus), 1))
        value[:, some] = np.where(gpus > 0, np.stack([
            fall.of(some, one, restarts=starts) for one, starts in zip(at, restarts[:, some], strict=True)
        ]) - self.gpu_price * gpus, value[:, some])
        total: FloatArray = value[:, found.active].sum(axis=1)
        return total

    def _fall(self, snapshot: Snapshot, beliefs: Beliefs) -> _Fall:
        """How fast V falls, with all that it depends on."""
        jobs = snapshot.jobs
        found = candidates(snapshot, beliefs.speeds.of_models(snapshot), gpus_max=self.gpus_max, growth=self.growth)
        left_ms = beliefs.work.left_gpu_ms(snapshot, per_sample_ms(found))
        left_ms = np.where(np.isnan(left_ms), UNKNOWN_GPU_MS, np.maximum(left_ms, 1.0))
        price = self.congestion * longer_jobs(left_ms) / max(found.capacity, 1) + self.gpu_price
        cost_ms = np.maximum(restart_ms(snapshot, beliefs), LEAST_START_MS)
        fall = _Fall(
            found=found, gain=np.full(len(jobs), np.inf), cost_ms=cost_ms,
            stop_ms=cost_ms + beliefs.unsaved_ms(snapshot), horizon_ms=self.horizon_ms,
            alone_ms=np.median(left_ms, axis=1) / np.maximum(found.least, 1), holds=jobs.holds,
        )
        job, gpus = found.possible
        speedup = fall.progress(job, found.speedup, restarts=gpus != jobs.gpus_now[job])
        np.minimum.at(fall.gain, job, (1.0 + price[job] * gpus) / speedup)
        fall.gain[np.isinf(fall.gain)] = 0.0  # a job that cannot run
        return fall


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fall:
    """How fast V falls, for J jobs.

    Attributes:
        found: The possible sizes.
        gain: ``dV/dr`` (J,).
        cost_ms: How long a start or a change takes (J,).
        stop_ms: The same for one that is stopped: with what it has not saved (J,).
        horizon_ms: Time for which sizes are expected to last, or twice the cost of the change if that is longer; less
            if the job has less left.
        alone_ms: Time that the job needs yet on its fewest GPUs (J,).
        holds: Whether the job holds GPUs (J,).
    """

    found: Candidates
    gain: FloatArray
    cost_ms: FloatArray
    stop_ms: FloatArray
    horizon_ms: int
    alone_ms: FloatArray
    holds: BoolArray

    def of(self, job: IntArray, speedup: FloatArray, *, restarts: BoolArray) -> FloatArray:
        """How fast V falls with jobs at these speed-ups, three columns (F,)."""
        value: FloatArray = self.gain[job] * self.progress(job, speedup, restarts=restarts)
        return value

    def progress(self, job: IntArray, speedup: FloatArray, *, restarts: BoolArray) -> FloatArray:
        """Speed-ups less the part of the time that starts take, three columns (F,)."""
        cost_ms = np.where(restarts, self.cost_ms[job], 0.0)
        lasts_ms = np.maximum(self.horizon_ms, 2 * self.cost_ms[job])
        lasts_ms = np.minimum(lasts_ms, cost_ms + self.alone_ms[job] / np.maximum(speedup, TINY))
        left: FloatArray = speedup * (1.0 - cost_ms / lasts_ms)
        return left

    @property
    def without_gpus(self) -> FloatArray:
        """How fast V falls with the job waiting, at most 0: one that is stopped starts again later (J,)."""
        again = self.holds & (self.found.least > 0)
        return -np.where(again, self.gain * self.stop_ms / np.maximum(self.horizon_ms, 2 * self.stop_ms), 0.0)


def longer_jobs(left_JQ: FloatArray) -> FloatArray:
    """Expected number of jobs that have more left than each one, of quantiles (J, Q); itself counts one half (J,)."""
    in_order = np.argsort(left_JQ, axis=None)
    every, below = left_JQ.ravel()[in_order], np.empty(left_JQ.size)
    begins = np.append(True, every[1:] != every[:-1])[: every.size]  # where equal ones begin in that order
    first = np.flatnonzero(begins)
    below[in_order] = (first + np.append(first[1:], every.size))[np.cumsum(begins) - 1]
    longer: FloatArray = (every.size - below.reshape(left_JQ.shape) / 2).mean(axis=1) / max(left_JQ.shape[1], 1)
    return longer
