"""Bring a database to the newest version of the schema: each version in one transaction, there or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from brim.errors import RefusedError
from brim.live.store.schema import APPLICATION_ID, MIGRATIONS


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a database's schema, 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Apply the versions that are missing. The process may be killed at any statement; the next call goes on.

    Raises:
        RefusedError: a newer brim wrote the database.
    """
    version = version_of(connection)
    if version > len(migrations):
        raise RefusedError(
            f"the state has version {version}, written by a newer brim, and this brim knows versions up to "
            f"{len(migrations)}: install that brim again, or restore the copy that it made, "
            f"brim.db.version-{len(migrations)}"
        )
    for number, statements in enumerate(migrations[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
