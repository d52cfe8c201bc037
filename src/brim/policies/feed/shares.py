"""Feed parts that know nothing of the loaders: the baselines of the throughput model.

They take cores of the node as that model does: beside the cores that jobs ask for, one for each worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.core.tables import Grants
from brim.policies.feed.throughput import equal_share, fed, loader_placement


@dataclass(frozen=True, slots=True)
class EqualPerJob:
    """The cores of a node divided equally among its jobs: the baseline of A-Dloader."""

    tunes_running: ClassVar[bool] = True
    counts_cores: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """See ``Feed``."""
        placement = loader_placement(snapshot, grants)
        jobs_N = np.maximum(np.bincount(placement.node, minlength=len(snapshot.nodes)), 1)
        per_rank = np.full(len(snapshot.jobs), np.iinfo(np.int64).max)
        np.minimum.at(per_rank, placement.job, (placement.cores // jobs_N)[placement.node] // placement.ranks)
        return np.where(fed(snapshot, placement), per_rank, 0)


@dataclass(frozen=True, slots=True)
class EqualPerRank:
    """The cores of a node divided equally among the ranks on it."""

    tunes_running: ClassVar[bool] = True
    counts_cores: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """See ``Feed``."""
        placement = loader_placement(snapshot, grants)
        ranks_N = np.bincount(placement.node, weights=placement.ranks, minlength=len(snapshot.nodes)).astype(np.int64)
        return np.where(fed(snapshot, placement), equal_share(placement, ranks_N), 0)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same number of workers for every rank, however many cores there are, as users of PyTorch's loader set it.

    Attributes:
        workers: Loader workers per rank, at most as many as a node has cores. 4 is what its tutorials show.
    """

    workers: int = 4

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """See ``Feed``."""
        placement = loader_placement(snapshot, grants)
        every_core = placement._replace(cores=snapshot.nodes.cpu_milli // CORE_MILLI)
        cores = equal_share(every_core, np.ones_like(placement.cores))
        return np.where(fed(snapshot, placement), np.minimum(self.workers, cores), 0)
