"""A place part that lets jobs share the first device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.core.lifecycle import Phase
from brim.core.tables import Grants
from brim.core.trace import NONE
from brim.units import WHOLE_GPU


@dataclass(frozen=True)
class Together:
    """The first jobs of the order are on the first device, in equal shares; the others wait."""

    most: int = 2
    moves_running: ClassVar[bool] = True
    acts_when_idle: ClassVar[bool] = True
    shares_gpus: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order, sizes):
        may_run = np.isin(snapshot.jobs.phase[order], (Phase.PENDING, Phase.STARTING, Phase.RUNNING))
        rows = np.sort(order[may_run][: self.most])
        share_milli = np.full(len(rows), WHOLE_GPU // max(len(rows), 1))
        why, nothing = np.full(len(snapshot.jobs), 1), np.zeros(len(rows), dtype=np.int64)
        why[rows] = 0
        return Grants(
            job=rows, node=nothing, gpu=nothing, share_milli=share_milli, why=why,
            blocker=np.full(len(snapshot.jobs), NONE),
        )
