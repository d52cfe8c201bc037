"""Sizes of jobs with parameter servers: as asked, and Optimus, which adds servers and workers one by one.

Shapes: J jobs, W numbers of workers, P numbers of servers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.policies.allocations import as_asked, remaining_s, sizes_of
from brim.policies.size.exchange import SERVERS_MAX, WORKERS_MAX
from brim.policies.sockets import Sizes


@dataclass(frozen=True, slots=True)
class ServersAsAsked:
    """The workers and servers that users asked for; nothing is changed while a job runs."""

    resizes_running: ClassVar[bool] = False

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        return sizes_of(as_asked(snapshot))


@dataclass(frozen=True, slots=True)
class MarginalServers:
    """One worker on GPU and one server each, in order; then what shortens some job's remaining time most.

    Gains count per part of the cluster that a worker or server takes of its scarcest resource. What is left of a job is
    what the curve through its losses says, of every job, and what its user planned before there is one.

    Source:
        Peng et al., Optimus, EuroSys 2018, section 4.1.
    """

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        left = beliefs.progress.of_jobs(snapshot).samples_left
        planned = np.maximum(jobs.samples_max - jobs.samples_done, 0.0)
        asked = as_asked(snapshot)
        time_s = _times(snapshot, beliefs, asked, np.where(np.isnan(left), planned, left))
        has = np.zeros((2, len(jobs)), dtype=np.int64)
        all_gpus, all_milli = float(nodes.gpus_open.sum()), float(nodes.cpu_milli[nodes.is_open].sum())
        free = [all_gpus, all_milli]
        per_unit = np.stack((  # GPUs and milli-cores of a worker, then of a server (2, J, 2)
            np.column_stack((np.ones(len(jobs)), jobs.cpu_milli)),
            np.column_stack((np.zeros(len(jobs)), asked.server_milli)),
        )).astype(np.float64)
        part = np.maximum(per_unit[..., 0] / max(all_gpus, 1.0), per_unit[..., 1] / max(all_milli, 1.0))
        heap: list[tuple[float, int, int, int]] = []

        def take(row: int, *kinds: int) -> bool:
            needs = per_unit[list(kinds), row].sum(axis=0).tolist()
            if needs[0] > free[0] or needs[1] > free[1]:
                return False
            free[0] -= needs[0]
            free[1] -= needs[1]
            for kind in kinds:
                has[kind, row] += 1
            return True

        def offer(rank: int, row: int) -> None:
            workers, servers = has[:, row].tolist()
            for kind, (w, p) in enumerate(((workers + 1, servers), (workers, servers + 1))):
                if w <= WORKERS_MAX and p <= SERVERS_MAX:
                    saved = time_s[row, workers - 1, servers - 1] - time_s[row, w - 1, p - 1]
                    if saved > 0:
                        heapq.heappush(heap, (-saved / part[kind, row], rank, row, kind))

        able = jobs.holds | jobs.waits
        for rank, row in enumerate(order.tolist()):
            if able[row] and take(row, 0, 1):
                offer(rank, row)
        while heap:
            gain, rank, row, kind = heapq.heappop(heap)
            workers, servers = has[:, row].tolist()
            w, p = workers + (kind == 0), servers + (kind == 1)
            if w > WORKERS_MAX or p > SERVERS_MAX:
                continue
            saved = time_s[row, workers - 1, servers - 1] - time_s[row, w - 1, p - 1]
            if -gain != saved / part[kind, row]:  # offered before the job got something else
                continue
            if take(row, kind):
                offer(rank, row)
        return sizes_of(asked._replace(workers=has[0], servers=has[1]))


def _times(snapshot: Snapshot, beliefs: Beliefs, asked: Allocation, left: FloatArray) -> FloatArray:
    """Believed remaining seconds with workers on GPU and servers (J, W, P)."""
    size = len(snapshot.jobs)
    return np.stack([
        np.stack([
            remaining_s(snapshot, beliefs, asked._replace(workers=np.full(size, w), servers=np.full(size, p)), left)
            for p in range(1, SERVERS_MAX + 1)
        ], axis=1) for w in range(1, WORKERS_MAX + 1)
    ], axis=1)
