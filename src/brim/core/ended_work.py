"""How many samples ended jobs of each model trained on: what the work of another job of the model is believed from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray, frozen
from brim.core.tables import EMPTY
from brim.core.trace import NONE

TOTALS_KEPT: Final = 32
"""Ended jobs of a model that are remembered, the newest. Ours: enough for a distribution; users change their jobs."""
MODELS_KEPT: Final = 10_000
"""Models of which anything is remembered; those that ended jobs the longest ago are forgotten. As for step times."""


@dataclass(frozen=True, slots=True)
class EndedWork:
    """Samples of ended jobs (E,), sorted by model, then by samples.

    Attributes:
        profile: Code of the model.
        samples: Effective samples that the job had trained on when it completed.
    """

    profile: IntArray
    samples: FloatArray

    def of(self, profile: int) -> FloatArray:
        """The samples of the ended jobs of one model, ascending."""
        first, last = np.searchsorted(self.profile, (profile, profile + 1)).tolist()
        return self.samples[first:last]


NO_WORK: Final = EndedWork(EMPTY, frozen(np.empty(0)))


class EndedWorkBook:
    """Work of completed jobs: part of the mutable state of a cluster, changed only by ``ClusterState``."""

    def __init__(self, totals: Iterable[tuple[int, Iterable[float]]] = ()) -> None:
        self._of: dict[int, deque[float]] = {profile: deque(of, TOTALS_KEPT) for profile, of in totals}
        self._frozen: EndedWork | None = None

    def add(self, profile: int, samples: float) -> None:
        """Note the samples of a job that has completed; one without a model, or without reports, says nothing."""
        if profile == NONE or not samples > 0:
            return
        self._of[profile] = self._of.pop(profile, deque(maxlen=TOTALS_KEPT))  # the newest come last
        self._of[profile].append(samples)
        if len(self._of) > MODELS_KEPT:
            del self._of[next(iter(self._of))]
        self._frozen = None

    def plain(self) -> list[tuple[int, list[float]]]:
        """Models and the samples of their jobs, both from the oldest to the newest."""
        return [(profile, list(of)) for profile, of in self._of.items()]

    def freeze(self) -> EndedWork:
        """Return the table."""
        if self._frozen is None:
            rows = [(profile, samples) for profile, of in sorted(self._of.items()) for samples in sorted(of)]
            self._frozen = EndedWork(
                frozen(np.array([profile for profile, _ in rows], dtype=np.int64)),
                frozen(np.array([samples for _, samples in rows], dtype=np.float64)),
            )
        return self._frozen
