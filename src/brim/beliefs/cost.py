"""Prices that a user gives: a number, or a TOML file with tiers. What they are is in ``core/prices.py``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from brim.core.prices import TIERS, Prices
from brim.errors import ConfigError, NotFoundError

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
        if not 0 <= number < float("inf"):
            raise ConfigError(f"--price: found {given}, expected a price per GPU-hour, such as 2.50, or a file")
        return Prices.flat(number)
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
