"""Workers and parameter servers on nodes, by their devices and cores."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.checks import cores_milli
from brim.core.lifecycle import Phase
from brim.core.reasons import Why
from brim.core.setting import ON_CPU, SERVER
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.core.trace import NONE
from brim.policies.place.inputs import revocable_as_before
from brim.policies.sockets import Sizes
from brim.units import WHOLE_GPU

_NO_GPU: Final = -(1 << 40)
"""Milli-GPUs of a GPU that takes no jobs, also while jobs that it has leave."""
_WHY_OF_PHASE: Final = {int(Phase.HELD): int(Why.HELD), int(Phase.STOPPING): int(Why.STOPPING)}


class _Rank(NamedTuple):
    """A rank with what it takes of its node."""

    node: int
    gpu: int
    share_milli: int
    cores_milli: int
    mib: int


class _Ask(NamedTuple):
    """What a job is to have."""

    gpus: int
    cpu_workers: int
    worker_milli: int
    servers: int
    server_milli: int
    share_milli: int
    rank_milli: int
    rank_mib: int
    gpu_type: int


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
        room = _Room(snapshot, held)
        why, blocker = np.full(len(jobs), int(Why.NOT_NOW)), np.full(len(jobs), NONE)
        decided = sizes.gpus > 0 if not len(sizes.cpu_workers) else sizes.gpus + sizes.cpu_workers > 0
        holds = held.ends > held.starts
        decided |= holds
        for phase, reason in _WHY_OF_PHASE.items():
            why[jobs.phase == phase], decided[jobs.phase == phase] = reason, False
        later = dict.fromkeys(order[holds[order]][::-1].tolist())  # those that have to give way first come first
        rows = order[decided[order]]
        reasons, keeps = why.tolist(), (held.counts == asked[: len(held.counts)]).all(axis=0).tolist()
        kept: list[int] = []
        placed: dict[int, list[_Rank]] = {}
        stopped = False
        failed: dict[int, int] = {}  # why it got nothing; so does an equal request until something changes
        for row, kind in zip(rows.tolist(), _kinds(asked[:, rows]), strict=True):
            has = row in later
            if not has and kind in failed:
                reasons[row] = failed[kind]
                continue
            mine: list[_Rank] = []
            if has:
                failed.clear()
                del later[row]
                if keeps[row]:
                    kept.append(row)
                    continue
                room.free(mine := held.ranks(row))
            ask = _Ask(*asked[:, row].tolist())
            if ask.gpus + ask.cpu_workers == 0:
                continue
            found = None if stopped else self._placed(room, ask, mine, held, later)
            if found is None and has and room.fits(at_most := _at_most(mine, ask)):
                found = at_most  # rather what it has than nothing
            if found is None:
                reasons[row] = _why_not(room, ask, stopped=stopped)
                stopped = self.misfit == "stop"
                if not has and not stopped:
                    failed[kind] = reasons[row]
                continue
            failed.clear()
            room.take(found)
            placed[row] = found
        why = np.array(reasons, dtype=np.int64)
        return revocable_as_before(_grants(snapshot, kept, placed, why, blocker), snapshot)

    def _placed(
        self, room: _Room, ask: _Ask, mine: list[_Rank], held: _Held, later: dict[int, None]
    ) -> list[_Rank] | None:
        """Places for a job, None if there are none; jobs that come later lose what they have only if that helps."""
        short = ask.gpus - room.num_gpus(ask.share_milli)  # where so many are missing, there is no need to search
        ranks = room.placed(ask, mine) if short <= 0 else None
        if ranks is not None or not self.preempts:
            return ranks
        gone = []
        for row in later:
            room.free(held.ranks(row))
            gone.append(row)
            short -= held.num_gpus(row)
            ranks = room.placed(ask, mine) if short <= 0 else None
            if ranks is not None:
                break
        if ranks is None:
            for row in gone:
                room.take(held.ranks(row))
            return None
        for row in gone[:-1]:  # only those whose places are in the way
            room.take(held.ranks(row))
            if room.fits(ranks):
                gone.remove(row)
            else:
                room.free(held.ranks(row))
        for row in gone:
            del later[row]
        return ranks


class _Held:
    """The ranks that jobs have.

    Shapes: J jobs, G grants.

    Attributes:
        starts: The first row of each job in the grants (J,).
        ends: The row after its last (J,); it is ``starts`` for jobs that have nothing.
        cores_milli: What each rank takes of its node (G,).
        counts: GPUs, workers on CPU with the cores of each, and servers with theirs (5, J).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        jobs, grants = snapshot.jobs, snapshot.grants
        self.snapshot = snapshot
        num_ranks = np.bincount(grants.job, minlength=len(jobs))
        self.starts, self.ends = np.zeros((2, len(jobs)), dtype=np.int64)
        first = np.flatnonzero(np.diff(grants.job, prepend=NONE))
        self.starts[grants.job[first]] = first
        self.ends[:] = self.starts + num_ranks
        self.cores_milli = cores_milli(jobs, grants.job, grants.gpu, grants.share_milli, None)
        self.counts = np.zeros((5, len(jobs)), dtype=np.int64)
        for column, kind in ((1, ON_CPU), (3, SERVER)):
            job = grants.job[grants.gpu == kind]
            self.counts[column] = np.bincount(job, minlength=len(jobs))
            np.maximum.at(self.counts[column + 1], job, grants.share_milli[grants.gpu == kind])
        self.counts[0] = num_ranks - self.counts[1] - self.counts[3]
        self._ranks: dict[int, list[_Rank]] = {}

    def num_gpus(self, row: int) -> int:
        """The GPUs that a job has."""
        return int(self.counts[0, row])

    def ranks(self, row: int) -> list[_Rank]:
        """The ranks that a job has."""
        if row not in self._ranks:
            grants, rows = self.snapshot.grants, slice(self.starts[row], self.ends[row])
            mib = int(self.snapshot.jobs.mem_mib[row])
            columns = grants.node, grants.gpu, grants.share_milli, self.cores_milli
            places = zip(*(column[rows].tolist() for column in columns), strict=True)
            self._ranks[row] = [_Rank(node, gpu, share, cores, mib) for node, gpu, share, cores in places]
        return self._ranks[row]


class _Room:
    """What is left of each node.

    Shapes: N nodes, G GPUs of the widest node.

    Attributes:
        cores: Milli-cores (N,).
        mem: MiB (N,).
        gpus: Milli-GPUs of each GPU, below 0 for one that takes no jobs (N, G).
    """

    def __init__(self, snapshot: Snapshot, held: _Held) -> None:
        nodes, grants = snapshot.nodes, snapshot.grants
        self._type, self._open = nodes.gpu_type, nodes.is_open
        self._types = np.unique(self._type).tolist()
        self.cores, self.mem = nodes.cpu_milli.copy(), nodes.mem_mib.copy()
        there = np.arange(int(nodes.gpus.max(initial=0))) < nodes.gpus[:, None]
        if nodes.withheld.size:
            there &= ~nodes.withheld
        self.gpus = np.where(there, WHOLE_GPU, _NO_GPU)
        on_gpu = grants.gpu >= 0
        np.subtract.at(self.cores, grants.node, held.cores_milli)
        np.subtract.at(self.mem, grants.node, snapshot.jobs.mem_mib[grants.job])
        np.subtract.at(self.gpus, (grants.node[on_gpu], grants.gpu[on_gpu]), grants.share_milli[on_gpu])

    def num_gpus(self, share_milli: int) -> int:
        """GPUs of open nodes of which so much is left."""
        return int((self.gpus[self._open] >= share_milli).sum())

    def take(self, ranks: list[_Rank]) -> None:
        self._change(ranks, -1)

    def free(self, ranks: list[_Rank]) -> None:
        self._change(ranks, 1)

    def _change(self, ranks: list[_Rank], sign: int) -> None:
        for rank in ranks:
            self.cores[rank.node] += sign * rank.cores_milli
            self.mem[rank.node] += sign * rank.mib
            if rank.gpu >= 0:
                self.gpus[rank.node, rank.gpu] += sign * rank.share_milli

    def fits(self, ranks: list[_Rank]) -> bool:
        """Whether these places are free."""
        cores, mem = Counter[int](), Counter[int]()
        for rank in ranks:
            if rank.gpu >= 0 and self.gpus[rank.node, rank.gpu] < rank.share_milli:
                return False
            cores[rank.node] += rank.cores_milli
            mem[rank.node] += rank.mib
        return all(self.cores[node] >= cores[node] and self.mem[node] >= mem[node] for node in cores)

    def placed(self, ask: _Ask, mine: list[_Rank]) -> list[_Rank] | None:
        """Places for a gang on GPUs of one type, None if there are none."""
        types = [ask.gpu_type]
        if ask.gpu_type == NONE:
            types = self._types if ask.gpus else [NONE]
        return next(filter(None, (self._on(gpu_type, ask, {rank.node for rank in mine}) for gpu_type in types)), None)

    def _on(self, gpu_type: int, ask: _Ask, known: set[int]) -> list[_Rank] | None:
        """Places for a gang: on the nodes that it knows first, then on those with the most that it can use."""
        cores, mem = self.cores.copy(), self.mem.copy()
        near = np.zeros(len(cores), dtype=np.bool_)
        near[list(known)] = True
        found: list[_Rank] = []

        def take(count: int, milli: int, most: IntArray, free: IntArray) -> list[tuple[int, int]] | None:
            """Nodes, and how many ranks of so many cores each takes; None if they do not take all."""
            fits = np.where(self._open, np.minimum(most, count), 0)
            for left, each in ((cores, milli), (mem, ask.rank_mib)):
                if each:
                    fits = np.minimum(fits, left // each)
            fits = np.maximum(fits, 0)
            if fits.sum() < count:
                return None
            order = np.lexsort((-cores, -free, ~near))
            taken = np.minimum(np.cumsum(fits[order]), count)
            taken[1:] -= taken[:-1].copy()
            on, taken = order[taken > 0], taken[taken > 0]
            cores[on] -= taken * milli
            mem[on] -= taken * ask.rank_mib
            near[on] = True
            return list(zip(on.tolist(), taken.tolist(), strict=True))

        free = (self.gpus >= ask.share_milli).sum(axis=1)
        of_type = free if gpu_type == NONE else np.where(self._type == gpu_type, free, 0)
        on_gpus = take(ask.gpus, ask.rank_milli, of_type, np.minimum(free, ask.gpus))
        if on_gpus is None:
            return None
        for node, count in on_gpus:  # the fullest GPUs that have enough left
            left = self.gpus[node]
            gpus = np.argsort(np.where(left >= ask.share_milli, left, 2 * WHOLE_GPU), kind="stable")[:count].tolist()
            found += [_Rank(node, gpu, ask.share_milli, ask.rank_milli, ask.rank_mib) for gpu in gpus]
        for count, kind, milli in (
            (ask.cpu_workers, ON_CPU, ask.worker_milli), (ask.servers, SERVER, ask.server_milli)
        ):
            on_nodes = take(count, milli, np.full_like(cores, count), np.zeros_like(cores)) if count else []
            if on_nodes is None:
                return None
            for node, fits in on_nodes:
                found += [_Rank(node, kind, milli, milli, ask.rank_mib)] * fits
        return sorted(found) or None


def _why_not(room: _Room, ask: _Ask, *, stopped: bool) -> int:
    if stopped:
        return int(Why.BEHIND)
    return int(Why.TOO_FEW_FREE if room.num_gpus(ask.share_milli) < ask.gpus else Why.SHAPE)


def _asked(snapshot: Snapshot, sizes: Sizes) -> IntArray:
    """What jobs are to have: the fields of ``_Ask`` (9, J)."""
    jobs = snapshot.jobs
    nothing, per_rank = np.zeros(len(jobs), dtype=np.int64), np.maximum(jobs.cpu_milli, WHOLE_GPU)
    return np.stack((
        sizes.gpus, *(given if len(given) else default for given, default in (
            (sizes.cpu_workers, nothing), (sizes.worker_milli, per_rank), (sizes.servers, nothing),
            (sizes.server_milli, per_rank),
        )), jobs.share_milli, jobs.cpu_milli, jobs.mem_mib, jobs.gpu_type,
    ))


def _kinds(asked: IntArray) -> list[int]:
    """A number for each request (9, R), the same for equal ones."""
    kinds = np.zeros(asked.shape[1], dtype=np.int64)
    for column in asked:
        if len(column) and column.min() < column.max():
            values, number = np.unique(column, return_inverse=True)
            kinds = np.unique(kinds * len(values) + number, return_inverse=True)[1]
    return kinds.tolist()


def _at_most(mine: list[_Rank], ask: _Ask) -> list[_Rank]:
    """What a job has, without GPUs beyond those that it is to have; all of it if it is to move to CPU."""
    if ask.cpu_workers:
        return mine
    gpus = [rank for rank in mine if rank.gpu >= 0]
    return sorted([rank for rank in mine if rank.gpu < 0] + gpus[: ask.gpus])


def _grants(
    snapshot: Snapshot, kept: list[int], placed: dict[int, list[_Rank]], why: IntArray, blocker: IntArray
) -> Grants:
    """The grants of jobs that keep what they have, and of those that were placed."""
    held = snapshot.grants
    keeps = np.zeros(len(why), dtype=np.bool_)
    keeps[kept] = True
    why[kept] = why[list(placed)] = int(Why.RUNS)
    before = np.stack((held.job, held.node, held.gpu, held.share_milli))[:, keeps[held.job]]
    new = [(job, rank.node, rank.gpu, rank.share_milli) for job, ranks in placed.items() for rank in ranks]
    table = np.concatenate((before, np.array(new, dtype=np.int64).reshape(-1, 4).T), axis=1)
    job, node, gpu, share_milli = table[:, np.argsort(table[0], kind="stable")]
    return Grants(job=job, node=node, gpu=gpu, share_milli=share_milli, why=why, blocker=blocker)
