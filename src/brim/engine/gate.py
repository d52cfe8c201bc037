"""Whether a plan's changes of running jobs pay for the restarts of everybody they touch. Pure.

It stands behind Order, Size and Place, because only the whole plan says whom it touches: sizes change some jobs, and
their places move others out of the way. Shapes: J jobs, G grants, P plans.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.errors import PlanError
from brim.policies.place.parts import Consolidate
from brim.policies.place.renaming import touched
from brim.policies.sockets import Sizes, Worth


def gated(
    snapshot: Snapshot, order: IntArray, sizes: Sizes, placed: Grants, worth: Worth,
) -> tuple[Sizes, Grants]:
    """Return sizes and grants as decided if they are worth more than those that leave running jobs alone.

    The other plan starts waiting jobs, in their order and size, on what is free.

    Args:
        snapshot: The snapshot.
        order: Who is served first (J,).
        sizes: Sizes decided.
        placed: Grants decided.
        worth: What plans are worth.

    Raises:
        PlanError: ``worth`` does not return a number for each plan.
    """
    jobs = snapshot.jobs
    if not touched(snapshot, placed).any():
        return sizes, placed
    other = jobs.holds & (sizes.gpus != jobs.gpus_now)
    left_alone = replace(sizes, gpus=np.where(other, jobs.gpus_now, sizes.gpus))
    if len(sizes.global_batch):
        left_alone = replace(left_alone, global_batch=np.where(other, jobs.batch_now, sizes.global_batch))
    stays = Consolidate("skip")(snapshot, Beliefs(), order, left_alone)
    plans = placed, stays
    gpus = np.stack([_gpus(plan, len(jobs)) for plan in plans])
    restarts = np.stack([touched(snapshot, plan) for plan in plans]) & (gpus > 0) | (~jobs.holds & (gpus > 0))
    found = np.asarray(worth(gpus, restarts))
    if found.shape != (2,) or not np.isfinite(found).all():
        raise PlanError(f"worth of two plans: found {found!r}, expected two numbers")
    return (sizes, placed) if found[0] > found[1] else (left_alone, stays)


def _gpus(grants: Grants, size: int) -> IntArray:
    """GPUs of each job (J,)."""
    return np.bincount(grants.job[grants.gpu >= 0], minlength=size).astype(np.int64)
