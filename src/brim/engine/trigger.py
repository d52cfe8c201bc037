"""When the next round is due: on events, coalesced with a minimum gap, and after the policy's period.

The twin and the controller use the same rule (docs/decisions/0003).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brim.core.events import Kind
from brim.policies.sockets import WAKES
from brim.units import MS_PER_S

DEFAULT_GAP_MS: Final = MS_PER_S
"""Shortest time between two rounds. Ours; Slurm's batch_sched_delay, which has the same purpose, is 3 s."""


@dataclass(slots=True)
class Trigger:
    """Remembers the first event since the last round that causes a round, and tells when the next round is due.

    Attributes:
        gap_ms: Shortest time between two rounds.
        period_ms: Longest time between two rounds while there is something to decide, 0 for none; at least the gap.
        wakes_on: Kinds of event that cause a round.
        last_ms: Time of the last round, None before the first.
        since_ms: First event since then that causes a round, None if there was none.
    """

    gap_ms: int
    period_ms: int
    wakes_on: frozenset[Kind] = WAKES
    last_ms: int | None = None
    since_ms: int | None = None

    def note(self, kind: Kind, time_ms: int, *, learned: bool = False) -> None:
        """Note an event; ``learned``: it tells of a job's speed what was not known at all."""
        if self.since_ms is None and (learned or kind in self.wakes_on):
            self.since_ms = time_ms

    def due_ms(self) -> int | None:
        """Time of the next round, None if nothing causes one."""
        due = None
        if self.since_ms is not None:
            due = self.since_ms if self.last_ms is None else max(self.since_ms, self.last_ms + self.gap_ms)
        if self.period_ms and self.last_ms is not None:
            periodic = self.last_ms + max(self.period_ms, self.gap_ms)
            due = periodic if due is None else min(due, periodic)
        return due

    def done(self, now_ms: int) -> None:
        """Note that a round was run."""
        self.last_ms, self.since_ms = now_ms, None
