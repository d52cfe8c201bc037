"""Before an older brim's tables are changed: whether this one can go on with them is tried on a copy, and one stays.

So an upgrade that fails leaves a state that the brim of before opens, and one that succeeds leaves the way back.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

from brim.live.store.migrations import migrate, version_of
from brim.live.store.opening import connect
from brim.live.store.reading import Reader, Recovered
from brim.live.store.state_folder import DATABASE, StateFolder

KEPT: Final = f"{DATABASE}.version-"
"""The name of the copy that stays, without its version."""
_TRIAL: Final = f"{DATABASE}.trial"

GoOn: TypeAlias = Callable[[Recovered, int], None]
"""Lets a controller go on with what was in a store at a cluster time (ms), and changes nothing outside of it."""


def try_upgrade(folder: StateFolder, goes_on: GoOn, connection: sqlite3.Connection) -> None:
    """Find out whether this brim can go on with an older state, and keep a copy of that; the state itself stays.

    Raises:
        RefusedError: the controller cannot go on with it.
        sqlite3.Error: there is no room for the copies.
        OSError: the same.
    """
    trial = folder.path / _TRIAL
    try:
        _copy(connection, trial)
        with closing(connect(trial)) as tried:
            migrate(tried)
            seen_ms = int(tried.execute("SELECT at_ms FROM last_group").fetchone()[0])
        reader = Reader(trial)
        try:
            goes_on(reader.recovered(), seen_ms)
        finally:
            reader.close()
    finally:
        _remove(trial)
    for before in folder.path.glob(f"{KEPT}*"):
        before.unlink()
    _copy(connection, folder.path / f"{KEPT}{version_of(connection)}")


def _copy(connection: sqlite3.Connection, path: Path) -> None:
    """Copy a database to a path, durably and for its user only; nothing stays of a copy that failed."""
    _remove(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with closing(sqlite3.connect(path)) as copy:
            connection.backup(copy)
        os.fsync(fd)
    except BaseException:
        _remove(path)
        raise
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
