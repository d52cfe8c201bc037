"""The costs of a start, a save and a restart of each job: the mean of its observed costs, else a default.

Milliseconds, one entry per job (J,). The costs that the twin really charges are in ``sim/overheads.py`` and may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.errors import ConfigError
from brim.units import MS_PER_S

START_MS: Final = 30 * MS_PER_S
"""First start to first useful step. 30 s, ours: as long as a restart."""
SAVE_MS: Final = 5 * MS_PER_S
"""Preemption decided to GPUs free. 5 s, ours: of the order of Acme's blocking checkpoints (NSDI 2024)."""
RESTART_MS: Final = 30 * MS_PER_S
"""GPUs granted again to next useful step: load and warm-up. 30 s: Pollux (OSDI 2021)."""
IN_PLACE_MS: Final = 200.0
"""Ranks that stay leave their step, form a group with those that come, and send them the state. 200 ms: twice what
benchmarks/resize.py measures for 100 MB of state on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Expected milliseconds of each change, (J,).

    Attributes:
        start_ms: GPUs granted for the first time to first useful step.
        save_ms: Preemption decided to GPUs free.
        restart_ms: GPUs granted again to next useful step.
    """

    start_ms: FloatArray
    save_ms: FloatArray
    restart_ms: FloatArray

    @property
    def change_ms(self) -> FloatArray:
        """A change of GPUs or batch through a checkpoint: save, then restart."""
        return self.save_ms + self.restart_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observations of one kind of change: number and total time, (J,)."""

    count: IntArray
    total_ms: IntArray

    def __post_init__(self) -> None:
        wrong = np.flatnonzero((self.count < 0) | (self.total_ms < 0) | ((self.count == 0) & (self.total_ms > 0)))
        if len(wrong):
            row = wrong[0]
            raise ConfigError(
                f"overheads of job row {row}: found {self.total_ms[row]} ms in {self.count[row]} changes, expected "
                f"both from 0 up, and no time without a change"
            )


def costs(*, start: Observed, save: Observed, restart: Observed) -> Costs:
    """Mean of the observations of each job, or the default without observations."""
    return Costs(
        start_ms=_mean_ms(start, START_MS), save_ms=_mean_ms(save, SAVE_MS), restart_ms=_mean_ms(restart, RESTART_MS)
    )


def _mean_ms(observed: Observed, default_ms: int) -> FloatArray:
    mean = observed.total_ms / np.maximum(observed.count, 1)
    return np.where(observed.count > 0, mean, float(default_ms))
