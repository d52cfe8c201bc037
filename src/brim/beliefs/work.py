"""How much work does a job still have? Only an oracle knows; others may take it that as much is left as was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from brim.core.arrays import FloatArray
from brim.core.snapshot import Snapshot


class Work(Protocol):
    """A model of remaining work."""

    def remaining_samples(self, snapshot: Snapshot) -> FloatArray:
        """Samples each job still needs (``Report.samples_done``), NaN where nothing can be said (J,)."""
        ...


@dataclass(frozen=True, slots=True)
class AsMuchAgain:
    """As much as was done: the median of what is left when nothing but the past is known and long jobs are common.

    Source:
        Harchol-Balter, Downey, Exploiting Process Lifetime Distributions, ACM TOCS 1997: lifetimes with P(T > t) ~ 1/t.
    """

    def remaining_samples(self, snapshot: Snapshot) -> FloatArray:
        """See ``Work``."""
        return np.where(snapshot.jobs.samples_done > 0, snapshot.jobs.samples_done, np.nan)


@dataclass(frozen=True, slots=True)
class TrueWork:
    """The truth, by job id: for policies that declare themselves an oracle."""

    total_samples: FloatArray

    def remaining_samples(self, snapshot: Snapshot) -> FloatArray:
        """See ``Work``; never below nothing, rounding included."""
        return np.maximum(self.total_samples[snapshot.jobs.id] - snapshot.jobs.samples_done, 0.0)
