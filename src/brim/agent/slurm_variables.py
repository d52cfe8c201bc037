"""The variables of Slurm that a job's script may read and that only its agent knows; the others are in its capture.

A script that was written for Slurm names its files and seeds after them. Values are those that Slurm would give the one
task of a job on one node.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brim.agent.protocol import StartAttempt  # a third of what `brim submit` would load


def slurm_variables(order: StartAttempt) -> dict[str, str]:
    """Return the variables of an attempt that an order starts."""
    node = os.uname().nodename
    found = {
        "SLURM_JOB_ID": str(order.job), "SLURM_JOBID": str(order.job), "SLURM_RESTART_COUNT": str(order.attempt - 1),
        "SLURM_JOB_NODELIST": node, "SLURM_NODELIST": node, "SLURMD_NODENAME": node,
        "SLURM_JOB_GPUS": ",".join(map(str, order.devices)), "SLURM_GPUS_ON_NODE": str(len(order.devices)),
    }  # fmt: skip
    if order.array >= 0:
        found["SLURM_ARRAY_JOB_ID"] = str(order.array)
    if order.index >= 0:
        found["SLURM_ARRAY_TASK_ID"] = str(order.index)
    return found
