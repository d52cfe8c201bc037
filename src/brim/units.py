"""Units: parse durations and memory sizes, and show durations to people.

Simulated time is integer milliseconds everywhere (docs/decisions/0002); memory is integer MiB; CPU is integer
milli-cores; a share of a GPU is integer thousandths.
"""

from __future__ import annotations

import math
import re
from typing import Final

from brim.errors import ConfigError, shown

MS_PER_S: Final = 1_000
US_PER_MS: Final = 1_000
MS_PER_MIN: Final = 60_000
MS_PER_H: Final = 3_600_000
MS_PER_DAY: Final = 86_400_000
S_PER_H: Final = 3_600
CENTURY_MS: Final = 36_525 * MS_PER_DAY
WHOLE_GPU: Final = 1_000
"""A whole GPU, in thousandths."""
WHOLE_MAX: Final = 10**18 - 1
"""Largest whole number that is read; ours: the most nines that 64 bits hold. Python refuses to read 4,301 digits."""
MEMORY_MIB_MAX: Final = 1 << 40
"""Largest memory size that is read, in MiB: a billion GB; ours, far beyond any machine."""

_DURATION_MS = {"ms": 1, "s": MS_PER_S, "m": MS_PER_MIN, "min": MS_PER_MIN, "h": MS_PER_H, "d": MS_PER_DAY,
                "w": 7 * MS_PER_DAY}
_MEMORY_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+(?:\.\d+)?))?", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE | re.ASCII)


def parse_whole(text: str, least: int = 0, most: int = WHOLE_MAX, *, what: str = "a whole number") -> int:
    """Read a whole number from ``least`` to ``most`` in decimal digits; errors say ``what`` it is.

    Raises:
        ConfigError: the text is no such number.
    """
    value = int(text) if _WHOLE.fullmatch(text) else None
    if value is None or not least <= value <= most:
        end = f"to {most}" if most < WHOLE_MAX else "up, of at most 18 digits"
        raise ConfigError(f"found {shown(text)}, expected {what} from {least} {end}")
    return value


def parse_duration_ms(text: str) -> int:
    """Read ``90s``, ``1h30m``, ``2d``, ``02:00:00`` or Slurm's ``1-12:00:00`` as milliseconds.

    Raises:
        ConfigError: the text is in none of these forms, or longer than a century.
    """
    duration_ms = _duration_ms(text)
    if duration_ms > CENTURY_MS:
        raise ConfigError(f"duration {shown(text)} is longer than a century")
    return round(duration_ms)


def _duration_ms(text: str) -> float:
    stripped = text.strip().lower()
    if stripped and _DURATION_PART.sub("", stripped).strip() == "":
        return sum(float(n) * _DURATION_MS[unit] for n, unit in _DURATION_PART.findall(stripped))
    match = _CLOCK.fullmatch(stripped)
    if match and (":" in stripped or match[1]):
        days, a, b, c = match[1], match[2], match[3], match[4]
        if days:  # Slurm: D-HH[:MM[:SS]]
            seconds = float(days) * 86_400 + float(a) * 3_600 + float(b or 0) * 60 + float(c or 0)
        elif c is None:  # MM:SS
            seconds = float(a) * 60 + float(b or 0)
        else:
            seconds = float(a) * 3_600 + float(b) * 60 + float(c)
        return seconds * MS_PER_S
    raise ConfigError(f"duration {shown(text)} is not understood: expected something like 90s, 1h30m, 2d or 02:00:00")


def parse_memory_mib(text: str) -> int:
    """Read ``24GB``, ``768G``, ``512MiB`` as MiB (binary units, as Slurm and Kubernetes users mean them).

    Raises:
        ConfigError: the text is not a size, or one beyond ``MEMORY_MIB_MAX``.
    """
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        raise ConfigError(f"memory size {shown(text)} is not understood: expected something like 24GB or 512MiB")
    mem_mib = float(match[1]) * _MEMORY_MIB[match[2].upper()]
    if mem_mib > MEMORY_MIB_MAX:
        raise ConfigError(f"memory size {shown(text)} is above a billion GB")
    return round(mem_mib)


def show_duration(seconds: float) -> str:
    """Show seconds as people read them: ``43 s``, ``12.5 min``, ``3.2 h``, ``4.1 d``."""
    return show_durations(seconds)[0]


def show_durations(*seconds: float) -> tuple[str, ...]:
    """Show several times in the unit that suits the longest of them: ``0.8 min`` and ``12.5 min``."""
    longest = max((abs(one) for one in seconds if math.isfinite(one)), default=0.0)
    divisor, unit = next(
        ((divisor, unit) for limit, divisor, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, S_PER_H, "h"))
         if longest < limit), (86_400, "d"),
    )  # fmt: skip
    return tuple(_shown(one / divisor, unit) for one in seconds)


def _shown(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "-"
    is_whole = unit != "d" and (value == round(value) or abs(value) >= 100)
    return f"{value:.0f} {unit}" if is_whole else f"{value:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """Show a number of things, whose plural ends in s: ``1 GPU``, ``1,024 GPUs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
