"""Optimus: give one GPU after another to the job whose remaining time it shortens most."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE
from brim.policies.size.candidates import candidates, per_sample_ms
from brim.policies.sockets import Sizes


@dataclass(frozen=True, slots=True)
class MarginalGain:
    """Each job gets the fewest GPUs it can run on, in order; further GPUs go to the job that saves most time per GPU.

    The batch is the one the user asked for. A job's remaining time is its remaining work (``beliefs.work``) over its
    rate; for a job whose rates or work are not known yet, it is taken as 0.

    Attributes:
        gpus_max: Most GPUs of a job.
        growth: A job may get this many times the most GPUs it has reported from.

    Source:
        Peng et al., Optimus, EuroSys 2018, section 4.1. Differs: GPUs instead of parameter servers and workers; steps
        between sizes that fit together on nodes (``candidates``).
    """

    resizes_running: ClassVar[bool] = True
    gpus_max: int = 64
    growth: int = 2

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs = snapshot.jobs
        batch = np.where(jobs.batch == NONE, jobs.batch_min, jobs.batch)
        found = candidates(
            snapshot, beliefs.speeds.of_jobs(snapshot), gpus_max=self.gpus_max, growth=self.growth, batch=batch,
        )
        per_sample = per_sample_ms(found)
        left = np.median(beliefs.work.left_gpu_ms(snapshot, per_sample), axis=1) / per_sample
        runs = np.isfinite(found.rate_JG)
        time_s = np.where(runs, left[:, None] / np.maximum(np.where(runs, found.rate_JG, 1.0), 1e-300), np.inf)
        time_s[~found.fitted | ~np.isfinite(left)] = 0.0
        return found.sizes(_hand_out(found.rate_JG, time_s, found.least, order, found.capacity), snapshot)


def _hand_out(rate: FloatArray, time_s: FloatArray, least: IntArray, order: IntArray, free_gpus: int) -> IntArray:
    """Allocate greedily by time saved per GPU; a heap holds the next step of each job."""
    row_S, size_S = np.nonzero(np.isfinite(rate))  # all possible sizes, ascending within a job
    saved_S = (time_s[row_S[:-1], size_S[:-1]] - time_s[row_S[1:], size_S[1:]]) / np.maximum(np.diff(size_S), 1)
    first, size, saved_s = np.searchsorted(row_S, np.arange(len(least) + 1)).tolist(), size_S.tolist(), saved_S.tolist()
    gpus = [0] * len(least)
    heap: list[tuple[float, int, int, int]] = []  # time saved per GPU, negative; rank, row and place among the sizes

    def offer(rank: int, row: int, at: int) -> None:
        """Put the job's next larger size on the heap, if it shortens its remaining time."""
        if at + 1 < first[row + 1] and saved_s[at] > 0:
            heapq.heappush(heap, (-saved_s[at], rank, row, at + 1))

    fewest = least.tolist()
    for rank, row in enumerate(order.tolist()):
        if 0 < fewest[row] <= free_gpus:
            gpus[row] = fewest[row]
            free_gpus -= fewest[row]
            offer(rank, row, first[row])
    while heap and free_gpus:
        _, rank, row, at = heapq.heappop(heap)
        more = size[at] - gpus[row]
        if more <= free_gpus:
            free_gpus -= more
            gpus[row] = size[at]
            offer(rank, row, at)
    return np.array(gpus, dtype=np.int64)
