"""Every error that brim raises on purpose.

BrimError
├── UserError                 exit code 2: the caller's input; one line, no traceback
│   ├── ConfigError           a cluster, policy, option or overhead that is not valid
│   └── TraceError            a trace file: names file, row, column, found, expected
├── NotFoundError             exit code 3
├── RefusedError              exit code 4: understood, but not allowed
└── InvariantError            exit code 1: an internal contradiction; checked in production too
    └── PlanError             a policy's plan breaks a rule of core/checks.py
"""

from __future__ import annotations

import math
from typing import Final

_BITS_SHOWN: Final = 64
"""Longest whole number that an error shows digit by digit; ours: what a machine word holds."""


def one_line(error: BaseException) -> str:
    """The message of any exception on one line; its type, if it has no message or cannot say it."""
    try:
        words = " ".join(str(error).split())
    except BaseException:  # the exception comes from a policy file, and so does its __str__
        words = ""
    return words or type(error).__name__


def shown(value: object) -> str:
    """Quote a found value on one line, cut where long."""
    if isinstance(value, int) and value.bit_length() > _BITS_SHOWN:
        return f"a number of {digits_of(value)} digits"
    text = "nothing" if value is None or value == "" else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def digits_of(value: float) -> int:
    """Number of decimal digits before the point, also of whole numbers that are too long for Python to print."""
    whole = int(abs(value))
    fewest = int(whole.bit_length() * math.log10(2))
    return fewest + 1 if whole >= 10**fewest else fewest


class BrimError(Exception):
    """Root of all errors raised on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1


class UserError(BrimError):
    """The input cannot be used; the message says what was found and what was expected."""

    exit_code = 2


class ConfigError(UserError):
    """A cluster, policy, option or overhead that is not valid."""


class TraceError(UserError):
    """A trace that cannot be read.

    Args:
        file: Path as the user gave it.
        found: What the file contains.
        expected: What it should contain; empty if ``found`` is enough, such as "no such file".
        row: 1-based line or record number, where known.
        column: Column name, where known.
    """

    def __init__(
        self, file: str, *, found: str, expected: str = "", row: int | None = None, column: str | None = None
    ) -> None:
        where = file
        if row is not None:
            where += f", row {row}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: found {found}, expected {expected}" if expected else f"{where}: {found}")
        self.file, self.row, self.column, self.found, self.expected = file, row, column, found, expected


class NotFoundError(BrimError):
    """The named thing does not exist."""

    exit_code = 3


class RefusedError(BrimError):
    """The request was understood but is not allowed."""

    exit_code = 4


class InvariantError(BrimError):
    """An internal contradiction: a defect of brim or of a policy, never of the input."""


class PlanError(InvariantError):
    """A plan breaks a rule of core/checks.py."""
