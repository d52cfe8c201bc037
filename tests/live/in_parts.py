"""A policy file: the shortest jobs first, and equal parts of four devices for those that can be resized."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from brim.policies.order.shortest import ShortestRemaining
from brim.policies.presets import PRESETS
from brim.policies.sockets import Sizes


@dataclass(frozen=True)
class InParts:
    """As many devices for each job as for every other, as far as its limits allow."""

    devices: int
    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        return Sizes(gpus=np.clip(self.devices // max(len(jobs), 1), jobs.gpus_min, jobs.gpus_max))


policy = replace(
    PRESETS["elastic"], name="in-parts", order=ShortestRemaining(), size=InParts(4), gap_ms=100, period_ms=0,
)
