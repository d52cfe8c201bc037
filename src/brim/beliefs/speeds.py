"""Speeds of the jobs of a snapshot on any number of GPUs: fits of ``throughput`` to the jobs' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
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

_Prior: TypeAlias = FloatArray | None
"""Parameters of a job known beforehand, NaN where not known."""


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
    _fits: dict[bytes, bytes] = field(default_factory=dict, repr=False, compare=False)
    _faults: dict[bytes, str] = field(default_factory=dict, repr=False, compare=False)

    def copy(self) -> SeenSpeeds:
        """Return the same model with a cache of its own, for another thread."""
        return SeenSpeeds(self.library, dict(self.failures), dict(self._fits), dict(self._faults))

    def of_jobs(self, snapshot: Snapshot) -> Speeds:
        """Speeds of each job from its own reports."""
        rows, parts = _own_reports(snapshot.seen)
        return self._speeds(snapshot, rows, parts, [None] * len(rows))

    def of_models(self, snapshot: Snapshot, exchange: ExchangeTimes | None = None) -> Speeds:
        """Speeds of each job from the reports of all jobs of its model, including jobs that have ended.

        Parameters without observations come from the library if it has the model; otherwise, with ``exchange``, an
        exchange is expected to take as long as the cluster takes for the same number of bytes.
        """
        seen, jobs = snapshot.seen, snapshot.jobs
        block, num_bytes, profiles = _block(seen), jobs.gradient_bytes.tolist(), jobs.profile.tolist()
        own = [(row, part) for row, part in zip(*_own_reports(seen), strict=True) if profiles[row] < 0]
        rows, parts = [row for row, _ in own], [part for _, part in own]
        priors = [_exchanging(exchange, num_bytes[row]) for row in rows]
        for profile in np.unique(jobs.profile[jobs.profile >= 0]).tolist():
            of_model = (seen.profile == profile) & (seen.gpus > 0)
            if of_model.any() or profile in self.library:
                more = np.flatnonzero(jobs.profile == profile).tolist()
                rows += more
                parts += [block[of_model].tobytes()] * len(more)
                priors += [
                    self.library[profile] if profile in self.library else _exchanging(exchange, num_bytes[row])
                    for row in more
                ]
        return self._speeds(snapshot, rows, parts, priors)

    def _speeds(self, snapshot: Snapshot, rows: list[int], parts: list[bytes], priors: list[_Prior]) -> Speeds:
        """Fit reports and priors of some job rows; nothing is known about the others.

        Lists of bytes and not of pairs, because thousands of pairs in every round bring on full garbage collections;
        so do thousands of fits that are kept.
        """
        size = len(snapshot.jobs)
        parameters = np.full((size, len(PARAMETERS)), np.nan)
        known, failed = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        gpus_seen = np.zeros(size, dtype=np.int64)
        if not rows:
            return Speeds(parameters=parameters, known=known, failed=failed, gpus_seen=gpus_seen)
        keys = [part if prior is None else part + prior.tobytes() for part, prior in zip(parts, priors, strict=True)]
        fits = self._fitted(keys, parts, priors)
        found, fits_well, gpus_seen[rows] = fits[:, : len(PARAMETERS)], fits[:, -2] != 0, fits[:, -1]
        reported = np.fromiter(map(len, parts), np.int64, len(parts)) > 0
        known[rows] = fits_well | (~reported & np.isfinite(found).all(axis=1))
        failed[rows] = reported & ~fits_well
        parameters[rows] = np.where(known[rows, None], found, np.nan)
        for at in np.flatnonzero(reported & ~fits_well).tolist():
            self.failures[int(snapshot.jobs.id[rows[at]])] = self._faults[keys[at]]
        return Speeds(parameters=parameters, known=known, failed=failed, gpus_seen=gpus_seen)

    def _fitted(self, keys: list[bytes], parts: list[bytes], priors: list[_Prior]) -> FloatArray:
        """Parameters of each block of reports with its prior, whether they fit, and the most GPUs in it (F, P + 2)."""
        new = {key: at for at, key in enumerate(keys) if key not in self._fits}
        if new and len(self._fits) + len(new) > _FITS_KEPT:
            self._fits.clear()
            self._faults.clear()
            new = {key: at for at, key in enumerate(keys)}
        told = [(parts[at], priors[at]) for at in new.values()]
        for key, (fitted, most) in zip(new, _fit_new(told), strict=True):
            self._fits[key] = np.append(fitted.parameters, (fitted.ok, most)).tobytes()
            if not fitted.ok:
                self._faults[key] = f"{fitted.status}, residual {fitted.residual:.3g}"
        return np.frombuffer(b"".join([self._fits[key] for key in keys])).reshape(len(keys), -1)


def _fit_new(told: Sequence[tuple[bytes, _Prior]]) -> list[tuple[Fit, int]]:
    """Fit blocks of reports; where a prior says nothing about computing, the job's own reports do."""
    blocks = [np.frombuffer(part).reshape(-1, 5) for part, _ in told]
    observations = [Observations(
        nodes=block[:, 0].astype(np.int64), gpus=block[:, 1].astype(np.int64), local_batch=block[:, 2],
        step_s=block[:, 3], sync_s=block[:, 4],
    ) for block in blocks]
    priors = [prior for _, prior in told]
    partial = {at: prior for at, prior in enumerate(priors) if prior is not None and not np.isfinite(prior).all()}
    own = fit_all([observations[at] for at in partial], [None] * len(partial))
    for (at, prior), fitted in zip(partial.items(), own, strict=True):
        priors[at] = np.where(np.isfinite(prior), prior, fitted.parameters)
    most = [int(seen.gpus.max(initial=0)) for seen in observations]
    return list(zip(fit_all(observations, priors), most, strict=True))


def _own_reports(seen: SeenSteps) -> tuple[list[int], list[bytes]]:
    """Job rows and the memory of their own reports; jobs without reports are left out."""
    own = (seen.job >= 0) & (seen.gpus > 0)
    job = seen.job[own]
    first = np.flatnonzero(np.diff(job, prepend=-1))
    block = np.ascontiguousarray(_block(seen)[own])
    data, ends = block.tobytes(), np.append(first, len(job)) * block.itemsize * block.shape[1]
    return job[first].tolist(), [data[start:stop] for start, stop in pairwise(ends.tolist())]


def _block(seen: SeenSteps) -> FloatArray:
    """The reports as ``Observations``, in columns (S, 5)."""
    columns = (seen.nodes, seen.gpus, seen.local_batch, seen.step_s, seen.sync_s)
    block: FloatArray = np.stack(columns, axis=1, dtype=np.float64)
    return block


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
