"""The controller of this machine: one node with its devices, cores and memory, and a policy."""

from __future__ import annotations

import os

from brim.core.cluster import parse_cluster
from brim.engine.trigger import LIVE_GAP_JOB_US
from brim.live.believed import believed
from brim.live.controller import Controller
from brim.live.requests import NONE
from brim.policies.presets import find_policy


def machine_controller(devices: str, policy: str, user_gpus: int = NONE, predictability: str = "") -> Controller:
    """Return a new controller.

    Args:
        devices: Number and type of the devices, such as ``4xgpu``.
        policy: Name of a preset, or a Python file with a policy.
        user_gpus: Most GPUs that the jobs of a user may have at the same time; NONE for no quota.
        predictability: File of ``brim predictability fit``; empty for the classifier that comes with brim.

    Raises:
        ConfigError: there is no such policy, or the file is broken.
        NotFoundError: the file cannot be read.
        RefusedError: the policy needs true run times.
    """
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    cluster = parse_cluster(f"1x{devices}:cpus={len(os.sched_getaffinity(0))},mem={memory_mib}MB")
    return Controller(
        cluster, find_policy(policy), believed(predictability), gap_job_us=LIVE_GAP_JOB_US, user_gpus=user_gpus
    )
