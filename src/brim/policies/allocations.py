"""What jobs with parameter servers have, ask for and would need: tables that order and size parts share.

Shapes: J jobs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.device_speeds import CPU, GPU, rank_seconds
from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.setting import ON_CPU, SERVER
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.core.trace import NONE
from brim.policies.sockets import Sizes
from brim.units import MS_PER_S

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


def on_cpu(snapshot: Snapshot, has: Allocation) -> tuple[Allocation, BoolArray]:
    """As many ranks on CPU as asked for, of the jobs without servers that can run there, and which these are (J,)."""
    jobs = snapshot.jobs
    able = (jobs.cpu_ranks_max > 0) & (jobs.servers == 0)
    ranks = has._replace(
        workers=np.where(jobs.gpus > 0, jobs.gpus, jobs.cpu_ranks_max), on_gpu=np.zeros(len(jobs), dtype=np.bool_),
        worker_milli=np.maximum(jobs.cpu_milli, CORE_MILLI),
    )
    return picked(able, ranks, has), able


def merged(first: Allocation, other: Allocation) -> Allocation:
    """What jobs have, or the other allocation for those that have nothing."""
    return picked(first.workers > 0, first, other)


def picked(which: BoolArray, first: Allocation, other: Allocation) -> Allocation:
    """The first allocation of some jobs, the other of the rest."""
    columns = tuple(np.where(which, one, two) for one, two in zip(first, other, strict=True))
    return Allocation._make(columns)


def sizes_of(has: Allocation) -> Sizes:
    """An allocation as the answer of a size part."""
    return Sizes(
        gpus=np.where(has.on_gpu, has.workers, 0), cpu_workers=np.where(has.on_gpu, 0, has.workers),
        worker_milli=np.where(has.on_gpu | (has.workers == 0), 0, has.worker_milli),
        servers=np.where(has.workers > 0, has.servers, 0),
        server_milli=np.where((has.workers > 0) & (has.servers > 0), has.server_milli, 0),
    )


def step_s(snapshot: Snapshot, beliefs: Beliefs, has: Allocation) -> FloatArray:
    """Believed seconds of a step of each job; NaN for one whose model was not profiled (J,).

    Of a job without servers, what it has reported on each kind of device: see ``device_speeds``.
    """
    jobs = snapshot.jobs
    found = np.full(len(jobs), np.nan)
    rows = np.flatnonzero((jobs.profile != NONE) & (has.workers > 0) & (has.servers > 0))
    if beliefs.steps is not None and len(rows):
        mine = Allocation._make(column[rows] for column in has)
        found[rows] = beliefs.steps.phases(jobs.profile[rows], jobs.batch[rows], mine).step_s
    alone = (jobs.servers == 0) & (has.workers > 0)
    if alone.any():
        rank_s = rank_seconds(snapshot)
        own_s = np.where(has.on_gpu, rank_s[:, GPU], rank_s[:, CPU]) / np.maximum(has.workers, 1)
        found = np.where(alone, own_s, found)
    return found


def remaining_s(snapshot: Snapshot, beliefs: Beliefs, has: Allocation, samples_left: FloatArray) -> FloatArray:
    """Believed seconds until the end of each job with an allocation, 1e20 where nothing is known (J,)."""
    left = samples_left / np.maximum(snapshot.jobs.batch, 1) * step_s(snapshot, beliefs, has)
    return np.where(np.isfinite(left), left, _UNKNOWN_S)


def weight(has: Allocation) -> IntArray:
    """What an allocation counts in service, in cores (J,): a GPU 10, a worker or server 5 (successor of AITurbo)."""
    gpus = np.where(has.on_gpu, has.workers, 0)
    found: IntArray = GPU_WEIGHT * gpus + PROCESS_WEIGHT * (has.workers + has.servers)
    return found


def service_ms(snapshot: Snapshot, served_ms: IntArray, until_ms: IntArray) -> IntArray:
    """Service of each job in core-ms: what it had received until a time, and what it has received since (J,)."""
    jobs = snapshot.jobs
    since = np.where(jobs.holds, np.maximum(until_ms, jobs.since_ms), snapshot.now_ms)
    found: IntArray = served_ms + weight(present(snapshot)) * np.maximum(snapshot.now_ms - since, 0)
    return found


def attained_s(served_ms: IntArray) -> FloatArray:
    """Service in core-seconds (J,)."""
    return served_ms / MS_PER_S
