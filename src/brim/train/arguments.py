"""Checks of the arguments of a script: a mistake is named where it is made, and not by what it leads to later."""

from __future__ import annotations

import math
import operator
import os
import reprlib
from typing import Any

from brim.errors import ConfigError


def whole(value: Any, name: str, least: int, most: int | None = None, *, other: str = "") -> int:
    """Return a whole number, of Python or NumPy, as Python's.

    Args:
        value: What was given.
        name: The argument.
        least: The smallest number.
        most: The largest number; None: any.
        other: What may be given instead, for the message: ``", or None"``.

    Raises:
        ConfigError: it is no whole number within the bounds.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        to = "" if most is None else f" to {most}"
        raise ConfigError(f"{name}={reprlib.repr(value)}: expected a whole number from {least}{to}{other}")
    return number


def positive(value: Any, name: str, *, unit: str = "", other: str = "") -> float:
    """Return a number that is more than 0, and may be infinite.

    Raises:
        ConfigError: it is no such number.
    """
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is PyTorch's
        number = math.nan
    if not number > 0:
        raise ConfigError(f"{name}={reprlib.repr(value)}: expected more than 0{unit}, as a number{other}")
    return number


def function(value: Any, name: str, expected: str) -> Any:
    """Return a function.

    Raises:
        ConfigError: it cannot be called.
    """
    if not callable(value):
        raise ConfigError(f"{name}={reprlib.repr(value)}: expected {expected}")
    return value


def folder(value: Any, name: str) -> str:
    """Return the path of a folder, which stays the same whatever folder the script changes to.

    Raises:
        ConfigError: it is no path, or an empty one.
    """
    if not isinstance(value, str | os.PathLike) or not value:
        raise ConfigError(f"{name}={reprlib.repr(value)}: expected the path of a folder, or None")
    return os.path.abspath(os.fspath(value))


def bounds(value: Any, name: str) -> tuple[int, int]:
    """Return a pair of whole numbers from 1, of which the second is not the smaller one.

    Raises:
        ConfigError: it is no such pair.
    """
    try:
        least, most = value
        return (start := whole(least, name, 1)), whole(most, name, start)
    except (TypeError, ValueError, ConfigError):
        raise ConfigError(
            f"{name}={reprlib.repr(value)}: expected two whole numbers from 1, the smaller one first, or None"
        ) from None
