"""Sizes of jobs with parameter servers: as asked, and Optimus, which adds servers and workers one by one.

Shapes: J jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.policies.allocations import able_to_run, as_asked, capacity, merged, present, remaining_s, sizes_of, smallest
from brim.policies.size.units import each_size, grown, units_of
from brim.policies.sockets import Sizes


@dataclass(frozen=True, slots=True)
class ServersAsAsked:
    """The workers and servers that users asked for; nothing is changed while a job runs."""

    resizes_running: ClassVar[bool] = False

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        return sizes_of(snapshot, merged(present(snapshot), as_asked(snapshot)))


@dataclass(frozen=True, slots=True)
class MarginalServers:
    """One worker on GPU and one server each, in order; then what shortens some job's remaining time most.

    Gains count per part of the cluster that a worker or server takes of its scarcest resource. A job's remaining work
    comes from the curve through its losses; before there is a curve, from its user's plan.

    Source:
        Peng et al., Optimus, EuroSys 2018, section 4.1.
    """

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs = snapshot.jobs
        first = able_to_run(snapshot, smallest(snapshot, as_asked(snapshot)))
        left = beliefs.progress.of_jobs(snapshot).samples_left
        planned = np.maximum(jobs.samples_max - jobs.samples_done, 0.0)
        time_s = remaining_s(snapshot, beliefs, each_size(first, kinds=1), np.where(np.isnan(left), planned, left))
        time_s[jobs.servers <= 0] = np.nan
        has = grown(time_s, units_of(snapshot, first), first, np.zeros_like(order), order, capacity(snapshot))
        return sizes_of(snapshot, first._replace(workers=has.workers, servers=has.servers))
