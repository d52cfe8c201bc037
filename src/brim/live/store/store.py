"""The state of a controller, durable: what is acknowledged is on disk, once, whatever ends the process.

Jobs and commands are accepted by ``accept``, and what the controller decides is written by ``commit``; both return a
future that resolves when the transaction is on disk. Many requests that come at the same time share a transaction.
Reads go through ``reads`` and never wait for a write. Secrets in files and the meaning of what is stored are left to
others.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from brim.errors import BrimError, one_line
from brim.live.inputs import JobInput
from brim.live.records import Changes, ControllerSetting, StartForecast, TokenRecord
from brim.live.requests import NONE
from brim.live.store import transactions
from brim.live.store.cluster_time import Anchor, Clock, SystemClock, anchor_needed, cluster_ms
from brim.live.store.group_writer import GroupWriter, Write
from brim.live.store.opening import open_state
from brim.live.store.reading import Reader, Recovered
from brim.live.store.state_folder import StateFolder
from brim.live.store.transactions import Accepted, JobCommand, Moment, Submission
from brim.live.store.upgrade import GoOn, try_upgrade


class Store:
    """The state in a folder, which this process has for itself until ``close``.

    Args:
        path: The folder; created where it is missing.
        deliver: Called with the inputs of what was accepted, when they are on disk and in their order, by the thread
            that writes. It must only hand them on.
        goes_on: Called with a copy of the state where that is of an older brim, before it is changed; what it raises
            leaves it as it is.
        clock: Clocks of the machine.

    Raises:
        RefusedError: the folder cannot be used; the message says what to do.
        BrimError: the volume is full, or does not work.
    """

    def __init__(
        self, path: Path, deliver: Callable[[tuple[JobInput, ...]], None], goes_on: GoOn | None = None, *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._deliver = deliver
        self._folder = StateFolder(path)
        try:
            self._prepare(goes_on or _anything)
            self.reads = Reader(self._folder.database)
        except (sqlite3.Error, OSError) as error:
            self._folder.close()
            room = self._folder.room()
            raise BrimError(f"the state in {path} cannot be opened: {one_line(error)}; {room}") from error
        except BaseException:
            self._folder.close()
            raise
        self._anchors = self.reads.anchors()
        self._writer = GroupWriter(self._folder, self._moment)
        self._thread = threading.Thread(target=self._writer.serve, name="store", daemon=True)
        self._thread.start()

    def _prepare(self, goes_on: GoOn) -> None:
        """Bring the state to the newest version, and tie cluster time to this boot."""
        connection = open_state(self._folder, partial(try_upgrade, self._folder, goes_on))
        try:
            rows = connection.execute("SELECT boot_id, boottime_ms, cluster_ms FROM boots ORDER BY id").fetchall()
            anchors = [Anchor(*row) for row in rows]
            seen_ms = int(connection.execute("SELECT at_ms FROM last_group").fetchone()[0])
            anchor = anchor_needed(anchors, self._clock.boot_id, self._clock.boottime_ms(), seen_ms)
            if anchor is not None:
                insert = "INSERT INTO boots (boot_id, boottime_ms, cluster_ms) VALUES (?, ?, ?)"
                connection.execute(insert, anchor)
        finally:
            connection.close()

    def now_ms(self) -> int:
        """Return cluster time: it goes on through restarts and reboots, and never goes back."""
        return cluster_ms(self._anchors, self._clock.boot_id, self._clock.boottime_ms())

    @property
    def booted_ms(self) -> int:
        """Cluster time up to which everything happened before the machine was started last; NONE if it never was."""
        own = next(number for number, one in enumerate(self._anchors) if one.boot_id == self._clock.boot_id)
        return self._anchors[own].cluster_ms if own else NONE

    def _moment(self) -> Moment:
        return Moment(self.now_ms(), self._clock.wall_s())

    @property
    def trouble(self) -> str:
        """Why nothing can be written at present, as a sentence for users; empty if it can."""
        return self._writer.trouble

    def load(self) -> Recovered:
        """Return what a controller needs to go on where the last one ended; call it before anything is accepted."""
        return self.reads.recovered()

    def accept(self, item: Submission | JobCommand) -> Future[Accepted]:
        """Write a submission or a command. The same key and requests of a user give the same ids again.

        The future fails with ``KeyReusedError`` (the key stands for another submission), ``NotFoundError`` (a job that
        it names does not exist) or ``NotAcceptedError`` (the volume is full); then nothing was written.

        Raises:
            NotAcceptedError: too many requests wait to be written.
        """
        weight = len(item.requests) if isinstance(item, Submission) else len(item.jobs)
        work = partial(transactions.accept, item=item)
        return self._put(Write(work, self._deliver_inputs, weight=weight))

    def _deliver_inputs(self, accepted: Accepted) -> None:
        if accepted.inputs:
            self._deliver(accepted.inputs)

    def commit(self, changes: Changes, snapshot: bytes | None = None) -> Future[None]:
        """Write what a step of the controller changed, in one transaction; while the volume is full, wait for room.

        With a snapshot of the controller after this step, the journal up to here is removed. The future fails with
        ``InvariantError`` if the changes contradict what is stored, and with ``NotAcceptedError`` if the store is
        closed before there is room.

        Raises:
            NotAcceptedError: too many requests wait to be written, or the store is closed.
        """
        work = partial(transactions.commit, changes=changes, snapshot=snapshot)
        return self._put(Write(work, _nothing, keep=True, weight=len(changes.jobs)))

    def add_token(self, *, uid: int, user: str, label: str, digest: str, expires_s: float) -> Future[TokenRecord]:
        """Write a token of a user, of which ``digest`` is SHA-256 in hexadecimal digits.

        The future fails with ``NotAcceptedError`` if the volume is full.
        """
        work = partial(
            transactions.add_token, uid=uid, user=user, label=label, digest=digest, expires_s=expires_s
        )
        return self._put(Write(work, _nothing))

    def revoke_token(self, *, uid: int, user: str, number: int) -> Future[None]:
        """Remove a token of a user. The future fails with ``NotFoundError`` if the user has none of this number."""
        return self._put(Write(partial(transactions.revoke_token, uid=uid, user=user, number=number), _nothing))

    def note_setting(self, setting: ControllerSetting) -> Future[None]:
        """Write under which setting the controller decides from now on."""
        return self._put(Write(partial(transactions.note_setting, setting=setting.text()), _nothing))

    def note_forecasts(self, starts: Mapping[int, StartForecast], policy: str) -> Future[None]:
        """Write when jobs, by their ids, are expected to start, unless that was done before.

        ``policy`` is the one under which they wait. The future fails with ``NotAcceptedError`` if the volume is full.
        """
        return self._put(Write(partial(transactions.note_forecasts, starts=starts, policy=policy), _nothing))

    def _put(self, waiting: Write) -> Future[Any]:
        self._writer.put(waiting)
        return waiting.future

    def close(self) -> None:
        """Write all that waits, and let another process have the folder."""
        self._writer.close()
        self._thread.join()
        self.reads.close()
        self._folder.close()


def _nothing(_: object) -> None:
    """Nobody but the caller hears of it."""


def _anything(_: Recovered, __: int) -> None:
    """Whoever reads the store goes on with anything."""
