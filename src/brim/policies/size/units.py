"""Workers and servers given out one by one, each to the job whose cost falls most per share of the dominant resource.

Shapes: J jobs, D kinds of device of workers (GPU, CPU), W numbers of workers, P numbers of servers; the last axis of
units is milli-GPUs and milli-cores.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.policies.allocations import SERVERS_MAX, WORKERS_MAX


class Units(NamedTuple):
    """What one worker or server of each job takes.

    Attributes:
        worker: Of each kind of device (D, J, 2).
        server: (J, 2).
    """

    worker: IntArray
    server: IntArray


class Grown(NamedTuple):
    """What jobs are given; each column (J,).

    Attributes:
        kind: Kind of device of the workers, 0 for GPU.
        workers: Workers, 0 for a job that is given nothing.
        servers: Servers.
    """

    kind: IntArray
    workers: IntArray
    servers: IntArray


class _FirstSizes(NamedTuple):
    """First sizes of jobs, and milli-GPUs and milli-cores that each takes (J,).

    Columns, because a tuple for each job would make Python's garbage collector run.
    """

    kind: list[int]
    workers: list[int]
    servers: list[int]
    gpus: list[int]
    milli: list[int]


def units_of(snapshot: Snapshot, each: Allocation) -> Units:
    """What a worker or server takes, with the cores of an allocation (J,)."""
    jobs = snapshot.jobs
    none = np.zeros(len(jobs), dtype=np.int64)
    on_gpu, on_cpu = np.column_stack((jobs.share_milli, jobs.cpu_milli)), np.column_stack((none, each.worker_milli))
    return Units(np.stack((on_gpu, on_cpu)), np.column_stack((none, each.server_milli)))


def each_size(each: Allocation, *, kinds: int) -> Allocation:
    """Every number of workers and servers on each kind of device, with the cores of an allocation (J, D, W, P)."""
    shape = (len(each.workers), kinds, WORKERS_MAX, SERVERS_MAX)
    kind, workers, servers = np.indices(shape)[1:]
    return Allocation(
        workers + 1, kind == 0, np.broadcast_to(each.worker_milli[:, None, None, None], shape), servers + 1,
        np.broadcast_to(each.server_milli[:, None, None, None], shape),
    )


def grown(
    costs: FloatArray, units: Units, first: Allocation, instead: IntArray, order: IntArray, capacity: tuple[int, int]
) -> Grown:
    """Give jobs what they have at first, in order; then, one by one, what lowers costs most for what it takes.

    What a worker or server takes is its dominant share: the larger of its shares of all GPUs and of all cores. A job
    that finds no room begins on the other kind of device, and may move to a GPU later.

    Args:
        costs: What each job costs with each number of workers and servers (J, D, W, P); infinite where it cannot run.
            A job whose costs are NaN keeps what it has at first.
        units: What a worker or server takes.
        first: What each job has at first; 0 workers for one that is given nothing (J,).
        instead: Workers on the other kind of device, 0 for a job that cannot run there (J,).
        order: Rows of jobs, first served first (J,).
        capacity: Milli-GPUs and milli-cores of the cluster.
    """
    jobs, _, workers_max, servers_max = costs.shape
    worker_gpus, worker_milli = units.worker[..., 0].tolist(), units.worker[..., 1].tolist()
    server_milli, kind = units.server[:, 1].tolist(), np.where(first.on_gpu, 0, 1)
    own = _first_sizes(units, kind, first.workers, first.servers)
    other = _first_sizes(units, 1 - kind, np.where(first.workers > 0, instead, 0), first.servers)
    (free_gpus, free_milli), grows = capacity, (~np.isnan(costs[:, 0, 0, 0])).tolist()
    all_gpus, all_milli = max(free_gpus, 1), max(free_milli, 1)
    has: list[tuple[int, int, int]] = [(0, 0, 0)] * jobs
    heap: list[tuple[float, int, int, tuple[int, int, int], tuple[int, int, int], int, int]] = []

    def needs(row: int, kind: int, workers: int, servers: int) -> tuple[int, int]:
        return worker_gpus[kind][row] * workers, worker_milli[kind][row] * workers + server_milli[row] * servers

    def offer(rank: int, row: int) -> None:
        kind, workers, servers = now = has[row]
        cost = costs[row]
        before, (gpus, milli) = cost[kind, workers - 1, servers - 1], needs(row, *now)
        to_gpu = [(0, 1, servers)] if kind else []
        for then in ((kind, workers + 1, servers), (kind, workers, servers + 1), *to_gpu):
            if then[1] > workers_max or then[2] > servers_max:
                continue
            saved = before - cost[then[0], then[1] - 1, then[2] - 1]
            if saved > 0:
                more = needs(row, *then)
                take_gpus, take_milli = more[0] - gpus, more[1] - milli
                part = max(take_gpus / all_gpus, take_milli / all_milli)
                gain = saved / part if part > 0 else np.inf
                heapq.heappush(heap, (-gain, rank, row, then, now, take_gpus, take_milli))

    for rank, row in enumerate(order.tolist()):
        for begins in (own, other):
            gpus, milli = begins.gpus[row], begins.milli[row]
            if begins.workers[row] and gpus <= free_gpus and milli <= free_milli:
                free_gpus, free_milli = free_gpus - gpus, free_milli - milli
                has[row] = begins.kind[row], begins.workers[row], begins.servers[row]
                if grows[row]:
                    offer(rank, row)
                break
    while heap:
        _, rank, row, then, now, gpus, milli = heapq.heappop(heap)
        if has[row] == now and gpus <= free_gpus and milli <= free_milli:
            free_gpus, free_milli = free_gpus - gpus, free_milli - milli
            has[row] = then
            offer(rank, row)
    return Grown(*np.array(has, dtype=np.int64).reshape(jobs, 3).T)


def _first_sizes(units: Units, kind: IntArray, workers: IntArray, servers: IntArray) -> _FirstSizes:
    gpus, milli = (units.worker[kind, np.arange(len(kind))] * workers[:, None] + units.server * servers[:, None]).T
    return _FirstSizes(*(column.tolist() for column in (kind, workers, servers, gpus, milli)))
