"""What GPU time costs: a price of a GPU-hour, and what part of it the jobs of each tier pay.

Source: PaddingTorch (Computer Science 51(9), 2024) publishes a cost 84 % lower for padding jobs, and no price: a price
of 0.13 and an overhead of up to 0.25 give that. The tier of elastic jobs, which may shrink to their least size, is
ours. A bill states price and overhead beside every cost: docs/decisions/0018.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from brim.errors import ConfigError, NotFoundError

Tier: TypeAlias = Literal["reserved", "elastic", "padding"]
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
_EXPECTED: Final = "gpu_hour, kwh, co2_g_per_kwh, and a table [tiers] with reserved, elastic and padding"


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

    def of(self, tier: Tier) -> float:
        """Price of a GPU-hour in a tier."""
        part: float = getattr(self, tier)
        return self.gpu_hour * part


def tier_of(*, padding: bool, elastic: bool) -> Tier:
    """Return the tier of a job: whether its class is padding, and whether it may run on several numbers of GPUs."""
    if padding:
        return "padding"
    return "elastic" if elastic else "reserved"


def load_prices(given: str) -> Prices:
    """Return prices from a number, the price of a GPU-hour for jobs of every tier, or from a TOML file.

    Raises:
        ConfigError: the number or a field of the file is impossible; the message names file and field.
        NotFoundError: it is neither a number nor a file.
    """
    try:
        number = float(given)
    except ValueError:
        pass
    else:
        if not 0 <= number < float("inf"):
            raise ConfigError(f"--price: found {given}, expected a price per GPU-hour, such as 2.50, or a file")
        return Prices(gpu_hour=number, elastic=1.0, padding=1.0)
    try:
        text = Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(
            f"--price: found {given}: {error.strerror}; expected a price per GPU-hour, such as 2.50, or a TOML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{given}: not TOML: it is not UTF-8") from None
    return parse_prices(text, given)


def parse_prices(text: str, file: str) -> Prices:
    """Read prices from TOML; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, or a field is unknown or impossible.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    tiers = content.pop("tiers", {})
    if not isinstance(tiers, dict):
        raise ConfigError(f"{file}: found tiers={tiers!r}, expected a table [tiers]")
    if unknown := sorted(tiers.keys() - {*TIERS}):
        raise ConfigError(f"{file}: found the tier {unknown[0]!r}, expected {', '.join(TIERS)}")
    if unknown := sorted(content.keys() - {"gpu_hour", "kwh", "co2_g_per_kwh"}):
        raise ConfigError(f"{file}: found {unknown[0]!r}, expected {_EXPECTED}")
    if "gpu_hour" not in content:
        raise ConfigError(f"{file}: found no 'gpu_hour', expected the price of a GPU-hour")
    values = {**content, **tiers}
    for field, value in values.items():
        if not _is_number(value):
            raise ConfigError(f"{file}: found {field}={value!r}, expected a number from 0 up")
    try:
        return Prices(**values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
