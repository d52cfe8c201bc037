"""Effective Elastic Scaling: choose GPUs and batch of all jobs jointly, so that scaling factors add up to the most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.speeds import Speeds
from brim.beliefs.throughput import grad_s
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.tables import JobTable
from brim.core.trace import NONE
from brim.policies.size.candidates import Candidates, candidates
from brim.policies.size.goodput import restart_ms
from brim.policies.size.knapsack import best_sizes
from brim.policies.sockets import Sizes
from brim.units import MS_PER_MIN

Batch = Literal["best", "asked", "largest", "random"]
Mode = Literal["queue", "drop"]


@dataclass(frozen=True, slots=True)
class DynamicProgram:
    """Choose the GPUs and batches with the greatest total scaling factor, for the jobs that fit.

    A scaling factor is throughput over that of one GPU with the largest batch that fits it. Running jobs are admitted
    first. Waiting jobs are admitted in the given order while the fewest GPUs of all admitted jobs fit, which is an
    exact test of feasibility. The first job that does not fit ends admission (``queue``), or every job that does not
    fit is rejected (``drop``).

    A running job that would change loses the share of ``horizon_ms`` that its restart takes. Leaving every running job
    as it is costs nothing and is one of the choices, so a plan that changes anything is better as a whole.

    A job whose model has not been measured yet starts on its fewest GPUs and is analysed there (``beliefs.analyser``).

    Attributes:
        batch: Best for each size (``best``), or fixed, as in the paper's baselines: the batch the user asked for, the
            largest, or one drawn at random from the range when the job is submitted.
        mode: What happens to jobs that do not fit.
        accumulation: Whether a GPU may do several micro-steps per step. If not, jobs that could not run otherwise still
            do so.
        gpus_max: Most GPUs of a job.
        horizon_ms: Time for which a plan is expected to last: the interval of the autoscaler.

    Source:
        Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020, arXiv:2006.13878. Interval
        and restart cost are not published; 10 min is ours. Differs: sizes fit together on nodes (``candidates``).
    """

    resizes_running: ClassVar[bool] = True
    asks_exchange: ClassVar[bool] = True
    batch: Batch = "best"
    mode: Mode = "queue"
    accumulation: bool = False
    gpus_max: int = 32
    horizon_ms: int = 10 * MS_PER_MIN

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs = snapshot.jobs
        speeds = beliefs.speeds.of_models(snapshot, beliefs.exchange)
        found = candidates(
            snapshot, speeds, gpus_max=self.gpus_max, noise=False, batch=self._batch(jobs),
            accumulation=self.accumulation,
        )
        admitted, misfits = _admit(found.least, jobs, order, found.capacity, drop=self.mode == "drop")
        kept = np.maximum(1.0 - restart_ms(snapshot, beliefs) / self.horizon_ms, 0.0)
        value = scaling_factors(found, jobs, speeds)
        changes = jobs.holds[:, None] & (np.arange(value.shape[1]) != jobs.gpus_now[:, None])
        value *= np.where(changes & np.isfinite(value), kept[:, None], 1.0)
        value[~admitted] = -np.inf
        value[:, 0] = np.where(admitted, -np.inf, 0.0)
        gpus = best_sizes(value, found.capacity)
        assert gpus is not None  # the fewest GPUs of all admitted jobs fit
        unknown = jobs.elastic & ~speeds.known & ~speeds.failed
        return replace(found.sizes(gpus, snapshot), analyse=unknown, reject=misfits)

    def _batch(self, jobs: JobTable) -> IntArray | None:
        """The fixed batch of each job (J,), or None where the best is chosen."""
        if self.batch == "best":
            return None
        if self.batch == "largest":
            return jobs.batch_max
        if self.batch == "asked":
            return np.where(jobs.batch == NONE, jobs.batch_min, jobs.batch)
        width = np.maximum(jobs.batch_max - jobs.batch_min + 1, 1)
        drawn: IntArray = jobs.batch_min + scattered(jobs.submit_ms) % width
        return drawn


def scaling_factors(found: Candidates, jobs: JobTable, speeds: Speeds) -> FloatArray:
    """Throughput over that of one GPU with the largest batch that fits it (J, G + 1); 1 for a job of one known size."""
    local = np.minimum(jobs.batch_max, jobs.local_batch_max)
    one = np.where(found.fitted, local / np.where(found.fitted, grad_s(speeds.parameters, local), 1.0), 1.0)
    return found.rate_JG / one[:, None]


def scattered(number: IntArray) -> IntArray:
    """Hash each number to one without a pattern, >= 0 (SplitMix64): a draw that is the same in every round."""
    x = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers: IntArray = ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
    return numbers


def _admit(
    least: IntArray, jobs: JobTable, order: IntArray, free_gpus: int, *, drop: bool
) -> tuple[BoolArray, BoolArray]:
    """Which jobs are admitted and which are rejected (J,): running jobs first, then waiting ones in order."""
    admitted, misfits = np.zeros(len(least), dtype=np.bool_), np.zeros(len(least), dtype=np.bool_)
    for row in order[jobs.holds[order]].tolist():
        if 0 < least[row] <= free_gpus:
            admitted[row] = True
            free_gpus -= least[row]
    for row in order[jobs.waits[order]].tolist():
        if 0 < least[row] <= free_gpus:
            admitted[row] = True
            free_gpus -= least[row]
        elif drop:
            misfits[row] = True
        else:
            break
    return admitted, misfits
