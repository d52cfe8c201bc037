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
from brim.policies.size.candidates import candidates
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
        left = beliefs.work.remaining_samples(snapshot)
        time_s = np.where(np.isfinite(found.rate_JG), left[:, None] / np.maximum(found.rate_JG, 1e-300), np.inf)
        time_s[~found.fitted | ~np.isfinite(left)] = 0.0
        return found.sizes(_hand_out(found.rate_JG, time_s, found.least, order, found.room), snapshot)


def _hand_out(rate: FloatArray, time_s: FloatArray, least: IntArray, order: IntArray, room: int) -> IntArray:
    """Allocate greedily by time saved per GPU; a heap holds the next step of each job."""
    gpus = np.zeros(len(least), dtype=np.int64)
    heap: list[tuple[float, int, int]] = []
    for rank, row in enumerate(order.tolist()):
        if 0 < least[row] <= room:
            gpus[row] = least[row]
            room -= least[row]
            _offer(heap, rank, row, rate, time_s, int(gpus[row]))
    while heap and room:
        _, rank, size = heapq.heappop(heap)
        row = int(order[rank])
        if size - gpus[row] > room:
            continue
        room -= size - gpus[row]
        gpus[row] = size
        _offer(heap, rank, row, rate, time_s, size)
    return gpus


def _offer(
    heap: list[tuple[float, int, int]], rank: int, row: int, rate: FloatArray, time_s: FloatArray, now: int
) -> None:
    """Put the job's next larger size on the heap, if it shortens its remaining time."""
    larger = np.flatnonzero(np.isfinite(rate[row, now + 1 :]))
    if len(larger):
        size = now + 1 + int(larger[0])
        saved_s = (time_s[row, now] - time_s[row, size]) / (size - now)
        if saved_s > 0:
            heapq.heappush(heap, (-float(saved_s), rank, size))
