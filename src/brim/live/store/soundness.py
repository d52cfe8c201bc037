"""What the database itself says of a store: whole, with the tables, constraints and triggers that brim gave it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from brim.live.store.migrations import migrate, version_of
from brim.live.store.rows import ATTEMPT_COLUMNS, read_attempt
from brim.live.store.schema import MIGRATIONS


def unsound(connection: sqlite3.Connection) -> Iterator[str]:
    """Say what is wrong: nothing, if the constraints hold and are there. They keep I2, I3, I6, I26 and I28."""
    for (said,) in connection.execute("PRAGMA integrity_check"):
        if said != "ok":
            yield f"SQLite finds {said}"
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} names one of {parent} that does not exist"
    version = version_of(connection)
    if version <= len(MIGRATIONS):  # else of a newer brim, which knows what it wrote
        yield from _strange(_schema(connection), _expected(version))
    yield from _strange_holds(connection)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    """What was made by a statement, by its name: tables, indexes and triggers."""
    select = "SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return dict(connection.execute(select).fetchall())


def _expected(version: int) -> dict[str, str]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(connection, MIGRATIONS[:version])
        return _schema(connection)
    finally:
        connection.close()


def _strange(found: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    for name in sorted(expected.keys() - found.keys()):
        yield f"{name} is missing"
    for name in sorted(found.keys() & expected.keys()):
        if found[name] != expected[name]:
            yield f"{name} is not as brim made it"


def _strange_holds(connection: sqlite3.Connection) -> Iterator[str]:
    """I6: the constraint sees the devices on which attempts are, and no others."""
    held = set(connection.execute("SELECT device, job, number, share_milli FROM device_holds"))
    attempts = map(read_attempt, connection.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE state <> 'ended'"))
    wanted = {
        (device, one.job, one.number, one.share_milli) for one in attempts for device in one.own_devices
    }
    for device, job, number, share_milli in sorted(held ^ wanted):
        has = "has no" if (device, job, number, share_milli) in wanted else "has a"
        yield f"device {device} {has} hold of attempt {number} of job {job}, against what its attempt says"
