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
from brim.policies.sockets import Sizes
from brim.units import WHOLE_GPU

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
        room, has, asks = _Room(snapshot), _held(snapshot), _asks(snapshot, sizes)
        for ranks in has.values():
            room.take(ranks)
        why, blocker = np.full(len(jobs), int(Why.NOT_NOW)), np.full(len(jobs), NONE)
        given: dict[int, list[_Rank]] = {}
        later = [row for row in order.tolist()[::-1] if row in has]  # those that have to give way first come first
        stopped = False
        for row in order.tolist():
            phase = int(jobs.phase[row])
            if phase in _WHY_OF_PHASE:
                why[row] = _WHY_OF_PHASE[phase]
                continue
            ask, mine = asks[row], has.pop(row, None)
            if mine is not None:
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
                stopped = stopped or self.misfit == "stop"
                continue
            room.take(placed)
            given[row] = placed
        return _grants(given, why, blocker)

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
    """What is left of each node."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self.type, self.open = nodes.gpu_type.tolist(), nodes.is_open.tolist()
        self.cores, self.mem = nodes.cpu_milli.tolist(), nodes.mem_mib.tolist()
        withheld = nodes.withheld
        self.gpus = [  # of each node, what is left of each GPU that takes jobs, in milli-GPUs
            {gpu: WHOLE_GPU for gpu in range(count) if not (withheld.size and withheld[node, gpu])}
            for node, count in enumerate(nodes.gpus.tolist())
        ]

    def num_gpus(self, share_milli: int) -> int:
        """GPUs of open nodes of which so much is left."""
        nodes = zip(self.gpus, self.open, strict=True)
        return sum(left >= share_milli for of, is_open in nodes if is_open for left in of.values())

    def take(self, ranks: list[_Rank]) -> None:
        for rank in ranks:
            self.cores[rank.node] -= rank.cores_milli
            self.mem[rank.node] -= rank.mib
            if rank.gpu in self.gpus[rank.node]:
                self.gpus[rank.node][rank.gpu] -= rank.share_milli

    def free(self, ranks: list[_Rank]) -> None:
        for rank in ranks:
            self.cores[rank.node] += rank.cores_milli
            self.mem[rank.node] += rank.mib
            if rank.gpu in self.gpus[rank.node]:
                self.gpus[rank.node][rank.gpu] += rank.share_milli

    def fits(self, ranks: list[_Rank]) -> bool:
        """Whether these places are free."""
        cores, mem = Counter[int](), Counter[int]()
        for rank in ranks:
            if rank.gpu >= 0 and self.gpus[rank.node].get(rank.gpu, 0) < rank.share_milli:
                return False
            cores[rank.node] += rank.cores_milli
            mem[rank.node] += rank.mib
        return all(self.cores[node] >= cores[node] and self.mem[node] >= mem[node] for node in cores)

    def placed(self, ask: _Ask, mine: list[_Rank]) -> list[_Rank] | None:
        """Places for a gang on GPUs of one type, None if there are none."""
        types = [ask.gpu_type]
        if ask.gpu_type == NONE:
            types = sorted(set(self.type)) if ask.gpus else [NONE]
        return next(filter(None, (self._on(gpu_type, ask, {rank.node for rank in mine}) for gpu_type in types)), None)

    def _on(self, gpu_type: int, ask: _Ask, known: set[int]) -> list[_Rank] | None:
        """Places for a gang: on the nodes that it knows first, then on those with the most that it can use."""
        nodes = [node for node, is_open in enumerate(self.open) if is_open]
        cores, mem = {node: self.cores[node] for node in nodes}, {node: self.mem[node] for node in nodes}
        found: list[_Rank] = []

        def take(node: int, count: int, milli: int) -> int:
            """How many ranks of so many cores a node takes, up to a number."""
            of_cores = cores[node] // milli if milli else count
            fits = max(0, min(count, of_cores, mem[node] // ask.rank_mib if ask.rank_mib else count))
            cores[node] -= fits * milli
            mem[node] -= fits * ask.rank_mib
            return fits

        left, share = ask.gpus, ask.share_milli
        free = {}  # of each node, the GPUs that have enough left, the fullest first
        for node in nodes:
            of = self.gpus[node]
            free[node] = sorted((gpu for gpu, rest in of.items() if rest >= share), key=of.__getitem__)
        for node in sorted(nodes, key=lambda one: (one not in known, -min(len(free[one]), ask.gpus), -cores[one])):
            if gpu_type in (NONE, self.type[node]):
                gpus = free[node][: take(node, min(left, len(free[node])), ask.rank_milli)]
                found += [_Rank(node, gpu, share, ask.rank_milli, ask.rank_mib) for gpu in gpus]
                left -= len(gpus)
        on_cpu = (ask.cpu_workers, ON_CPU, ask.worker_milli), (ask.servers, SERVER, ask.server_milli)
        for count, kind, milli in on_cpu:
            on, missing = known.union(rank.node for rank in found), count
            for node in sorted(nodes, key=lambda one: (one not in on, -cores[one])):
                fits = take(node, missing, milli)
                found += [_Rank(node, kind, milli, milli, ask.rank_mib)] * fits
                missing -= fits
            left += missing
        return sorted(found) if found and not left else None


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


def _asks(snapshot: Snapshot, sizes: Sizes) -> list[_Ask]:
    jobs = snapshot.jobs
    nothing = np.zeros(len(jobs), dtype=np.int64)

    def column(given: IntArray, default: IntArray) -> list[int]:
        values: list[int] = (given if len(given) else default).tolist()
        return values

    per_rank = np.maximum(jobs.cpu_milli, WHOLE_GPU)
    return [_Ask(*values) for values in zip(
        sizes.gpus.tolist(), column(sizes.cpu_workers, nothing), column(sizes.worker_milli, per_rank),
        column(sizes.servers, nothing), column(sizes.server_milli, per_rank), jobs.share_milli.tolist(),
        jobs.cpu_milli.tolist(), jobs.mem_mib.tolist(), jobs.gpu_type.tolist(), strict=True,
    )]


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
