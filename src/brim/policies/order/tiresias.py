"""Tiresias: queues of attained service, as in its own simulator and as Pollux compares with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.units import MS_PER_H, MS_PER_S


@dataclass(frozen=True, slots=True)
class ServiceQueues:
    """Discretised two-dimensional least attained service.

    The GPU time that a job has received since its last promotion gives its queue. Inside a queue, jobs are in order of
    submission, running or not. A job that has waited ``promote_ratio`` times as long as it has run returns to the first
    queue.

    Attributes:
        thresholds_gpu_ms: Service at which a job falls to the next queue.
        promote_ratio: Ratio of waiting to running time at which a job is promoted; 0 for never.

    Source:
        Gu et al., Tiresias, NSDI 2019; thresholds 3,250 GPU-s of the public simulator and 10 GPU-h, ratio 8
        (the simulator's PROMOTEKNOB). Differs: the promotion restarts the service count instead of the time stamps.
    """

    thresholds_gpu_ms: tuple[int, ...] = (3_250 * MS_PER_S, 10 * MS_PER_H)
    promote_ratio: float = 8.0

    def remember(self, snapshot: Snapshot) -> IntArray:
        """Return the service at each job's last promotion, 0 before (J,)."""
        jobs = snapshot.jobs
        if not self.promote_ratio:
            return jobs.memo
        waited_ms = np.where(jobs.waits, snapshot.now_ms - jobs.since_ms, 0)
        starved = (waited_ms >= self.promote_ratio * np.maximum(jobs.run_ms, MS_PER_S)) & (jobs.attempt > 0)
        return np.where(starved, jobs.service_gpu_ms, jobs.memo)

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        jobs = snapshot.jobs
        queue = np.searchsorted(self.thresholds_gpu_ms, jobs.service_gpu_ms - jobs.memo, side="right")
        return np.argsort(queue, kind="stable")


@dataclass(frozen=True, slots=True)
class TwoQueues:
    """Two queues, each first in, first out.

    A job enters the first queue when it is submitted. The first round in which its service has reached
    ``threshold_gpu_ms`` moves it to the end of the second queue, where it stays.

    Attributes:
        threshold_gpu_ms: GPU time after which a job leaves the first queue.

    Source:
        The Tiresias policy of Pollux's simulator, OSDI 2021 artifact: 16 GPU-h, no promotion.
    """

    threshold_gpu_ms: int = 16 * MS_PER_H

    def remember(self, snapshot: Snapshot) -> IntArray:
        """Return when each job entered the second queue, 0 before (J,)."""
        jobs = snapshot.jobs
        enters = (jobs.memo == 0) & (jobs.service_gpu_ms >= self.threshold_gpu_ms)
        return np.where(enters, snapshot.now_ms, jobs.memo)

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        return np.argsort(snapshot.jobs.memo, kind="stable")
