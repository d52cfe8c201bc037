"""Who shares which GPUs while a round is decided, what room is left, and what a set of residents would cost.

Jobs share GPUs only as whole gangs: the residents of a set have exactly the same GPUs. Jobs that ask for a share of
their own are left as they are. The place parts of ``energy_sharing`` and ``packing`` decide with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.interference import Basis, Slowdown
from brim.beliefs.memory import device_mib, fit, memory_use
from brim.core.arrays import BoolArray
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.core.slowdowns import ResidentKind
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.core.trace import NONE
from brim.policies.place.free_resources import (
    CONSOLIDATE,
    CPU,
    EXTRA,
    MEM,
    OPEN,
    TYPE,
    WHOLES,
    FreeResources,
    GangRequest,
    all_free,
    choose,
    has_too_few,
    take,
    withhold,
)
from brim.policies.place.parts import NO_CLASSES
from brim.policies.sockets import Sizes
from brim.units import WHOLE_GPU

_HELD, _STOPPING = int(Phase.HELD), int(Phase.STOPPING)
_SHARES: Final = {
    Basis.HISTORY: Reason.SHARES_BY_HISTORY, Basis.PAIRS: Reason.SHARES_BY_PAIRS, Basis.DEMAND: Reason.SHARES_BY_DEMAND,
}
Gpu = tuple[int, int]
"""Node and index on it."""


def residents(snapshot: Snapshot, left_out: Iterable[int] = ()) -> dict[tuple[Gpu, ...], list[int]]:
    """Return the sets of jobs that have the same whole GPUs, with their rows in increasing order.

    A job that asks for a share of its GPUs, or that shares only some of them, is in no set.

    Args:
        snapshot: The snapshot.
        left_out: Rows of jobs that are to leave.
    """
    held = snapshot.grants
    counts = (held.gpu >= 0) & ~np.isin(held.job, [*left_out])
    if not counts.any():
        return {}
    job, node, gpu = held.job[counts], held.node[counts], held.gpu[counts]
    in_order = np.lexsort((gpu, node, job))
    job, node, gpu = job[in_order], node[in_order], gpu[in_order]
    place = node * (gpu.max() + 1) + gpu
    jobs_there = np.bincount(place)[place]
    first = np.flatnonzero(np.diff(job, prepend=NONE))  # of each job
    row = job[first]
    fewest, most = np.minimum.reduceat(jobs_there, first), np.maximum.reduceat(jobs_there, first)
    together = np.where((fewest == most) & (snapshot.jobs.share_milli[row] == WHOLE_GPU), most, 0).tolist()
    places, ends = [*zip(node.tolist(), gpu.tolist(), strict=True)], [*first.tolist(), len(job)]
    sets: dict[tuple[Gpu, ...], list[int]] = {}
    for k in range(len(row)):
        sets.setdefault(tuple(places[ends[k] : ends[k + 1]]), []).append(k)
    return {
        gpus: row[members].tolist() for gpus, members in sorted(sets.items())
        if all(together[k] == len(members) for k in members)
    }


class Occupancy:
    """The cluster while a round is decided: what runs where, what is free, and why jobs wait.

    Args:
        snapshot: The snapshot, without ranks on CPU.
        beliefs: What is believed.
        sizes: The sizes of all jobs.
        leaving: Rows of jobs that run and are to leave, with the reason for each.

    Attributes:
        loads: The sum of the utilisation of each of ``sets`` by each of its jobs alone; NaN where one is not known.
        unjudged: Rows of the jobs that share nothing, since nobody would find out what it costs them.
    """

    def __init__(self, snapshot: Snapshot, beliefs: Beliefs, sizes: Sizes, leaving: dict[int, Reason]) -> None:
        self.snapshot, self.jobs, self.nodes = snapshot, snapshot.jobs, snapshot.nodes
        jobs, nodes = snapshot.jobs, snapshot.nodes
        self._size = sizes.gpus
        self._known = beliefs.interference.known(snapshot.slowdowns)
        self._memory_mib: list[float] = memory_use(snapshot).mib.tolist()
        self.unjudged = _unmeasured_alone(snapshot, sizes) if beliefs.judges_steps else frozenset()
        self._total_ms = beliefs.run_times.total_ms(snapshot)
        self._demand: list[float] = np.where(jobs.gpu_util_milli == NONE, np.nan, jobs.gpu_util_milli / 1000).tolist()
        self._batch = np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)
        self.why, self.blocker = np.zeros(len(jobs), dtype=np.int64), np.full(len(jobs), NONE, dtype=np.int64)
        for row, why in leaving.items():
            self.why[row] = why
        self.why[jobs.phase == _HELD], self.why[jobs.phase == _STOPPING] = Reason.HELD, Reason.STOPPING
        smaller = jobs.holds & (sizes.gpus < jobs.gpus_now)  # such a job comes back at its new size
        self.leaving = set(leaving) | set(np.flatnonzero(smaller).tolist())
        not_now = smaller | ((sizes.gpus == 0) & (jobs.holds | jobs.waits))
        self.why[(self.why == 0) & not_now] = Reason.NOT_NOW
        self.sets = residents(snapshot, self.leaving)
        self.loads = {gpus: self.demand(rows) for gpus, rows in self.sets.items()}
        self._started: list[tuple[int, tuple[Gpu, ...]]] = []
        self._takes: dict[tuple[Gpu, ...], bool] = {}  # whether all of these GPUs take new jobs
        is_open = nodes.is_open
        awake = is_open & ~nodes.asleep if nodes.asleep.size else is_open
        self._free = [self._left(is_open)] if awake is is_open else [self._left(awake), self._left(is_open)]
        self._scratch = np.zeros((2, len(nodes)), dtype=np.int64)

    def _left(self, takes_jobs: BoolArray) -> FreeResources:
        """What is free, where only some nodes take new jobs."""
        jobs, nodes, held = self.jobs, self.nodes, self.snapshot.grants
        free = all_free(
            nodes.gpu_type.copy(), nodes.gpus.copy(), nodes.cpu_milli.copy(), nodes.mem_mib.copy(),
            np.array(takes_jobs), len(self.snapshot.gpu_types),
        )
        withhold(free, nodes.withheld.copy())
        kept = ~np.isin(held.job, sorted(self.leaving))
        job, node, gpu = held.job[kept], held.node[kept], held.gpu[kept]
        width = free.node.shape[1] - EXTRA
        place, whole = node * width + gpu, jobs.share_milli[job] == WHOLE_GPU
        takes = ~whole  # what has the whole GPU takes it once, however many they are
        takes[np.unique(place, return_index=True)[1]] = True
        share = np.where(whole, WHOLE_GPU, jobs.share_now[job])
        taken = np.bincount(place[takes], share[takes], len(nodes) * width).reshape(-1, width)
        lost = ((taken > 0) & (free.node[:, :width] == WHOLE_GPU)).sum(axis=1)
        free.node[:, :width] -= taken.astype(np.int64)
        free.node[:, WHOLES] -= lost
        np.subtract.at(free.total, free.node[:, TYPE], lost * free.node[:, OPEN])
        np.subtract.at(free.node[:, CPU], node, jobs.cpu_milli[job])
        np.subtract.at(free.node[:, MEM], node, jobs.mem_mib[job])
        return free

    def _gang(self, row: int, gpus: int, share: int) -> GangRequest:
        jobs = self.jobs
        return GangRequest(gpus, share, int(jobs.cpu_milli[row]), int(jobs.mem_mib[row]), int(jobs.gpu_type[row]))

    def _sit(self, free: FreeResources, row: int, node: int) -> None:
        """Take cores and memory of a node for a rank on a GPU that others have, too."""
        free.node[node, CPU] -= self.jobs.cpu_milli[row]
        free.node[node, MEM] -= self.jobs.mem_mib[row]

    # -- what is believed of a set ---------------------------------------------------------------------------------

    def gpu_type(self, gpus: tuple[Gpu, ...]) -> int:
        """Code of the type of these GPUs."""
        return int(self.nodes.gpu_type[gpus[0][0]])

    def slowdowns(self, gpus: tuple[Gpu, ...], rows: Sequence[int]) -> tuple[Slowdown, ...]:
        """What is believed of the slowdown of each of these jobs on these GPUs."""
        kinds = tuple(ResidentKind(int(self.jobs.profile[row]), int(self._batch[row])) for row in rows)
        demands = tuple(self._demand[row] for row in rows)
        return self._known.among(self.gpu_type(gpus), kinds, demands)

    def demand(self, rows: Iterable[int]) -> float:
        """Sum of the utilisation of the GPUs by each of these jobs alone; NaN where one is not known."""
        return sum(self._demand[row] for row in rows)

    def fits_memory(self, gpus: tuple[Gpu, ...], rows: Iterable[int], limit: float) -> bool:
        """Whether these jobs together use at most a part of the memory of each GPU; not if that is not known."""
        node, kind = gpus[0][0], self.snapshot.gpu_types[self.gpu_type(gpus)]
        of_gpu = device_mib(kind, int(self.nodes.mem_mib[node]), int(self.nodes.gpus[node]))
        return fit((self._memory_mib[row] for row in rows), of_gpu, limit)

    def left_ms(self, row: int, slowdown: float) -> float:
        """Estimated time that a job would still need alone, after it ran with this slowdown."""
        return max(float(self._total_ms[row]) - float(self.jobs.run_ms[row]) / slowdown, 1.0)

    # -- candidates and decisions ----------------------------------------------------------------------------------

    def candidates(self, row: int, most: int, load_limit: float | None = None) -> list[tuple[Gpu, ...]]:
        """GPUs on which a waiting job could join others, and it could be found out what that costs each of them.

        Args:
            row: The job.
            most: Most residents of a GPU, the job included.
            load_limit: Only GPUs whose load is known and below this.
        """
        if row in self.unjudged:
            return []
        among: Iterable[tuple[Gpu, ...]] = self.sets
        if load_limit is not None:
            among = [gpus for gpus, load in self.loads.items() if load < load_limit]  # false for NaN
        found = self._alike(row, most, among)
        return [gpus for gpus in found if self.unjudged.isdisjoint(self.sets[gpus])] if self.unjudged else found

    def _alike(self, row: int, most: int, among: Iterable[tuple[Gpu, ...]]) -> list[tuple[Gpu, ...]]:
        """Of some GPUs, those that fewer others have: as many as a waiting job asks for, with room on their nodes."""
        jobs = self.jobs
        if jobs.share_milli[row] != WHOLE_GPU:
            return []
        size, kind = int(self._size[row]), int(jobs.gpu_type[row])
        return [
            gpus for gpus in among
            if len(gpus) == size and len(self.sets[gpus]) < most and kind in (NONE, self.gpu_type(gpus))
            and self._has_room(row, gpus)
        ]

    def say_unknown(self, row: int) -> None:
        """Note of a waiting job that it shares nothing because too little is known, of it or of each set it could join.

        Its blocker is the first job of which too little is known.
        """
        unknown = [self._unknown((row, *self.sets[gpus]), gpus) for gpus in self._alike(row, len(self.jobs), self.sets)]
        if unknown and NONE not in unknown:
            self.why[row], self.blocker[row] = Reason.NOTHING_KNOWN, unknown[0]

    def _unknown(self, rows: Sequence[int], gpus: tuple[Gpu, ...]) -> int:
        """The first of these jobs of which too little is known to let them share; NONE if there is none."""
        basis = [one.basis for one in self.slowdowns(gpus, rows)]
        for row in rows:
            is_known = Basis.UNKNOWN not in basis or not math.isnan(self._demand[row])
            if not is_known or math.isnan(self._memory_mib[row]) or row in self.unjudged:
                return row
        return NONE

    def _has_room(self, row: int, gpus: tuple[Gpu, ...]) -> bool:
        """Whether the nodes take new jobs, and have the cores and memory that the job asks for."""
        if gpus not in self._takes:
            self._takes[gpus] = bool(self.nodes.takes(*np.array(gpus, dtype=np.int64).T).all())
        if not self._takes[gpus]:
            return False
        if not (self.jobs.cpu_milli[row] or self.jobs.mem_mib[row]):
            return True
        node = np.array([node for node, _ in gpus], dtype=np.int64)
        ranks = np.bincount(node, minlength=len(self.nodes))
        free = self._free[-1].node
        cpu, mem = ranks * self.jobs.cpu_milli[row], ranks * self.jobs.mem_mib[row]
        return bool(((cpu == 0) | (cpu <= free[:, CPU])).all() and ((mem == 0) | (mem <= free[:, MEM])).all())

    def join(self, row: int, gpus: tuple[Gpu, ...]) -> None:
        """Let a waiting job share these GPUs."""
        self.sets[gpus] = sorted((*self.sets[gpus], row))
        self.loads[gpus] = self.demand(self.sets[gpus])
        for free in self._free:
            for node, _ in gpus:
                self._sit(free, row, node)
        self._started.append((row, gpus))

    def place_alone(self, row: int) -> bool:
        """Give a waiting job free GPUs, on sleeping nodes only if no others fit; note why if it gets none."""
        gang = self._gang(row, int(self._size[row]), int(self.jobs.share_milli[row]))
        pairs = np.empty((gang.gpus, 2), dtype=np.int64)
        for free in self._free:
            if choose(free, gang, CONSOLIDATE, NO_CLASSES, self._scratch, pairs):
                gpus = tuple((node, gpu) for node, gpu in pairs.tolist())
                for other in self._free:
                    for node, gpu in gpus:
                        take(other, gang, node, gpu)
                if gang.share == WHOLE_GPU:
                    self.sets[gpus], self.loads[gpus] = [row], self.demand((row,))
                self._started.append((row, gpus))
                return True
        self.why[row] = Reason.TOO_FEW_FREE if has_too_few(self._free[-1], gang) else Reason.SHAPE
        return False

    def grants(self) -> Grants:
        """The grants after the round: residents have equal shares; the reason of a job that shares is its basis."""
        jobs, held = self.jobs, self.snapshot.grants
        share = np.where(jobs.holds, jobs.share_now, jobs.share_milli)
        for gpus, rows in self.sets.items():
            share[rows] = WHOLE_GPU // len(rows)
            if len(rows) > 1:
                basis = max((one.basis for one in self.slowdowns(gpus, rows)), key=int)
                self.why[rows] = _SHARES.get(basis, Reason.RUNS)
        kept = ~np.isin(held.job, sorted(self.leaving))
        started = [(row, node, gpu) for row, gpus in self._started for node, gpu in gpus]
        job, node, gpu = np.array(started, dtype=np.int64).reshape(-1, 3).T
        job = np.concatenate((held.job[kept], job))
        return Grants(
            job=job, node=np.concatenate((held.node[kept], node)), gpu=np.concatenate((held.gpu[kept], gpu)),
            share_milli=share[job], why=self.why, blocker=self.blocker,
        )


def _unmeasured_alone(snapshot: Snapshot, sizes: Sizes) -> frozenset[int]:
    """Rows of the jobs whose step times without neighbours nobody has reported, of their model, size and batch."""
    seen, jobs, gpus = snapshot.seen, snapshot.jobs, sizes.gpus
    profile, size, local = seen.profile.tolist(), seen.gpus.tolist(), seen.local_batch.tolist()
    known = {*zip(profile, size, local, strict=True), *((*one, NONE) for one in zip(profile, size, strict=True))}
    batch = np.where(jobs.batch_now == NONE, jobs.batch, jobs.batch_now)
    if len(sizes.global_batch):
        batch = np.where(jobs.holds, batch, sizes.global_batch)
    local_batch = np.where(batch == NONE, NONE, batch // np.maximum(gpus, 1))
    asked = zip(jobs.profile.tolist(), gpus.tolist(), local_batch.tolist(), strict=True)
    return frozenset(row for row, one in enumerate(asked) if one[0] == NONE or one not in known)


def signature(snapshot: Snapshot, rows: Sequence[int]) -> int:
    """A number that sets of jobs with equal figures have in common, whatever their codes and ids. Above 0."""
    jobs, mixed = snapshot.jobs, 17
    columns = (jobs.gpu_util_milli, jobs.gpu_mem_mib, jobs.gpus, jobs.batch)
    for figures in sorted(tuple(int(column[row]) for column in columns) for row in rows):
        for figure in figures:
            mixed = (mixed * 1_000_003 + figure + 2) % ((1 << 61) - 1)
    return mixed + 1


def energy_and_time(
    idle_fraction: float, exponent: float, demands: Sequence[float], before: Sequence[float], after: Sequence[float]
) -> tuple[float, float]:
    """What it costs that the last of R jobs joins the others, relative to GPUs of its own: energy, and time of a step.

    The power of GPUs of which the part u is used is ``idle + (1 - idle) u ** exponent``; energy is compared for the
    progress that all of them make together.

    Args:
        idle_fraction: Power of idle GPUs and their node, relative to full power.
        exponent: Exponent of the curve.
        demands: Utilisation by each job alone, 0 to 1.
        before: Slowdown of each job before; that of the last is 1.
        after: Slowdown of each job after.
    """

    def power(utilisation: float) -> float:
        return float(idle_fraction + (1.0 - idle_fraction) * min(1.0, utilisation) ** exponent)

    growth = [new / old for new, old in zip(after, before, strict=True)]
    time_ratio = sum(growth) / len(growth)
    others = growth[:-1]
    progress = sum(1.0 / one for one in others) / len(others)
    apart = power(sum(demands[:-1])) * progress + power(demands[-1]) / growth[-1]
    return power(sum(demands)) / apart, time_ratio


def is_known(slowdowns: Iterable[Slowdown]) -> bool:
    """Whether there is a basis for each of these predictions."""
    return all(one.basis is not Basis.UNKNOWN for one in slowdowns)


def observed(snapshot: Snapshot, rows: Sequence[int]) -> tuple[float, ...]:
    """The slowdowns that these jobs have reported since they have their present shares; empty if one has not."""
    ratios: list[float] = snapshot.jobs.slowdown_ratio[list(rows)].tolist()
    return () if any(map(math.isnan, ratios)) else tuple(max(1.0, ratio) for ratio in ratios)
