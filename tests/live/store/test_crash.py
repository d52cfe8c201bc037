"""SIGKILL at every SQL statement and at every opcode of brim's own code: what was acknowledged is there, once.

Each point is a process forked for it. What a power cut leaves is in test_volume.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import brim
from brim.live.store import opening
from brim.live.store.store import Store
from tests.live.store.stores import StoppedClock
from tests.live.store.workload import as_a_caller, check_reopened, work
from tests.sampling import sample

OURS = str(Path(brim.__file__).parent)
ROUNDS = 3
"""Of the workload where each statement is a point; the last ends with a snapshot."""
Reach, Ack = Callable[[], None], Callable[[str], None]
Run = Callable[[Path, Reach, Ack], None]


def in_child(folder: Path, run: Run, point: int = 0) -> tuple[list[str], int, bool]:
    """What a forked child acknowledged, how many points it passed, and whether it was killed at the one asked for."""
    read, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _run_here(folder, run, point, told)
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    os.close(told)
    with open(read, encoding="ascii") as lines:
        said = lines.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    acked = [line for line in said if not line.startswith("passed")]
    return acked, int(said[-1].split()[1]) if not status else point, status == signal.SIGKILL


def _run_here(folder: Path, run: Run, point: int, told: int) -> None:
    passed = 0

    def reach() -> None:
        nonlocal passed
        passed += 1
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    run(folder, reach, lambda line: os.write(told, f"{line}\n".encode()))
    os.write(told, f"passed {passed}\n".encode())


def by_statement(folder: Path, reach: Reach, ack: Ack, wanted: Callable[[str], bool] = bool) -> None:
    """A point before each statement, those inside triggers too, from the creation of the store on."""
    plain = opening._plain

    def traced(database: Path) -> Any:
        connection = plain(database)
        connection.set_trace_callback(lambda statement: reach() if wanted(statement) else None)
        return connection

    opening._plain = traced
    work(Store(folder / "controller", lambda _: None, clock=StoppedClock()), ack, ROUNDS)


def by_commit(folder: Path, reach: Reach, ack: Ack) -> None:
    """A point before each end of a transaction, where an answer that comes too early would be found."""
    by_statement(folder, reach, ack, lambda statement: statement == "COMMIT")


def tracer(reach: Reach) -> Callable[[FrameType, str, object], Any]:
    """A trace function with a point before each opcode of brim's frames."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            reach()
        return trace

    sys._getframe().f_trace_opcodes = True  # CPython 3.12 traces opcodes only if a frame wants it before settrace
    return trace


def opcodes_of_creation(folder: Path, reach: Reach, ack: Ack) -> None:
    """A point before each opcode until a new store is open."""
    sys.settrace(tracer(reach))
    Store(folder / "controller", lambda _: None, clock=StoppedClock())
    sys.settrace(None)


def opcodes_of_requests(folder: Path, reach: Reach, ack: Ack) -> None:
    """A point before each opcode of a submission, a start, a preemption, a second start, a cancel and an end with a
    snapshot."""
    store = Store(folder / "controller", lambda _: None, clock=StoppedClock())
    sys.settrace(tracer(reach))
    work(store, ack, snapshots=True)
    sys.settrace(None)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what a killed process has written stays there as on a disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="brim-store-", dir=shared))
    yield folder
    shutil.rmtree(folder)


SLICES = 4
"""Tests that share the opcodes of requests, so that workers do."""


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("run", "first", "step"),
    [(by_statement, 1, sample(1, 23)), (by_commit, 1, 1), (opcodes_of_creation, 1, sample(1, 601)),
     *((opcodes_of_requests, 1 + part, sample(SLICES, 1433)) for part in range(SLICES))],
)  # fmt: skip
def test_a_kill_at_any_point_loses_nothing_that_was_acknowledged(memory, run, first, step):
    """The sample is each 23rd of 316 statements, each 601st of 3,282 opcodes of opening a new store, and four times
    each 1433rd of 14,392 opcodes of requests."""
    acked, points, killed = in_child(memory / "whole", run)
    assert not killed
    assert points > 10
    check_reopened(memory / "whole", acked)
    for point in range(first, points + 1, step):
        folder = memory / str(point)
        acked, _, killed = in_child(folder, run, point)
        assert killed, "runs differ"
        try:
            check_reopened(folder, acked)
        except BaseException as error:
            error.add_note(f"killed at point {point} of {points}; acknowledged: {acked}")
            raise
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_second_kill_while_the_next_one_opens_the_store_loses_nothing(memory):
    """Pairs of commits and of statements of opening; the sample is a twentieth of them, spread evenly."""

    def opens(folder: Path, reach: Reach, ack: Ack) -> None:
        plain = opening._plain

        def traced(database: Path) -> Any:
            connection = plain(database)
            connection.set_trace_callback(lambda _: reach())
            return connection

        opening._plain = traced
        StoppedClock.boot_id = "second"  # which has to be written down
        Store(folder / "controller", lambda _: None, clock=StoppedClock())

    in_child(memory / "whole", by_commit)
    _, openings, _ = in_child(memory / "whole", opens)
    assert openings > 20
    pairs = [(commit, opening) for commit in range(2, 14) for opening in range(1, openings + 1)]
    for commit, statement in pairs[:: sample(1, 20)]:
        folder = memory / f"{commit}-{statement}"
        acked, _, killed = in_child(folder, by_commit, commit)
        assert killed
        in_child(folder, opens, statement)
        check_reopened(folder, acked)
        shutil.rmtree(folder)


def test_a_kill_in_the_thread_that_writes_loses_nothing(memory):
    """The same through futures and threads, at a time that the machine chooses."""

    def threads(folder: Path, reach: Reach, ack: Ack) -> None:
        store = Store(folder / "controller", lambda _: None, clock=StoppedClock())
        plain = store._writer._moment

        def moment():
            reach()
            return plain()

        store._writer._moment = moment
        work(store, ack, 9, as_a_caller)

    for point in range(1, 36, sample(1, 5)):
        folder = memory / str(point)
        acked, _, killed = in_child(folder, threads, point)
        assert killed
        check_reopened(folder, acked)
