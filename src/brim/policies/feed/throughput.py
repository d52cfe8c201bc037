"""The feed part that gives cores to the loaders of the jobs that gain most: A-Dloader.

Source:
    Jia et al., A-Dloader, IEEE CLOUD 2022, publishes the aim (most throughput of all jobs) and the knob (loader
    workers), not the algorithm. Ours: marginal gain per core over a model of each job (``beliefs.loading``), then
    storage shared by water-filling, then cores again; running jobs keep their workers for a while after a change.

Shapes: J jobs, N nodes, P parameters, C pairs of a job and a node it has ranks on.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar, Final, NamedTuple

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.loading import (
    CPU,
    DATASET_BYTES,
    KNEE,
    NOTHING,
    RATE,
    SAMPLE_BYTES,
    SERIAL,
    rate_of,
    supply_of,
    tells_more,
)
from brim.compiled import internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import UNLIMITED
from brim.core.events import Kind
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI, cores_of_ranks
from brim.core.tables import EMPTY, Grants
from brim.units import MS_PER_S

_WORKERS, _CHANGED, _SEEN_WORKERS, _SEEN_WAIT = range(4)
"""What is remembered of a job: its loader workers; when it started with them, or a round noticed that they had changed;
those of the report that tells most of what it needs, and the wait in it, in millionths plus one, 0 for none."""
_FIRST: Final = -np.inf
"""The key of jobs that are served before all others."""
_MILLION: Final = 1_000_000
_MIB: Final = 1 << 20


class LoaderPlacement(NamedTuple):
    """Where jobs have ranks that load data, and the cores left for loading.

    Attributes:
        job: Row of the job (C,), in increasing order.
        node: Node (C,).
        ranks: Ranks of the job there (C,).
        first: Where the pairs of each job begin (J + 1,).
        cores: Cores of each node for loader workers (N,).
    """

    job: IntArray
    node: IntArray
    ranks: IntArray
    first: IntArray
    cores: IntArray


def loader_placement(snapshot: Snapshot, grants: Grants) -> LoaderPlacement:
    """Count the ranks of each job on each node, and the cores that are left there.

    A rank takes the cores its job asks for, and one for its main process if it asks for none. A node whose cores are
    not known has none for loaders.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    taken = np.maximum(cores_of_ranks(jobs.cpu_milli, grants.job, grants.gpu, grants.share_milli, EMPTY), CORE_MILLI)
    left = nodes.cpu_milli - np.bincount(grants.node, weights=taken, minlength=len(nodes)).astype(np.int64)
    cores = np.where(nodes.cpu_milli < UNLIMITED, np.maximum(left, 0) // CORE_MILLI, 0)
    pairs, ranks = np.unique(grants.job * len(nodes) + grants.node, return_counts=True)
    job, node = np.divmod(pairs, max(1, len(nodes)))
    return LoaderPlacement(job, node, ranks, np.searchsorted(job, np.arange(len(jobs) + 1)), cores)


def fed(snapshot: Snapshot, placement: LoaderPlacement) -> BoolArray:
    """Whether the cores of all nodes of a job are known (J,); a job without ranks is not fed."""
    known = np.zeros(len(snapshot.jobs), dtype=np.bool_)
    known[placement.job] = True
    known[placement.job[snapshot.nodes.cpu_milli[placement.node] >= UNLIMITED]] = False
    return known


def equal_share(placement: LoaderPlacement, per_node: IntArray) -> IntArray:
    """Workers per rank if the cores of each node are divided by a number of its own (N,): the least over nodes (J,)."""
    shares = np.full(len(placement.first) - 1, np.iinfo(np.int64).max)
    np.minimum.at(shares, placement.job, (placement.cores // np.maximum(per_node, 1))[placement.node])
    return np.where(shares == np.iinfo(np.int64).max, 0, shares)


@internal
def _room(j: int, placement: LoaderPlacement, left: IntArray) -> bool:
    """Whether each rank of a job can have one more worker."""
    lacking = 0
    for c in range(placement.first[j], placement.first[j + 1]):
        lacking += left[placement.node[c]] < placement.ranks[c]
    return lacking == 0


@internal
def _gain(j: int, workers: int, parameters: FloatArray, bytes_per_s: FloatArray, ranks: int) -> float:
    """Gain of one more worker per rank, per core, as a part of the speed with any number of cores."""
    each, io = parameters[j], bytes_per_s[j]
    most = rate_of(1.0, each[RATE], 0.0, each[SERIAL], each[KNEE], io, each[SAMPLE_BYTES])
    now = rate_of(workers, each[RATE], each[CPU], each[SERIAL], each[KNEE], io, each[SAMPLE_BYTES])
    then = rate_of(workers + 1, each[RATE], each[CPU], each[SERIAL], each[KNEE], io, each[SAMPLE_BYTES])
    return float((then - now) / most / ranks) if most > 0 else 0.0


@njit
def by_gain(
    ids: IntArray, placement: LoaderPlacement, parameters: FloatArray, bytes_per_s: FloatArray, fixed: IntArray,
    least: IntArray, gain_min: float,
) -> IntArray:
    """Give cores, one worker per rank at a time, to the job that gains most per core.

    Every job has its first worker before any has a second, as far as there are cores; so the first is not subject to
    ``gain_min``. Speed is concave in the workers from one up, so that on one node with equal numbers of ranks the
    result is the best one; else it is off by one increment at most per node.

    Args:
        ids: Job ids, which break ties (J,).
        placement: Ranks and cores.
        parameters: ``beliefs.loading.PARAMETERS`` (J, P).
        bytes_per_s: What storage gives one rank (J,).
        fixed: Workers of jobs that are not to be changed, as far as there are cores; NONE for the others (J,).
        least: Workers that the others have at least, as far as there are cores (J,).
        gain_min: Least gain of one more worker for each rank of a job.

    Returns:
        Loader workers per rank (J,).
    """
    jobs, left = len(ids), placement.cores.copy()
    workers, ranks = np.zeros(jobs, np.int64), np.zeros(jobs, np.int64)
    for c in range(len(placement.job)):
        ranks[placement.job[c]] += placement.ranks[c]
    heap = [
        (_FIRST if fixed[j] >= 0 or least[j] else -_gain(j, 0, parameters, bytes_per_s, ranks[j]), ids[j], j)
        for j in range(jobs) if ranks[j]
    ]
    heapify(heap)
    later = [heap[0] for _ in range(0)]
    while heap:
        _, _, j = heappop(heap)
        while _room(j, placement, left) and workers[j] < max(fixed[j], least[j], 1 if fixed[j] < 0 else 0):
            workers[j] += 1
            for c in range(placement.first[j], placement.first[j + 1]):
                left[placement.node[c]] -= placement.ranks[c]
        if fixed[j] < 0 and workers[j]:
            later.append((-_gain(j, workers[j], parameters, bytes_per_s, ranks[j]), ids[j], j))
    heapify(later)
    while later:
        minus, _, j = heappop(later)
        if -minus * ranks[j] < gain_min or not _room(j, placement, left):
            continue
        workers[j] += 1
        for c in range(placement.first[j], placement.first[j + 1]):
            left[placement.node[c]] -= placement.ranks[c]
        heappush(later, (-_gain(j, workers[j], parameters, bytes_per_s, ranks[j]), ids[j], j))
    return workers


@njit
def water_filling(placement: LoaderPlacement, asks: FloatArray, disk_bytes_per_s: float) -> FloatArray:
    """Divide the storage of each node: small demands are met whole, the rest is equal for the others.

    Args:
        placement: Ranks.
        asks: Bytes per second that each rank of a job asks for (J,).
        disk_bytes_per_s: What one node has.

    Returns:
        Bytes per second that each rank of a job may read, the least over its nodes (J,); infinite where it is not
        limited.
    """
    given = np.full(len(asks), np.inf)
    if disk_bytes_per_s == np.inf:
        return given
    by_node = np.argsort(placement.node, kind="mergesort")
    begin = 0
    while begin < len(by_node):
        end, n = begin, placement.node[by_node[begin]]
        while end < len(by_node) and placement.node[by_node[end]] == n:
            end += 1
        demand = np.array([asks[placement.job[c]] * placement.ranks[c] for c in by_node[begin:end]])
        left, count = disk_bytes_per_s, int(np.sum(demand > 0))
        for k in np.argsort(demand, kind="mergesort"):
            if demand[k] <= 0:
                continue
            c = by_node[begin + k]
            share = left / count
            if demand[k] > share:
                given[placement.job[c]] = min(given[placement.job[c]], share / placement.ranks[c])
            left, count = left - min(demand[k], share), count - 1
        begin = end
    return given


@njit
def demands(parameters: FloatArray, workers: IntArray) -> FloatArray:
    """Samples per second that a rank of each job would read if storage did not limit it (J,)."""
    found = np.zeros(len(parameters))
    for j in range(len(parameters)):
        each = parameters[j]
        if supply_of(workers[j], each[CPU], each[SERIAL], np.inf, each[SAMPLE_BYTES]) > 0:
            found[j] = rate_of(workers[j], each[RATE], each[CPU], each[SERIAL], each[KNEE], np.inf, 0.0)
    return found


@dataclass(frozen=True, slots=True)
class Throughput:
    """Loader workers by marginal gain per core.

    Jobs of which nothing is known get an equal share of the cores per GPU of their node, and give none of it up.

    Attributes:
        gain_min: Cores that would raise the speed of their job by less than this part stay free. Ours.
        hold_ms: A running job whose workers changed has no fewer for this long, unless cores are missing. Ours.
    """

    gain_min: float = 0.01
    hold_ms: int = 30 * MS_PER_S

    tunes_running: ClassVar[bool] = True
    counts_cores: ClassVar[bool] = True
    acts_when_idle: ClassVar[bool] = True
    asks_loading: ClassVar[bool] = True
    memory_columns: ClassVar[int] = 4
    wakes_on: ClassVar[frozenset[Kind]] = frozenset({Kind.REPORTED})

    def remember(self, snapshot: Snapshot) -> IntArray:
        """Remember since when each job has its workers, and the wait that it last reported."""
        jobs = snapshot.jobs
        memo = jobs.memo.copy()
        changed = jobs.loaders_now != memo[:, _WORKERS]
        memo[changed, _CHANGED] = np.where(memo[:, _WORKERS] == 0, jobs.since_ms, snapshot.now_ms)[changed]
        memo[:, _WORKERS] = jobs.loaders_now
        told = np.isfinite(jobs.loader_wait_ratio) & (jobs.loaders_now > 0)
        told &= tells_more(jobs.loaders_now, jobs.loader_wait_ratio, memo[:, _SEEN_WORKERS], _waited(memo))
        memo[told, _SEEN_WORKERS] = jobs.loaders_now[told]
        memo[told, _SEEN_WAIT] = np.rint(jobs.loader_wait_ratio[told] * _MILLION).astype(np.int64) + 1
        return memo

    def settled(self, snapshot: Snapshot, beliefs: Beliefs) -> bool:
        """See ``sockets``: no job keeps its workers for a while, or has yet to read from the page cache."""
        jobs, memo = snapshot.jobs, snapshot.jobs.memo
        keeps = (jobs.loaders_now != memo[:, _WORKERS]) | (memo[:, _CHANGED] + self.hold_ms > snapshot.now_ms)
        if np.isfinite(beliefs.loading.disk_bytes_per_s):
            parameters = beliefs.loading.of_jobs(snapshot, memo[:, _SEEN_WORKERS], _waited(memo)).parameters
            with np.errstate(invalid="ignore"):
                keeps |= jobs.samples_done * parameters[:, SAMPLE_BYTES] < parameters[:, DATASET_BYTES]
        return not (jobs.holds & keeps).any()

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """See ``Feed``."""
        jobs, memo = snapshot.jobs, snapshot.jobs.memo
        if not len(grants):
            return np.zeros(len(jobs), dtype=np.int64)
        placement = loader_placement(snapshot, grants)
        believed = beliefs.loading.of_jobs(snapshot, memo[:, _SEEN_WORKERS], _waited(memo))
        fixed = np.where(believed.basis == NOTHING, equal_share(placement, snapshot.nodes.gpus), -1)
        recent = jobs.holds & (memo[:, _CHANGED] + self.hold_ms > snapshot.now_ms) & (jobs.loaders_now > 0)
        kept = _kept(placement, np.where(recent & (fixed < 0), jobs.loaders_now, fixed), fixed)
        least = np.where(fixed < 0, np.maximum(kept, 0), 0)
        fixed[~fed(snapshot, placement)] = 0
        parameters = believed.parameters
        parameters[believed.basis == NOTHING] = 1.0
        parameters[:, SAMPLE_BYTES] *= 1 - _cached(snapshot, placement, parameters)
        return self.divide(jobs.id, placement, parameters, fixed, least, beliefs.loading.disk_bytes_per_s)

    def divide(
        self, ids: IntArray, placement: LoaderPlacement, parameters: FloatArray, fixed: IntArray, least: IntArray,
        disk_bytes_per_s: float,
    ) -> IntArray:
        """Divide cores, then storage, then cores again: a core for a job that waits for storage is wasted."""
        unlimited = np.full(len(ids), np.inf)
        workers = by_gain(ids, placement, parameters, unlimited, fixed, least, self.gain_min)
        given = water_filling(placement, demands(parameters, workers) * parameters[:, SAMPLE_BYTES], disk_bytes_per_s)
        if np.isfinite(given).any():
            workers = by_gain(ids, placement, parameters, given, fixed, least, self.gain_min)
        return workers


def _waited(memo: IntArray) -> FloatArray:
    """The wait that is remembered of each job, NaN for none (J,)."""
    return np.where(memo[:, _SEEN_WAIT] > 0, (memo[:, _SEEN_WAIT] - 1) / _MILLION, np.nan)


def _kept(placement: LoaderPlacement, wanted: IntArray, otherwise: IntArray) -> IntArray:
    """The workers that jobs keep (J,); on nodes where not every rank could then have one, as many as otherwise."""
    least = np.maximum(wanted, 1)[placement.job] * placement.ranks
    short = np.bincount(placement.node, weights=least, minlength=len(placement.cores)) > placement.cores
    kept = wanted.copy()
    released = placement.job[short[placement.node]]
    kept[released] = otherwise[released]
    return kept


def _cached(snapshot: Snapshot, placement: LoaderPlacement, parameters: FloatArray) -> FloatArray:
    """Part of the samples of each job that is read from the page cache (J,): nothing in its first epoch.

    Memory that no job asks for is divided equally among the jobs of a node.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    asked = np.bincount(placement.node, weights=jobs.mem_mib[placement.job] * placement.ranks, minlength=len(nodes))
    count = np.maximum(np.bincount(placement.node, minlength=len(nodes)), 1)
    free = np.maximum(nodes.mem_mib - asked, 0) / count * _MIB
    cache = np.full(len(jobs), np.inf)
    np.minimum.at(cache, placement.job, free[placement.node])
    dataset, sample = parameters[:, DATASET_BYTES], parameters[:, SAMPLE_BYTES]
    again = jobs.samples_done * sample >= dataset
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.minimum(cache / dataset, 1.0)
    return np.where((dataset > 0) & again, part, 0.0)
