"""Truth ``parametric``: elastic jobs follow the formulas of beliefs, with parameters that policies do not know.

``beliefs.throughput`` computes an elastic job's step times from its true parameters, and ``beliefs.batching`` the
statistical efficiency of a batch from its true gradient noise. Its work is counted in samples of its initial batch. All
other jobs run as under ``rigid``. ``truths.categories`` draws the parameters for a trace; experiments set their own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from brim.beliefs.analyser import Exchange, Steps
from brim.beliefs.batching import GradientStatistics, Limits, best_batches, fewest_nodes, gain, split
from brim.beliefs.throughput import GAMMA, GAMMA_MAX, PARAMETERS, grad_s, step_s
from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.cluster import Cluster
from brim.core.events import Report, Sample
from brim.core.trace import NONE, Trace
from brim.errors import ConfigError
from brim.sim.truths.rigid import rigid_run_ms
from brim.sim.truths.truth import ALONE, Colocation, Pace, packed
from brim.units import MS_PER_S, WHOLE_GPU

STEP_NOISE: Final = 0.05
"""Standard deviation of the logarithm of reported step times. Our choice; means over a minute of steps vary less."""
_JUST_BELOW: Final = 1 - 2.0**-49
"""Factor that prevents rounding from making a job a millisecond longer than in its trace."""
_MARGIN: Final = 1 - 1e-9
_ROWS_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ElasticJobs:
    """True parameters of the E elastic jobs of a trace; all others are rigid.

    Attributes:
        row: Trace rows, increasing (E,).
        parameters: Step-time parameters of ``beliefs.throughput`` (E, P).
        batch: Global batch as asked (E,).
        batch_min: Initial batch, the smallest allowed (E,).
        batch_max: Largest batch allowed (E,).
        local_batch_min: Fewest samples per GPU and micro-step (E,).
        local_batch_max: Most samples that fit one GPU (E,).
        gpus_min: Fewest GPUs (E,).
        gpus_max: Most GPUs (E,).
        samples: Work in samples of the initial batch (E,); None: as much as makes a job that runs as its user asked, on
            the fewest nodes, take exactly its run time in the trace.
        noise: Gradient statistics at the initial batch; None if every allowed batch is equally good per sample.
        profile: Code of the model, shared by jobs of the same model (E,); None for no models.
        gradient_bytes: Bytes that ranks exchange in each step (E,); None if unknown.

    Raises:
        ConfigError: columns contradict each other; the message names the row.
    """

    row: IntArray
    parameters: FloatArray
    batch: IntArray
    batch_min: IntArray
    batch_max: IntArray
    local_batch_min: IntArray
    local_batch_max: IntArray
    gpus_min: IntArray
    gpus_max: IntArray
    samples: FloatArray | None = None
    noise: GradientStatistics | None = None
    profile: IntArray | None = None
    gradient_bytes: IntArray | None = None

    def __post_init__(self) -> None:
        size = len(self.row)
        for name in self.__slots__:
            for column in (getattr(self, name) or () if name == "noise" else (getattr(self, name),)):
                wanted = (size, len(PARAMETERS)) if name == "parameters" else (size,)
                if column is not None and np.shape(column) != wanted:
                    raise ConfigError(f"elastic jobs: {name} has shape {np.shape(column)}, expected {wanted}")
        p = self.parameters
        within = (self.gpus_min >= 1) & (self.gpus_min <= self.gpus_max)
        asked = (self.batch >= self.batch_min) & (self.batch <= self.batch_max) & (self.gpus_max <= self.batch_max)
        sound = np.isfinite(p).all(axis=1) & (p >= 0).all(axis=1) & (p[:, GAMMA] >= 1) & (p[:, GAMMA] <= GAMMA_MAX)
        sound &= p[:, :2].sum(axis=1) > 0
        work: FloatArray = np.ones(size) if self.samples is None else self.samples
        for good, what in (
            (within, "1 <= gpus_min <= gpus_max"), (asked, "a batch in its range, and a sample for each GPU"),
            (sound, "parameters >= 0, a step time above 0, and gamma from 1 to 10"),
            (np.isfinite(work) & (work > 0), "samples above 0"), (np.diff(self.row, prepend=-1) > 0, "increasing rows"),
        ):
            if not good.all():
                raise ConfigError(f"elastic jobs, row {int(np.argmin(good))}: expected {what}")
        _ = self.limits

    def __len__(self) -> int:
        return len(self.row)

    @property
    def limits(self) -> Limits:
        """The limits on batches, for ``beliefs.batching``."""
        return Limits(
            batch_min=self.batch_min, batch_max=self.batch_max, local_batch_min=self.local_batch_min,
            local_batch_max=self.local_batch_max,
        )

    @property
    def noise_or_nan(self) -> GradientStatistics:
        """Gradient statistics, NaN if there are none."""
        nothing = np.full(len(self), np.nan)
        return self.noise or GradientStatistics(nothing, nothing)


class Parametric:
    """Elastic jobs run by formula, the others as recorded. See ``sim.truths.truth.Truth``.

    Args:
        trace: The trace; its run times are those of the rigid jobs, and of elastic ones if they have no ``samples``.
        cluster: Its largest node determines the fewest nodes of a gang.
        jobs: The elastic jobs.
        seed: Seed of the noise on reported step times, which depends only on the seed, the job's id and its
            configuration.
        step_noise: Standard deviation of the logarithm of that noise.
        said: Sentences for the report on how the jobs were chosen.
        exchange: Times of gradient exchanges on the cluster, consistent with the jobs' parameters; None if unknown.

    Raises:
        ConfigError: a job asks for GPUs outside its limits or for a share of a GPU, or has no run time.
    """

    name: ClassVar[str] = "parametric"
    contended: ClassVar[bool] = False

    def __init__(
        self, trace: Trace, cluster: Cluster, jobs: ElasticJobs, *, seed: int = 0, step_noise: float = STEP_NOISE,
        said: Sequence[str] = (), exchange: Exchange | None = None,
    ) -> None:
        if exchange is not None:
            self.exchange = exchange
        self._trace, self._cluster, self._jobs = trace, cluster, jobs
        self._width = int(cluster.gpus_N.max())
        self._seed, self._step_noise, self._said = seed, step_noise, tuple(said)
        _check(trace, jobs)
        self._at = np.full(len(trace), NONE, dtype=np.int64)
        self._at[jobs.row] = np.arange(len(jobs))
        self._kept: dict[tuple[int, int, int, int], tuple[float, Sample]] = {}
        asked = self._as_asked()
        recorded = trace.run_ms[jobs.row]
        self._samples = np.maximum(recorded, 1) * asked * _JUST_BELOW if jobs.samples is None else jobs.samples
        self._work = trace.run_ms.astype(np.float64)
        self._work[jobs.row] = self._samples
        run_ms = trace.run_ms.copy()
        run_ms[jobs.row] = np.ceil(self._samples / asked)
        self.run_ms = frozen(run_ms)

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``; work is counted in samples of the initial batch, for rigid jobs in milliseconds."""
        if self._at[job] == NONE:
            return Pace(1.0, float(self._work[job]), True, None)
        row = int(self._at[job])
        per_ms, sample = self._configuration(row, len(nodes), sum(nodes), batch)
        var, sqr = self._jobs.noise_or_nan
        report = Report(
            samples_done=done, samples_per_s=per_ms * MS_PER_S, grad_var=float(var[row]), grad_sqr=float(sqr[row]),
            seen=(sample,),
        )
        return Pace(per_ms, float(self._work[job]), True, report)

    def _configuration(self, row: int, nodes: int, gpus: int, batch: int) -> tuple[float, Sample]:
        """Return the work per ms, and a step time as the job reports it."""
        key = (row, nodes, gpus, batch)
        if key not in self._kept:
            jobs, p = self._jobs, self._jobs.parameters[row]
            least, most = jobs.batch_min[row], jobs.batch_max[row]
            local, extra = (int(part) for part in split(gpus, batch, least, most, jobs.local_batch_max[row]))
            grad = GradientStatistics(*(part[row] for part in jobs.noise_or_nan))
            per_ms = float(_per_ms(p, nodes, gpus, local, extra, least, grad))
            noise = math.exp(self._step_noise * self._normal(row, nodes, gpus, local))
            whole, computing = float(step_s(p, nodes, gpus, local)), float(grad_s(p, local))
            sample = Sample(nodes, gpus, local, whole * noise, max(whole - computing, 0.0) * noise)
            self._kept[key] = per_ms, sample
        return self._kept[key]

    def _normal(self, row: int, *where: int) -> float:
        """Return a standard normal number that depends only on the seed, the job's id and ``where``."""
        name = self._trace.job_id[self._jobs.row[row]]
        return float(np.random.default_rng(stable_bits(self._seed, name, *where)).standard_normal())

    def _as_asked(self) -> FloatArray:
        """Return the work per ms of each elastic job at the GPUs and batch its user asked for (E,)."""
        jobs, gpus = self._jobs, self._trace.gpus[self._jobs.row]
        nodes = np.array([len(packed(size, self._width)) for size in gpus.tolist()], dtype=np.int64)
        local, extra = split(gpus, jobs.batch, jobs.batch_min, jobs.batch_max, jobs.local_batch_max)
        return _per_ms(jobs.parameters, nodes, gpus, local, extra, jobs.batch_min, jobs.noise_or_nan)

    def steps(self, job: int) -> Steps:
        """See ``HasStepTimes``."""
        row = int(self._at[job])
        return _OneGpu(
            self._jobs.parameters[row], int(self._jobs.local_batch_max[row]), self._step_noise,
            np.random.default_rng(stable_bits(self._seed, self._trace.job_id[job])),
        )

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``."""
        jobs, trace = self._jobs, self._trace
        columns: dict[str, IntArray] = {"gpus_min": trace.gpus, "gpus_max": trace.gpus}
        for name in ("gpus_min", "gpus_max", "batch", "batch_min", "batch_max", "local_batch_min", "local_batch_max"):
            column = columns.get(name, np.full(len(trace), NONE, dtype=np.int64)).copy()
            column[jobs.row] = getattr(jobs, name)
            columns[name] = frozen(column)
        profile = np.full(len(trace), NONE, dtype=np.int64)
        profile[jobs.row] = NONE if jobs.profile is None else jobs.profile
        gradient_bytes = np.full(len(trace), NONE, dtype=np.int64)
        gradient_bytes[jobs.row] = NONE if jobs.gradient_bytes is None else jobs.gradient_bytes
        return columns | {"profile": frozen(profile), "gradient_bytes": frozen(gradient_bytes)}

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return np.where(self._at == NONE, np.nan, self._work)

    @property
    def shortest_ms(self) -> IntArray:
        """See ``Truth``: at the greatest goodput over all GPUs, batches, and one or several nodes."""
        return self._least_ms[0]

    @property
    def least_gpu_ms(self) -> IntArray:
        """See ``Truth``: at the greatest goodput per GPU over the same."""
        return self._least_ms[1]

    @cached_property
    def _least_ms(self) -> tuple[IntArray, IntArray]:
        """Bounds over all batches, even with fewer samples per GPU than ``local_batch_min``: such jobs run, too."""
        jobs = self._jobs
        run_ms, gpu_ms = self.run_ms.copy(), self._trace.gpu_ms.copy()
        for first in range(0, len(jobs), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            limits = Limits(
                batch_min=jobs.batch_min[part], batch_max=jobs.batch_max[part],
                local_batch_min=np.ones_like(jobs.batch_min[part]), local_batch_max=jobs.local_batch_max[part],
            )
            noise = GradientStatistics(*(column[part] for column in jobs.noise_or_nan))
            gpus_G = np.arange(int(jobs.gpus_max[part].max()) + 1)
            one = fewest_nodes(int(gpus_G[-1]), self._width)
            several = np.maximum(one, np.where((gpus_G > 1) & (self._cluster.num_nodes > 1), 2, one))
            goodput = np.maximum(*(
                best_batches(jobs.parameters[part], nodes_G, limits, noise)[0] for nodes_G in (one, several)
            ))
            allowed = (gpus_G >= jobs.gpus_min[part, None]) & (gpus_G <= jobs.gpus_max[part, None])
            goodput = np.where(allowed, goodput, -np.inf)
            fastest, frugal = goodput.max(axis=1), (goodput / np.maximum(gpus_G, 1)).max(axis=1)
            rows = jobs.row[part]
            for column, rate in ((run_ms, fastest), (gpu_ms, frugal)):
                column[rows] = np.floor(self._samples[part] / rate * MS_PER_S * _MARGIN)
        return frozen(run_ms), frozen(gpu_ms)

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return [
            f"{len(self._jobs):,} of {len(self._trace):,} jobs are elastic and follow a formula whose parameters "
            "policies do not know (truth: parametric); the others run as recorded, whatever the placement.",
            *self._said,
        ]


def _per_ms(
    parameters: FloatArray, nodes: IntArray | int, gpus: IntArray | int, local: IntArray | int, extra: IntArray | int,
    batch_min: IntArray, noise: GradientStatistics,
) -> FloatArray:
    """Return the progress per ms, in samples of the initial batch."""
    gained = gain(np.asarray(gpus * local * (extra + 1)), batch_min, noise)
    per_ms: FloatArray = gained * batch_min / step_s(parameters, nodes, gpus, local, extra) / MS_PER_S
    return per_ms


def _check(trace: Trace, jobs: ElasticJobs) -> None:
    rigid = np.ones(len(trace), dtype=np.bool_)
    if len(jobs):
        if jobs.row[-1] >= len(trace):
            raise ConfigError(f"elastic jobs: row {jobs.row[-1]} does not exist, the trace has {len(trace)} jobs")
        gpus = trace.gpus[jobs.row]
        for wrong, what in (
            ((gpus < jobs.gpus_min) | (gpus > jobs.gpus_max), "asks for GPUs outside its own limits"),
            (trace.share_milli[jobs.row] != WHOLE_GPU, "asks for a share of a GPU, but elastic jobs need whole GPUs"),
        ):
            if wrong.any():
                raise ConfigError(f"{trace.name}: job {trace.job_id[jobs.row[int(np.argmax(wrong))]]} {what}")
        rigid[jobs.row] = jobs.samples is None
    rigid_run_ms(trace.take(np.flatnonzero(rigid)), Parametric.name)


@dataclass(frozen=True, slots=True)
class _OneGpu:
    """Steps on one GPU, with noise."""

    parameters: FloatArray
    local_batch_max: int
    noise: float
    rng: np.random.Generator

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """See ``Steps``."""
        if local_batch > self.local_batch_max:
            return None
        once = float(grad_s(self.parameters, local_batch))
        times: list[float] = (once * np.exp(self.noise * self.rng.standard_normal(steps))).tolist()
        return times


def stable_bits(seed: int, name: str, *where: int) -> int:
    """Return a hash of the arguments, 64 bits, that is the same in every process."""
    text = "/".join(map(str, (seed, *where, name)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
