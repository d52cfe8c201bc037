"""Cluster time: integer milliseconds that go on through restarts and reboots and never go back.

Within one boot of the machine it advances as ``CLOCK_BOOTTIME`` does, with suspends, whatever the wall clock shows. An
anchor ties the two: it is written when the store is opened in a new boot, at the newest time that the store has seen.
The time for which the machine was off does not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from brim.agent.boot_clock import boot_id, boot_time_ms
from brim.errors import InvariantError


class Clock(Protocol):
    """What the store reads of the machine's clocks."""

    @property
    def boot_id(self) -> str:
        """Differs after each start of the machine."""
        ...

    def boottime_ms(self) -> int:
        """Milliseconds since the machine started, suspends included."""
        ...

    def wall_s(self) -> float:
        """Unix time in seconds, for display only: it may jump."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self.boot_id = boot_id()

    def boottime_ms(self) -> int:
        """See ``Clock``."""
        return boot_time_ms()

    def wall_s(self) -> float:
        """See ``Clock``."""
        return time.time()


class Anchor(NamedTuple):
    """In this boot, cluster time was ``cluster_ms`` when the boot clock was ``boottime_ms``."""

    boot_id: str
    boottime_ms: int
    cluster_ms: int


def cluster_ms(anchors: Sequence[Anchor], boot_id: str, boottime_ms: int) -> int:
    """Return cluster time; of several anchors of one boot the last counts.

    Raises:
        InvariantError: no anchor is of this boot.
    """
    for anchor in reversed(anchors):
        if anchor.boot_id == boot_id:
            return anchor.cluster_ms + boottime_ms - anchor.boottime_ms
    raise InvariantError(f"the store has no anchor of boot {boot_id}, expected one since it was opened")


def anchor_needed(anchors: Sequence[Anchor], boot_id: str, boottime_ms: int, seen_ms: int) -> Anchor | None:
    """Return the anchor that has to be added so that time goes on from ``seen_ms``; None if it does so already.

    It does not in a new boot, or if the boot clock itself went back, as in a container with a clock of its own.
    """
    if any(anchor.boot_id == boot_id for anchor in anchors) and cluster_ms(anchors, boot_id, boottime_ms) >= seen_ms:
        return None
    return Anchor(boot_id, boottime_ms, seen_ms)
