"""When the next round is due: on events, coalesced with a minimum gap, and after the policy's period.

The twin and the controller use the same rule (docs/decisions/0003).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brim.core.events import Kind
from brim.policies.sockets import WAKES
from brim.units import MS_PER_S, US_PER_MS

DEFAULT_GAP_MS: Final = MS_PER_S
"""Shortest time between two rounds. Ours; Slurm's batch_sched_delay, which has the same purpose, is 3 s."""
LIVE_GAP_JOB_US: Final = 100
"""What each waiting job adds to the shortest time between two rounds of a live cluster. Ours: a round takes 1 to 2 ms
of CPU time with few jobs and 12 to 20 ms with 10,000, so it is 10 ms and 1 s: at most a fifth of one core."""
FIRST_LOOK_MS: Final = MS_PER_S
"""Shortest time after which a trigger that backs off causes another round: as the shortest gap that is noted. Ours."""
JOBS_OF_NONE: Final = 100
"""Even without waiting jobs the shortest time is that of so many: 10 ms on a live cluster."""


@dataclass(slots=True)
class Trigger:
    """Remembers the first event since the last round that causes a round, and tells when the next round is due.

    Attributes:
        gap_ms: Shortest time between two rounds, however many jobs wait.
        gap_job_us: What each waiting job adds to a shortest time that is below ``gap_ms``; 0: it is always ``gap_ms``.
        period_ms: Longest time between two rounds while there is something to decide, 0 for none; at least the gap.
        backs_off: Whether the time until the next round is as long as no event has come, from ``FIRST_LOOK_MS`` to
            ``period_ms``: what can be expected of a gap changes with its age, by half when that doubles.
        wakes_on: Kinds of event that cause a round.
        looks: Whether time alone may change what parts decide that act when no job waits: the period causes a round.
        last_ms: Time of the last round, None before the first.
        since_ms: First event since then that causes a round, None if there was none.
        event_ms: The last round that an event caused.
    """

    gap_ms: int
    period_ms: int
    wakes_on: frozenset[Kind] = WAKES
    last_ms: int | None = None
    since_ms: int | None = None
    gap_job_us: int = 0
    backs_off: bool = False
    event_ms: int | None = None
    looks: bool = True

    def note(self, kind: Kind, time_ms: int, *, learned: bool = False) -> None:
        """Note an event; ``learned``: it tells of a job's speed what was not known at all."""
        if self.since_ms is None and (learned or kind in self.wakes_on):
            self.since_ms = time_ms

    def _gap_ms(self, waiting: int | None) -> int:
        """Shortest time between two rounds while so many jobs wait, None if it is not to depend on that."""
        if waiting is None or not self.gap_job_us:
            return self.gap_ms
        return min(self.gap_ms, (JOBS_OF_NONE + waiting) * self.gap_job_us // US_PER_MS)

    def _period_ms(self) -> int:
        """Longest time between the last round and the next."""
        if not self.backs_off or self.last_ms is None or self.event_ms is None:
            return self.period_ms
        return min(self.period_ms, max(FIRST_LOOK_MS, self.last_ms - self.event_ms))

    def due_ms(self, waiting: int | None = None, *, looks: bool = True) -> int | None:
        """Time of the next round while so many jobs wait for devices, None if nothing causes one.

        ``looks``: whether the period causes one.
        """
        due, gap_ms = None, self._gap_ms(waiting)
        if self.since_ms is not None:
            due = self.since_ms if self.last_ms is None else max(self.since_ms, self.last_ms + gap_ms)
        if looks and self.period_ms and self.last_ms is not None:
            periodic = self.last_ms + max(self._period_ms(), gap_ms)
            due = periodic if due is None else min(due, periodic)
        return due

    def done(self, now_ms: int) -> None:
        """Note that a round was run."""
        if self.since_ms is not None:
            self.event_ms = now_ms
        self.last_ms, self.since_ms = now_ms, None
