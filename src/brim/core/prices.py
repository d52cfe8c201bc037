"""What GPU time costs: a price of a GPU-hour, and what part of it the jobs of each tier pay.

Source: PaddingTorch (Computer Science 51(9), 2024) publishes a cost 84 % lower for padding jobs, and no price: a price
of 0.13 and an overhead of up to 0.25 give that. The tier of elastic jobs, which may shrink to their least size, is
ours. A bill states price and overhead beside every cost: docs/decisions/0018.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.core.replay import Replay
from brim.core.trace import JobClass
from brim.errors import ConfigError

Tier: TypeAlias = Literal["reserved", "elastic", "padding"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in the user's currency.

    Attributes:
        gpu_hour: A GPU-hour of a reserved job.
        reserved: Part of that price that reserved jobs pay: those of one size.
        elastic: Part that jobs pay which may shrink.
        padding: Part that jobs pay which give their GPUs back at once.
        kwh: A kWh; 0 where energy is in the price of a GPU-hour.
        co2_g_per_kwh: Grams of CO2 for each kWh; 0 where not given.
    """

    gpu_hour: float
    reserved: float = 1.0
    elastic: float = 0.6
    padding: float = 0.13
    kwh: float = 0.0
    co2_g_per_kwh: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"prices: found {each.name}={value:g}, expected a number from 0 up")

    @classmethod
    def flat(cls, gpu_hour: float) -> Prices:
        """One price of a GPU-hour for the jobs of every tier."""
        return cls(gpu_hour=gpu_hour, elastic=1.0, padding=1.0)

    def of(self, tier: Tier) -> float:
        """Price of a GPU-hour in a tier."""
        part: float = getattr(self, tier)
        return self.gpu_hour * part

    def of_jobs(self, tier_J: IntArray) -> FloatArray:
        """Price of a GPU-hour of each job (J,)."""
        return np.array([self.of(tier) for tier in TIERS])[tier_J]

    def co2_kg(self, kwh: float) -> float | None:
        """CO2 of this energy; None where it is not given for a kWh."""
        return kwh * self.co2_g_per_kwh / 1000 if self.co2_g_per_kwh else None

    @property
    def words(self) -> str:
        """What a GPU-hour costs, for a sentence."""
        if self.reserved == self.elastic == self.padding == 1:
            return f"{self.gpu_hour:g} per GPU-hour"
        return (
            f"{self.gpu_hour:g} per GPU-hour, times {self.reserved:g} (reserved), {self.elastic:g} (elastic) or "
            f"{self.padding:g} (padding)"
        )


def tier_of(*, padding: bool, elastic: bool) -> Tier:
    """Return the tier of a job: whether its class is padding, and whether it may run on several numbers of GPUs."""
    if padding:
        return "padding"
    return "elastic" if elastic else "reserved"


def tiers(replay: Replay) -> IntArray:
    """Return the tier of each job of a replay, as its index in ``TIERS`` (J,)."""
    elastic = (replay.gpus_min < replay.gpus_max).astype(np.int64)
    padding: IntArray = np.where(replay.trace.job_class == JobClass.PADDING, TIERS.index("padding"), elastic)
    return padding
