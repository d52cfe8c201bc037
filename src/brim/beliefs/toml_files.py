"""TOML files that users give: prices, power curves, measured sets, profile libraries. Their text, and its numbers.

What the fields mean is checked where each kind of file is read.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from brim.errors import ConfigError, NotFoundError, digits_of

LARGEST: Final = 1e15
"""Largest number in such a file, in any unit. Ours: no watt, price, rate or slowdown is near it, and sums and products
of two of them are far from the end of a float."""


def read_toml(path: str, option: str, expected: str) -> str:
    """Return the text of a file that an option names; a byte order mark, which editors of Windows write, is left out.

    Raises:
        NotFoundError: the file cannot be read.
        ConfigError: it is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise NotFoundError(f"{option}: cannot read {path}: {error.strerror}; expected {expected}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not TOML: it is not UTF-8") from None


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Return the tables of a text; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, or has a number beyond ``LARGEST``; the message names file and key.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    except ValueError:  # Python reads no whole number of so many digits
        raise ConfigError(f"{file}: found a number of thousands of digits, expected one up to {LARGEST:g}") from None
    _check_numbers(content, file)
    return content


def _check_numbers(table: dict[str, Any], where: str) -> None:
    for key, value in table.items():
        for row, one in enumerate(value if isinstance(value, list) else [value], 1):
            if isinstance(one, dict):
                _check_numbers(one, f"{where}, {key} {row}" if isinstance(value, list) else f"{where}, {key}")
            elif isinstance(one, int | float) and LARGEST < abs(one) < float("inf"):
                expected = f"a number up to {LARGEST:g}"
                raise ConfigError(f"{where}: found {key} with {digits_of(one)} digits, expected {expected}")
