"""A pause for a job that goes back to the queue again and again, though nothing counts against it.

Nothing else would end such a series: an agent that cannot start any process, or a job that asks at once to be started
again, would be given the next attempt at once, for ever. A device at fault is withheld besides, as agents say
(``marks``). An attempt whose end nobody saw, though its agent was there, may have killed its own supervisor: after some
in a row, such ends count. The numbers are those since the controller's start.

The back-off is exponential, as long as no attempt of the series runs for longer than the job had to wait before it.
"""

from __future__ import annotations

from typing import Final

from brim.agent.protocol import BLAME_NODE, LOST
from brim.live import holds
from brim.live.books import Books
from brim.live.ends import AttemptVerdict
from brim.live.records import AttemptRecord
from brim.live.requests import NONE
from brim.units import MS_PER_S, show_duration

RETURNS_MAX: Final = 3
"""Attempts in a row that end so before their job waits. Ours: as many as a job has by its own fault."""
PAUSE_MS: Final = 60 * MS_PER_S
"""How long it waits then, unless its user releases it; twice as long after each further one. An attempt that runs for
less has not done much more than to start. Ours."""
DOUBLINGS_MAX: Final = 4
"""So it waits for 16 minutes at most: starts then take little of a device, and a fault that is gone is noticed the
same quarter of an hour. Ours."""


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

    def ended(self, attempt: AttemptRecord, verdict: AttemptVerdict) -> str:
        """An attempt has ended. If its job returns and nothing counts against it, the end is in the series.

        One that ran for longer than ``PAUSE_MS``, and than its job had to wait before it, ends the series: it has
        worked. Returns why the job has to wait, for users; empty if it has not.
        """
        unseen = self.unseen(attempt)
        self._unseen.pop(attempt.job, None)
        if unseen and verdict.state is None:
            self._unseen[attempt.job] = unseen
        before = self._in_a_row.pop(attempt.job, 0)
        ran_ms = 0 if attempt.begin_ms == NONE else attempt.end_ms - attempt.begin_ms
        returns = verdict.state is None and not verdict.counts
        if not returns or attempt.stop_reason or ran_ms >= max(_pause_ms(before), PAUSE_MS):
            return ""
        self._in_a_row[attempt.job] = count = before + 1
        pause_ms = _pause_ms(count)
        if not pause_ms:
            return ""
        self._books.add_hold(attempt.job, holds.BACK_OFF, "")
        self.wait(attempt.job, pause_ms)
        return f"{count} attempts in a row were short, and the next one waits {show_duration(pause_ms / MS_PER_S)}"

    def wait(self, job: int, pause_ms: int = PAUSE_MS) -> None:
        """Let a job that is held for this go on after a pause."""
        self._books.call_off("back-off", job)  # of a pause that was released
        self._books.timer(self._books.now_ms + pause_ms, "back-off", job)

    def is_over(self, job: int) -> None:
        """The pause of a job is over."""
        if job not in self._books.jobs:
            self._in_a_row.pop(job, None)
        self._books.drop_hold(job, holds.BACK_OFF)


def _pause_ms(count: int) -> int:
    """How long a job waits after so many attempts of a series."""
    return PAUSE_MS << min(count - RETURNS_MAX, DOUBLINGS_MAX) if count >= RETURNS_MAX else 0
