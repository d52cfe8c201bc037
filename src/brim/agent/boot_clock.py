"""The clock that begins anew with each start of the machine, and what tells one start from another."""

from __future__ import annotations

import time
from pathlib import Path


def boot_id() -> str:
    """Return what differs after each start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def boot_time_ms() -> int:
    """Return the time since the start of the machine in ms, suspends included; no clock that is set changes it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
