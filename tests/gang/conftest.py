"""Gangs of real processes, and a hunt for whatever they left behind after every test."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.gang.client import send_request
from brim.gang.codec import Decoder, encode
from brim.gang.messages import StatusRequest

RANK = Path(__file__).parent / "rank.py"
PATIENCE_S = 60
"""Longest wait for something that must happen: no gang waits so long on a machine that works."""
END_S = 30.0
"""Time that a process has to end after its supervisor: the forks of a zygote end when they read that it has left.

Five seconds after SIGTERM they are killed; a machine may stall for ten."""


class Launched:
    """A supervisor in a process of its own, started by the command line."""

    def __init__(self, folder, *words, preload="", env=None, control=None):
        self.control = str(control or folder / "s")
        self.folder = folder
        self.err = (folder / "stderr").open("w+")
        self.out = (folder / "stdout").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brim.train.launch", "--control", self.control, "--preload", preload,
             *map(str, words)],
            cwd=folder, stdout=self.out, stderr=self.err, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
        )  # fmt: skip

    def request(self, message):
        return send_request(self.control, message)

    def status(self):
        return json.loads(json.dumps(send_request(self.control, StatusRequest()).status))

    def until(self, holds, timeout_s=PATIENCE_S):
        """Wait until ``holds(status)`` is true; the status."""
        deadline_s = time.monotonic() + timeout_s
        status = None
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                status = self.status()
                if holds(status):
                    return status
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"never came true: {status}\n{self.stderr()}")

    def wait(self, timeout_s=PATIENCE_S):
        return self.process.wait(timeout_s)

    def stderr(self):
        self.err.flush()
        return (self.folder / "stderr").read_text()

    def stdout(self):
        return (self.folder / "stdout").read_text()

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.err.close()
        self.out.close()


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(*words, **options):
        folder = tmp_path / f"gang{len(started)}"
        folder.mkdir()
        started.append(Launched(folder, "--grace", "4", "--term", "1", "--failure-grace", "1", *words, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """No process, listening port or shared memory of the test is there after it."""
    mark = f"BRIM_TEST_MARK={tmp_path}"
    os.environ["BRIM_TEST_MARK"] = str(tmp_path)
    yield
    del os.environ["BRIM_TEST_MARK"]
    left = hunt_until_gone(mark, END_S)
    assert not left
    assert not shared_memory(tmp_path)


def shared_memory(tmp_path):
    """Named shared memory of the test of this folder: tests beside it have names of their own."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(shared_memory_name(tmp_path))]


def shared_memory_name(tmp_path):
    """How names of shared memory begin in this test; another worker's test may have the same last folder."""
    return "-".join(["brim-test", *tmp_path.parts[-2:]])


def hunt_until_gone(mark, timeout_s):
    """Command lines of the processes that still run with this mark after the timeout, by pid; kills them."""
    deadline_s = time.monotonic() + timeout_s
    while (left := hunt(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    shown = {}
    for pid in left:
        with contextlib.suppress(OSError):
            shown[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            os.kill(pid, signal.SIGKILL)
    return shown


def hunt(mark):
    """Process ids of what was executed with this mark, and of its forks; of a zombie there is nothing to read."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and mark.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


class Peer:
    """A hand-made end of the protocol."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self.decoder = Decoder()
        self.received = []

    def send(self, message):
        self.socket.sendall(message if isinstance(message, bytes) else encode(message))

    def receive(self):
        while not self.received:
            data = self.socket.recv(65536)
            if not data:
                return None
            self.received += self.decoder.feed(data)
        return self.received.pop(0)

    def close(self):
        self.socket.close()


@pytest.fixture
def peer():
    peers = []

    def connect(path):
        peers.append(Peer(path))
        return peers[-1]

    yield connect
    for one in peers:
        one.close()
