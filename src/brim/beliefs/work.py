"""Models of a job's remaining work: the truth for oracles, or as much as was already done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from brim.core.arrays import FloatArray
from brim.core.snapshot import Snapshot


class Work(Protocol):
    """A model of remaining work."""

    def remaining_samples(self, snapshot: Snapshot) -> FloatArray:
        """Samples each job still needs (``Report.samples_done``), NaN where not known (J,)."""
        ...


@dataclass(frozen=True, slots=True)
class AsMuchAgain:
    """As much work as was already done: the median when only the past is known and long jobs are common.

    Source:
        Harchol-Balter, Downey, Exploiting Process Lifetime Distributions, ACM TOCS 1997: lifetimes with P(T > t) ~ 1/t.
    """

    def remaining_samples(self, snapshot: Snapshot) -> FloatArray:
        """See ``Work``."""
        return np.where(snapshot.jobs.samples_done > 0, snapshot.jobs.samples_done, np.nan)


@dataclass(frozen=True, slots=True)
class TrueWork:
    """The true work by job id, for policies that declare themselves oracles."""

    total_samples: FloatArray

    def remaining_samples(self, snapshot: Snapshot) -> FloatArray:
        """See ``Work``; never negative, even after rounding."""
        return np.maximum(self.total_samples[snapshot.jobs.id] - snapshot.jobs.samples_done, 0.0)
