"""A disk that is full, denied or failing; processes that do not know they were replaced."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Iterator

import pytest

from brim.train.checkpoint.checkpointer import (
    Checkpointer,
    CheckpointError,
    ForeignError,
    SpaceError,
    StaleError,
)
from tests.train.checkpoint.simulated_disk import CHANGES, ROOT, Disk
from tests.train.checkpoint.test_crash import same, state

SHARD = "tensors-00000.safetensors"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def save(checkpointer: Checkpointer, step: int) -> None:
    checkpointer.save(step, state(step), {"step": step}, wait=True)


class Trouble:
    """Fails the n-th operation that changes something, or from then on all of them."""

    def __init__(self, number: int, *, at: int, lasting: bool) -> None:
        self.number, self.at, self.lasting, self.count, self.struck = number, at, lasting, 0, 0

    def __call__(self, kind: str, path: str) -> None:
        if kind not in CHANGES:
            return
        self.count += 1
        if self.count == self.at or (self.lasting and self.count > self.at):
            self.struck += 1
            raise OSError(self.number, os.strerror(self.number), path)


@pytest.mark.cases(4)
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS])
def test_an_error_at_any_operation_is_told_and_loses_nothing(number, lasting):
    for at in range(1, 60):
        disk = Disk()
        checkpointer = Checkpointer(ROOT, files=disk, shard_bytes=900, chunk_bytes=1024)
        save(checkpointer, 1)
        save(checkpointer, 2)
        trouble = disk.before = Trouble(number, at=at, lasting=lasting)
        told = None
        try:
            save(checkpointer, 3)
        except CheckpointError as error:
            told = error
        disk.before = lambda kind, path: None
        if not lasting:
            assert not [name for name in disk.names(ROOT) if name.startswith("writing")], "space is given back at once"
        restored = Checkpointer(ROOT, files=disk).restore()
        assert restored.step >= (2 if told else 3)
        assert same(restored.step, restored.tensors)
        if told is not None and number in (errno.ENOSPC, errno.EDQUOT):
            assert isinstance(told, SpaceError)
            assert "Free some space" in str(told)
        save(checkpointer, 4)
        assert Checkpointer(ROOT, files=disk).restore().step == 4
        save(checkpointer, 5)
        assert sorted(name.split("-")[0] for name in disk.names(ROOT)) == ["fence", "save", "save"]
        if not trouble.struck:
            return
    raise AssertionError("the operations of a save were not all tried")


def test_a_full_disk_is_noticed_before_anything_is_written():
    disk = Disk()
    checkpointer = Checkpointer(ROOT, files=disk)
    save(checkpointer, 1)
    disk.free = 1000
    before = len(disk.log)
    with pytest.raises(SpaceError, match=r"step 2 needs 1,\d+,\d+ bytes in /disk, 1,000 are free"):
        save(checkpointer, 2)
    assert len(disk.log) == before
    disk.free = 1 << 30
    save(checkpointer, 3)


def test_an_error_in_the_background_is_raised_once_by_the_next_save_or_wait():
    disk = Disk()
    checkpointer = Checkpointer(ROOT, files=disk)
    disk.free = 0
    saving = checkpointer.save(1, state(1), {})
    with pytest.raises(SpaceError):
        saving.wait()
    with pytest.raises(SpaceError, match="step 1"):
        checkpointer.save(2, state(2), {})
    disk.free = 1 << 30
    checkpointer.save(3, state(3), {"step": 3})
    checkpointer.wait()
    checkpointer.wait()
    assert Checkpointer(ROOT, files=disk).restore().step == 3


def test_with_on_error_training_goes_on_and_every_failure_is_told():
    disk, told = Disk(), []
    checkpointer = Checkpointer(ROOT, files=disk, on_error=told.append)
    for step in range(1, 7):
        disk.free = 0 if step in (3, 4) else 1 << 30
        save(checkpointer, step)
    checkpointer.wait()
    assert [type(error) for error in told] == [SpaceError, SpaceError]
    assert Checkpointer(ROOT, files=disk).restore().step == 6


def test_what_a_write_damaged_in_silence_is_found_by_reading_back():
    disk = Disk()
    checkpointer = Checkpointer(ROOT, files=disk, keep=1)
    save(checkpointer, 1)
    disk.damage_write = disk.writes
    with pytest.raises(CheckpointError, match=r"read back with other bytes.*older ones are unchanged: check the d"):
        save(checkpointer, 2)
    assert Checkpointer(ROOT, files=disk).restore().step == 1
    save(checkpointer, 3)
    assert Checkpointer(ROOT, files=disk).restore().step == 3


def test_a_write_whose_end_never_arrived_is_found_by_reading_back():
    disk = Disk()
    checkpointer = Checkpointer(ROOT, files=disk, keep=1)
    save(checkpointer, 1)

    def shorten(kind: str, path: str) -> None:
        if kind == "rename" and "save-00000002" in path:
            disk.before = lambda kind, path: None
            inside = disk.folders[disk.folder(path.split(maxsplit=1)[0])]
            del disk.files[inside[SHARD]][-5:]

    disk.before = shorten
    with pytest.raises(CheckpointError, match="read back with other bytes"):
        save(checkpointer, 2)
    assert Checkpointer(ROOT, files=disk).restore().step == 1


# Two processes.


def test_a_lower_epoch_can_neither_save_nor_restore():
    disk = Disk()
    old, new = Checkpointer(ROOT, files=disk, token=3), Checkpointer(ROOT, files=disk, token=4)
    save(old, 1)
    assert new.restore().step == 1
    with pytest.raises(StaleError, match="taken over by a later start \\(token 4, this process has 3\\)"):
        save(old, 2)
    with pytest.raises(StaleError):
        old.restore()
    save(new, 3)
    assert new.restore().step == 3


def test_of_equal_epochs_the_last_to_begin_saving_may():
    disk = Disk()
    first, second = Checkpointer(ROOT, files=disk), Checkpointer(ROOT, files=disk)
    save(first, 1)
    assert second.restore().step == 1
    save(first, 2)  # restoring does not take over
    save(second, 3)
    before = len(disk.log)
    for _ in range(2):  # and it stays so
        with pytest.raises(StaleError, match="another process of token 0"):
            save(first, 4)
    assert len(disk.log) == before, "the one that was replaced writes nothing"
    save(second, 5)
    first.advance(0)
    save(first, 6)
    with pytest.raises(StaleError):
        save(second, 7)
    with pytest.raises(ValueError, match="expected at least 0"):
        first.advance(-1)


def test_a_stale_error_is_raised_even_where_others_are_only_told():
    disk, told = Disk(), []
    old = Checkpointer(ROOT, files=disk, token=1, on_error=told.append)
    save(old, 1)
    Checkpointer(ROOT, files=disk, token=2).restore()
    with pytest.raises(StaleError):
        save(old, 2)
    assert not told


def test_a_folder_of_another_job_is_refused():
    disk = Disk()
    save(Checkpointer(ROOT, files=disk, job_id="digits-7"), 1)
    other = Checkpointer(ROOT, files=disk, job_id="digits-8", token=5)
    for act in (other.restore, lambda: save(other, 2)):
        with pytest.raises(ForeignError, match="belongs to job 'digits-7', this is job 'digits-8'"):
            act()
    assert Checkpointer(ROOT, files=disk).restore().step == 1


def published(disk: Disk, since: int) -> list[str]:
    return [op.new for op in disk.log[since:] if op.kind == "rename" and op.new.startswith("save-")]


@pytest.mark.parametrize("token", [1, 2], ids=["equal", "higher"])
def test_frozen_at_any_operation_a_replaced_process_publishes_nothing_once_it_wakes(token):
    for at in range(200):
        disk = Disk()
        old, new = Checkpointer(ROOT, files=disk, token=1), Checkpointer(ROOT, files=disk, token=token)
        save(old, 1)
        seen: dict[str, int] = {}

        def takes_over(kind: str, path: str, at=at, disk=disk, new=new, seen=seen) -> None:
            seen["count"] = seen.get("count", -1) + 1
            if seen["count"] == at:
                disk.before = lambda kind, path: None
                seen["restored"] = new.restore().step
                save(new, 10)
                seen["since"] = len(disk.log)

        disk.before = takes_over
        try:
            save(old, 2)
        except StaleError:
            pass
        else:
            assert seen.get("restored", 2) == 2, f"at {at}: said to be saved, and its successor did not see it"
        if "since" not in seen:
            assert at > 20
            return
        assert not published(disk, seen["since"]), f"at {at}"
        save(new, 11)
        restored = new.restore()
        assert (restored.step, restored.set_aside) == (11, ())


def test_two_processes_interleaved_at_random_never_leave_a_folder_without_a_good_checkpoint():
    for seed in range(60):
        interleave(random.Random(seed))


def interleave(rng: random.Random) -> None:
    """Operations of both in a random order, decided by one generator: each waits for its turn before every one."""
    disk, turn, alive = Disk(), threading.Condition(), {"old", "new"}
    holder = ["old"]
    stay = rng.choice((0.3, 0.7, 0.95))
    outcome: dict[str, object] = {}

    def wait_for_turn(kind: str, path: str) -> None:
        name = names.get(threading.get_ident()) or threading.current_thread().name.split("/")[0]
        if name not in alive:
            return
        with turn:
            if rng.random() > stay and len(alive) == 2:
                holder[0] = "new" if name == "old" else "old"
                turn.notify_all()
            assert turn.wait_for(lambda: holder[0] == name or len(alive) < 2, timeout=20)

    def run(name: str, token: int, steps: range) -> None:
        names[threading.get_ident()] = name
        checkpointer = Checkpointer(ROOT, files=disk, token=token)
        original = checkpointer._run
        checkpointer._run = lambda *a: (names.__setitem__(threading.get_ident(), name), original(*a))[1]
        try:
            if name == "new":
                checkpointer.restore()
                outcome["fenced at"] = len(disk.log)
            for step in steps:
                save(checkpointer, step)
                outcome[name] = step
        except Exception as error:
            outcome[f"{name} error"] = error
        with turn:
            alive.discard(name)
            turn.notify_all()

    names: dict[int, str] = {}
    save(Checkpointer(ROOT, files=disk, token=1), 1)
    disk.before = wait_for_turn
    threads = [
        threading.Thread(target=run, args=("old", 1, range(2, 5))),
        threading.Thread(target=run, args=("new", 2, range(10, 12))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcome.get("new") == 11, outcome
    assert isinstance(outcome.get("old error"), StaleError | None)
    late = [name for name in published(disk, outcome["fenced at"]) if name.split("-")[3] in "234"]
    assert not late
    restored = Checkpointer(ROOT, files=disk, token=3).restore()
    assert (restored.step, restored.set_aside) == (11, ())
