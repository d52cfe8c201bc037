"""How fast the input pipeline of a job delivers samples, by the number of its loader workers, and what limits it.

A rank computes ``rate_per_s`` samples per second if it never waits. Its loader workers deliver as many as CPU, storage
and the serial part in the main process allow; near the point where both are equal, jitter makes both wait, which the
exponent ``knee`` describes (infinite: an ideal pipeline).

Source:
    Ours (A-Dloader, IEEE CLOUD 2022, publishes no model), after DS-Analyzer (VLDB 2021) and Synergy (OSDI 2022).

Shapes: J jobs, S observations, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from brim.compiled import internal, njit
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.snapshot import Snapshot
from brim.errors import ConfigError

PARAMETERS: Final = ("rate_per_s", "cpu_s", "serial_s", "sample_bytes", "dataset_bytes", "knee")
"""Samples per second of one rank that never waits; seconds of one core, and serial seconds of the main process, per
sample; stored bytes of a sample and of all samples, 0 where not known; the exponent of the knee."""
RATE, CPU, SERIAL, SAMPLE_BYTES, DATASET_BYTES, KNEE = range(len(PARAMETERS))
KNEE_TYPICAL: Final = 6.0
"""Where no observation tells. Ours."""
KNEE_MIN, KNEE_MAX = 2.0, 20.0
NOTHING, REPORTS, PROFILE, CORRECTED = range(4)
"""On what the parameters of a job rest: on nothing; on the wait it reports; on the profile of its model; on that
profile, corrected by the wait it reports."""
BASES: Final = ("nothing", "reports", "profile", "profile and reports")
GPU_BOUND, CPU_BOUND, IO_BOUND, SERIAL_BOUND = range(4)
_WAIT_MIN: Final = 0.02
"""Waits below this part of a step do not tell by how much the supply exceeds the demand. Ours."""
_WAIT_MAX: Final = 0.999
_WRONG: Final = 0.1
"""A profile is corrected if the speed that follows from a reported wait differs by more than this part. Ours."""


@internal
def supply_of(workers: float, cpu_s: float, serial_s: float, bytes_per_s: float, sample_bytes: float) -> float:
    """Samples per second that workers deliver to a rank; without workers the main process loads by itself."""
    supply = np.inf
    if workers > 0:
        if cpu_s > 0:
            supply = workers / cpu_s
        if serial_s > 0:
            supply = min(supply, 1 / serial_s)
    elif cpu_s + serial_s > 0:
        supply = 1 / (cpu_s + serial_s)
    if sample_bytes > 0:
        supply = min(supply, bytes_per_s / sample_bytes)
    return supply


@internal
def rate_of(
    workers: float, rate_per_s: float, cpu_s: float, serial_s: float, knee: float, bytes_per_s: float,
    sample_bytes: float,
) -> float:
    """Samples per second at which a rank trains; see ``rates``."""
    supply = supply_of(workers, cpu_s, serial_s, bytes_per_s, sample_bytes)
    if supply <= 0 or rate_per_s <= 0:
        return 0.0
    if workers <= 0:  # loading and computing take turns
        return 1 / (1 / rate_per_s + 1 / supply)
    ratio = rate_per_s / supply
    if ratio > 1:  # the larger term outside, so that no power overflows
        return float(supply * (1 + ratio**-knee) ** (-1 / knee))
    return float(rate_per_s * (1 + ratio**knee) ** (-1 / knee))


@njit
def rates(parameters: FloatArray, workers: FloatArray, bytes_per_s: FloatArray) -> FloatArray:
    """Samples per second at which one rank of each job trains (J,).

    Args:
        parameters: ``PARAMETERS`` of each job (J, P).
        workers: Loader workers of a rank with a core each; fractions for workers that share cores (J,).
        bytes_per_s: What storage gives one rank (J,), infinite where it does not limit.
    """
    rate = np.empty(len(parameters))
    for j in range(len(parameters)):
        each = parameters[j]
        rate[j] = rate_of(
            workers[j], each[RATE], each[CPU], each[SERIAL], each[KNEE], bytes_per_s[j], each[SAMPLE_BYTES]
        )
    return rate


def bound_by(parameters: FloatArray, workers: float, bytes_per_s: float = np.inf) -> int:
    """What limits one job most: ``GPU_BOUND``, ``CPU_BOUND``, ``IO_BOUND`` or ``SERIAL_BOUND``.

    Only more workers help a job that is CPU-bound, and only that job.
    """
    with np.errstate(divide="ignore"):
        limits = np.array((
            parameters[RATE], workers / parameters[CPU] if parameters[CPU] else np.inf,
            bytes_per_s / parameters[SAMPLE_BYTES] if parameters[SAMPLE_BYTES] else np.inf,
            1 / parameters[SERIAL] if parameters[SERIAL] else np.inf,
        ))
    return int(limits.argmin())


def waits(parameters: FloatArray, workers: FloatArray) -> FloatArray:
    """Part of its step time that a rank of each job waits for data (J,)."""
    rate = rates(parameters, workers, np.full(len(parameters), np.inf))
    with np.errstate(divide="ignore", invalid="ignore"):
        waited: FloatArray = 1 - rate / parameters[:, RATE]
    return waited


# --- fits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingFit:
    """A fit.

    Attributes:
        parameters: ``PARAMETERS`` (P,); bytes are 0, because the speeds alone do not tell them.
        residual: Root mean square logarithmic error of the speeds.
        points: Number of speeds.
    """

    parameters: FloatArray
    residual: float
    points: int


def fit_training(workers: FloatArray, per_s: FloatArray) -> LoadingFit:
    """Fit speeds of training on one rank by its loader workers.

    Such speeds do not tell computing from the serial part: all of it counts as computing. If speed does not depend on
    the workers, the CPU time found says no more than that the fewest were enough.

    Args:
        workers: Loader workers, from 1 up (S,).
        per_s: Samples per second (S,).

    Raises:
        ConfigError: fewer than two speeds, or one that is not above 0.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - a quarter of a second that most replays do not need

    workers, per_s = _checked(workers, per_s, least=1)

    def error(x: FloatArray) -> FloatArray:
        rate, cpu, knee = np.exp(x)
        found = _row(rate, cpu, 0.0, knee)
        predicted = rates(np.tile(found, (len(workers), 1)), workers, np.full(len(workers), np.inf))
        difference: FloatArray = np.log(predicted / per_s)
        return difference

    most = float(per_s.max())
    low = np.log((most * 0.5, 1e-12, KNEE_MIN))
    high = np.log((most * 10, 1e6, KNEE_MAX))
    best = min(
        (least_squares(error, np.log((most * 1.02, cpu, knee)), bounds=(low, high))
         for knee in (3.0, KNEE_TYPICAL, 15.0) for cpu in (float((workers / per_s).min()), 0.5 / most)),
        key=lambda tried: round(float(tried.cost), 9),
    )
    rate, cpu, knee = np.exp(best.x)
    return LoadingFit(
        parameters=_row(rate, cpu, 0.0, knee), residual=float(np.sqrt(np.mean(best.fun**2))), points=len(workers)
    )


def fit_supply(workers: FloatArray, per_s: FloatArray, rate_per_s: float) -> LoadingFit:
    """Fit how many samples a loader delivers if they are taken as fast as they come, by its workers.

    Up to some number of workers the supply is in proportion to them, beyond it is constant. A supply that never
    becomes constant shows no serial part, unless the supply without workers does.

    Args:
        workers: Loader workers, 0 for loading in the main process (S,).
        per_s: Samples per second (S,).
        rate_per_s: Samples per second of one rank that never waits.

    Raises:
        ConfigError: fewer than two speeds, or one that is not above 0.
    """
    workers, per_s = _checked(workers, per_s, least=0)
    apart = workers > 0
    tried = []
    for most in np.unique(workers[apart]):
        scaled, flat = apart & (workers <= most), workers > most
        cpu = float(np.exp(np.mean(np.log(workers[scaled] / per_s[scaled]))))
        alone = float(np.mean(1 / per_s[~apart])) - cpu if (~apart).any() else 0.0
        serial = float(np.exp(np.mean(np.log(1 / per_s[flat])))) if flat.any() else max(0.0, alone)
        serial = min(serial, float(1 / per_s[scaled].max())) if not flat.any() else serial
        row = _row(rate_per_s, cpu, serial, KNEE_TYPICAL)
        predicted = np.array([_supply(row, each) for each in workers])
        residual = float(np.sqrt(np.mean(np.log(predicted / per_s) ** 2)))
        tried.append(LoadingFit(parameters=row, residual=residual, points=len(workers)))
    return min(tried, key=lambda each: each.residual)


def _supply(row: FloatArray, workers: float) -> float:
    if workers == 0:
        return float(1 / (row[CPU] + row[SERIAL]))
    return float(min(workers / row[CPU], 1 / row[SERIAL] if row[SERIAL] else np.inf))


def _checked(workers: FloatArray, per_s: FloatArray, least: int) -> tuple[FloatArray, FloatArray]:
    workers, per_s = np.asarray(workers, dtype=np.float64), np.asarray(per_s, dtype=np.float64)
    if len(np.unique(workers)) < 2:
        raise ConfigError(f"loader speeds: found {len(np.unique(workers))} numbers of workers, expected two or more")
    if not (np.isfinite(per_s).all() and (per_s > 0).all() and (workers >= least).all() and (workers > 0).any()):
        raise ConfigError(
            f"loader speeds: found {per_s.tolist()} with {workers.tolist()} workers, expected speeds above 0 and "
            f"workers from {least} up"
        )
    return workers, per_s


def _row(rate: float, cpu: float, serial: float, knee: float) -> FloatArray:
    return np.array((rate, cpu, serial, 0.0, 0.0, knee))


# --- beliefs about the jobs of a snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What is believed of the loaders of the jobs of one snapshot.

    Attributes:
        parameters: ``PARAMETERS`` (J, P), NaN where nothing is known.
        basis: One of ``BASES`` by its number (J,).
    """

    parameters: FloatArray
    basis: IntArray


@dataclass(frozen=True, slots=True)
class Loading:
    """Believes profiles of models, corrects them by the waits that jobs report, and guesses nothing of other jobs.

    Attributes:
        library: Parameters (P,) of models known beforehand, by profile code.
        disk_bytes_per_s: What the storage of one node delivers; infinite where not known: it then limits no job.
    """

    library: Mapping[int, FloatArray] = field(default_factory=dict)
    disk_bytes_per_s: float = np.inf

    def of_jobs(self, snapshot: Snapshot, workers_seen: IntArray, wait_seen: FloatArray) -> Demands:
        """Parameters of each job.

        A job without a profile that reports how long it waits is known in proportion only: its speed without waiting
        counts as 1.

        Args:
            snapshot: The jobs.
            workers_seen: Loader workers with which each job last reported a wait, 0 for none (J,).
            wait_seen: Part of its step time that it then waited; NaN for none (J,).
        """
        jobs = snapshot.jobs
        parameters = np.full((len(jobs), len(PARAMETERS)), np.nan)
        basis = np.full(len(jobs), NOTHING, dtype=np.int64)
        for profile in np.unique(jobs.profile).tolist():
            if profile in self.library:
                of_model = jobs.profile == profile
                parameters[of_model], basis[of_model] = self.library[profile], PROFILE
        reported = (workers_seen > 0) & np.isfinite(wait_seen)
        told = np.flatnonzero(reported & (basis == NOTHING))
        if len(told):
            supply = supply_from_wait(np.ones(len(told)), wait_seen[told], np.full(len(told), KNEE_TYPICAL))
            parameters[told] = _row(1.0, np.nan, 0.0, KNEE_TYPICAL)
            parameters[told, CPU] = workers_seen[told] / supply
            basis[told] = REPORTS
        rows = np.flatnonzero(reported & (basis == PROFILE))
        if len(rows):
            right = self._corrected(parameters[rows], workers_seen[rows].astype(np.float64), wait_seen[rows])
            basis[rows[(right != parameters[rows]).any(axis=1)]] = CORRECTED
            parameters[rows] = right
        return Demands(parameters=parameters, basis=basis)

    def _corrected(self, profiles: FloatArray, workers: FloatArray, wait: FloatArray) -> FloatArray:
        """Profiles whose binding limit follows from the wait reported, where it differs much from the wait expected."""
        expected = waits(profiles, workers)
        right = profiles.copy()
        wrong = np.abs((1 - wait) / (1 - expected) - 1) > _WRONG
        supply = supply_from_wait(profiles[:, RATE], wait, profiles[:, KNEE])
        for j in np.flatnonzero(wrong).tolist():
            serial = bound_by(profiles[j], workers[j]) == SERIAL_BOUND
            right[j, SERIAL if serial else CPU] = (1.0 if serial else workers[j]) / supply[j]
        return right


def tells_more(workers: IntArray, wait: FloatArray, workers_before: IntArray, wait_before: FloatArray) -> BoolArray:
    """Whether a report of waiting tells more of a job than one before (J,).

    A job that hardly waits may need far fewer workers than it has. Its report is only a bound of what it needs, and
    one with fewer workers that agrees with the bound tells more.

    Args:
        workers: Loader workers, >= 1 (J,).
        wait: Part of a step that was waited (J,).
        workers_before: Workers with the report before, 0 for none (J,).
        wait_before: What was waited then (J,).
    """
    ones, knee = np.ones(len(workers)), np.full(len(workers), KNEE_TYPICAL)
    bound, before = (
        had / supply_from_wait(ones, waited, knee) for had, waited in ((workers, wait), (workers_before, wait_before))
    )
    more: BoolArray = (wait >= _WAIT_MIN) | (workers_before == 0) | ~(before <= bound)
    return more


def supply_from_wait(rate_per_s: FloatArray, wait: FloatArray, knee: FloatArray) -> FloatArray:
    """Samples per second delivered to ranks that wait this part of each step: the inverse of ``waits`` (J,)."""
    speed = 1 - np.clip(wait, _WAIT_MIN, _WAIT_MAX)
    supply: FloatArray = rate_per_s / (speed**-knee - 1) ** (1 / knee)
    return supply
