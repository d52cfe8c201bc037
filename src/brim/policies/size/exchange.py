"""AITurbo's sizes: units of workers, servers, cores and GPUs that jobs with parameter servers give each other.

Shapes: J jobs, K kinds of move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.policies.allocations import as_asked, merged, on_cpu, picked, present, remaining_s, sizes_of, weight
from brim.policies.sockets import Sizes
from brim.units import MS_PER_S

SERVERS_MAX: Final = 10
WORKERS_MAX: Final = 4
"""Most servers and workers of a job (successor of AITurbo)."""
CORES_MAX: Final = 6
"""Most cores of a worker on CPU or a server. With five, published speeds are 0.94 to 0.99 of those with many."""
CPU_WORKER_CORES: Final = 4
"""Cores of a worker that moves from GPU to CPU, at first. Ours."""

Objective = Literal["service", "completion"]


class Move(NamedTuple):
    """A kind of move of one job.

    Attributes:
        name: Name.
        apply: What the job would have.
        restarts: Whether its processes start again.
        swaps: Whether it leads to devices of another kind: only such moves are for jobs without servers.
    """

    name: str
    apply: Callable[[Allocation], Allocation]
    restarts: bool = True
    swaps: bool = False


def _servers(step: int) -> Callable[[Allocation], Allocation]:
    return lambda has: has._replace(servers=has.servers + step)


def _workers(step: int) -> Callable[[Allocation], Allocation]:
    return lambda has: has._replace(workers=has.workers + step)


def _server_cores(step: int) -> Callable[[Allocation], Allocation]:
    return lambda has: has._replace(server_milli=has.server_milli + step * CORE_MILLI)


def _worker_cores(step: int) -> Callable[[Allocation], Allocation]:
    return lambda has: has._replace(worker_milli=has.worker_milli + step * CORE_MILLI)


def _to_cpu(has: Allocation) -> Allocation:
    cores = np.where(has.on_gpu, CPU_WORKER_CORES * CORE_MILLI, 0)  # 0: no worker on CPU has none, so it is refused
    return has._replace(on_gpu=np.zeros_like(has.on_gpu), worker_milli=cores)


def _to_gpu(has: Allocation) -> Allocation:
    workers = np.where(has.on_gpu, 0, np.minimum(has.workers, 1))  # 0: a job on GPU has nothing to move
    return has._replace(on_gpu=np.ones_like(has.on_gpu), workers=workers)


MOVES: Final = (
    Move("+server", _servers(1)), Move("-server", _servers(-1)), Move("+worker", _workers(1)),
    Move("-worker", _workers(-1)), Move("+server core", _server_cores(1), restarts=False),
    Move("-server core", _server_cores(-1), restarts=False), Move("+worker core", _worker_cores(1), restarts=False),
    Move("-worker core", _worker_cores(-1), restarts=False), Move("to CPU", _to_cpu, swaps=True),
    Move("to GPU", _to_gpu, swaps=True),
)


@dataclass(frozen=True, slots=True)
class UnitExchange:
    """Jobs as asked at first; then the best moves of single jobs, and pairs of moves in which one gives another takes.

    A job moves at most once a round. What a move takes is free, or another job gives it up in the same round. Every
    move or pair of moves lowers the sum of what remains, restarts included.

    Attributes:
        objective: What is to fall: consumed service (remaining time by the weight of what a job has), or completion
            times.
        all_jobs: Whether jobs whose end is not predicted move too, with as much left as they have received.

    Source:
        AITurbo, HPDC 2021 (moves and remaining service); the pairs are ours.
    """

    resizes_running: ClassVar[bool] = True
    objective: Objective = "completion"
    all_jobs: bool = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        has = merged(present(snapshot), as_asked(snapshot))
        left = self._samples_left(snapshot, beliefs, has)
        moves = np.isfinite(left)
        has, taken, waits = _admitted(snapshot, has, order)
        free_gpus, free_milli = _free(snapshot, has, taken)
        found = _evaluated(snapshot, beliefs, has, left, moves & taken, self.objective)
        now = exchanged(has, found, free_gpus, free_milli, crowded=bool(waits.any()))
        return sizes_of(_in_ranks(snapshot, now))

    def _samples_left(self, snapshot: Snapshot, beliefs: Beliefs, has: Allocation) -> FloatArray:
        """Samples until the end of each job that may move, NaN for others (J,)."""
        outlook = beliefs.progress.of_jobs(snapshot)
        left = np.where(outlook.is_predictable, outlook.samples_left, np.nan)
        if self.all_jobs:
            done = np.maximum(snapshot.jobs.samples_done, snapshot.jobs.batch)
            left = np.where(np.isnan(left), done, left)
        return left


class Evaluated(NamedTuple):
    """What each kind of move would change (J, K).

    Attributes:
        change: By how much what remains grows; infinite for a move that is not possible.
        gpus: GPUs that it takes.
        milli: Milli-cores that it takes.
    """

    change: FloatArray
    gpus: IntArray
    milli: IntArray


def _needs(snapshot: Snapshot, has: Allocation) -> tuple[IntArray, IntArray]:
    """GPUs and milli-cores of allocations (J,)."""
    gpus = np.where(has.on_gpu, has.workers, 0)
    cores = np.where(has.on_gpu, snapshot.jobs.cpu_milli, has.worker_milli) * has.workers
    return gpus, cores + has.servers * has.server_milli


def _in_ranks(snapshot: Snapshot, has: Allocation) -> Allocation:
    """Jobs without servers have as many ranks as they ask for on any kind of device, each with the same cores."""
    asked, ranks = as_asked(snapshot), (snapshot.jobs.servers == 0) & (has.workers > 0)
    return has._replace(
        workers=np.where(ranks, asked.workers, has.workers),
        worker_milli=np.where(ranks & ~has.on_gpu, asked.worker_milli, has.worker_milli),
    )


def _admitted(
    snapshot: Snapshot, has: Allocation, order: IntArray
) -> tuple[Allocation, BoolArray, BoolArray]:
    """What jobs are to have, which of them fit into the cluster in their order, and which of the others wait (J,).

    A job without servers for which no GPUs are left runs on cores that are.
    """
    nodes, jobs = snapshot.nodes, snapshot.jobs
    gpus, milli = _needs(snapshot, has)
    instead, able_there = on_cpu(snapshot, has)
    _, milli_there = _needs(snapshot, instead)
    moved = np.zeros(len(jobs), dtype=np.bool_)
    free_gpus, free_milli = int(nodes.gpus_open.sum()), int(nodes.cpu_milli[nodes.is_open].sum())
    takes = np.zeros(len(jobs), dtype=np.bool_)
    able = jobs.holds | jobs.waits
    for row in order.tolist():
        if able[row] and gpus[row] <= free_gpus and milli[row] <= free_milli:
            takes[row] = True
            free_gpus -= int(gpus[row])
            free_milli -= int(milli[row])
        elif able[row] and able_there[row] and milli_there[row] <= free_milli:
            takes[row] = moved[row] = True
            free_milli -= int(milli_there[row])
    return picked(moved, instead, has), takes, able & ~takes


def _free(snapshot: Snapshot, has: Allocation, taken: BoolArray) -> tuple[int, int]:
    nodes = snapshot.nodes
    gpus, milli = _needs(snapshot, has)
    return (
        int(nodes.gpus_open.sum() - gpus[taken].sum()), int(nodes.cpu_milli[nodes.is_open].sum() - milli[taken].sum())
    )


def _evaluated(
    snapshot: Snapshot, beliefs: Beliefs, has: Allocation, left: FloatArray, moves: BoolArray, objective: Objective
) -> Evaluated:
    def worth(of: Allocation) -> FloatArray:
        remaining = remaining_s(snapshot, beliefs, of, left)
        return remaining * weight(of) if objective == "service" else remaining

    before, (gpus, milli) = worth(has), _needs(snapshot, has)
    jobs = snapshot.jobs
    seen_ms = jobs.stalled_ms / np.maximum(jobs.starts, 1)  # what its own starts took counts before what is believed
    runs, restart_s = jobs.holds, np.where(jobs.starts > 0, seen_ms, beliefs.restart_ms) / MS_PER_S
    on_both = (jobs.cpu_ranks_max > 0) & (jobs.gpus > 0)
    change, takes_gpus, takes_milli = [], [], []
    for move in MOVES:
        after = _in_ranks(snapshot, move.apply(has))
        cost = np.where(runs & move.restarts, restart_s, 0.0) * (weight(after) if objective == "service" else 1.0)
        possible = (
            moves & (after.workers >= 1) & (after.workers <= WORKERS_MAX) & (after.servers >= 1)
            & (after.servers <= SERVERS_MAX) & (after.server_milli >= CORE_MILLI)
            & (after.server_milli <= CORES_MAX * CORE_MILLI)
            & (after.on_gpu | ((after.worker_milli >= CORE_MILLI) & (after.worker_milli <= CORES_MAX * CORE_MILLI)))
        )
        if move.name.endswith("worker core"):
            possible &= ~has.on_gpu
        possible = np.where(jobs.servers > 0, possible, moves & on_both & (after.workers > 0) & move.swaps)
        change.append(np.where(possible, worth(after) - before + cost, np.inf))
        needs = _needs(snapshot, after)
        takes_gpus.append(needs[0] - gpus)
        takes_milli.append(needs[1] - milli)
    return Evaluated(np.column_stack(change), np.column_stack(takes_gpus), np.column_stack(takes_milli))


def exchanged(
    has: Allocation, found: Evaluated, free_gpus: int, free_milli: int, *, crowded: bool = False
) -> Allocation:
    """Apply the best moves and pairs of moves until none lowers the sum.

    Args:
        has: What jobs have.
        found: What moves would change.
        free_gpus: GPUs that nobody has.
        free_milli: Milli-cores that nobody has.
        crowded: Whether jobs wait: then no move takes a GPU that nobody gives up.
    """
    chosen = np.full(len(has.workers), -1)
    change = found.change.copy()
    while True:
        best = _best_pair(change, found, 0 if crowded else free_gpus, free_milli)
        if best is None:
            break
        for job, kind in best:
            chosen[job] = kind
            free_gpus -= int(found.gpus[job, kind])
            free_milli -= int(found.milli[job, kind])
            change[job] = np.inf
    for kind, move in enumerate(MOVES):
        after, mine = move.apply(has), chosen == kind
        has = picked(mine, after, has)
    return has


def _best_pair(
    change: FloatArray, found: Evaluated, free_gpus: int, free_milli: int
) -> tuple[tuple[int, int], ...] | None:
    """The move, or pair of moves of two jobs, that lowers the sum most and fits; None if none lowers it."""
    jobs, kinds = change.shape
    if not jobs:
        return None
    fits = (found.gpus <= max(free_gpus, 0)) & (found.milli <= max(free_milli, 0))
    alone = np.where(fits, change, np.inf)
    at = int(alone.argmin())
    best: tuple[tuple[int, int], ...] = (divmod(at, kinds),)
    least = float(alone.flat[at])
    takers = np.argsort(change, axis=0)[:2]  # the two best of each kind, so that a pair is of two jobs
    for taking in range(kinds):
        for giving in range(kinds):
            for taker in takers[:, taking].tolist():
                gain = change[taker, taking]
                if not gain < 0:
                    continue
                for giver in takers[:, giving].tolist():
                    total = gain + change[giver, giving]
                    if giver == taker or not total < least:
                        continue
                    gpus = found.gpus[taker, taking] + found.gpus[giver, giving]
                    milli = found.milli[taker, taking] + found.milli[giver, giving]
                    if gpus <= max(free_gpus, 0) and milli <= max(free_milli, 0):
                        best, least = ((giver, giving), (taker, taking)), float(total)
    return best if least < 0 else None


