"""Finds the rank that keeps the others waiting.

A rank that hangs may send no message, so the test is indirect: a rank hangs if it is not waiting while all others have
been waiting for longer than any step takes. A rank waits while it reports so, or while it is in no group and has
received no order. The caller supplies the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FRESH_S: Final = 5.0
"""A ``waiting`` message older than this is ignored. Our choice: ranks send it about every second."""


class Hangs:
    """Watches the members of one gang.

    Args:
        after_s: How long all others must have waited before a rank counts as hung.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._waiting: dict[int, tuple[float, float]] = {}  # by rank: since when, said when

    def waiting(self, rank: int, for_s: float, now_s: float) -> None:
        """The rank reports that it waits for others."""
        self._waiting[rank] = (now_s - max(0.0, for_s), now_s)

    def free(self, rank: int, now_s: float) -> None:
        """The rank is in no group and waits for the next generation, until it receives one or sends another message."""
        self._waiting[rank] = (now_s, float("inf"))

    def busy(self, rank: int) -> None:
        """The rank does not wait, or has ended."""
        self._waiting.pop(rank, None)

    def hung(self, members: Iterable[int], now_s: float) -> tuple[list[int], float]:
        """Return the ranks that hang, and how long the others have waited; no rank unless all others wait."""
        everybody = list(members)
        since = {}
        for rank in everybody:
            start_s, said_s = self._waiting.get(rank, (now_s, 0.0))
            if said_s > now_s - FRESH_S:
                since[rank] = start_s
        silent = [rank for rank in everybody if rank not in since]
        if not silent or not since:
            return [], 0.0
        waited_s = now_s - max(since.values())
        return (silent, waited_s) if waited_s >= self._after_s else ([], 0.0)
