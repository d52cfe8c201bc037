"""A pause for a job that goes back to the queue again and again, though nothing counts against it.

Nothing else would end such a series: an agent that cannot start any process, or a job that asks at once to be started
again, would be given the next attempt at once, for ever. A device at fault is withheld besides, as agents say
(``marks``). The numbers are those since the controller's start.
"""

from __future__ import annotations

from typing import Final

from brim.agent.protocol import FAILED
from brim.live import holds
from brim.live.books import Books
from brim.live.ends import CRASH_MS, RESUME_CODES
from brim.live.records import AttemptRecord
from brim.live.requests import NONE
from brim.units import MS_PER_S

RETURNS_MAX: Final = 3
"""Attempts in a row that end so before their job waits. Ours: as many as a job has by its own fault."""
PAUSE_MS: Final = 60 * MS_PER_S
"""How long it waits then, unless its user releases it. Ours."""


class BackOff:
    """Counts such ends, job by job.

    Args:
        books: The books of the controller.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._in_a_row: dict[int, int] = {}

    def ended(self, attempt: AttemptRecord, *, returns: bool) -> None:
        """An attempt has ended. If it ``returns``, its job is about to wait for devices, and nothing counts against it.

        One that has asked to be started again is in the series only if it ran for less than ``CRASH_MS``.
        """
        count = self._in_a_row.pop(attempt.job, 0) + 1
        ran = attempt.begin_ms != NONE and attempt.end_ms - attempt.begin_ms >= CRASH_MS
        asked = attempt.outcome == FAILED and attempt.exit_code in RESUME_CODES
        if not returns or attempt.stop_reason or (asked and ran):
            return
        if count < RETURNS_MAX:
            self._in_a_row[attempt.job] = count
            return
        self._books.add_hold(attempt.job, holds.BACK_OFF, "")
        self.wait(attempt.job)

    def wait(self, job: int) -> None:
        """Let a job that is held for this go on after the pause."""
        self._books.timer(self._books.now_ms + PAUSE_MS, "back-off", job)

    def is_over(self, job: int) -> None:
        """The pause of a job is over."""
        self._books.drop_hold(job, holds.BACK_OFF)
