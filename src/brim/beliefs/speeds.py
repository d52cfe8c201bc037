"""Speeds of the jobs of a snapshot on any number of GPUs: fits of ``throughput`` to the jobs' reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np

from brim.beliefs.analyser import ExchangeTimes
from brim.beliefs.throughput import ALPHA_N, ALPHA_R, GAMMA, GAMMA_TYPICAL, PARAMETERS, Fit, Observations, fit_all
from brim.core.arrays import BoolArray, FloatArray, IntArray, frozen
from brim.core.snapshot import Snapshot
from brim.core.tables import SeenSteps

_FITS_KEPT: Final = 20_000
"""Number of cached fits, besides those of one snapshot: they depend only on observations, most of which do not change
between rounds."""

_Told: TypeAlias = tuple[slice | IntArray, FloatArray | None]
"""What is known about a job: rows of reports, and parameters known beforehand."""
_Asked: TypeAlias = tuple[bytes, FloatArray | None]
"""A block of reports, and parameters known beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Fitted speeds of the jobs of one snapshot (J).

    Attributes:
        parameters: Step-time parameters (J, P), NaN where not known.
        known: Whether step times were reported and fit the model (J,).
        failed: Whether step times were reported that do not fit the model (J,).
        gpus_seen: Most GPUs in the reports, 0 for none (J,).
    """

    parameters: FloatArray
    known: BoolArray
    failed: BoolArray
    gpus_seen: IntArray


@dataclass(frozen=True, slots=True)
class SeenSpeeds:
    """Fits step times to reports. Pure: its cache only saves time, and ``failures`` is only for reports.

    Attributes:
        library: Parameters (P,) of models known beforehand, by profile code; read by ``of_models``.
        failures: Why step times could not be fitted, by job id.
    """

    library: Mapping[int, FloatArray] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    _fits: dict[bytes, tuple[Fit, int]] = field(default_factory=dict, repr=False, compare=False)

    def of_jobs(self, snapshot: Snapshot) -> Speeds:
        """Speeds of each job from its own reports."""
        return self._speeds(snapshot, {row: (own, None) for row, own in _own_reports(snapshot.seen).items()})

    def of_models(self, snapshot: Snapshot, exchange: ExchangeTimes | None = None) -> Speeds:
        """Speeds of each job from the reports of all jobs of its model, including jobs that have ended.

        Parameters without observations come from the library if it has the model; otherwise, with ``exchange``, an
        exchange is expected to take as long as the cluster takes for the same number of bytes.
        """
        seen, jobs = snapshot.seen, snapshot.jobs
        told: dict[int, _Told] = {
            row: (own, _exchanging(exchange, int(jobs.gradient_bytes[row])))
            for row, own in _own_reports(seen).items() if jobs.profile[row] < 0
        }
        for profile in np.unique(jobs.profile[jobs.profile >= 0]).tolist():
            of_model = np.flatnonzero(seen.profile == profile)
            if len(of_model) or profile in self.library:
                rows = np.flatnonzero(jobs.profile == profile)
                for row, size in zip(rows.tolist(), jobs.gradient_bytes[rows].tolist(), strict=True):
                    told[row] = of_model, self.library[profile] if profile in self.library else _exchanging(
                        exchange, size
                    )
        return self._speeds(snapshot, told)

    def _speeds(self, snapshot: Snapshot, told: Mapping[int, _Told]) -> Speeds:
        """Fit what is known about some job rows; nothing is known about the others."""
        seen, size = snapshot.seen, len(snapshot.jobs)
        parameters = np.full((size, len(PARAMETERS)), np.nan)
        known, failed = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        gpus_seen = np.zeros(size, dtype=np.int64)
        columns = (seen.nodes, seen.gpus, seen.local_batch, seen.step_s, seen.sync_s)
        block: FloatArray = np.stack(columns, axis=1, dtype=np.float64)
        data, row_bytes = block.tobytes(), block.itemsize * len(columns)
        found: dict[int, FloatArray] = {}
        asked: dict[int, _Asked] = {}
        for row, (where, prior) in sorted(told.items(), key=itemgetter(0)):
            if isinstance(where, slice):
                part = data[where.start * row_bytes : where.stop * row_bytes]
            else:
                part = block[where].tobytes()
            if part:
                asked[row] = part, prior
            elif prior is not None and np.isfinite(prior).all():
                found[row] = prior
        for row, (fitted, most) in zip(asked, self._fitted(asked.values()), strict=True):
            gpus_seen[row] = most
            if fitted.ok:
                found[row] = fitted.parameters
            else:
                failed[row] = True
                self.failures[int(snapshot.jobs.id[row])] = f"{fitted.status}, residual {fitted.residual:.3g}"
        if found:
            rows = list(found)
            parameters[rows], known[rows] = list(found.values()), True
        return Speeds(parameters=parameters, known=known, failed=failed, gpus_seen=gpus_seen)

    def _fitted(self, asked: Collection[_Asked]) -> list[tuple[Fit, int]]:
        """The fit of each block of reports with its prior, and the most GPUs in the reports."""
        keys = [part if prior is None else part + prior.tobytes() for part, prior in asked]
        new = {key: each for key, each in zip(keys, asked, strict=True) if key not in self._fits}
        if new and len(self._fits) + len(new) > _FITS_KEPT:
            self._fits.clear()
            new = dict(zip(keys, asked, strict=True))
        self._fits.update(zip(new, _fit_new(new.values()), strict=True))
        return [self._fits[key] for key in keys]


def _fit_new(asked: Collection[_Asked]) -> list[tuple[Fit, int]]:
    """Fit blocks of reports; where a prior says nothing about computing, the job's own reports do."""
    blocks = [np.frombuffer(part).reshape(-1, 5) for part, _ in asked]
    observations = [Observations(
        nodes=block[:, 0].astype(np.int64), gpus=block[:, 1].astype(np.int64), local_batch=block[:, 2],
        step_s=block[:, 3], sync_s=block[:, 4],
    ) for block in blocks]
    priors = [prior for _, prior in asked]
    partial = {at: prior for at, prior in enumerate(priors) if prior is not None and not np.isfinite(prior).all()}
    own = fit_all([observations[at] for at in partial], [None] * len(partial))
    for (at, prior), fitted in zip(partial.items(), own, strict=True):
        priors[at] = np.where(np.isfinite(prior), prior, fitted.parameters)
    most = [int(seen.gpus.max()) for seen in observations]
    return list(zip(fit_all(observations, priors), most, strict=True))


def _own_reports(seen: SeenSteps) -> dict[int, slice]:
    """Rows of each job's own reports, by job row; jobs without reports are left out."""
    job = seen.job[: np.count_nonzero(seen.job >= 0)]  # those of jobs that have ended come last
    first = np.flatnonzero(np.diff(job, prepend=-1))
    return {
        int(job[start]): slice(start, stop)
        for start, stop in zip(first.tolist(), [*first[1:].tolist(), len(job)], strict=True)
    } if len(job) else {}


@lru_cache(maxsize=1024)
def _exchanging(exchange: ExchangeTimes | None, num_bytes: int) -> FloatArray | None:
    """Exchange parameters from the cluster's table for this many bytes; NaN for computing (P,)."""
    if exchange is None or num_bytes < 0:
        return None
    found = np.full(len(PARAMETERS), np.nan)
    found[GAMMA] = GAMMA_TYPICAL
    for alpha, most, nodes in ((ALPHA_R, exchange.gpus_per_node, 1), (ALPHA_N, int(exchange.gpus_K[-1]), 2)):
        two = exchange.all_reduce_s(num_bytes, 2, nodes)
        all_of_them = exchange.all_reduce_s(num_bytes, most, -(-most // exchange.gpus_per_node))
        found[alpha : alpha + 2] = two, max(all_of_them - two, 0.0) / np.log2(most - 1) if most > 2 else 0.0
    return frozen(found)
