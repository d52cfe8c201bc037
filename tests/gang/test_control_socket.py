"""The control socket: who may connect, what is refused, and what a rank that reconnects is sent again."""

import contextlib
import os
import random

import pytest

from brim.gang.codec import encode
from brim.gang.messages import (
    Error,
    FormGroup,
    GroupBroken,
    GroupFormed,
    Hello,
    KillRequest,
    MemberLost,
    PreemptRequest,
    Prepare,
    Ready,
    ResizeGroup,
    ResizeRequest,
    Response,
    StatusRequest,
    StoreAddress,
    TrainingProgress,
    TuneSettings,
)
from tests.gang.conftest import RANK
from tests.gang.test_supervisor import stepping, training


def test_a_second_supervisor_on_the_same_path_is_refused(launch):
    gang = launch("--nproc", 1, RANK)
    gang.until(training(1))
    other = launch("--nproc", 1, RANK, control=gang.control)
    assert other.wait() == 1
    assert "another process listens there; choose another path" in other.stderr()
    stepping(gang)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "missing"])
def test_a_file_that_is_no_socket_is_not_removed(launch, tmp_path, kind):
    path = tmp_path / "precious"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "file":
        path.write_text("of somebody")
    else:
        path = tmp_path / "no-folder" / "s"
    before = os.path.lexists(path)
    gang = launch("--nproc", 1, RANK, control=path)
    assert gang.wait() == 1
    expected = "No such file or directory; expected a path in a writable" if kind == "missing" else "expected a socket"
    assert f"brim: {path}: " in gang.stderr().splitlines()[-1]
    assert expected in gang.stderr().splitlines()[-1]
    assert os.path.lexists(path) == before
    if kind == "file":
        assert path.read_text() == "of somebody"


def test_impossible_values_are_refused_and_reach_no_rank(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 1, tmp_path / "wait.py")
    gang.until(lambda status: status["ranks"][0]["pid"])
    rank = peer(gang.control)
    rank.send(Hello(0, 1))
    rank.send(Ready(0))
    assert rank.receive() == FormGroup(1, (0,), 0, 1)
    rank.send(GroupFormed(1, 0))
    gang.until(training(1))
    for message, why in [
        (PreemptRequest(-5.0), "preempt: found -5 s, expected a finite time of at least 0"),
        (TuneSettings(global_batch=0), "tune: found global_batch 0, expected at least 1"),
        (TuneSettings(loader_workers=-1), "tune: found loader_workers -1, expected at least 0"),
        (TuneSettings(loader_workers_max=-1), "tune: found loader_workers_max -1, expected at least 0"),
        (TuneSettings(prefetch=0), "tune: found prefetch 0, expected at least 1"),
    ]:
        assert gang.request(message) == Response(ok=False, detail=why)
    raw = peer(gang.control)
    raw.send(b'{"v":1,"type":"preempt_request","grace_s":NaN}\n')
    assert isinstance(raw.receive(), Error)
    assert gang.request(TuneSettings(loader_workers=0)).ok
    assert rank.receive() == TuneSettings(2, loader_workers=0)
    assert gang.status()["state"] == "running"


def test_random_bytes_half_lines_and_other_versions_harm_nobody(launch, peer):
    gang = launch("--nproc", 2, RANK)
    gang.until(training(2))
    dice = random.Random(4)
    for _ in range(30):
        one = peer(gang.control)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            one.send(dice.randbytes(dice.choice([1, 10, 5000])))
        one.close()
    half = peer(gang.control)
    half.send(encode(StatusRequest())[:9])
    future = peer(gang.control)
    future.send(b'{"v": 2, "type": "hello", "id": 0, "pid": 1}\n')
    sent = future.receive()
    assert isinstance(sent, Error)
    assert "version 2" in sent.detail
    assert "expected 1" in sent.detail
    assert future.receive() is None
    half.send(encode(StatusRequest())[9:])
    assert isinstance(half.receive(), Response)
    stepping(gang)


def test_a_stranger_cannot_be_a_rank(launch, peer):
    gang = launch("--nproc", 1, RANK)
    gang.until(training(1))
    for message, why in [(Hello(0, 1), "connected already"), (Hello(7, 1), "found id 7"),
                         (Hello(0, 1, "another"), "found gang another, expected"),
                         (TrainingProgress(1, 1), "expected hello first"), (Prepare(1, 1.0), "expected hello first")]:
        one = peer(gang.control)
        one.send(message)
        assert why in one.receive().detail
    stepping(gang)


def test_a_rank_of_a_killed_supervisor_is_no_rank_of_the_next(launch, peer, tmp_path):
    """On the same path, before the rank of that number has come: it would take its place, and all would wait."""
    builds = tmp_path / "builds"
    builds.touch()
    gang = launch("--nproc", 1, RANK, f"build={builds}")
    gang.until(lambda status: status["ranks"])
    one = peer(gang.control)
    one.send(Hello(0, 1, "of-before"))
    assert "that one ended" in one.receive().detail
    builds.unlink()
    gang.until(training(1))


def test_a_rank_that_sends_a_message_of_others_gets_an_error(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 1, tmp_path / "wait.py")
    gang.until(lambda status: status["ranks"][0]["pid"])
    rank = peer(gang.control)
    rank.send(Hello(0, 1))
    rank.send(Ready(0))
    assert rank.receive() == FormGroup(1, (0,), 0, 1)
    rank.send(FormGroup(1, (0,), 0, 1))
    assert "not a rank's message" in rank.receive().detail
    rank.send(b'{"v":1,"type":"dance"}\n')
    assert "one of" in rank.receive().detail
    rank.send(GroupFormed(1, 0))
    gang.until(training(1))
    gang.request(TuneSettings(global_batch=64))
    assert rank.receive() == TuneSettings(2, 64)
    rank.send(b'{"v":1,"type":"prog')
    rank.close()
    assert gang.until(lambda status: not status["ranks"][0]["connected"])


def test_a_rank_that_reconnects_is_sent_again_what_it_may_have_missed(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 1, tmp_path / "wait.py")
    gang.until(lambda status: status["ranks"][0]["pid"])
    for _ in range(2):
        rank = peer(gang.control)
        rank.send(Hello(0, 1))
        rank.send(Ready(0))
        assert rank.receive() == FormGroup(1, (0,), 0, 1)
        rank.close()


@pytest.mark.parametrize("applied", [False, True])
def test_a_tune_that_a_new_generation_makes_void_is_sent_again_unless_it_was_applied(launch, peer, tmp_path, applied):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 2, tmp_path / "wait.py")
    gang.until(lambda status: sum(bool(rank["pid"]) for rank in status["ranks"]) == 2)
    first, second = peer(gang.control), peer(gang.control)
    for number, one in enumerate((first, second)):
        one.send(Hello(number, 1))
        one.send(Ready(number))
    for one in (first, second):
        assert one.receive() == FormGroup(1, (0, 1), 0, 1)
        one.send(GroupFormed(1, 0))
    gang.until(training(2))
    gang.request(TuneSettings(global_batch=64))
    assert first.receive() == TuneSettings(2, 64)
    gang.request(KillRequest(1))
    assert first.receive() == MemberLost(1)
    first.send(GroupBroken(1, 5))
    assert first.receive() == FormGroup(2, (0,), 0, 3)
    first.send(GroupFormed(2, 5, tuned=2 if applied else 0))
    gang.until(training(1))
    gang.request(TuneSettings(prefetch=3))
    assert first.receive() == (TuneSettings(4, prefetch=3) if applied else TuneSettings(4, 64))
    if not applied:
        assert first.receive() == TuneSettings(5, prefetch=3)


@pytest.mark.parametrize(("sizes", "words"), [
    ("1,2,4", "(1, 2 or 4 are possible); rank 2 stopped"), ("1,4", "(1 or 4 are possible); ranks 1, 2 stopped"),
])  # fmt: skip
def test_surplus_ranks_are_named_on_stderr(launch, sizes, words):
    gang = launch("--nproc", 3, RANK, f"sizes={sizes}", "steps=3")
    assert gang.wait() == 0
    assert words in gang.stderr()


def test_addresses_and_commands_reach_the_ranks_they_are_for(launch, peer, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(60)")
    gang = launch("--nproc", 2, tmp_path / "wait.py")
    gang.until(lambda status: all(rank["pid"] for rank in status["ranks"]))
    first, second = peer(gang.control), peer(gang.control)
    for number, one in enumerate((first, second)):
        one.send(Hello(number, 1))
        one.send(Ready(number))
    assert first.receive() == second.receive() == FormGroup(1, (0, 1), 0, 1)
    first.send(StoreAddress(1, "127.0.0.1", 4242))
    assert second.receive() == StoreAddress(1, "127.0.0.1", 4242)
    for one in (first, second):
        one.send(GroupFormed(1, 0))
    gang.until(training(2))
    gang.request(ResizeRequest(1))
    assert first.receive() == second.receive() == ResizeGroup(2, 2, (0,), 0)
    gang.request(PreemptRequest(grace_s=2.0))
    assert first.receive() == Prepare(3, 1.0)
