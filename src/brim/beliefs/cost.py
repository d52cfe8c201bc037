"""Prices that a user gives: a number, or a TOML file with tiers. What they are is in ``core/prices.py``."""

from __future__ import annotations

from typing import Any, Final

from brim.beliefs.toml_files import LARGEST, parse_toml, read_toml
from brim.core.prices import TIERS, Prices
from brim.errors import ConfigError, shown

_EXPECTED: Final = "gpu_hour, kwh, co2_g_per_kwh, and a table [tiers] with reserved, elastic and padding"


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
        if not 0 <= number <= LARGEST:
            raise ConfigError(f"--price: found {shown(given)}, expected a price per GPU-hour, such as 2.50, or a file")
        return Prices.flat(number)
    return parse_prices(read_toml(given, "--price", "a price per GPU-hour, such as 2.50, or a TOML file"), given)


def parse_prices(text: str, file: str) -> Prices:
    """Read prices from TOML; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, or a field is unknown or impossible.
    """
    content = parse_toml(text, file)
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
