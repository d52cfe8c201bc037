"""Workers and parameter servers on nodes, by their devices and cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
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
        room, has = _Room(snapshot), _held(snapshot)
        for ranks in has.values():
            room.take(ranks)
        why, blocker = np.full(len(jobs), int(Why.NOT_NOW)), np.full(len(jobs), NONE)
        decided = sizes.gpus > 0 if not len(sizes.cpu_workers) else sizes.gpus + sizes.cpu_workers > 0
        holds = np.zeros(len(jobs), dtype=np.bool_)
        holds[list(has)] = decided[list(has)] = True
        for phase, reason in _WHY_OF_PHASE.items():
            why[jobs.phase == phase], decided[jobs.phase == phase] = reason, False
        given: dict[int, list[_Rank]] = {}
        later = order[holds[order]][::-1].tolist()  # those that have to give way first come first
        stopped = False
        failed: dict[tuple[int, ...], int] = {}  # why it got nothing; so does an equal request until something changes
        rows = order[decided[order]]
        for row, asked in zip(rows.tolist(), _asked(snapshot, sizes, rows), strict=True):
            if asked in failed and row not in has:
                why[row] = failed[asked]
                continue
            ask, mine = _Ask(*asked), has.pop(row, None)
            if mine is not None:
                failed.clear()
                later.remove(row)
                if _counts(mine) == ask[:5]:
                    given[row] = mine
                    continue
                room.free(mine)
            if ask.gpus + ask.cpu_workers == 0:
                continue
            placed = None if stopped else self._placed(room, ask, mine or [], has, later)
            if placed is None and mine is not None and room.fits(kept := _at_most(mine, ask)):
                placed = kept  # rather what it has than nothing
            if placed is None:
                why[row] = _why_not(room, ask, stopped=stopped)
                stopped = self.misfit == "stop"
                if mine is None and not stopped:
                    failed[asked] = int(why[row])
                continue
            failed.clear()
            room.take(placed)
            given[row] = placed
        return revocable_as_before(_grants(given, why, blocker), snapshot)

    def _placed(
        self, room: _Room, ask: _Ask, mine: list[_Rank], has: dict[int, list[_Rank]], later: list[int]
    ) -> list[_Rank] | None:
        """Places for a job, None if there are none; jobs that come later lose what they have only if that helps."""
        ranks = room.placed(ask, mine)
        if ranks is not None or not self.preempts:
            return ranks
        gone = []
        for row in later:
            room.free(has[row])
            gone.append(row)
            ranks = room.placed(ask, mine)
            if ranks is not None:
                break
        if ranks is None:
            for row in gone:
                room.take(has[row])
            return None
        for row in gone[:-1]:  # only those whose places are in the way
            room.take(has[row])
            if room.fits(ranks):
                gone.remove(row)
            else:
                room.free(has[row])
        for row in gone:
            later.remove(row)
            del has[row]
        return ranks


class _Room:
    """What is left of each node.

    Shapes: N nodes, G GPUs of the widest node.

    Attributes:
        cores: Milli-cores (N,).
        mem: MiB (N,).
        gpus: Milli-GPUs of each GPU, below 0 for one that takes no jobs (N, G).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self._type, self._open = nodes.gpu_type, nodes.is_open
        self._types = np.unique(self._type).tolist()
        self.cores, self.mem = nodes.cpu_milli.copy(), nodes.mem_mib.copy()
        there = np.arange(int(nodes.gpus.max(initial=0))) < nodes.gpus[:, None]
        if nodes.withheld.size:
            there &= ~nodes.withheld
        self.gpus = np.where(there, WHOLE_GPU, _NO_GPU)

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


def _held(snapshot: Snapshot) -> dict[int, list[_Rank]]:
    """The ranks that each job has, by its row."""
    jobs, held = snapshot.jobs, snapshot.grants
    found: dict[int, list[_Rank]] = {}
    rows = zip(held.job.tolist(), held.node.tolist(), held.gpu.tolist(), held.share_milli.tolist(), strict=True)
    for job, node, gpu, share in rows:
        cores = int(jobs.cpu_milli[job]) if gpu >= 0 else share or max(int(jobs.cpu_milli[job]), WHOLE_GPU)
        found.setdefault(job, []).append(_Rank(node, gpu, share, cores, int(jobs.mem_mib[job])))
    return found


def _asked(snapshot: Snapshot, sizes: Sizes, rows: IntArray) -> Iterator[tuple[int, ...]]:
    """What these jobs are to have: the fields of ``_Ask``, as plain tuples, since most are only looked up."""
    jobs = snapshot.jobs
    nothing, per_rank = np.zeros(len(jobs), dtype=np.int64), np.maximum(jobs.cpu_milli, WHOLE_GPU)
    columns = (
        sizes.gpus, *(given if len(given) else default for given, default in (
            (sizes.cpu_workers, nothing), (sizes.worker_milli, per_rank), (sizes.servers, nothing),
            (sizes.server_milli, per_rank),
        )), jobs.share_milli, jobs.cpu_milli, jobs.mem_mib, jobs.gpu_type,
    )
    return zip(*(column[rows].tolist() for column in columns), strict=True)


def _at_most(mine: list[_Rank], ask: _Ask) -> list[_Rank]:
    """What a job has, without GPUs beyond those that it is to have; all of it if it is to move to CPU."""
    if ask.cpu_workers:
        return mine
    gpus = [rank for rank in mine if rank.gpu >= 0]
    return sorted([rank for rank in mine if rank.gpu < 0] + gpus[: ask.gpus])


def _counts(ranks: list[_Rank]) -> tuple[int, int, int, int, int]:
    """GPUs, workers on CPU with their cores, and servers with theirs."""
    workers = [rank.share_milli for rank in ranks if rank.gpu == ON_CPU]
    servers = [rank.share_milli for rank in ranks if rank.gpu == SERVER]
    return (
        len(ranks) - len(workers) - len(servers), len(workers), max(workers, default=0), len(servers),
        max(servers, default=0),
    )


def _grants(given: dict[int, list[_Rank]], why: IntArray, blocker: IntArray) -> Grants:
    def rows() -> Iterator[tuple[int, int, int, int]]:
        for job in sorted(given):
            for rank in given[job]:
                yield job, rank.node, rank.gpu, rank.share_milli

    why[list(given)] = int(Why.RUNS)
    table = np.array(list(rows()), dtype=np.int64).reshape(-1, 4)
    return Grants(
        job=table[:, 0].copy(), node=table[:, 1].copy(), gpu=table[:, 2].copy(), share_milli=table[:, 3].copy(),
        why=why, blocker=blocker,
    )
