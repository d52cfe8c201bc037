"""A pause for a job whose attempts fail again and again by no fault of its own.

Such failures do not count against the job, so that nothing else ends the series: an agent that cannot start any process
would be asked for the next attempt at once, for ever. A device at fault is withheld besides, as agents say
(``marks``). The numbers are those since the controller's start.
"""

from __future__ import annotations

from typing import Final

from brim.agent.protocol import BLAME_NEIGHBOUR, BLAME_NODE, FAILED
from brim.live import holds
from brim.live.books import Books
from brim.live.records import AttemptRecord
from brim.units import MS_PER_S

FAULTS_MAX: Final = 3
"""Attempts in a row that fail so before their job waits. Ours: as many as a job has by its own fault."""
PAUSE_MS: Final = 60 * MS_PER_S
"""How long it waits then, unless its user releases it. Ours."""


class NodeFaults:
    """Counts such failures, job by job.

    Args:
        books: The books of the controller.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._in_a_row: dict[int, int] = {}

    def ended(self, attempt: AttemptRecord, *, is_over: bool) -> None:
        """An attempt has ended, and its job with it if that ``is_over``; else that is not booked as pending yet."""
        is_fault = attempt.outcome == FAILED and attempt.blame in (BLAME_NODE, BLAME_NEIGHBOUR)
        count = self._in_a_row.pop(attempt.job, 0) + 1
        if is_over or not is_fault or attempt.stop_reason:
            return
        if count < FAULTS_MAX:
            self._in_a_row[attempt.job] = count
            return
        self._books.add_hold(attempt.job, holds.NODE_FAULT, "")
        self.wait(attempt.job)

    def wait(self, job: int) -> None:
        """Let a job that is held for this go on after the pause."""
        self._books.timer(self._books.now_ms + PAUSE_MS, "node fault", job)

    def is_over(self, job: int) -> None:
        """The pause of a job is over."""
        self._books.drop_hold(job, holds.NODE_FAULT)
