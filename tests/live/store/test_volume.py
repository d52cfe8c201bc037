"""Disks that fail: full at any write, a failed sync, a power cut at any of them; and a volume that really is full."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from brim.errors import BrimError, RefusedError
from brim.live.records import Changes
from brim.live.store import group_writer, opening
from brim.live.store.errors import NotAcceptedError
from brim.live.store.store import Store
from tests.live.store.stores import Opened, StoppedClock, submission
from tests.live.store.test_crash import memory
from tests.live.store.volume import Recorder, volume
from tests.live.store.workload import as_a_caller, check_reopened, check_rows, work
from tests.sampling import sample
from tests.train.checkpoint.simulated_disk import Disk, Op, after_kill, after_power_cut

__all__ = ["memory"]
ROUNDS = 9
CUTS = sample(20_000, 200)
"""The sample is the first part: each cut is drawn by its own number."""
CUTS_OF_A_BROKEN_SETTING = 100


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must be written is tried again at once, and the log is copied into the database often."""
    monkeypatch.setattr(group_writer, "RETRY_S", 0.001)
    monkeypatch.setattr(group_writer, "WAL_BYTES_MAX", 150_000)


def recorded(folder: Path) -> list[Op]:
    """What a store does to its files from its creation on, with a note of each acknowledgement."""
    with volume(folder / "controller") as recorder, Opened(folder, StoppedClock()) as opened:
        recorder.log.append(Op("ack", 0, "created"))  # the folder was synced: ``StateFolder.complete``
        recorder.log.append(Op("sync_folder", 0))
        work(opened.store, lambda line: recorder.log.append(Op("ack", 0, line)), ROUNDS, as_a_caller)
    return recorder.log


def acked(log: list[Op], until: int) -> list[str]:
    return [op.name for op in log[:until] if op.kind == "ack"][1:]


def put(disk: Disk, folder: Path) -> Path:
    """Write a simulated disk into a new folder of a store; the database's path."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "controller").mkdir(mode=0o700, parents=True)
    for name, number in disk.folders[0].items():
        (folder / "controller" / name).write_bytes(disk.files[number])
    return folder / "controller" / "brim.db"


@pytest.mark.slow
def test_a_kill_between_any_two_system_calls_loses_nothing(memory, soon):
    """Or inside a write, of which half is there. The sample is each 23rd; from the creation of the store on."""
    log = recorded(memory / "store")
    for until in range(1, len(log) + 1, sample(1, 23)):
        for part in (0.0, 0.5):
            put(after_kill(log, until, part=part), memory / "left")
            check_reopened(memory / "left", acked(log, until))


def cut(log: list[Op], number: int, folder: Path) -> None:
    """Check what a power cut leaves that is drawn by its number."""
    rng = random.Random(number)
    created = next(place for place, op in enumerate(log) if op.kind == "ack")
    until = rng.randrange(created + 2, len(log) + 1)
    database = put(after_power_cut(log, until, rng), folder)
    connection = opening.connect(database)
    try:
        check_rows(connection, acked(log, until))
    finally:
        connection.close()


def test_a_power_cut_loses_nothing_that_was_acknowledged(memory, soon):
    log = recorded(memory / "store")
    for number in range(CUTS):
        try:
            cut(log, number, memory / "left")
        except BaseException as error:
            error.add_note(f"cut {number}")
            raise


def test_power_cuts_find_a_setting_that_loses_data(memory, soon, monkeypatch):
    """The check itself: with ``synchronous`` NORMAL, a commit is not on disk when it is acknowledged."""
    weak = tuple(("synchronous", "NORMAL", 1) if row[0] == "synchronous" else row for row in opening._PRAGMAS)
    monkeypatch.setattr(opening, "_PRAGMAS", weak)
    log = recorded(memory / "store")
    lost = 0
    for number in range(CUTS_OF_A_BROKEN_SETTING):
        try:
            cut(log, number, memory / "left")
        except AssertionError as error:
            lost += "acknowledged" in str(error)
    assert lost > CUTS_OF_A_BROKEN_SETTING // 10


def in_child(run: Any) -> tuple[int, str, list[str]]:
    """Exit code and standard error of a forked child that runs this, and what it acknowledged."""
    errors, acks = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        sys.stderr = os.fdopen(errors[1], "w")
        try:
            run(lambda line: os.write(acks[1], f"{line}\n".encode()))
        finally:
            os._exit(0)
    os.close(errors[1])
    os.close(acks[1])
    with open(acks[0], encoding="ascii") as lines, open(errors[0], encoding="utf-8") as text:
        said, wrong = lines.read().splitlines(), text.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), wrong, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code"), [("sync", sqlite3.SQLITE_IOERR_FSYNC), ("write", sqlite3.SQLITE_IOERR_WRITE)]
)
def test_a_failed_sync_or_write_ends_the_process(memory, kind, code):
    """Each of them in turn; SQLite itself would accept the next commit on the same connection."""
    with volume(memory / "count" / "controller") as recorder, Opened(memory / "count", StoppedClock()) as opened:
        before = sum(op.kind == kind for op in recorder.log)
        work(opened.store, lambda _: None, 1, as_a_caller)
        count = sum(op.kind == kind for op in recorder.log) - before
    assert count >= 4
    failure = code
    for failing in range(1, count + 1, 1 if kind == "sync" else sample(1, 9)):
        folder = memory / f"{kind}{failing}"

        def run(ack: Any, folder: Path = folder, failing: int = failing) -> None:
            seen, armed = 0, False

            def hook(op: Op) -> int:
                nonlocal seen
                seen += armed and op.kind == kind
                return failure if armed and op.kind == kind and seen == failing else 0

            with volume(folder / "controller", hook):
                store = Store(folder / "controller", lambda _: None, clock=StoppedClock())
                armed = True
                work(store, ack, 3, as_a_caller)

        exit_code, wrong, said = in_child(run)
        assert exit_code == group_writer.EXIT_IO, wrong
        name = {code: name for name, code in vars(sqlite3).items() if name.startswith("SQLITE_IOERR_")}[code]
        assert f"brim.db: disk I/O error ({name}). The controller ends: start it again" in wrong
        check_reopened(folder, said)


class Full:
    """A hook: from a write on there is no room, for so many writes; ``late``: the data are there all the same."""

    def __init__(self) -> None:
        self.left, self.length, self.hits = -1, 0, 0

    def __call__(self, op: Op) -> int:
        if op.kind != "write" or self.left < 0:
            return 0
        if self.left > 0:
            self.left -= 1
            return 0
        self.length -= 1
        self.hits += 1
        if self.length == 0:
            self.left = -1
        return sqlite3.SQLITE_FULL


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 5])
def test_no_room_at_any_write_refuses_what_is_asked_and_keeps_what_was_decided(memory, soon, length):
    """Submissions are told so, steps of the controller wait; when there is room, all goes on in the same process."""
    for failing in range(0, 120, sample(1, 7)):
        full, folder = Full(), memory / str(failing)
        said: list[str] = []
        refused: list[str] = []

        def write(store: Store, item: Any, snapshot: Any, told: Any, refused: list[str] = refused) -> Any:
            while True:
                try:
                    return as_a_caller(store, item, snapshot, told)
                except NotAcceptedError as error:
                    assert not isinstance(item, Changes), "a step of the controller waits"
                    refused.append(str(error))

        with volume(folder / "controller", full), Opened(folder, StoppedClock()) as opened:
            full.left, full.length = failing, length
            work(opened.store, said.append, ROUNDS, write)
            assert full.hits == length
            assert opened.store.trouble == ""
            delivered = [given.inbox for given in opened.delivered]
            assert delivered == list(range(1, len(delivered) + 1)), "each once, in order, none left out"
        for text in refused:
            assert text.startswith(f"cannot write {folder}/controller/brim.db: database or disk is full; the volume /")
            assert text.endswith("bytes free; nothing was accepted, try again later")
        check_reopened(folder, said)
        shutil.rmtree(folder)


def test_a_commit_that_failed_and_is_there_all_the_same_is_not_made_twice(memory, soon):
    """The answer of COMMIT is lost, as between a database and its client: what is on disk decides."""
    with Opened(memory, StoppedClock()) as opened:
        writer = opened.store._writer
        opened.submit("first")

        class Ambiguous:
            """The connection, whose first COMMIT is done and fails."""

            def __init__(self, connection: sqlite3.Connection) -> None:
                self.connection, self.failed = connection, False

            def execute(self, statement: str, *values: Any) -> Any:
                done = self.connection.execute(statement, *values)
                if statement == "COMMIT" and not self.failed:
                    self.failed = True
                    error = sqlite3.OperationalError("database or disk is full")
                    error.sqlite_errorcode = sqlite3.SQLITE_FULL
                    raise error
                return done

            def __getattr__(self, name: str) -> Any:
                return getattr(self.connection, name)

        for asked in (submission("k"), Changes(at_ms=0, lines=("a",))):
            opened.commit()  # opens the connection, where the last one was lost
            writer._connection = Ambiguous(writer._connection)  # type: ignore[assignment]
            with suppress(NotAcceptedError):
                as_a_caller(opened.store, asked)
        assert opened.submit("k").ids == (2,)
        assert [given.job.id for given in opened.delivered] == [1, 2], "the controller hears of it all the same"
        assert opened.store.load().lines == ("a",)


def test_closing_without_room_fails_what_waits(memory, soon):
    full = Full()
    with volume(memory / "controller", full), Opened(memory, StoppedClock()) as opened:
        opened.submit("k")
        full.left, full.length = 0, 1 << 30
        step: Future[None] = opened.store.commit(Changes(at_ms=0, lines=("a",)))
        while not opened.store.trouble:
            time.sleep(0.001)
        opened.store.close()
        assert isinstance(step.exception(), NotAcceptedError)
        full.left = -1
        opened.store = Opened(memory, StoppedClock()).store
        assert opened.store.load().lines == ()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC])
def test_an_error_while_a_store_is_made_leaves_what_can_be_opened(memory, code):
    """At each write and sync in turn; the sample is each 17th."""
    with volume(memory / "count" / "controller") as recorder:
        Opened(memory / "count", StoppedClock()).store.close()
    points = [op.kind for op in recorder.log].count("write") + [op.kind for op in recorder.log].count("sync")
    outcomes = set()
    for failing in range(0, points, sample(1, 17)):
        folder, left = memory / str(failing), failing

        def hook(op: Op) -> int:
            nonlocal left
            if op.kind not in ("write", "sync"):
                return 0
            left -= 1
            return code if left == -1 else 0

        with volume(folder / "controller", hook):
            try:
                Opened(folder, StoppedClock()).store.close()
                outcomes.add("opened")
            except BrimError as error:
                outcomes.add(re.sub(r" /\S*( \(\w+\))?|\b\d+", " X", str(error)).replace("  ", " "))
        check_reopened(folder, [])
    what = "database or disk is full" if code == sqlite3.SQLITE_FULL else "disk I/O error"
    assert outcomes == {"opened", f"the state in X cannot be opened: {what}; the volume X has X bytes free"}


def test_a_setting_that_silently_does_not_hold_is_refused(tmp_path):
    """On a volume without shared memory, SQLite keeps another mode of the journal and reports no error."""
    with volume(tmp_path / "controller", shared_memory=False) as recorder:
        with pytest.raises(RefusedError, match=r"brim\.db: SQLite's journal_mode is delete, expected wal: the volume"):
            Opened(tmp_path)
        assert recorder.log
    Opened(tmp_path).store.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A volume of one MiB, which only root can mount."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    volume = tmp_path / "volume"
    volume.mkdir()
    size = "size=1m,mode=700"
    if os.geteuid() or mount is None or umount is None or subprocess.run(
        [mount, "-t", "tmpfs", "-o", size, "tmpfs", str(volume)], check=False, capture_output=True
    ).returncode:
        pytest.skip("no volume can be mounted here: it takes root")
    yield volume
    subprocess.run([umount, "-l", str(volume)], check=True)


def test_a_volume_that_is_full_is_named_and_the_service_goes_on_when_there_is_room(small, soon):
    with Opened(small) as opened:
        ids = [opened.submit("first").ids[0]]
        fill = small / "fill"
        fill_up(fill)
        with pytest.raises(NotAcceptedError) as refused:
            ids.extend(opened.submit(f"k{number}").ids[0] for number in range(1_000))
        assert f"cannot write {small}/controller/brim.db: No space left on device; the volume {small} (tmpfs) has " in (
            str(refused.value)
        )
        assert opened.store.trouble in str(refused.value)
        steps = [opened.store.commit(Changes(at_ms=0, lines=("x" * 9_000,)))]
        assert opened.job(ids[-1]).id == ids[-1], "reads still answer"
        done = threading.Event()
        steps[0].add_done_callback(lambda _: done.set())
        assert not done.wait(0.05), "there is no room for it"
        fill.unlink()
        steps[0].result()
        assert opened.store.trouble == ""
        assert opened.submit("last").ids == (ids[-1] + 1,)
        assert len(opened.store.load().lines) == 1
    with Opened(small) as opened:
        assert [job.id for job in opened.store.load().jobs] == [*ids, ids[-1] + 1]


def test_a_full_volume_says_so_when_a_store_is_opened(small):
    fill_up(small / "fill")
    with pytest.raises(BrimError, match=r"No space left on device|is full") as refused:
        Opened(small)
    assert str(small) in str(refused.value)
    (small / "fill").unlink()
    Opened(small).store.close()


def fill_up(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    return
                raise


def test_a_limit_of_sqlite_itself_is_told_as_no_room(tmp_path, soon):
    with Opened(tmp_path) as opened:
        opened.submit("k")
        opened.store._writer._connection.execute("PRAGMA max_page_count = 1")  # what there is, and not a page more
        with pytest.raises(NotAcceptedError, match=r"brim\.db: database or disk is full; the volume / "):
            list(map(opened.submit, map(str, range(1_000))))
        assert opened.submit("later").ids, "the connection is a new one"


def test_a_database_that_another_process_locks_is_waited_for(tmp_path, soon, monkeypatch):
    monkeypatch.setattr(opening, "BUSY_S", 0.01)
    with Opened(tmp_path) as opened:
        beside = sqlite3.connect(tmp_path / "controller" / "brim.db", isolation_level=None)
        beside.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotAcceptedError, match="another process has locked it for"):
            opened.submit("k")
        step = opened.store.commit(Changes(at_ms=0, lines=("a",)))
        beside.execute("ROLLBACK")
        beside.close()
        step.result()
        assert opened.submit("k").ids == (1,)


def test_nothing_is_recorded_of_other_folders(tmp_path):
    """The tool of these tests: other databases of this process are left alone."""
    with volume(tmp_path / "a") as recorder:
        sqlite3.connect(tmp_path / "b.db").execute("CREATE TABLE t (x)").connection.close()
    assert recorder.log == []
    assert isinstance(recorder, Recorder)
