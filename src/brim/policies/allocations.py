"""What jobs with parameter servers have, ask for and would need: tables that order and size parts share.

Shapes: J jobs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.device_speeds import rank_seconds
from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.checks import cores_milli
from brim.core.setting import ON_CPU, SERVER
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.core.trace import NONE
from brim.policies.sockets import Sizes
from brim.units import MS_PER_S, WHOLE_GPU

SERVERS_MAX: Final = 10
WORKERS_MAX: Final = 4
"""Most servers and workers of a job (successor of AITurbo, github.com/MaoZzzzz/Aiturbo-vGPU)."""
GPU_WEIGHT, PROCESS_WEIGHT = 10, 5
"""What a GPU, and a worker or server, count in service, in cores (successor of AITurbo)."""
_UNKNOWN_S: Final = 1e20
"""Remaining time of a job of which nothing is known, s."""


def present(snapshot: Snapshot) -> Allocation:
    """What each job has; no workers for one that waits."""
    held, size = snapshot.grants, len(snapshot.jobs)

    def count(of: IntArray) -> IntArray:
        return np.bincount(held.job[of], minlength=size).astype(np.int64)

    def milli(of: IntArray) -> IntArray:
        found = np.zeros(size, dtype=np.int64)
        found[held.job[of]] = held.share_milli[of]
        return found

    on_cpu, servers = np.flatnonzero(held.gpu == ON_CPU), np.flatnonzero(held.gpu == SERVER)
    gpus, cpu_workers = count(np.flatnonzero(held.gpu >= 0)), count(on_cpu)
    return Allocation(gpus + cpu_workers, cpu_workers == 0, milli(on_cpu), count(servers), milli(servers))


def as_asked(snapshot: Snapshot) -> Allocation:
    """What the user of each job asked for: workers on GPU, or on CPU for a job without GPUs, and servers.

    Ranks on CPU have the cores of a rank.
    """
    jobs = snapshot.jobs
    cores, on_gpu = np.maximum(jobs.cpu_milli, CORE_MILLI), jobs.gpus > 0
    workers = np.where(on_gpu, jobs.gpus, jobs.cpu_ranks_max)
    return Allocation(workers, on_gpu, cores, np.maximum(jobs.servers, 0), cores)


def smallest(snapshot: Snapshot, asked: Allocation) -> Allocation:
    """One worker and one server for each job with servers, and what others ask for (J,)."""
    has_servers = snapshot.jobs.servers > 0
    return asked._replace(
        workers=np.where(has_servers, 1, asked.workers), servers=np.minimum(asked.servers, 1),
    )


def able_to_run(snapshot: Snapshot, has: Allocation) -> Allocation:
    """The same, with 0 workers for jobs that neither run nor wait, and for those on closed nodes (J,)."""
    able = (snapshot.jobs.holds | snapshot.jobs.waits) & ~on_closed_nodes(snapshot)
    return has._replace(workers=np.where(able, has.workers, 0))


def merged(first: Allocation, other: Allocation) -> Allocation:
    """What jobs have, or the other allocation for those that have nothing."""
    return picked(first.workers > 0, first, other)


def picked(which: BoolArray, first: Allocation, other: Allocation) -> Allocation:
    """The first allocation of some jobs, the other of the rest."""
    columns = tuple(np.where(which, one, two) for one, two in zip(first, other, strict=True))
    return Allocation._make(columns)


def sizes_of(snapshot: Snapshot, has: Allocation) -> Sizes:
    """An allocation as the answer of a size part; jobs that run on as they are keep what they have."""
    has = picked(on_closed_nodes(snapshot), present(snapshot), has)
    return Sizes(
        gpus=np.where(has.on_gpu, has.workers, 0), cpu_workers=np.where(has.on_gpu, 0, has.workers),
        worker_milli=np.where(has.on_gpu | (has.workers == 0), 0, has.worker_milli),
        servers=np.where(has.workers > 0, has.servers, 0),
        server_milli=np.where((has.workers > 0) & (has.servers > 0), has.server_milli, 0),
    )


def needs(snapshot: Snapshot, has: Allocation) -> tuple[IntArray, IntArray]:
    """Milli-GPUs and milli-cores of the allocation of each job, (J,), or of each of several, (J, K)."""
    per_job = (-1,) + (1,) * (has.workers.ndim - 1)
    share_milli, rank_milli = (of.reshape(per_job) for of in (snapshot.jobs.share_milli, snapshot.jobs.cpu_milli))
    gpu_milli = np.where(has.on_gpu, has.workers, 0) * share_milli
    return gpu_milli, np.where(has.on_gpu, rank_milli, has.worker_milli) * has.workers + has.servers * has.server_milli


def on_closed_nodes(snapshot: Snapshot) -> BoolArray:
    """Whether each job holds something on a node or device that takes no jobs (J,): it runs on as it is."""
    held = snapshot.grants
    found = np.zeros(len(snapshot.jobs), dtype=np.bool_)
    found[held.job[~snapshot.nodes.takes(held.node, held.gpu)]] = True
    return found


def capacity(snapshot: Snapshot) -> tuple[int, int]:
    """Milli-GPUs and milli-cores of the nodes that are open, without those of jobs that run on as they are."""
    nodes, held, jobs = snapshot.nodes, snapshot.grants, snapshot.jobs
    others = on_closed_nodes(snapshot)[held.job] & nodes.is_open[held.node]
    gpu_milli = WHOLE_GPU * int(nodes.gpus_open.sum()) - int(held.share_milli[others & (held.gpu >= 0)].sum())
    cores = cores_milli(jobs, held.job, held.gpu, held.share_milli, None)
    return gpu_milli, int(nodes.cpu_milli[nodes.is_open].sum()) - int(cores[others].sum())


def step_s(snapshot: Snapshot, beliefs: Beliefs, has: Allocation) -> FloatArray:
    """Believed seconds of a step of each job with its allocation, (J,), or with each of several, (J, K).

    Of a job with servers, by the profile of its model; NaN if that was not profiled. Of another job, what it has
    reported on each kind of device: see ``device_speeds``.
    """
    jobs = snapshot.jobs
    per_job = (len(jobs),) + (1,) * (has.workers.ndim - 1)
    workers, has_servers = np.maximum(has.workers, 1), jobs.servers.reshape(per_job) > 0
    found = np.full(has.workers.shape, np.nan)
    if beliefs.steps is not None:
        profile, batch = jobs.profile.reshape(per_job), jobs.batch.reshape(per_job)
        known = has_servers & (profile != NONE) & (has.workers > 0) & (has.servers > 0)
        least = has._replace(workers=workers, servers=np.maximum(has.servers, 1))
        phases = beliefs.steps.phases(np.where(has_servers, np.maximum(profile, 0), 0), batch, least)
        found = np.where(known, phases.step_s, np.nan)
    if ((jobs.servers == 0) & (jobs.cpu_ranks_max > 0)).any():
        on_gpu_s, on_cpu_s = (column.reshape(per_job) for column in rank_seconds(snapshot).T)
        own_s = np.where(has.on_gpu, on_gpu_s, on_cpu_s) / workers
        found = np.where((jobs.servers == 0).reshape(per_job) & (has.workers > 0), own_s, found)
    return found


def remaining_s(snapshot: Snapshot, beliefs: Beliefs, has: Allocation, samples_left: FloatArray) -> FloatArray:
    """Believed seconds until the end of each job with its allocation, (J,), or with each of several, (J, K).

    1e20 where nothing is known.

    Args:
        snapshot: The jobs.
        beliefs: How long steps take.
        has: The allocations.
        samples_left: Samples until the end of each job (J,).
    """
    steps = samples_left / np.maximum(snapshot.jobs.batch, 1)
    left = steps.reshape((len(steps),) + (1,) * (has.workers.ndim - 1)) * step_s(snapshot, beliefs, has)
    return np.where(np.isfinite(left), left, _UNKNOWN_S)


def weight(has: Allocation) -> IntArray:
    """What a second of an allocation counts as service (J,): a GPU 10, a worker or server 5 (successor of AITurbo).

    Service is called core-seconds (``core_s``), though a weight is not the number of cores that a process has.
    """
    gpus = np.where(has.on_gpu, has.workers, 0)
    found: IntArray = GPU_WEIGHT * gpus + PROCESS_WEIGHT * (has.workers + has.servers)
    return found


def service_ms(snapshot: Snapshot, served_ms: IntArray, until_ms: IntArray) -> IntArray:
    """Service of each job in weighted ms: what it had received until a time, and what it has received since (J,)."""
    jobs = snapshot.jobs
    since = np.where(jobs.holds, np.maximum(until_ms, jobs.since_ms), snapshot.now_ms)
    found: IntArray = served_ms + weight(present(snapshot)) * np.maximum(snapshot.now_ms - since, 0)
    return found


def attained_s(served_ms: IntArray) -> FloatArray:
    """Service in weighted seconds, "core-seconds" (J,)."""
    return served_ms / MS_PER_S
