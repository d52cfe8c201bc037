"""Which folders the store takes: new ones, its own, and no other; each refusal says what to do."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import stat
from pathlib import Path

import pytest

from brim.errors import RefusedError
from brim.live.store import migrations, opening, schema
from brim.live.store.mounts import NETWORK, mount_of, refuse_network
from brim.live.store.store import Store
from tests.live.store.stores import Opened, asked


def opens(folder: Path) -> None:
    Opened(folder).store.close()


def refused(folder: Path) -> str:
    before = contents(folder / "controller")
    with pytest.raises(RefusedError) as error:
        opens(folder)
    assert contents(folder / "controller") == before, "what is refused is not changed"
    assert "\n" not in str(error.value)
    return str(error.value)


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a folder without the lock, whose first line names who opened it last."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"}


@pytest.fixture
def database(tmp_path) -> Path:
    """The database of a store that was closed."""
    with Opened(tmp_path) as opened:
        opened.submit("k")
    return tmp_path / "controller" / "brim.db"


def test_a_state_that_is_gone_is_not_taken_for_a_new_one(tmp_path, database):
    database.unlink()
    assert re.search(r"had a state, and brim.db is missing: restore a backup into it, or set", refused(tmp_path))


def test_a_database_that_is_gone_and_left_its_log_is_not_taken_for_a_new_one(tmp_path, database):
    (tmp_path / "controller" / "lock").unlink()
    database.rename(f"{database}-wal")
    assert "brim.db is missing" in refused(tmp_path)


def test_an_empty_database_is_not_taken_for_a_new_one(tmp_path, database):
    database.write_bytes(b"")
    assert "had a state, and brim.db is empty" in refused(tmp_path)


def test_a_missing_table_is_refused(tmp_path, database):
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE inbox")
    connection.close()
    assert "has no table inbox, expected the state of brim" in refused(tmp_path)


def test_a_database_of_another_program_is_refused(tmp_path):
    (tmp_path / "controller").mkdir(mode=0o700)
    database = tmp_path / "controller" / "brim.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE meta (name)")
    connection.close()
    assert "is the database of another program" in refused(tmp_path)
    database.write_bytes(b"no database, but long enough to be read as the header of one" * 9)
    assert "is no database (file is not a database), expected the state of brim" in refused(tmp_path)
    database.unlink()
    database.mkdir()
    assert "is no plain file" in refused(tmp_path)
    database.rmdir()
    database.symlink_to("/dev/null")
    assert "is no plain file" in refused(tmp_path)
    database.unlink()
    database.symlink_to(tmp_path / "elsewhere")
    assert "is no plain file" in refused(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "controller" / "lock").unlink()
    (tmp_path / "controller" / "lock").symlink_to(tmp_path / "elsewhere")
    assert "cannot be used: Too many levels of symbolic links on the volume /" in refused(tmp_path)


def test_the_database_of_another_store_is_refused(tmp_path, database):
    opens(tmp_path / "other")
    database.write_bytes((tmp_path / "other" / "controller" / "brim.db").read_bytes())
    assert "is of another store than the lock beside it" in refused(tmp_path)


def test_a_backup_is_restored_by_copying_it(tmp_path, database):
    backup = database.read_bytes()
    with Opened(tmp_path) as opened:
        opened.submit("later")
    database.write_bytes(backup)
    with Opened(tmp_path) as opened:
        assert opened.submit("l").ids == (2,)
    (tmp_path / "controller" / "lock").unlink()
    with Opened(tmp_path) as opened:
        assert opened.submit("m").ids == (3,), "also into a new folder"


def test_the_state_of_a_newer_brim_is_refused(tmp_path, database):
    with sqlite3.connect(database) as connection:
        connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.close()
    words = f"has version {len(schema.MIGRATIONS) + 1}, written by a newer brim, and this brim knows versions up to"
    assert words in refused(tmp_path)


def test_a_folder_of_others_is_refused(tmp_path):
    folder = tmp_path / "controller"
    folder.mkdir(mode=0o700)
    folder.chmod(0o750)
    assert f"is open to other users (mode 750), expected 700: run chmod 700 {folder}" in refused(tmp_path)
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is no folder of yours" in refused(tmp_path)
    folder.unlink()
    folder.write_text("")
    with pytest.raises(RefusedError, match="is no folder of yours"):
        opens(tmp_path)
    if os.geteuid() == 0:
        folder.unlink()
        folder.mkdir(mode=0o700)
        os.chown(folder, 12_345, 12_345)
        assert "is no folder of yours" in refused(tmp_path)


def test_a_folder_with_odd_characters_is_used(tmp_path):
    with Opened(tmp_path / "what? #1 100% ü") as opened:
        assert opened.submit("k").ids == (1,)
    assert (tmp_path / "what? #1 100% ü" / "controller" / "brim.db").exists()


def test_missing_folders_are_made_private(tmp_path):
    opens(tmp_path / "state" / "brim")
    assert stat.S_IMODE((tmp_path / "state/brim/controller").stat().st_mode) == 0o700


def test_another_process_is_named(tmp_path):
    """The process that has the lock is killed, which is all it takes to have the folder."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        Store(tmp_path / "controller", lambda _: None)
        os.write(told, b"1")
        signal.pause()  # until it is killed
    try:
        os.close(told)
        assert os.read(ready, 1) == b"1"
        assert f"a controller (process {child}) already uses {tmp_path / 'controller'}: end it with `brim down`" in (
            refused_beside(tmp_path)
        )
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
    opens(tmp_path)


def refused_beside(folder: Path) -> str:
    with pytest.raises(RefusedError) as error:
        opens(folder)
    return str(error.value)


def test_every_connection_has_the_settings_that_durability_needs(tmp_path):
    with Opened(tmp_path) as opened:
        opened.submit("k")
        for connection in (opened.store._writer._connection, opened.store.reads._connection):
            found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name, _, _ in opening._PRAGMAS}
            assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "wal_autocheckpoint": 0}
            assert connection.isolation_level is None


VERSIONS = (
    *schema.MIGRATIONS,
    ("ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'", "UPDATE jobs SET colour = 'blue' WHERE id = 1",
     "CREATE INDEX jobs_colour ON jobs (colour)"),
    ("CREATE TABLE colours (name TEXT)", "INSERT INTO colours SELECT DISTINCT colour FROM jobs"),
)  # fmt: skip


class Killed(BaseException):
    """In the place of SIGKILL: nothing below catches it, and the connection is left as it is."""


def test_a_migration_killed_at_any_statement_is_done_by_the_next_start(tmp_path):
    """The kill is an abandoned connection; tests/live/store/test_crash.py kills processes."""
    now = len(schema.MIGRATIONS)
    statements = sum(map(len, VERSIONS[now:])) + 4 * 2
    for last in range(statements):
        folder = tmp_path / str(last)
        with Opened(folder) as opened:
            opened.submit("k", asked(), asked())
        database = folder / "controller" / "brim.db"
        connection = opening.connect(database)
        left = last
        seen: list[str] = []

        def trace(statement: str, seen: list[str] = seen, limit: int = left) -> None:
            seen.append(statement)
            if len(seen) > limit:
                raise Killed

        with pytest.raises(Killed):
            migrations.migrate(Traced(connection, trace), VERSIONS)  # type: ignore[arg-type]
        connection.close()
        again = opening.connect(database)
        assert migrations.version_of(again) in (now, now + 1, now + 2)
        migrations.migrate(again, VERSIONS)
        assert again.execute("SELECT colour FROM jobs ORDER BY id").fetchall() == [("blue",), ("red",)]
        assert sorted(again.execute("SELECT name FROM colours").fetchall()) == [("blue",), ("red",)]
        assert again.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        again.close()
    migrations.migrate(done := opening.connect(database), VERSIONS)
    done.close()


class Traced:
    """A connection that calls ``before`` with every statement; only BEGIN to COMMIT of a migration are used."""

    def __init__(self, connection: sqlite3.Connection, before) -> None:
        self.connection, self.before = connection, before

    in_transaction = False  # the rollback of a killed process is that of its database

    def execute(self, statement: str):
        if statement != "PRAGMA user_version":
            self.before(statement)
        return self.connection.execute(statement)


TABLE = """\
22 1 0:20 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:25 / /home rw,relatime shared:1 master:2 - nfs4 server:/home rw,vers=4.2
31 30 8:1 / /home/local\\040disk rw - xfs /dev/sdb1 rw
32 22 0:26 / /data rw - fuse.sshfs me@server: rw
33 22 8:2 / /data rw - ext4 /dev/sdc1 rw
34 22 0:27 / /homely rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"), ("/etc", "ext4"), ("/home", "nfs4"), ("/home/ann/state", "nfs4"), ("/home/local disk/x", "xfs"),
        ("/home/local", "nfs4"), ("/data/x", "ext4"), ("/homely/x", "tmpfs"), ("/homelyx", "ext4"),
    ],
)  # fmt: skip
def test_the_volume_of_a_path_is_found(path, kind):
    assert mount_of(Path(path), TABLE).kind == kind


def test_network_file_systems_are_refused():
    with pytest.raises(RefusedError, match=r"is on the network file system /home \(nfs4\) of server:/home, where SQL"):
        refuse_network(Path("/home/ann/state"), TABLE)
    refuse_network(Path("/home/local disk/state"), TABLE)
    for kind in NETWORK:
        with pytest.raises(RefusedError, match="set BRIM_STATE to a folder on a disk of this machine"):
            refuse_network(Path("/x"), f"22 1 0:20 / / rw - {kind} host: rw\n")


def test_the_volume_of_this_folder_is_the_one_that_the_kernel_says(tmp_path):
    mount = mount_of(tmp_path)
    assert os.stat(mount.point).st_dev == os.stat(tmp_path).st_dev
    refuse_network(tmp_path)


def test_a_link_to_a_network_file_system_is_followed(tmp_path):
    (tmp_path / "state").symlink_to("/home/ann")
    with pytest.raises(RefusedError, match="nfs4"):
        refuse_network(tmp_path / "state" / "brim", TABLE)
