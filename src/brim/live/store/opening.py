"""Open the database of a state folder: as new only where nothing ever was, and with every setting read back."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from brim.errors import RefusedError
from brim.live.store.migrations import migrate, version_of
from brim.live.store.schema import APPLICATION_ID, MIGRATIONS
from brim.live.store.state_folder import StateFolder

BUSY_S: Final = 5.0
"""How long a statement waits for another process that holds SQLite's own lock, such as a backup; ours."""
_PRAGMAS: Final = (
    ("journal_mode", "WAL", "wal"), ("synchronous", "FULL", 2), ("foreign_keys", "ON", 1),
    ("wal_autocheckpoint", "0", 0),  # SQLite's own swallows failures to sync: the writer does it, and hears of them
)  # fmt: skip
"""Name, setting, and what reading it back gives. A failure to write during the first leaves the mode as it was, without
an error."""
_DAMAGE: Final = "restore a backup into it, or set BRIM_STATE to an empty folder for a new cluster"


def connect(database: Path) -> sqlite3.Connection:
    """Return a connection to an existing database, whose transactions are begun and ended by statements only.

    Raises:
        RefusedError: a setting does not hold, so that what is committed may not be durable.
    """
    connection = _plain(database)
    try:
        for name, setting, wanted in _PRAGMAS:
            connection.execute(f"PRAGMA {name} = {setting}")
            found = connection.execute(f"PRAGMA {name}").fetchone()[0]
            if found != wanted:
                raise RefusedError(
                    f"{database}: SQLite's {name} is {found}, expected {wanted}: the volume may be full, read-only or "
                    "without shared memory"
                )
    except BaseException:
        connection.close()
        raise
    return connection


def open_state(folder: StateFolder, before_upgrade: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """Return a connection to the state of a locked folder, in the newest version; create it where nothing ever was.

    Args:
        folder: The folder.
        before_upgrade: Called with a connection to a state of an older version, before anything of that is changed.

    Raises:
        RefusedError: the state is missing, not brim's, of another store, or from a newer brim.
    """
    database = folder.database
    _examine(folder)
    if not os.path.lexists(database):
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = connect(database)
    try:
        if 0 < version_of(connection) < len(MIGRATIONS):
            before_upgrade(connection)
        migrate(connection)
        _check_tables(connection, folder)
        store_id = str(connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()[0])
        if folder.store_id not in ("", store_id):
            raise RefusedError(f"{database} is of another store than the lock beside it: {_DAMAGE}")
        if not folder.store_id:
            folder.complete(store_id)
    except BaseException:
        connection.close()
        raise
    return connection


def _examine(folder: StateFolder) -> None:
    """Refuse what is not ours, before anything is written to it."""
    database = folder.database
    if not os.path.lexists(database):
        wal = database.with_name(f"{database.name}-wal")
        if folder.store_id or wal.exists():
            raise RefusedError(f"{folder.path} had a state, and {database.name} is missing: {_DAMAGE}")
        return
    if database.is_symlink() or not database.is_file():
        raise RefusedError(f"{database} is no plain file, expected the state of brim: {_DAMAGE}")
    connection = _plain(database)
    try:
        version, tables = version_of(connection), _tables(connection)
        application = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        raise RefusedError(f"{database} is no database ({error}), expected the state of brim: {_DAMAGE}") from None
    finally:
        connection.close()
    if (tables or version) and application != APPLICATION_ID:
        raise RefusedError(f"{database} is the database of another program, expected the state of brim: {_DAMAGE}")
    if not tables and (version or folder.store_id):
        raise RefusedError(f"{folder.path} had a state, and {database.name} is empty: {_DAMAGE}")


def _check_tables(connection: sqlite3.Connection, folder: StateFolder) -> None:
    wanted = {
        words[2] for statements in MIGRATIONS for statement in statements
        if (words := statement.split())[:2] == ["CREATE", "TABLE"]
    }
    if missing := sorted(wanted - _tables(connection)):
        raise RefusedError(f"{folder.database} has no table {missing[0]}, expected the state of brim: {_DAMAGE}")


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _plain(database: Path) -> sqlite3.Connection:
    """A connection that creates no file and begins no transaction by itself."""
    uri = f"{database.as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
