"""Every job gets what its user asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.policies.sockets import Sizes


@dataclass(frozen=True, slots=True)
class AsAsked:
    """Rigid jobs: the gang that was submitted."""

    resizes_running: ClassVar[bool] = False

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        return Sizes(gpus=snapshot.jobs.gpus)
