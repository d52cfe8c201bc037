"""How long jobs run, from those that ended and those that run: what is left given what a job has run.

Jobs that run now and those that ended count as far as they were watched. A job that had run for a while when the
watching began counts from that age on, and one that still runs up to its age: without both, the jobs that end first,
the short ones, would make all others look short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.arrays import BoolArray, FloatArray

TAIL_POWER: Final = 4.0
"""How fast P(T > t) falls beyond the longest run seen; chosen on one trace (docs/measurements/2026-11-28-eta.md)."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """A distribution of run times: N of them, and what lies beyond all.

    Source:
        Kaplan, Meier, Nonparametric Estimation from Incomplete Observations, JASA 1958; with jobs that come late under
        observation: Tsai, Jewell, Wang, A Note on the Product-Limit Estimator under Left Truncation, Biometrika 1987.
        Beyond the longest, P(T > t) ~ t^-a: Harchol-Balter, Downey, Exploiting Process Lifetime Distributions, ACM TOCS
        1997, with a = 1 for processes; see ``TAIL_POWER``. Ours: one more job is at risk at each run time than
        was seen, so that none is believed to be the longest.

    Attributes:
        run_ms: Run times of jobs that ended, increasing (N,).
        survives: Probability to run longer than each of them, falling, > 0 (N,).
        longest_ms: Where the tail begins: the longest run seen, ended or not.
        jobs: How many ended jobs it rests on.
    """

    run_ms: FloatArray
    survives: FloatArray
    longest_ms: float
    jobs: int

    def at(self, quantile: FloatArray, ran_ms: FloatArray) -> FloatArray:
        """Run times that jobs which have run so long reach with probability 1 - quantile, each > ``ran_ms``.

        Args:
            quantile: Quantiles in [0, 1) (..., J).
            ran_ms: What the jobs have run (J,).
        """
        survives, times = np.concatenate(([1.0], self.survives)), np.append(self.run_ms, self.longest_ms)
        ended = np.searchsorted(self.run_ms, ran_ms, side="right")
        wanted = (1.0 - quantile) * survives[ended]
        among = times[np.maximum(np.searchsorted(-self.survives, -wanted, side="left"), ended)]
        tail = np.maximum(self.longest_ms, ran_ms) * (survives[-1] / wanted) ** (1.0 / TAIL_POWER)
        beyond = ran_ms / (1.0 - quantile) ** (1.0 / TAIL_POWER)
        found = np.where(wanted < survives[-1], tail, among)
        return np.asarray(np.where(ran_ms >= self.longest_ms, beyond, found), dtype=np.float64)


def lifetimes(run_ms: FloatArray, since_ms: FloatArray, has_ended: BoolArray) -> Lifetimes:
    """The distribution of run times that observed jobs speak for.

    Args:
        run_ms: What each job has run, > ``since_ms`` (J,).
        since_ms: What it had run when the watching began, 0 for one that was seen from its start on (J,).
        has_ended: Whether it ended then; the others go on (J,). At least one has.
    """
    times, gone = np.unique(run_ms[has_ended], return_counts=True)
    come = np.searchsorted(np.sort(since_ms), times, side="left")
    at_risk = come - np.searchsorted(np.sort(run_ms), times, side="left")
    survives = np.cumprod(1.0 - gone / (at_risk + 1.0))
    return Lifetimes(times, survives.astype(np.float64), float(run_ms.max()), int(has_ended.sum()))
