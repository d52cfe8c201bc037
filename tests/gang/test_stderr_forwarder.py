"""Stderr of ranks: at once, but for tracebacks, which wait a moment for the one that caused them."""

import os
import threading
import time

import pytest

from brim.gang import stderr_forwarder

TRACE = b"Traceback (most recent call last):\n"


@pytest.fixture(autouse=True)
def held_for_long(monkeypatch):
    """Longer than a stall of the machine."""
    monkeypatch.setattr(stderr_forwarder, "HOLD_S", 60.0)


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    yield read_fd, write_fd
    os.close(read_fd)
    os.close(write_fd)


def heard(read_fd, size, timeout_s=60.0):
    """What arrives until it is so long, or time is up."""
    data, deadline_s = b"", time.monotonic() + timeout_s
    while len(data) < size and time.monotonic() < deadline_s:
        try:
            data += os.read(read_fd, 65536)
        except BlockingIOError:
            time.sleep(0.005)
    return data


def test_ordinary_lines_pass_at_once_and_a_traceback_after_a_moment(pipe, monkeypatch):
    forwarder = stderr_forwarder.StderrForwarder(pipe[1])
    fd = forwarder.add(0)
    start_s = time.monotonic()
    os.write(fd, b"step 1\n" + TRACE + b"  handled")
    assert heard(pipe[0], 7) == b"step 1\n"
    monkeypatch.setattr(stderr_forwarder, "HOLD_S", 0.5)
    forwarder._wakeup.wake()
    assert heard(pipe[0], 10) == TRACE + b"  handled"
    assert time.monotonic() - start_s > stderr_forwarder.HOLD_S
    os.write(fd, b"step 2\n")
    assert heard(pipe[0], 7) == b"step 2\n"
    os.close(fd)
    forwarder.close([])


def test_the_cause_is_written_before_what_came_first(pipe, monkeypatch):
    forwarder = stderr_forwarder.StderrForwarder(pipe[1])
    fds = [forwarder.add(rank) for rank in range(3)]
    for rank in (2, 0, 1):
        os.write(fds[rank], TRACE + b"of %d\n" % rank)
        time.sleep(0.02)
    forwarder.hold_all()
    monkeypatch.setattr(stderr_forwarder, "HOLD_S", 0.1)
    time.sleep(0.2)
    os.write(fds[1], b"more of 1\n")
    for fd in fds:
        os.close(fd)
    forwarder.close([1, 0])
    expected = TRACE + b"of 1\nmore of 1\n" + TRACE + b"of 0\n" + TRACE + b"of 2\n"
    assert heard(pipe[0], len(expected)) == expected


def test_what_is_held_is_bounded(pipe):
    forwarder = stderr_forwarder.StderrForwarder(pipe[1])
    fd = forwarder.add(0)
    os.write(fd, TRACE)
    sent = len(TRACE)
    got = b""
    for _ in range(stderr_forwarder.HELD_BYTES_MAX // 8192 + 8):
        os.write(fd, b"x" * 8192)
        sent += 8192
        got += heard(pipe[0], 8192, 0.005)
    assert got
    os.close(fd)
    got += heard(pipe[0], sent - len(got))
    assert len(got) == sent
    forwarder.close([])


def test_a_reader_that_is_slow_and_does_not_block_gets_all(pipe):
    os.set_blocking(pipe[1], False)
    forwarder = stderr_forwarder.StderrForwarder(pipe[1])
    fd = forwarder.add(0)
    writer = threading.Thread(target=lambda: [os.write(fd, b"x" * 10_000) for _ in range(30)])
    writer.start()
    time.sleep(0.2)  # the pipe is full then: it takes 65,536 bytes
    assert len(heard(pipe[0], 300_000)) == 300_000
    writer.join()
    os.close(fd)
    forwarder.close([])
