"""The feed part that tries every division of cores: what others are measured against, for a few jobs on one node."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from brim.beliefs.loading import CPU, SAMPLE_BYTES, rates
from brim.core.arrays import FloatArray, IntArray
from brim.errors import PlanError
from brim.policies.feed.throughput import LoaderPlacement, Throughput, demands, water_filling

JOBS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Exhaustive(Throughput):
    """The division with the greatest sum of speeds, each a part of that with any number of cores."""

    def divide(
        self, ids: IntArray, placement: LoaderPlacement, parameters: FloatArray, fixed: IntArray, least: IntArray,
        disk_bytes_per_s: float,
    ) -> IntArray:
        """Try all; what jobs keep is not regarded.

        Raises:
            PlanError: there are more than ``JOBS_MAX`` jobs, or jobs on several nodes.
        """
        placed = np.unique(placement.job)
        if len(placed) > JOBS_MAX or len(np.unique(placement.node)) > 1:
            raise PlanError(f"found {len(placed)} jobs on {len(np.unique(placement.node))} nodes, expected at most "
                            f"{JOBS_MAX} jobs on one")
        cores, ranks = int(placement.cores[placement.node[0]]), placement.ranks
        tried = [
            workers for workers in product(*(range(1, cores // each + 1) for each in ranks.tolist()))
            if np.dot(workers, ranks) <= cores
        ]
        best = np.zeros(len(ids), dtype=np.int64)
        if tried:
            best[placement.job] = max(
                tried, key=lambda each: speeds(placement, parameters, np.array(each), disk_bytes_per_s).sum()
            )
        return best


def speeds(
    placement: LoaderPlacement, parameters: FloatArray, workers: IntArray, disk_bytes_per_s: float = np.inf
) -> FloatArray:
    """Speed of each of these jobs, as a part of that with any number of cores (C,)."""
    of = np.zeros(len(parameters), dtype=np.int64)
    of[placement.job] = workers
    given = water_filling(placement, demands(parameters, of) * parameters[:, SAMPLE_BYTES], disk_bytes_per_s)
    without_cpu = parameters.copy()
    without_cpu[:, CPU] = 0.0
    endless = np.ones(len(of))
    parts: FloatArray = rates(parameters, of.astype(np.float64), given) / rates(without_cpu, endless, given)
    return parts[placement.job]
