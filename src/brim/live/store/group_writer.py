"""One thread that writes: all requests that wait become one transaction, and their callers hear when it is on disk.

What can go wrong:

- A request is refused, or contradicts what is stored: it alone fails.
- The volume is full, or another process holds SQLite's lock: the whole group fails with ``NotAcceptedError``, the
  connection is opened anew, and the next group tries again. Requests that must be written (``keep``) wait for that.
- Anything else, a failed sync above all: what is on disk is no longer known, and SQLite would go on as if it were. The
  process ends; what starts in its place reads what is there.

Whether a group whose COMMIT failed is on disk is read from the database once it can be opened again: each group has a
number, and is written with it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from brim.errors import InvariantError, RefusedError
from brim.live.store.errors import NotAcceptedError
from brim.live.store.opening import BUSY_S, connect
from brim.live.store.state_folder import StateFolder
from brim.live.store.transactions import Moment

QUEUE_MAX: Final = 10_000
"""Most requests that wait; ours: two to five seconds of work where 64 callers submit one job each
(benchmarks/submissions.py)."""
GROUP_WEIGHT_MAX: Final = 5_000
"""Jobs after which a group takes no more requests; ours: 0.3 s of work, for which the next group may have to wait."""
WAL_BYTES_MAX: Final = 4 << 20
"""Size of the write-ahead log from which it is copied into the database: SQLite's own 1,000 pages."""
RETRY_S: Final = 1.0
"""Time between attempts to write what must be written; ours."""
EXIT_IO: Final = 74
"""``EX_IOERR`` of sysexits.h: what is on disk is not known."""

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection, Moment], T]
_NOT_SYNCED: Final = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
_MAY_PASS: Final = (sqlite3.SQLITE_OK, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""Errors that a full volume can show as, where trying to write shows the same; OK: a setting that does not hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A request: what it writes, who waits for it, and what is told first once it is on disk.

    Attributes:
        work: Writes inside a transaction and returns the result.
        then: Called with the result by the thread that writes, in the order of writing, before the caller hears of it.
        keep: Whether it waits for a volume that is full, in place of failing.
        weight: Jobs that it writes.
    """

    work: Work[Any]
    then: Callable[[Any], None]
    keep: bool = False
    weight: int = 1
    future: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why one request of a group was not written."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Unsure:
    """A group whose COMMIT failed."""

    number: int
    group: list[Write]
    outcomes: list[Any]


class GroupWriter:
    """Writes groups through one connection. ``serve`` is the loop of its thread; tests call ``write`` without one.

    Args:
        folder: The locked folder of the state, which is complete.
        moment: Gives the time of a transaction.
    """

    def __init__(self, folder: StateFolder, moment: Callable[[], Moment]) -> None:
        self._folder, self._moment = folder, moment
        self._wal = Path(f"{folder.database}-wal")
        self._connection: sqlite3.Connection | None = None
        self._number = 0
        self._unsure: _Unsure | None = None
        self._queue: deque[Write] = deque()
        self._kept: list[Write] = []
        self._changed = threading.Condition()
        self._closing = False
        self.trouble = ""
        """Why nothing can be written at present, as a sentence; empty if it can."""

    def put(self, waiting: Write) -> None:
        """Add a request for the next group.

        Raises:
            NotAcceptedError: too many wait, or the store is closed.
        """
        with self._changed:
            if self._closing or len(self._queue) >= QUEUE_MAX:
                reason = "the store is closed" if self._closing else f"{QUEUE_MAX} requests wait to be written"
                raise NotAcceptedError(f"{reason}: nothing was accepted, try again later")
            self._queue.append(waiting)
            self._changed.notify()

    def serve(self) -> None:
        """Write groups until ``close``; nothing that goes wrong here leaves the process in an unknown state."""
        try:
            while (group := self._next_group()) is not None:
                self.write(group)
            self._end()
        except BaseException as error:
            _end_process(f"the thread that writes failed with {type(error).__name__}: {error}")

    def close(self) -> None:
        """Let ``serve`` return once all that waits is written; what cannot be written fails."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _next_group(self) -> list[Write] | None:
        """Wait for requests; those that were kept come first. Empty: look whether the trouble is over. None: closed."""
        with self._changed:
            while not self._queue and not self._closing and not self.trouble:
                self._changed.wait()
            if self.trouble and not self._queue and not self._closing:
                self._changed.wait(RETRY_S)
            if self._closing and not self._queue and (self.trouble or not self._kept):
                return None
            group, self._kept = self._kept, []
            weight = 0
            while self._queue and weight < GROUP_WEIGHT_MAX:
                weight += self._queue[0].weight
                group.append(self._queue.popleft())
            return group

    def write(self, group: list[Write]) -> None:
        """Write a group in one transaction and tell its callers."""
        try:
            connection = self._opened()
            group = [waiting for waiting in group if not waiting.future.done()]
            connection.execute("BEGIN IMMEDIATE")
            moment = self._moment()
            outcomes = [_one(connection, waiting.work, moment) for waiting in group]
            connection.execute("UPDATE last_group SET number = ?, at_ms = ?", (self._number + 1, moment.at_ms))
            self._unsure = _Unsure(self._number + 1, group, outcomes)
            connection.execute("COMMIT")
        except (sqlite3.Error, RefusedError) as error:
            self._failed(group, error)
            return
        self._unsure = None
        self._number += 1
        self.trouble = ""
        _deliver(group, outcomes)
        self._copy_wal()

    def _opened(self) -> sqlite3.Connection:
        """The connection; a new one finds out first what became of a group whose COMMIT failed."""
        if self._connection is None:
            connection = connect(self._folder.database)
            self._connection = connection
            self._number = int(connection.execute("SELECT number FROM last_group").fetchone()[0])
            unsure, self._unsure = self._unsure, None
            if unsure is not None and unsure.number == self._number:
                _deliver(unsure.group, unsure.outcomes)
        return self._connection

    def _failed(self, group: list[Write], error: Exception) -> None:
        """Nothing of the group is acknowledged; end the process unless the reason is one that passes."""
        code = getattr(error, "sqlite_errorcode", 0)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        database = self._folder.database
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            self.trouble = f"cannot write {database}: another process has locked it for {BUSY_S:g} s"
        elif code not in _NOT_SYNCED and (shortage := self._shortage(code, error)):
            self.trouble = f"cannot write {database}: {shortage}; {self._folder.room()}"
        else:
            _end_process(f"cannot write {database}: {error} ({getattr(error, 'sqlite_errorname', 'no code')})")
        refused = NotAcceptedError(f"{self.trouble}; nothing was accepted, try again later")
        self._kept = [waiting for waiting in group if waiting.keep]
        _deliver([waiting for waiting in group if not waiting.keep], _Failure(refused))

    def _shortage(self, code: int, error: Exception) -> str:
        """Why the volume takes nothing more; empty if that is not the reason."""
        if code & 0xFF == sqlite3.SQLITE_FULL:
            return self._folder.shortage() or str(error)
        return self._folder.shortage() if code & 0xFF in _MAY_PASS else ""

    def _copy_wal(self) -> None:
        """Copy a long write-ahead log into the database; while somebody reads, another time."""
        connection = self._connection
        if connection is None or not self._wal.exists() or self._wal.stat().st_size < WAL_BYTES_MAX:
            return
        try:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
        except sqlite3.Error as error:
            self._failed([], error)

    def _end(self) -> None:
        refused = NotAcceptedError(f"{self.trouble}; the store is closed, and this was not written")
        _deliver(self._kept, _Failure(refused))
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _one(connection: sqlite3.Connection, work: Work[Any], moment: Moment) -> object:
    """Result of one request, or the failure of which nothing stays; errors of the database are the group's."""
    connection.execute("SAVEPOINT request")
    try:
        result = work(connection, moment)
    except sqlite3.IntegrityError as error:
        outcome: object = _Failure(InvariantError(f"the store refuses what contradicts it: {error}"))
    except sqlite3.Error:
        raise
    except Exception as error:  # handed to the caller: one request must not stop the others
        outcome = _Failure(error)
    else:
        connection.execute("RELEASE request")
        return result
    connection.execute("ROLLBACK TO request")
    connection.execute("RELEASE request")
    return outcome


def _deliver(group: list[Write], outcomes: list[Any] | _Failure) -> None:
    """Give every caller its outcome, after ``then``; a caller that was told of a failure before keeps that."""
    for place, waiting in enumerate(group):
        outcome = outcomes if isinstance(outcomes, _Failure) else outcomes[place]
        if not isinstance(outcome, _Failure):
            waiting.then(outcome)
        if waiting.future.done() or not waiting.future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, _Failure):
            waiting.future.set_exception(outcome.error)
        else:
            waiting.future.set_result(outcome)


def _end_process(reason: str) -> NoReturn:
    sys.stderr.write(f"brim: {reason}. The controller ends: start it again, and it goes on from what is on disk.\n")
    sys.stderr.flush()
    os._exit(EXIT_IO)
