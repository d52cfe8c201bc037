"""The size part that gives every job the GPUs its user asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.policies.sockets import Sizes


@dataclass(frozen=True, slots=True)
class AsAsked:
    """Rigid jobs: each job gets the gang it was submitted with. A running job keeps its number of GPUs."""

    resizes_running: ClassVar[bool] = False

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs = snapshot.jobs
        return Sizes(gpus=np.where(jobs.holds, jobs.gpus_now, jobs.gpus))
