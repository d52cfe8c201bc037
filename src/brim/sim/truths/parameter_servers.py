"""Truth ``parameter-servers``: workers and servers in five phases, and losses that fall along a curve or do not.

Step times follow ``beliefs.parameter_servers`` with true times that policies do not know. A job ends after the samples
that the truth knows; the losses that it reports on its way may tell where that is, or not. Its work is counted in
samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from brim.beliefs.parameter_servers import Allocation, Phases, StepModels
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.events import Report
from brim.core.setting import ON_CPU, SERVER, Rank
from brim.core.trace import Trace
from brim.sim.truths.truth import ALONE, Colocation, Pace
from brim.units import MS_PER_S, WHOLE_GPU

REPORTS: Final = 200
"""Losses that a job reports if it trains for as many samples as its user planned: the distance of reports is known
beforehand and says nothing about the end. Ours."""
SERVERS_MAX: Final = 10
WORKERS_MAX: Final = 4
"""Most servers and workers of a job (successor of AITurbo)."""


class LossCurve(NamedTuple):
    """What a job reports as it trains.

    Attributes:
        place: Parts of the planned samples, increasing (P,).
        loss: Loss there, linear between them (P,).
    """

    place: FloatArray
    loss: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerJobs:
    """The jobs of a trace; each column (J,).

    Attributes:
        models: Step times by profile code.
        samples: Samples after which each job ends.
        samples_max: Samples that its user planned at most.
        servers: Servers that its user asked for.
        target_loss_ppm: Loss at which its user expects it to end, in millionths.
        curves: Losses of each job.
    """

    models: StepModels
    samples: FloatArray
    samples_max: IntArray
    servers: IntArray
    target_loss_ppm: IntArray
    curves: Sequence[LossCurve]


class ParameterServers:
    """Jobs with parameter servers. See ``sim.truths.truth.Truth``.

    Args:
        trace: The trace; ``gpus`` are the workers on GPU that a user asked for, ``cpu_milli`` the cores of a rank.
        jobs: The jobs.
        profiled: Step times as they were measured before, which policies may know.
    """

    name: ClassVar[str] = "parameter-servers"
    contended: ClassVar[bool] = False

    def __init__(self, trace: Trace, jobs: ServerJobs, profiled: StepModels) -> None:
        self._trace, self.jobs, self.profiled = trace, jobs, profiled
        asked = Allocation(
            trace.gpus, np.ones(len(trace), dtype=np.bool_), trace.cpu_milli, jobs.servers, trace.cpu_milli
        )
        self._asked = asked
        step_s = jobs.models.phases(trace.profile, trace.batch, asked).step_s
        self.run_ms = frozen(np.ceil(jobs.samples / trace.batch * step_s * MS_PER_S).astype(np.int64))
        self._kept: dict[tuple[int, tuple[Rank, ...]], tuple[Phases, tuple[float, float]]] = {}
        fastest, least_gpu = self._bounds()
        batches = jobs.samples / trace.batch * MS_PER_S
        self.shortest_ms = frozen(np.floor(batches * fastest).astype(np.int64))
        self.least_gpu_ms = frozen(np.floor(batches * least_gpu).astype(np.int64))

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``. Without ranks on CPU, the servers that were asked for run beside the workers."""
        jobs = self.jobs
        phases, busy = self._step(job, sum(nodes), colocation.ranks)
        per_s = batch / float(phases.step_s[0])
        end, planned = float(jobs.samples[job]), int(jobs.samples_max[job])
        report = Report(samples_done=done, samples_per_s=per_s, loss=self.loss(job, done))
        nth = math.floor(done * REPORTS / planned * (1 + 1e-12)) + 1
        until = nth * planned / REPORTS
        return Pace(per_s / MS_PER_S, min(until, end), until >= end, report, busy)

    def loss(self, job: int, samples: float) -> float:
        """The loss that a job reports after so many samples."""
        curve = self.jobs.curves[job]
        return float(np.interp(samples / self.jobs.samples_max[job], curve.place, curve.loss))

    def phases(self, job: int, gpus: int, ranks: tuple[Rank, ...]) -> Phases:
        """Phases of a step of one job (1,), by its number of GPUs, and by its ranks if some are on CPU."""
        return self._step(job, gpus, ranks)[0]

    def _step(self, job: int, gpus: int, ranks: tuple[Rank, ...]) -> tuple[Phases, tuple[float, float]]:
        """Those phases, and what computes in them: a worker with its cores in the passes, a server in the update."""
        key = job, ranks or (Rank(0, gpus),)
        if key not in self._kept:
            has = _allocation(ranks) if ranks else Allocation(
                np.array([gpus]), np.array([True]), *(column[job : job + 1] for column in self._asked[2:])
            )
            row = self._trace.profile[job : job + 1]
            phases = self.jobs.models.phases(row, self._trace.batch[job : job + 1], has)
            cores = np.where(has.on_gpu, self._trace.cpu_milli[job], has.worker_milli)
            computes, updates = phases.compute_s / phases.step_s, phases.update_s / phases.step_s
            cores_busy = has.workers * cores * computes + has.servers * has.server_milli * updates
            gpus_busy = np.where(has.on_gpu, has.workers, 0) * computes
            self._kept[key] = phases, (float(gpus_busy[0]), float(cores_busy[0]))
        return self._kept[key]

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``: a job may run on CPU alone, and its batch stays what its user asked for."""
        size, jobs = len(self._trace), self.jobs
        return {
            "gpus_min": np.zeros(size, dtype=np.int64), "gpus_max": np.full(size, WORKERS_MAX),
            "batch": self._trace.batch, "profile": self._trace.profile, "servers": jobs.servers,
            "cpu_ranks_max": np.full(size, WORKERS_MAX + SERVERS_MAX), "target_loss_ppm": jobs.target_loss_ppm,
            "samples_max": jobs.samples_max,
        }

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return self.jobs.samples

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return [
            "Steps take five phases by workers, servers and their cores (parameter servers), without noise.",
            "Jobs with parameter servers move between devices through a checkpoint; cores of their ranks on CPU change "
            "at once, and are free as soon as a job is told to leave them.",
        ]

    def _bounds(self) -> tuple[FloatArray, FloatArray]:
        """Shortest step at any allocation, and least GPU seconds of a step, which on CPU alone is none (J,)."""
        size, many = len(self._trace), 1_000 * WHOLE_GPU
        best = np.full(size, np.inf)
        for workers in range(1, WORKERS_MAX + 1):
            for servers in range(1, SERVERS_MAX + 1):
                for on_gpu in (True, False):
                    has = Allocation(
                        np.full(size, workers), np.full(size, on_gpu), np.full(size, many), np.full(size, servers),
                        np.full(size, many),
                    )
                    step_s = self.jobs.models.phases(self._trace.profile, self._trace.batch, has).step_s
                    best = np.minimum(best, step_s)
        return best, np.zeros(size)


def _allocation(ranks: tuple[Rank, ...]) -> Allocation:
    """What one job has (1,)."""
    servers = [rank for rank in ranks if rank.gpu == SERVER]
    on_cpu = [rank for rank in ranks if rank.gpu == ON_CPU]
    workers = len(ranks) - len(servers)
    return Allocation(*(np.array([value]) for value in (
        workers, not on_cpu, on_cpu[0].share_milli if on_cpu else 0, max(len(servers), 1),
        servers[0].share_milli if servers else WHOLE_GPU,
    )))
