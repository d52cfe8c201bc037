"""Truth ``measured``: every job of the trace names an application whose steps and gradients were measured.

Work is counted as progress in iterations of the application's initial batch, as in the published Pollux simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.analyser import Steps
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.events import Report, Sample
from brim.core.trace import NONE, Trace
from brim.errors import ConfigError
from brim.sim.least import Ranges, Room, least
from brim.sim.profiles import Application
from brim.sim.truth import Pace
from brim.units import MS_PER_S, WHOLE_GPU

GPUS_MAX: Final = 64
"""Most GPUs of one job: as many as were measured."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One configuration of one application in one epoch."""

    per_ms: float
    samples_per_s: float
    grad_var: float
    grad_sqr: float
    seen: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class _OneGpu:
    """Steps of an application on one GPU, without noise."""

    app: Application

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """See ``Steps``."""
        if local_batch > self.app.local_batch_max:
            return None
        try:
            return [self.app.times_s((1,), local_batch)[0]] * steps
        except ConfigError:
            return None


class Measured:
    """Each job does what its application did when it was measured. See ``sim.truth.Truth``.

    A gang's ranks are numbered from the node with the most of its GPUs down, which is the order of the placements that
    were measured on several nodes: ``244`` and ``424`` took the same time, ``2244`` and ``2424`` did not.

    Args:
        trace: Names an application and a global batch for every job.
        cluster: Where; its GPUs are taken to be those that were measured.
        applications: By name.

    Raises:
        ConfigError: a job names no application, or one that was not measured, or asks for what it cannot run on.
    """

    name: ClassVar[str] = "measured"

    def __init__(self, trace: Trace, cluster: Cluster, applications: dict[str, Application]) -> None:
        self._trace = trace
        self._gpus_max = min(cluster.num_gpus, GPUS_MAX)
        self._width = int(cluster.gpus_N.max())
        self._room = Room(cluster.num_nodes, self._width)
        self._app_J = _applications_of(trace, applications)
        self._stages: dict[tuple[str, tuple[int, ...], int, int], _Stage] = {}
        self._progress = {app.name: app.progress_E.tolist() for app in applications.values()}

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int) -> Pace:
        """See ``Truth``; work is progress in iterations of the initial batch."""
        app, nodes = self._app_J[job], tuple(sorted(nodes, reverse=True))
        ends = self._progress[app.name]
        epoch = min(int(np.searchsorted(app.progress_E, done, side="right")), len(ends) - 1)
        stage = self._stage(app, nodes, batch, epoch)
        report = Report(
            samples_done=done * app.batch_min, samples_per_s=stage.samples_per_s, grad_var=stage.grad_var,
            grad_sqr=stage.grad_sqr, seen=stage.seen,
        )
        return Pace(stage.per_ms, ends[epoch], epoch == len(ends) - 1, report)

    def _stage(self, app: Application, nodes: tuple[int, ...], batch: int, epoch: int) -> _Stage:
        key = (app.name, nodes, batch, epoch)
        found = self._stages.get(key)
        if found is None:
            gpus = sum(nodes)
            local_batch, accumulation = app.split(gpus, batch)
            rate = app.rate(nodes, local_batch, accumulation, epoch)
            variance, square = app.gradient(gpus * local_batch * (accumulation + 1), epoch)
            sample = Sample(len(nodes), gpus, local_batch, *app.times_s(nodes, local_batch))
            found = self._stages[key] = _Stage(
                rate / MS_PER_S, rate * app.batch_min, variance, square, (sample,),
            )
        return found

    def steps(self, job: int) -> Steps:
        """See ``Timed``: the measured times of one GPU; what was not measured there does not fit."""
        return _OneGpu(self._app_J[job])

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``: elastic jobs may run on any number of GPUs that was measured."""
        rows = []
        for row, app in enumerate(self._app_J):
            gpus, batch = int(self._trace.gpus[row]), int(self._trace.batch[row])
            low, high = (1, self._gpus_max) if app.elastic else (gpus, gpus)
            least, most = (app.batch_min, app.batch_max) if app.elastic else (batch, batch)
            high = max(gpus, min(high, most // app.local_batch_min))  # what its user asked it can always run on
            rows.append((low, high, batch, least, most, app.local_batch_min, app.local_batch_max))
        names = ("gpus_min", "gpus_max", "batch", "batch_min", "batch_max", "local_batch_min", "local_batch_max")
        table = np.array(rows, dtype=np.int64).reshape(-1, len(names)).T
        return {"profile": self._trace.profile} | dict(zip(names, map(frozen, table), strict=True))

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return np.array([app.progress_E[-1] * app.batch_min for app in self._app_J])

    @cached_property
    def run_ms(self) -> IntArray:
        """See ``Truth``: on the fewest nodes."""
        known: dict[tuple[str, int, int], int] = {}
        for row, app in enumerate(self._app_J):
            key = (app.name, int(self._trace.gpus[row]), int(self._trace.batch[row]))
            if key not in known:
                known[key] = self._run_ms(app, *key[1:])
        return frozen(np.array([
            known[app.name, int(gpus), int(batch)]
            for app, gpus, batch in zip(self._app_J, self._trace.gpus, self._trace.batch, strict=True)
        ], dtype=np.int64))

    def _run_ms(self, app: Application, gpus: int, batch: int) -> int:
        nodes = packed(gpus, self._width)
        work = np.diff(app.progress_E, prepend=0.0)
        whole = 0.0
        for epoch, part in enumerate(work.tolist()):
            whole += part / self._stage(app, nodes, batch, epoch).per_ms
        return round(whole)

    @property
    def shortest_ms(self) -> IntArray:
        """See ``Truth``, and ``sim.least`` for why it is a bound."""
        return self._least_ms[0]

    @property
    def least_gpu_ms(self) -> IntArray:
        """See ``Truth``, and ``sim.least`` for why it is a bound; shares of GPUs counted as shares."""
        return frozen(self._least_ms[1] * self._trace.share_milli // WHOLE_GPU)

    @cached_property
    def _least_ms(self) -> tuple[IntArray, IntArray]:
        limits = self.columns()
        known: dict[tuple[str, Ranges], tuple[float, float]] = {}
        table = np.zeros((len(self._app_J), 2))
        rows = zip(*(limits[name].tolist() for name in Ranges._fields), strict=True)
        for row, (app, values) in enumerate(zip(self._app_J, rows, strict=True)):
            ranges = Ranges(*values)
            if (app.name, ranges) not in known:
                known[app.name, ranges] = least(app, ranges, self._room)
            table[row] = known[app.name, ranges]
        run_ms, gpu_ms = np.floor(table * MS_PER_S).astype(np.int64).T
        return frozen(run_ms.copy()), frozen(gpu_ms.copy())

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return [
            "Step times and gradients are those measured for each job's application; a job ends when it has made the "
            "progress of the fastest validated run (truth: measured). Every GPU is as fast as those measured."
        ]


def packed(gpus: int, width: int) -> tuple[int, ...]:
    """GPUs per node of a gang on as few nodes of ``width`` GPUs as hold it."""
    full, rest = divmod(gpus, width)
    return (width,) * full + ((rest,) if rest else ())


def _applications_of(trace: Trace, applications: dict[str, Application]) -> list[Application]:
    found = []
    for row, code in enumerate(trace.profile.tolist()):
        name = trace.profiles[code] if code != NONE else ""
        where = f"{trace.name}: job {trace.job_id[row]}"
        if name not in applications:
            what = f"application {name!r}" if name else "no application"
            raise ConfigError(f"{where} names {what}, expected one that was measured: {', '.join(applications)}")
        app, gpus, batch = applications[name], int(trace.gpus[row]), int(trace.batch[row])
        if not app.batch_min <= batch <= app.batch_max:
            raise ConfigError(
                f"{where} asks for a batch of {batch}, {name} was measured with {app.batch_min} to {app.batch_max}"
            )
        if gpus > min(batch, GPUS_MAX):
            raise ConfigError(f"{where} asks for {gpus} GPUs, expected at most {min(batch, GPUS_MAX)}")
        found.append(app)
    return found
