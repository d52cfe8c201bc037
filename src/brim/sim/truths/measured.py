"""Truth ``measured``: every job of the trace names an application whose steps and gradients were measured.

Work is counted as progress in iterations of the application's initial batch, as in the published Pollux simulator.
"""

from __future__ import annotations

from bisect import bisect_right
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
from brim.sim.truths.least import PlacementLimits, Ranges, least
from brim.sim.truths.profiles import Application
from brim.sim.truths.truth import ALONE, Colocation, Pace, packed
from brim.units import MS_PER_S, WHOLE_GPU, counted

GPUS_MAX: Final = 64
"""Most GPUs of one job that were measured."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One configuration of one application in one epoch."""

    per_ms: float
    samples_per_s: float
    grad_var: float
    grad_sqr: float
    seen: tuple[Sample, ...]
    measured: bool


@dataclass(frozen=True, slots=True)
class _OneGpu:
    """Steps of an application on one GPU, without noise."""

    app: Application

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """See ``Steps``."""
        if local_batch > self.app.local_batch_max:
            return None
        try:
            return [self.app.step_times.times_s((1,), local_batch)[0]] * steps
        except ConfigError:
            return None


class Measured:
    """Each job runs as its application did when it was measured. See ``sim.truths.truth.Truth``.

    Ranks are numbered from the node with the most of the gang's GPUs to the one with the fewest, as in the placements
    that were measured on several nodes. The order matters up to rotation: ``244`` and ``424`` took the same time,
    ``2244`` and ``2424`` did not.

    Args:
        trace: Trace that names an application and a global batch for every job.
        cluster: Cluster of the replay; its GPUs are assumed to be those that were measured.
        applications: Applications by name.

    Raises:
        ConfigError: a job names no measured application, or asks for GPUs or a batch on which it cannot run.
    """

    name: ClassVar[str] = "measured"
    contended: ClassVar[bool] = False

    def __init__(self, trace: Trace, cluster: Cluster, applications: dict[str, Application]) -> None:
        self._trace = trace
        self._gpus_max = min(cluster.num_gpus, GPUS_MAX)
        self._width = int(cluster.gpus_N.max())
        self._limits = PlacementLimits(cluster.num_nodes, self._width)
        self._app_J = _applications_of(trace, applications, self._width)
        self._stages: dict[tuple[str, tuple[int, ...], int, int], _Stage] = {}
        self._beyond: set[int] = set()  # jobs that ran in configurations that were not measured
        self._progress = {app.name: app.progress_E.tolist() for app in applications.values()}

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``; work is progress in iterations of the initial batch."""
        app = self._app_J[job]
        ends = self._progress[app.name]
        epoch = min(bisect_right(ends, done), len(ends) - 1)
        stage = self._stage(app, nodes, batch, epoch)
        if not stage.measured:
            self._beyond.add(job)
        report = Report(
            samples_done=done * app.batch_min, samples_per_s=stage.samples_per_s, grad_var=stage.grad_var,
            grad_sqr=stage.grad_sqr, seen=stage.seen,
        )
        return Pace(stage.per_ms, ends[epoch], epoch == len(ends) - 1, report)

    def _stage(self, app: Application, nodes: tuple[int, ...], batch: int, epoch: int) -> _Stage:
        key = (app.name, nodes, batch, epoch)
        found = self._stages.get(key)
        if found is None:
            nodes, gpus = tuple(sorted(nodes, reverse=True)), sum(nodes)
            local_batch, accumulation = app.split(gpus, batch)
            rate = app.rate(nodes, local_batch, accumulation, epoch)
            variance, square = app.gradient(gpus * local_batch * (accumulation + 1), epoch)
            sample = Sample(len(nodes), gpus, local_batch, *app.times_s(nodes, local_batch))
            found = self._stages[key] = _Stage(
                rate / MS_PER_S, rate * app.batch_min, variance, square, (sample,), app.measured(nodes, local_batch),
            )
        return found

    def steps(self, job: int) -> Steps:
        """See ``HasStepTimes``: the measured times of one GPU; batches that were not measured there do not fit."""
        return _OneGpu(self._app_J[job])

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``: elastic jobs may run on any number of GPUs that was measured."""
        rows = []
        for row, app in enumerate(self._app_J):
            gpus, batch = int(self._trace.gpus[row]), int(self._trace.batch[row])
            widest = self._gpus_max if app.step_times.exchanges else 1
            low, high = (1, widest) if app.elastic else (gpus, gpus)
            least, most = (app.batch_min, app.batch_max) if app.elastic else (batch, batch)
            high = max(gpus, min(high, most // app.local_batch_min))  # it can always run on what its user asked for
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
        """See ``Truth``, and ``sim.truths.least`` for why it is a bound."""
        return self._least_ms[0]

    @property
    def least_gpu_ms(self) -> IntArray:
        """See ``Truth``, and ``sim.truths.least`` for why it is a bound; shares of GPUs counted as shares."""
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
                known[app.name, ranges] = least(app, ranges, self._limits)
            table[row] = known[app.name, ranges]
        run_ms, gpu_ms = np.floor(table * MS_PER_S).astype(np.int64).T
        return frozen(run_ms.copy()), frozen(gpu_ms.copy())

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        said = []
        if self._beyond:
            first = self._trace.job_id[min(self._beyond)]
            said = [
                f"{len(self._beyond)} of {len(self._app_J)} jobs ran at times on GPUs or batches that were not "
                f"measured (first: job {first}); step times there are extrapolated by the fitted throughput model."
            ]
        return [
            *said,
            "Step times and gradients are those measured for each job's application; a job ends when it has made the "
            "progress of the fastest validated run (truth: measured). Every GPU is as fast as those measured."
        ]


def without_unmeasured(
    trace: Trace, cluster: Cluster, applications: dict[str, Application]
) -> tuple[Trace, tuple[str, ...]]:
    """Leave out the jobs that cannot run because of what was not measured.

    Returns:
        The remaining trace, and a sentence about the jobs left out, if any.

    Raises:
        ConfigError: no job is left.
    """
    width = int(cluster.gpus_N.max())
    problems = [_problem(trace, row, applications, width) for row in range(len(trace))]
    rows = np.flatnonzero([bool(problem) for problem in problems])
    if not len(rows):
        return trace, ()
    if len(rows) == len(trace):
        raise ConfigError(f"{trace.name}: {problems[0]}")
    note = f"{len(rows)} of {len(trace)} jobs are left out: what they need was not measured. {problems[rows[0]]}."
    return trace.take(np.flatnonzero([not problem for problem in problems])), (note,)


def _problem(trace: Trace, row: int, applications: dict[str, Application], width: int) -> str:
    """Return why a job cannot run, as a sentence without its full stop; empty if it can."""
    code, where = int(trace.profile[row]), f"job {trace.job_id[row]}"
    name = trace.profiles[code] if code != NONE else ""
    if name not in applications:
        what = f"application {name!r}" if name else "no application"
        return f"{where} names {what}, expected one that was measured: {', '.join(applications)}"
    app, gpus, batch = applications[name], int(trace.gpus[row]), int(trace.batch[row])
    if not app.batch_min <= batch <= app.batch_max:
        return f"{where} asks for a batch of {batch}, but {name} was measured with {app.batch_min} to {app.batch_max}"
    if gpus > min(batch, GPUS_MAX):
        return f"{where} asks for {counted(gpus, 'GPU')}, expected at most {min(batch, GPUS_MAX)}"
    try:
        app.times_s(packed(gpus, width), app.split(gpus, batch)[0])
    except ConfigError as error:
        return f"{where}: {error}"
    return ""


def _applications_of(trace: Trace, applications: dict[str, Application], width: int) -> list[Application]:
    for row in range(len(trace)):
        problem = _problem(trace, row, applications, width)
        if problem:
            raise ConfigError(f"{trace.name}: {problem}")
    return [applications[trace.profiles[code]] for code in trace.profile.tolist()]
