"""A pause for a job that goes back to the queue again and again, though nothing counts against it.

Nothing else would end such a series: an agent that cannot start any process, or a job that asks at once to be started
again, would be given the next attempt at once, for ever. A device at fault is withheld besides, as agents say
(``marks``). An attempt whose end nobody saw, though its agent was there, may have killed its own supervisor: after some
in a row, such ends count. The numbers are those since the controller's start.
"""

from __future__ import annotations

from typing import Final

from brim.agent.protocol import BLAME_NODE, FAILED, LOST
from brim.live import holds
from brim.live.books import Books
from brim.live.ends import CRASH_MS, RESUME_CODES, AttemptVerdict
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
        self._unseen: dict[int, int] = {}

    def unseen(self, attempt: AttemptRecord) -> int:
        """Return how many attempts in a row have ended unseen with this one, 0 if its end was seen or it is its node's.

        However long they ran: nothing says what one has done before it was lost.
        """
        is_unseen = attempt.outcome == LOST and attempt.blame != BLAME_NODE and not attempt.stop_reason
        return self._unseen.get(attempt.job, 0) + 1 if is_unseen else 0

    def ended(self, attempt: AttemptRecord, verdict: AttemptVerdict) -> None:
        """An attempt has ended. If its job returns and nothing counts against it, the end is in the series.

        One that has asked to be started again is in the series only if it ran for less than ``CRASH_MS``.
        """
        unseen = self.unseen(attempt)
        self._unseen.pop(attempt.job, None)
        if unseen and verdict.state is None:
            self._unseen[attempt.job] = unseen
        count = self._in_a_row.pop(attempt.job, 0) + 1
        ran = attempt.begin_ms != NONE and attempt.end_ms - attempt.begin_ms >= CRASH_MS
        asked = attempt.outcome == FAILED and attempt.exit_code in RESUME_CODES
        returns = verdict.state is None and not verdict.counts
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
