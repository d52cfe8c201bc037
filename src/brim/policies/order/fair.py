"""Fair share: weighted max-min of GPU time over users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.errors import ConfigError
from brim.units import MS_PER_H, MS_PER_MIN, WHOLE_GPU


@dataclass(frozen=True, slots=True)
class MaxMin:
    """Serve next the user who would have received the least GPU time per weight.

    A user's jobs are in order of submission, running ones first. The key of each is what its user would have received
    if this job and those before it ran for one more ``horizon_ms``: usage (halved every week, as in Slurm) plus horizon
    x GPUs, over weight. Sorting by that key fills users evenly. A job that began less than ``quantum_ms`` ago is not
    interrupted, so that time slices are worth their restarts.

    Attributes:
        weights: (user, weight) pairs; all other users have 1.
        horizon_ms: How far ahead a share is weighed against the past. Ours.
        quantum_ms: Shortest uninterrupted run. Ours: 60 restarts of 30 s.
    """

    weights: tuple[tuple[str, float], ...] = ()
    horizon_ms: int = MS_PER_H
    quantum_ms: int = 30 * MS_PER_MIN

    def __post_init__(self) -> None:
        wrong = [name for name, weight in self.weights if not 0 < weight < float("inf")]
        if wrong:
            raise ConfigError(f"weight of {wrong[0]!r}: expected a number above 0")

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        jobs, users = snapshot.jobs, snapshot.users
        given = dict(self.weights)
        weight_U = np.array([given.get(name, 1.0) for name in users.name])
        share = jobs.gpus * jobs.share_milli / WHOLE_GPU
        within = np.lexsort((~jobs.holds, jobs.user))
        horizon_gpu_ms = np.empty(len(jobs))
        horizon_gpu_ms[within] = _running_sum(share[within], jobs.user[within]) * self.horizon_ms
        held = jobs.gpus_now * jobs.share_now / WHOLE_GPU
        held_gpu_ms = np.where(jobs.holds, (snapshot.now_ms - jobs.since_ms) * held, 0.0)
        usage_U = users.usage_gpu_ms + np.bincount(jobs.user, weights=held_gpu_ms, minlength=len(users))
        key = (usage_U[jobs.user] + horizon_gpu_ms) / weight_U[jobs.user]
        fresh = jobs.holds & (snapshot.now_ms - jobs.since_ms < self.quantum_ms)
        return np.lexsort((~jobs.holds, key, ~fresh))


def _running_sum(values: FloatArray, group: IntArray) -> FloatArray:
    """Cumulative sum that starts again with each group; the rows of a group are adjacent."""
    total = np.cumsum(values)
    first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    before = np.concatenate(([0.0], total))[first]
    within: FloatArray = total - np.repeat(before, np.diff(np.append(first, len(values))))
    return within
