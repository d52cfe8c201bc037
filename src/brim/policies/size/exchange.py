"""AITurbo's sizes: units of workers, servers, cores and GPUs that jobs with parameter servers give each other.

Shapes: J jobs, K kinds of move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.parameter_servers import Allocation
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.core.sums import CORE_MILLI
from brim.policies.allocations import (
    able_to_run,
    as_asked,
    capacity,
    merged,
    needs,
    picked,
    present,
    remaining_s,
    sizes_of,
    smallest,
    weight,
)
from brim.policies.size.moves import CPU_WORKER_CORES, Evaluated, exchanged, exchanged_devices, moved
from brim.policies.size.units import each_size, grown, units_of
from brim.policies.sockets import Sizes
from brim.units import MS_PER_S

Objective = Literal["relative", "completion", "service"]
Start = Literal["grown", "present"]
BATCHES: Final = 100.0
"""Batches that a job whose end is not predicted has left at least: it is believed to train for as long again as it has
trained. Ours."""


@dataclass(frozen=True, slots=True)
class UnitExchange:
    """The best moves of single jobs, and pairs of moves in which one job gives what another takes.

    A job moves at most once a round. What a move takes is free, or another job gives it up in the same round. Every
    move or pair of moves lowers the sum over jobs of what the objective names, restarts included.

    Attributes:
        objective: The sum over jobs to minimise: of the logarithm of the remaining time, so that halving any of them
            counts the same (ours), of the remaining time (Optimus), or of the remaining service, which is that time
            by the weight of what a job has (AITurbo).
        start: What the moves begin with: what jobs have, or ask for, where they fit in their order (AITurbo); or one
            worker and one server with one core each, on GPU, or on CPU where no GPU is free, and then worker after
            worker to the jobs for which the objective falls most (ours).
        all_jobs: Whether jobs whose end is not predicted move too, with as much left as they have trained for.

    Source:
        AITurbo, HPDC 2021 (moves and remaining service); the pairs, the start and the first objective are ours.
    """

    resizes_running: ClassVar[bool] = True
    objective: Objective = "relative"
    start: Start = "grown"
    all_jobs: bool = True

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        left = self._samples_left(snapshot, beliefs)
        has = self._at_first(snapshot, beliefs, order, left)
        wants = able_to_run(snapshot, as_asked(snapshot)).workers > 0
        crowded = bool((wants & (has.workers == 0)).any())
        free = [whole - int(part.sum()) for whole, part in zip(capacity(snapshot), needs(snapshot, has), strict=True)]
        found = self._evaluated(snapshot, beliefs, has, left)
        return sizes_of(snapshot, exchanged(has, found, *free, crowded=crowded))

    def _samples_left(self, snapshot: Snapshot, beliefs: Beliefs) -> FloatArray:
        """Samples until the end of each job that may move, NaN for others (J,)."""
        jobs, outlook = snapshot.jobs, beliefs.progress.of_jobs(snapshot)
        left = np.where(outlook.is_predictable, outlook.samples_left, np.nan)
        if self.all_jobs:
            left = np.where(np.isnan(left), np.maximum(jobs.samples_done, BATCHES * jobs.batch), left)
        return np.maximum(left, jobs.batch)

    def _at_first(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, left: FloatArray) -> Allocation:
        """What jobs have before the moves; 0 workers for those that wait."""
        jobs, asked, now = snapshot.jobs, as_asked(snapshot), present(snapshot)
        has_servers, grows = jobs.servers > 0, self.start == "grown"
        first = merged(now, asked)
        if grows:
            first = smallest(snapshot, asked)._replace(
                on_gpu=np.where(now.workers > 0, now.on_gpu, asked.on_gpu),
                worker_milli=np.where(has_servers, CPU_WORKER_CORES * CORE_MILLI, asked.worker_milli),
                server_milli=np.where(has_servers, CORE_MILLI, asked.server_milli),
            )
        first = able_to_run(snapshot, first)
        each, may_grow = each_size(first, kinds=2), grows & has_servers & ~np.isnan(left)
        costs = np.broadcast_to(np.nan, each.workers.shape)
        if may_grow.any():
            costs = np.where(_allowed(snapshot, each), self._costs(snapshot, beliefs, each, left), np.inf)
            costs[~may_grow] = np.nan
        instead = np.where(_runs_on_both(snapshot), np.where(has_servers, 1, first.workers), 0)
        instead = np.where(has_servers & (not grows), 0, instead)
        given = grown(costs, units_of(snapshot, first), first, instead, order, capacity(snapshot))
        return first._replace(workers=given.workers, on_gpu=given.kind == 0, servers=given.servers)

    def _costs(self, snapshot: Snapshot, beliefs: Beliefs, has: Allocation, left: FloatArray) -> FloatArray:
        """What is to fall, of each job with its allocation (J,), or with each of several (J, ...)."""
        jobs = snapshot.jobs
        per_job = (len(jobs),) + (1,) * (has.workers.ndim - 1)
        time_s = remaining_s(snapshot, beliefs, has, np.where(np.isfinite(left), left, 1.0))
        now = Allocation._make(column.reshape(per_job) for column in present(snapshot))
        stays = (has.workers == now.workers) & (has.on_gpu == now.on_gpu) & (has.servers == now.servers)
        seen_ms = jobs.stalled_ms / np.maximum(jobs.starts, 1)  # its own starts count before what is believed
        restart_s = np.where(jobs.starts > 0, seen_ms, beliefs.restart_ms) / MS_PER_S
        time_s = time_s + np.where(jobs.holds.reshape(per_job) & ~stays, restart_s.reshape(per_job), 0.0)
        if self.objective == "relative":
            return np.log(time_s)
        return time_s * weight(has) if self.objective == "service" else time_s

    def _evaluated(self, snapshot: Snapshot, beliefs: Beliefs, has: Allocation, left: FloatArray) -> Evaluated:
        after, possible = moved(has)
        swapped, swaps = exchanged_devices(has)
        ranks, runs_on_both = snapshot.jobs.servers <= 0, _runs_on_both(snapshot)
        after = picked(ranks[:, None], swapped, after)
        possible = np.where(ranks[:, None], swaps & runs_on_both[:, None], possible & _allowed(snapshot, after))
        change = self._costs(snapshot, beliefs, after, left) - self._costs(snapshot, beliefs, has, left)[:, None]
        change = np.where(np.isfinite(left)[:, None] & possible, change, np.inf)
        before, then = needs(snapshot, has), needs(snapshot, after)
        return Evaluated(after, change, then[0] - before[0][:, None], then[1] - before[1][:, None])


def _allowed(snapshot: Snapshot, has: Allocation) -> BoolArray:
    """Whether jobs can run with these allocations: on so many GPUs, and with so many ranks on CPU (J, ...)."""
    jobs = snapshot.jobs
    per_job = (len(jobs),) + (1,) * (has.workers.ndim - 1)
    least, most, on_cpu = (of.reshape(per_job) for of in (jobs.gpus_min, jobs.gpus_max, jobs.cpu_ranks_max))
    gpus = np.where(has.on_gpu, has.workers, 0)
    result: BoolArray = (gpus >= least) & (gpus <= most) & (has.workers - gpus + has.servers <= on_cpu)
    return result


def _runs_on_both(snapshot: Snapshot) -> BoolArray:
    """Whether a job can run on either kind of device (J,)."""
    jobs = snapshot.jobs
    result: BoolArray = (jobs.cpu_ranks_max > np.maximum(jobs.servers, 0)) & (jobs.gpus > 0)
    return result
