"""EaCO's place part: jobs join the busiest GPUs on which all keep their deadlines and energy is saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brim.core.trace import NONE
from brim.errors import ConfigError
from brim.policies.place.residents import Gpu, Occupancy, energy_and_time, is_known, signature
from brim.policies.place.trials import OnTrial

RESIDENTS_MAX = 4
"""Most residents of a GPU of which slowdowns are kept: as many as EaCO measured."""


@dataclass(frozen=True, slots=True)
class EnergySharing(OnTrial):
    """Energy-aware sharing: busiest GPUs first, on trial, and undone when the slowdown that was reported is too large.

    A waiting job joins GPUs whose residents use them less than the limit and leave memory, if deadlines hold in the
    prediction and the objective falls; else it gets free GPUs, and sleeping nodes last.

    Attributes:
        utilisation_limit: Residents' utilisation below which others may join, 0 to 1; 0 shares nothing.
        memory_limit: Part of a GPU's memory that all residents together may use, 0 to 1.
        residents: Most residents of a GPU.
        alpha: Weight of energy against the time of a step, 0 to 1: both are relative to GPUs of one's own, and their
            weighted mean must fall below 1.
        idle_fraction: Power of an idle node relative to full power, for the energy.
        exponent: Exponent of its power by utilisation.

    Raises:
        ConfigError: a constant is out of its range.

    Source:
        Haghshenas, Hashemi, EaCO, arXiv 2412.08294, sections on scheduling and early-stage observation; limits, power
        curve (fitted to its table with 560 W of an idle node) and back-off are ours where it names none. Differs: only
        sets of jobs with exactly the same GPUs; memory must fit every GPU, not their sum; the objective is asked of
        each decision.
    """

    utilisation_limit: float = 0.85
    memory_limit: float = 0.9
    residents: int = 3
    alpha: float = 0.5
    idle_fraction: float = 0.28
    exponent: float = 0.615

    def __post_init__(self) -> None:
        for name in ("utilisation_limit", "memory_limit", "alpha", "idle_fraction"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"energy sharing: found {name}={value:g}, expected a number from 0 to 1")
        if not 1 <= self.residents <= RESIDENTS_MAX:
            raise ConfigError(f"energy sharing: found residents={self.residents}, expected 1 to {RESIDENTS_MAX}")
        if not 0 < self.exponent < math.inf:
            raise ConfigError(f"energy sharing: found exponent={self.exponent:g}, expected a number above 0")

    def serve(self, occupancy: Occupancy, row: int, barred: frozenset[int]) -> bool:
        """See ``OnTrial``."""
        for _, gpus in sorted(self._below_limit(occupancy, row)):
            if self._predicted(occupancy, gpus, row, barred) < 1.0:
                occupancy.join(row, gpus)
                return True
        return occupancy.place_alone(row)

    def _below_limit(self, occupancy: Occupancy, row: int) -> list[tuple[float, tuple[Gpu, ...]]]:
        """GPUs that a waiting job could join, whose use is known and below the limit; and that use, negative."""
        found = occupancy.candidates(row, self.residents, self.utilisation_limit)
        return [(-occupancy.loads[gpus], gpus) for gpus in found]

    def refuses(
        self, occupancy: Occupancy, gpus: tuple[Gpu, ...], rows: Sequence[int], ratios: Sequence[float]
    ) -> bool:
        """See ``OnTrial``."""
        return self._objective(occupancy, gpus, rows, ratios, [0.0] * len(rows)) >= 1.0

    def _predicted(self, occupancy: Occupancy, gpus: tuple[Gpu, ...], row: int, barred: frozenset[int]) -> float:
        """The objective if a waiting job joins these GPUs; infinity if it may not, or if nothing can be predicted."""
        rows = [*occupancy.sets[gpus], row]
        if barred and signature(occupancy.snapshot, rows) in barred:
            return math.inf
        if not occupancy.fits_memory(gpus, rows, self.memory_limit):
            return math.inf
        predicted = occupancy.slowdowns(gpus, rows)
        if not is_known(predicted):
            return math.inf
        return self._objective(
            occupancy, gpus, rows, [one.mean for one in predicted], [math.sqrt(one.variance) for one in predicted]
        )

    def _objective(
        self, occupancy: Occupancy, gpus: tuple[Gpu, ...], rows: Sequence[int], ratios: Sequence[float],
        spreads: Sequence[float],
    ) -> float:
        """The objective with the last job, relative to GPUs of its own; infinity if it breaks a deadline that is kept.

        Args:
            occupancy: The cluster.
            gpus: The GPUs.
            rows: The jobs.
            ratios: Slowdown of each.
            spreads: Standard deviation of each, on top of which deadlines must hold.
        """
        now_ms, deadline = occupancy.snapshot.now_ms, occupancy.jobs.deadline_ms
        before = [one.mean for one in occupancy.slowdowns(gpus, rows[:-1])]
        if any(math.isnan(ratio) for ratio in before):
            return math.inf
        before = [*before, 1.0]
        for row, ratio, spread, was in zip(rows, ratios, spreads, before, strict=True):
            left_ms = occupancy.left_ms(row, was)
            keeps = deadline[row] != NONE and now_ms + left_ms * was <= deadline[row]  # what is lost cannot be missed
            if keeps and now_ms + left_ms * (ratio + spread) > deadline[row]:
                return math.inf
        demands = [occupancy.demand((row,)) for row in rows]
        if any(math.isnan(demand) for demand in demands):
            return math.inf
        energy, time = energy_and_time(self.idle_fraction, self.exponent, demands, before, ratios)
        return self.alpha * energy + (1.0 - self.alpha) * time


@dataclass(frozen=True, slots=True)
class BestPartners(EnergySharing):
    """As ``EnergySharing``, but a job joins those beside whom the objective is least, not the busiest.

    Source:
        Ours: docs/decisions/0021. Busy residents slow a job most.
    """

    def serve(self, occupancy: Occupancy, row: int, barred: frozenset[int]) -> bool:
        """See ``OnTrial``."""
        found = ((self._predicted(occupancy, gpus, row, barred), gpus) for _, gpus in self._below_limit(occupancy, row))
        objective, gpus = min(found, default=(math.inf, ()))
        if not objective < 1.0:
            return occupancy.place_alone(row)
        occupancy.join(row, gpus)
        return True
