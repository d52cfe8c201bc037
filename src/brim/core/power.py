"""Power of a node by the utilisation of its GPUs. ``core/energy.py`` meters with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.core.arrays import FloatArray
from brim.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """Power of a node by the mean utilisation u of its GPUs, 0 to 1: ``idle_w + (full_w - idle_w) * u ** exponent``.

    A node with another number of GPUs than the one that was measured uses power in proportion to that number.

    Attributes:
        gpu_type: Type of the node's GPUs.
        gpus: GPUs of the node that was measured.
        idle_w: Watts at u = 0.
        full_w: Watts at u = 1.
        exponent: 1 is linear; below 1, the first jobs cost most.
        asleep_w: Watts of a node that sleeps.
    """

    gpu_type: str
    gpus: int
    idle_w: float
    full_w: float
    exponent: float = 1.0
    asleep_w: float = 0.0

    def __post_init__(self) -> None:
        where = f"power curve of {self.gpu_type}"
        if self.gpus < 1:
            raise ConfigError(f"{where}: found gpus={self.gpus}, expected the GPUs of a node, at least 1")
        if not 0 <= self.asleep_w <= self.idle_w < float("inf"):
            raise ConfigError(
                f"{where}: found asleep_w={self.asleep_w:g} and idle_w={self.idle_w:g}, expected watts from 0 up, the "
                "former not above the latter"
            )
        if not self.idle_w <= self.full_w < float("inf"):
            raise ConfigError(
                f"{where}: found full_w={self.full_w:g}, expected at least idle_w={self.idle_w:g}: power cannot fall "
                "with utilisation"
            )
        if not 0 < self.exponent < float("inf"):
            raise ConfigError(f"{where}: found exponent={self.exponent:g}, expected a number above 0")

    def watts(self, utilisation: FloatArray | float, gpus: int) -> FloatArray:
        """Power of an awake node with this many GPUs, W."""
        u = np.clip(utilisation, 0.0, 1.0)
        power: FloatArray = (self.idle_w + (self.full_w - self.idle_w) * u**self.exponent) * (gpus / self.gpus)
        return power

    @property
    def least_j(self) -> float:
        """Joules for each second of one busy GPU, on a node that is as busy as is most efficient."""
        rise_w, u = self.full_w - self.idle_w, 1.0
        if self.exponent > 1 and rise_w > 0:  # where the derivative of watts / u is 0
            u = min(1.0, (self.idle_w / (rise_w * (self.exponent - 1))) ** (1 / self.exponent))
        return float(self.watts(u, self.gpus)) / (u * self.gpus) if u else 0.0
