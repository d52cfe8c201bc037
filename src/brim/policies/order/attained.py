"""Least attained service first, and the Gittins index of attained service; neither needs run times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.state import SERVICE_EDGES_GPU_MS
from brim.units import MS_PER_H


@dataclass(frozen=True, slots=True)
class LeastAttained:
    """Least GPU time received first, in steps of a quantum; ties: running jobs, then by submission.

    Without the quantum, two equal jobs would swap at every round and spend their time on restarts.

    Attributes:
        quantum_gpu_ms: Length of a step, one GPU-hour. Ours; Tiresias' public thresholds start at 3,250 GPU-s.

    Source:
        Gu et al., Tiresias, NSDI 2019 (2D-LAS: service is GPUs x time).
    """

    quantum_gpu_ms: int = MS_PER_H

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        jobs = snapshot.jobs
        return np.lexsort((~jobs.holds, jobs.service_gpu_ms // self.quantum_gpu_ms))


@dataclass(frozen=True, slots=True)
class Gittins:
    """Highest Gittins index first, from the histogram of the service that ended jobs received.

    G(a) = max over d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a], evaluated at the bin edges of the histogram.
    Until ``jobs_min`` jobs have ended there is no useful distribution, and the order is by least attained bin.

    Attributes:
        jobs_min: Ended jobs needed before the histogram is used. Ours.

    Source:
        Gu et al., Tiresias, NSDI 2019 (2D-Gittins); Gittins 1979. Differs: the distribution is learnt online from jobs
        that ended under this policy, not given; d runs over bin edges, not one constant (their code: 3,250 s).
    """

    jobs_min: int = 50

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """See ``Order``."""
        jobs = snapshot.jobs
        bins = np.searchsorted(SERVICE_EDGES_GPU_MS, jobs.service_gpu_ms, side="right") - 1
        if snapshot.ended_service.sum() < self.jobs_min:
            return np.lexsort((~jobs.holds, bins))
        return np.lexsort((~jobs.holds, -gittins_index(snapshot.ended_service)[bins]))


def gittins_index(ended: IntArray) -> FloatArray:
    """Gittins index at the lower edge of each bin, per GPU-ms, shape (B,).

    A job in bin i is assumed to end at the upper edge of its bin; beyond the last ended job the index is 0.

    Args:
        ended: Ended jobs per bin of ``SERVICE_EDGES_GPU_MS``, shape (B,).

    Example:
        >>> counts = np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64); counts[3] = 10
        >>> bool(np.isclose(gittins_index(counts)[0], 1 / SERVICE_EDGES_GPU_MS[4]))
        True
    """
    upper = np.append(SERVICE_EDGES_GPU_MS[1:], 2 * SERVICE_EDGES_GPU_MS[-1])
    alive = np.cumsum(ended[::-1])[::-1]
    span = np.maximum(upper[None, :] - SERVICE_EDGES_GPU_MS[:, None], 0.0)  # from the edge of bin i to the end of bin d
    inside = np.triu(np.broadcast_to(ended, span.shape))
    done = np.cumsum(inside, axis=1)
    spent = np.cumsum(inside * span, axis=1) + (alive[:, None] - done) * span
    rate: FloatArray = np.divide(done, spent, out=np.zeros_like(span), where=spent > 0)
    best: FloatArray = rate.max(axis=1)
    return best
