"""Whether a plan's changes of running jobs pay for the restarts of everybody they touch. Pure.

It stands behind Order, Size and Place, because only the whole plan says whom it touches: sizes change some jobs, and
their places move others out of the way. Shapes: J jobs, G grants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.policies.place.parts import Consolidate
from brim.policies.place.renaming import touched
from brim.policies.size.candidates import candidates
from brim.policies.size.goodput import restart_ms, work_ms
from brim.policies.sockets import Sizes


def gated(
    snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes, placed: Grants, horizon_ms: int
) -> tuple[Sizes, Grants]:
    """Return sizes and grants as decided if they pay, else those that leave running jobs alone.

    The other plan starts waiting jobs, in their order and size, on what is free. Both are valued by what all jobs
    together get done within the horizon, or within twice what a change of a job costs if that is longer: each second
    counts as the part of a job's remaining work that it does, so that a job with little left counts more. Work left is
    taken to be as much as was done, and at least the horizon. A job that starts or changes does nothing for as long as
    its starts have taken; one that is preempted pays for this too, since it returns. Work that is lost because a job
    does not save before it leaves is not known, and not counted.

    Args:
        snapshot: The snapshot.
        beliefs: What is believed.
        order: Who is served first (J,).
        sizes: Sizes decided.
        placed: Grants decided.
        horizon_ms: Time within which changes must pay.
    """
    changes = touched(snapshot, placed)
    if not changes.any():
        return sizes, placed
    jobs = snapshot.jobs
    other = jobs.holds & (sizes.gpus != jobs.gpus_now)
    left_alone = replace(sizes, gpus=np.where(other, jobs.gpus_now, sizes.gpus))
    if len(sizes.global_batch):
        left_alone = replace(left_alone, global_batch=np.where(other, jobs.batch_now, sizes.global_batch))
    stays = Consolidate("skip")(snapshot, beliefs, order, left_alone)
    pays = _worth(snapshot, beliefs, (placed, stays), horizon_ms)
    return (sizes, placed) if pays[0] > pays[1] else (left_alone, stays)


def _worth(
    snapshot: Snapshot, beliefs: Beliefs, plans: tuple[Grants, Grants], horizon_ms: int
) -> tuple[float, float]:
    """Part of its remaining work that each job gets done under a plan, summed over jobs."""
    jobs, held = snapshot.jobs, snapshot.grants
    width = int(jobs.gpus_now.max(initial=1))
    width = max(width, *(int(_gpus(plan, len(jobs)).max(initial=1)) for plan in plans))
    found = candidates(snapshot, beliefs.speeds.of_models(snapshot), gpus_max=width)
    cost_ms = restart_ms(snapshot, beliefs)
    within_ms = np.maximum(horizon_ms, 2.0 * cost_ms)
    left_ms = np.maximum(work_ms(snapshot, found), within_ms)

    def speed(gpus: IntArray) -> FloatArray:
        """Speed-ups (J,); 1 where only one size is known."""
        rate = found.rate_JG[np.arange(len(jobs)), np.minimum(gpus, found.rate_JG.shape[1] - 1)]
        least = found.rate_JG[np.arange(len(jobs)), found.least]
        known = np.isfinite(rate) & np.isfinite(least)
        return np.where(gpus == 0, 0.0, np.where(known, rate / np.where(known, least, 1.0), 1.0))

    before = speed(_gpus(held, len(jobs)))

    def worth(plan: Grants) -> float:
        after = speed(_gpus(plan, len(jobs)))
        starts: BoolArray = touched(snapshot, plan) | (~jobs.holds & (after > 0))
        lost = np.where(starts, cost_ms * np.maximum(before, after), 0.0)
        return float(((after * within_ms - lost) / left_ms).sum())

    return worth(plans[0]), worth(plans[1])


def _gpus(grants: Grants, size: int) -> IntArray:
    """GPUs of each job (J,)."""
    return np.bincount(grants.job[grants.gpu >= 0], minlength=size).astype(np.int64)
