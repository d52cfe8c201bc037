"""Workers and parameter servers on nodes, by their devices and cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.checks import cores_milli
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.setting import ON_CPU, SERVER
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.core.trace import NONE
from brim.policies.place.gang_places import (
    CPU,
    CPU_WORKERS,
    EXTRA,
    GPU,
    GPU_TYPE,
    GPUS,
    MEM,
    OPEN,
    RANK_COLUMNS,
    SERVERS,
    SHARE,
    SHARE_MILLI,
    TYPE,
    change,
    fits,
    num_gpus,
    search,
    write_ranks,
)
from brim.policies.place.inputs import revocable_as_before
from brim.policies.sockets import Sizes
from brim.units import WHOLE_GPU

_NO_GPU: Final = -(1 << 40)
"""Milli-GPUs of a GPU that takes no jobs, also while jobs that it has leave."""
_NO_RANKS: Final = np.empty((0, RANK_COLUMNS), dtype=np.int64)
_WHY_OF_PHASE: Final = {int(Phase.HELD): int(Reason.HELD), int(Phase.STOPPING): int(Reason.STOPPING)}


@dataclass(frozen=True, slots=True)
class WorkersAndServers:
    """Whole gangs in the given order, each on few nodes; servers and workers on CPU where cores are left.

    A job that keeps its size keeps its places. Others are placed on what nobody holds, and, if that is too little, on
    what jobs that come later in the order hold: these wait, or are placed anew in their turn.

    Attributes:
        preempts: Whether jobs that come earlier in the order take what later ones hold.
        misfit: What becomes of the jobs behind one that does not fit: they wait (stop), or not (skip).

    Source:
        Ours; few nodes per job, with workers and servers together: Peng et al., Optimus, EuroSys 2018.
    """

    moves_running: ClassVar[bool] = True
    places_on_cpu: ClassVar[bool] = True
    preempts: bool = True
    misfit: Literal["stop", "skip"] = "skip"

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """See ``Place``."""
        jobs = snapshot.jobs
        held, asked = _Held(snapshot), _asked(snapshot, sizes)
        capacity = _FreeCapacity(snapshot, held)
        why, blocker = np.full(len(jobs), int(Reason.NOT_NOW)), np.full(len(jobs), NONE)
        decided = asked[:, GPUS] + asked[:, CPU_WORKERS] > 0
        holds = held.num_ranks > 0
        decided |= holds
        for phase, reason in _WHY_OF_PHASE.items():
            why[jobs.phase == phase], decided[jobs.phase == phase] = reason, False
        later = dict.fromkeys(order[holds[order]][::-1].tolist())  # those that have to give way first come first
        rows = order[decided[order]]
        reasons, keeps = why.tolist(), (held.counts == asked[:, : SHARE_MILLI]).all(axis=1).tolist()
        kept: list[int] = []
        placed: dict[int, IntArray] = {}
        stopped = False
        failed: dict[int, int] = {}  # why it got nothing; so does an equal request until something changes
        for row, kind in zip(rows.tolist(), _kinds(asked[rows]), strict=True):
            has = row in later
            if not has and kind in failed:
                reasons[row] = failed[kind]
                continue
            request, mine = asked[row], held.ranks(row) if has else _NO_RANKS
            if has:
                failed.clear()
                del later[row]
                if keeps[row]:
                    kept.append(row)
                    continue
                capacity.free(mine)
            if request[GPUS] + request[CPU_WORKERS] == 0:
                continue
            found = None if stopped else self._placed(capacity, request, mine, held, later)
            if found is None and has and capacity.fits(at_most := _at_most(mine, request)):
                found = at_most  # rather what it has than nothing
            if found is None:
                reasons[row] = _why_not(capacity, request, stopped=stopped)
                stopped = self.misfit == "stop"
                if not has and not stopped:
                    failed[kind] = reasons[row]
                continue
            failed.clear()
            capacity.take(found)
            placed[row] = found
        why = np.array(reasons, dtype=np.int64)
        return revocable_as_before(_grants(snapshot, kept, placed, why, blocker), snapshot)

    def _placed(
        self, capacity: _FreeCapacity, request: IntArray, mine: IntArray, held: _Held, later: dict[int, None]
    ) -> IntArray | None:
        """Places for a job, None if there are none; jobs that come later lose what they have only if that helps."""
        short = int(request[GPUS]) - capacity.num_gpus(request)  # where so many are missing, there is no need to search
        ranks = capacity.placed(request, mine) if short <= 0 else None
        if ranks is not None or not self.preempts:
            return ranks
        gone = []
        for row in later:
            capacity.free(held.ranks(row))
            gone.append(row)
            short -= int(held.counts[row, GPUS])
            ranks = capacity.placed(request, mine) if short <= 0 else None
            if ranks is not None:
                break
        if ranks is None:
            for row in gone:
                capacity.take(held.ranks(row))
            return None
        for row in gone[:-1]:  # only those whose places are in the way
            capacity.take(held.ranks(row))
            if capacity.fits(ranks):
                gone.remove(row)
            else:
                capacity.free(held.ranks(row))
        for row in gone:
            del later[row]
        return ranks


class _Held:
    """The ranks that jobs have: views of the grants, in which those of a job are adjacent, by node, then GPU.

    Shapes: J jobs, R ranks.

    Attributes:
        every: The ranks of all jobs (R, 5).
        num_ranks: Ranks of each job (J,).
        counts: GPUs, workers on CPU with the milli-cores of each, and servers with theirs (J, 5).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        jobs, grants = snapshot.jobs, snapshot.grants
        cores = cores_milli(jobs, grants.job, grants.gpu, grants.share_milli, None)
        self.every = np.stack((grants.node, grants.gpu, grants.share_milli, cores, jobs.mem_mib[grants.job]), axis=1)
        self.num_ranks = np.bincount(grants.job, minlength=len(jobs))
        first = np.flatnonzero(np.diff(grants.job, prepend=NONE))
        self._first = np.zeros(len(jobs), dtype=np.int64)
        self._first[grants.job[first]] = first
        self.counts = np.zeros((len(jobs), SHARE_MILLI), dtype=np.int64)
        for column, kind in ((CPU_WORKERS, ON_CPU), (SERVERS, SERVER)):
            job = grants.job[grants.gpu == kind]
            self.counts[:, column] = np.bincount(job, minlength=len(jobs))
            np.maximum.at(self.counts[:, column + 1], job, grants.share_milli[grants.gpu == kind])
        self.counts[:, GPUS] = self.num_ranks - self.counts[:, CPU_WORKERS] - self.counts[:, SERVERS]

    def ranks(self, row: int) -> IntArray:
        """The ranks that a job has (R, 5)."""
        first = self._first[row]
        ranks: IntArray = self.every[first : first + self.num_ranks[row]]
        return ranks


class _FreeCapacity:
    """What is left of each node: the table of ``gang_places``."""

    def __init__(self, snapshot: Snapshot, held: _Held) -> None:
        nodes = snapshot.nodes
        self._types = np.unique(nodes.gpu_type).tolist()
        width = int(nodes.gpus.max(initial=0))
        there = np.arange(width) < nodes.gpus[:, None]
        if nodes.withheld.size:
            there &= ~nodes.withheld
        self._nodes = np.zeros((len(nodes), width + EXTRA), dtype=np.int64)
        self._nodes[:, :width] = np.where(there, WHOLE_GPU, _NO_GPU)
        self._nodes[:, CPU], self._nodes[:, MEM] = nodes.cpu_milli, nodes.mem_mib
        self._nodes[:, TYPE], self._nodes[:, OPEN] = nodes.gpu_type, nodes.is_open
        self.take(held.every)

    def num_gpus(self, request: IntArray) -> int:
        """GPUs of open nodes of which a rank's share is left."""
        return num_gpus(self._nodes, request[SHARE_MILLI])

    def take(self, ranks: IntArray) -> None:
        change(self._nodes, ranks, -1)

    def free(self, ranks: IntArray) -> None:
        change(self._nodes, ranks, 1)

    def fits(self, ranks: IntArray) -> bool:
        """Whether these places are free."""
        return fits(self._nodes, ranks)

    def placed(self, request: IntArray, mine: IntArray) -> IntArray | None:
        """Places for a gang on GPUs of one type (R, 5), None if there are none."""
        types = self._types if request[GPU_TYPE] == NONE and request[GPUS] else [request[GPU_TYPE]]
        for gpu_type in types:
            if search(self._nodes, request, gpu_type, mine):
                num_ranks = request[GPUS] + request[CPU_WORKERS] + request[SERVERS]
                ranks = np.empty((num_ranks, RANK_COLUMNS), dtype=np.int64)
                write_ranks(self._nodes, request, ranks)
                return ranks
        return None


def _why_not(capacity: _FreeCapacity, request: IntArray, *, stopped: bool) -> int:
    if stopped:
        return int(Reason.BEHIND)
    return int(Reason.TOO_FEW_FREE if capacity.num_gpus(request) < request[GPUS] else Reason.SHAPE)


def _asked(snapshot: Snapshot, sizes: Sizes) -> IntArray:
    """What jobs are to have: the columns of ``gang_places`` (J, 9), none of which is below 0 but the type code."""
    jobs = snapshot.jobs
    nothing, per_rank = np.zeros(len(jobs), dtype=np.int64), np.maximum(jobs.cpu_milli, WHOLE_GPU)
    asked = np.stack((
        sizes.gpus, *(given if len(given) else default for given, default in (
            (sizes.cpu_workers, nothing), (sizes.worker_milli, per_rank), (sizes.servers, nothing),
            (sizes.server_milli, per_rank),
        )), jobs.share_milli, jobs.cpu_milli, jobs.mem_mib, jobs.gpu_type,
    ), axis=1)
    np.maximum(asked[:, :GPU_TYPE], 0, out=asked[:, :GPU_TYPE])  # compiled code checks no bounds
    return asked


def _kinds(asked: IntArray) -> list[int]:
    """A number for each row (Q, 9) of what Q jobs are to have, the same for equal ones."""
    kinds = np.zeros(len(asked), dtype=np.int64)
    for column in asked.T:
        if len(column) and column.min() < column.max():
            values, number = np.unique(column, return_inverse=True)
            kinds = np.unique(kinds * len(values) + number, return_inverse=True)[1]
    return kinds.tolist()


def _at_most(mine: IntArray, request: IntArray) -> IntArray:
    """What a job has, without GPUs beyond those that it is to have; all of it if it is to move to CPU."""
    if request[CPU_WORKERS]:
        return mine
    on_gpu = mine[:, GPU] >= 0
    ranks: IntArray = mine[~on_gpu | (np.cumsum(on_gpu) <= request[GPUS])]
    return ranks


def _grants(
    snapshot: Snapshot, kept: list[int], placed: dict[int, IntArray], why: IntArray, blocker: IntArray
) -> Grants:
    """The grants of jobs that keep what they have, and of those that were placed."""
    held = snapshot.grants
    keeps = np.zeros(len(why), dtype=np.bool_)
    keeps[kept] = True
    why[kept] = why[list(placed)] = int(Reason.RUNS)
    before = np.stack((held.job, held.node, held.gpu, held.share_milli), axis=1)[keeps[held.job]]
    job = np.repeat(np.array(list(placed), dtype=np.int64), [len(ranks) for ranks in placed.values()])
    new = np.column_stack((job, np.concatenate([_NO_RANKS, *placed.values()])[:, : SHARE + 1]))
    table = np.concatenate((before, new))
    job, node, gpu, share_milli = table[np.argsort(table[:, 0], kind="stable")].T.copy()
    return Grants(job=job, node=node, gpu=gpu, share_milli=share_milli, why=why, blocker=blocker)
