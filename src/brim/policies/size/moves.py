"""Moves of jobs with parameter servers by one unit, and the exchange that pairs the best of them.

Shapes: J jobs, K kinds of move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.sums import CORE_MILLI
from brim.policies.allocations import SERVERS_MAX, WORKERS_MAX, picked

CORES_MAX: Final = 6
"""Most cores of a worker on CPU or a server. With five, published speeds are 0.94 to 0.99 of those with many."""
CPU_WORKER_CORES: Final = 4
"""Cores of a worker that moves from GPU to CPU, at first. Ours."""


class Move(NamedTuple):
    """A kind of move of one job.

    Attributes:
        name: Name.
        apply: What the job would have.
    """

    name: str
    apply: Callable[[Allocation], Allocation]


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
    Move("-worker", _workers(-1)), Move("+server core", _server_cores(1)), Move("-server core", _server_cores(-1)),
    Move("+worker core", _worker_cores(1)), Move("-worker core", _worker_cores(-1)), Move("to CPU", _to_cpu),
    Move("to GPU", _to_gpu),
)


class Evaluated(NamedTuple):
    """What each kind of move would change (J, K).

    Attributes:
        after: What a job would have.
        change: Of the objective, which is to fall: below 0 is better, infinite is not possible.
        gpu_milli: Milli-GPUs that it takes; below 0 where it gives some back.
        milli: Milli-cores that it takes; below 0 where it gives some back.
    """

    after: Allocation
    change: FloatArray
    gpu_milli: IntArray
    milli: IntArray


def applied(has: Allocation) -> Allocation:
    """What each job would have after each kind of move, possible or not (J, K)."""
    each = [move.apply(has) for move in MOVES]
    return Allocation._make(np.stack(columns, axis=1) for columns in zip(*each, strict=True))


def moved(has: Allocation) -> tuple[Allocation, BoolArray]:
    """What each job would have after each kind of move, and whether it is possible (J, K).

    A job that has nothing cannot move. After a move that is not possible, a job has what it had.
    """
    after = applied(has)
    before = Allocation._make(column[:, None] for column in has)
    on_cpu = (after.worker_milli >= CORE_MILLI) & (after.worker_milli <= CORES_MAX * CORE_MILLI)
    on_gpu = after.on_gpu & (after.worker_milli == before.worker_milli)  # a worker on GPU has no cores to move
    possible = (
        (before.workers >= 1) & (before.servers >= 1)
        & (after.workers >= 1) & (after.workers <= WORKERS_MAX) & (after.servers >= 1) & (after.servers <= SERVERS_MAX)
        & (after.server_milli >= CORE_MILLI) & (after.server_milli <= CORES_MAX * CORE_MILLI)
        & (on_gpu | ~after.on_gpu & on_cpu)
    )
    return picked(possible, after, before), possible


def exchanged_devices(has: Allocation) -> tuple[Allocation, BoolArray]:
    """The same for jobs without servers, whose ranks move to the other kind of device together, with their cores."""
    to_cpu, to_gpu = (np.array([move.name == name for move in MOVES])[None] for name in ("to CPU", "to GPU"))
    shape = (len(has.workers), len(MOVES))
    before = Allocation._make(np.broadcast_to(column[:, None], shape) for column in has)
    possible = (before.workers > 0) & np.where(before.on_gpu, to_cpu, to_gpu)
    return before._replace(on_gpu=before.on_gpu ^ possible), possible


def exchanged(
    has: Allocation, found: Evaluated, free_gpu_milli: int, free_milli: int, *, crowded: bool = False
) -> Allocation:
    """Apply the best moves and pairs of moves until none lowers the sum; each job moves at most once.

    Args:
        has: What jobs have.
        found: What moves would change.
        free_gpu_milli: Milli-GPUs that nobody has.
        free_milli: Milli-cores that nobody has.
        crowded: Whether jobs wait: then no move takes a GPU that nobody gives up.
    """
    chosen = np.full(len(has.workers), -1)
    queue = _Queue(found)
    while len(chosen):
        best = queue.best(0 if crowded else max(free_gpu_milli, 0), max(free_milli, 0))
        if not best:
            break
        for job, kind in best:
            chosen[job] = kind
            free_gpu_milli -= int(found.gpu_milli[job, kind])
            free_milli -= int(found.milli[job, kind])
            queue.remove(job)
    rows = np.arange(len(chosen))
    return picked(chosen >= 0, Allocation._make(column[rows, chosen] for column in found.after), has)


class _Queue:
    """The moves of jobs that have not moved, best first: of each kind, and of all kinds those that lower the sum."""

    def __init__(self, found: Evaluated) -> None:
        jobs, self._kinds = found.change.shape
        self._found, self._moves = found, np.ones(jobs, dtype=np.bool_)
        self._of_kind = np.argsort(found.change, axis=0, kind="stable").T.tolist()
        self._next = [0] * self._kinds
        self._kind_T = np.repeat(np.arange(self._kinds), 2)  # two of each kind, so that a pair is of two jobs
        lowers = np.flatnonzero(found.change < 0)
        lowers = lowers[np.argsort(found.change.flat[lowers], kind="stable")]
        self._job_L, self._kind_L = np.divmod(lowers, self._kinds)
        self._gpu_milli_L, self._milli_L = found.gpu_milli.flat[lowers], found.milli.flat[lowers]

    def remove(self, job: int) -> None:
        """A job that has moved moves no more."""
        self._moves[job] = False

    def best(self, free_gpu_milli: int, free_milli: int) -> tuple[tuple[int, int], ...]:
        """Job and kind of the move, or of both of the pair, that lowers the sum most and fits; empty if none does."""
        change = self._found.change
        fits_L = self._moves[self._job_L] & (self._gpu_milli_L <= free_gpu_milli) & (self._milli_L <= free_milli)
        found: tuple[tuple[int, int], ...] = ()
        least = 0.0
        if fits_L.any():
            at = int(fits_L.argmax())
            found = ((int(self._job_L[at]), int(self._kind_L[at])),)
            least = float(change[found[0]])
        job_T = self._tops()
        change_T = np.where(job_T >= 0, change[job_T, self._kind_T], np.inf)
        gpu_milli_T, milli_T = (of[job_T, self._kind_T] for of in (self._found.gpu_milli, self._found.milli))
        total = change_T[:, None] + change_T[None]
        total[
            (job_T[:, None] == job_T[None]) | (gpu_milli_T[:, None] + gpu_milli_T[None] > free_gpu_milli)
            | (milli_T[:, None] + milli_T[None] > free_milli)
        ] = np.inf
        one, other = divmod(int(total.argmin()), len(job_T))
        if total[one, other] < least:
            found = tuple((int(job_T[at]), int(self._kind_T[at])) for at in (one, other))
        return found

    def _tops(self) -> IntArray:
        """The two jobs for which each kind of move is best (2 K,), -1 where there is none."""
        tops = []
        for kind, jobs in enumerate(self._of_kind):
            first = self._next[kind]
            while first < len(jobs) and not self._moves[jobs[first]]:
                first += 1
            self._next[kind] = first
            second = first + 1
            while second < len(jobs) and not self._moves[jobs[second]]:
                second += 1
            tops += [jobs[at] if at < len(jobs) else -1 for at in (first, second)]
        return np.array(tops)
