"""The feed part that divides the cores of a node equally among its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.cluster import UNLIMITED
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants


@dataclass(frozen=True, slots=True)
class Even:
    """Cores per GPU on the job's node with the fewest, minus one for the rank's main process; at least one."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """See ``Feed``."""
        nodes = snapshot.nodes
        workers = np.zeros(len(snapshot.jobs), dtype=np.int64)
        known = nodes.cpu_milli < UNLIMITED
        if not len(grants) or not known.any():
            return workers
        per_gpu = np.where(known, np.maximum(nodes.cpu_milli // nodes.gpus // 1000 - 1, 1), 0)
        scarcest = np.full(len(snapshot.jobs), np.iinfo(np.int64).max)
        np.minimum.at(scarcest, grants.job, per_gpu[grants.node])
        workers[grants.job] = scarcest[grants.job]
        return workers
