"""A real agent, and a controller that is the test."""

import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from brim.agent.capture import write_capture
from brim.agent.folders import attempt_folder, captures_folder, log_folder
from brim.agent.protocol import (
    ENDED,
    ORDERS,
    REPORTS,
    AgentHello,
    AttemptProgress,
    AttemptSeen,
    DeviceSeen,
    ForgetAttempt,
    StartAttempt,
    Synced,
)
from tests.gang.conftest import END_S, hunt_until_gone

TIMEOUT_S = 60


def inside(cgroup):
    """Words before a command that is to run in a cgroup, if any."""
    if cgroup is None:
        return []
    return ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(cgroup.path)]


class Node:
    """An agent in a process of its own, and the end of its socket that the controller would have."""

    def __init__(self, folder, devices=4, state="state", cgroup=None):
        self.folder, self.devices, self.cgroup = folder, devices, cgroup
        self.env = {**os.environ, "BRIM_STATE": str(folder / state)}
        self.agent_folder = folder / state / "agent"
        (folder / "run").mkdir(0o700)
        self.socket_path = folder / "run" / "agents.sock"
        self.process = self.connection = self.listener = None
        self.sequence = 0
        self.forget()

    def forget(self):
        """As a controller that has just started."""
        self.hello, self.synced, self.seen, self.history, self.progress, self.device = None, False, {}, [], {}, {}

    def start(self):
        self.listen()
        self.start_agent()
        self.until(lambda: self.synced)
        return self

    def start_agent(self):
        with (self.folder / "agent.log").open("ab") as log:
            devices = [] if self.devices is None else ["--devices", str(self.devices)]
            self.process = subprocess.Popen(
                [*inside(self.cgroup), sys.executable, "-P", "-m", "brim.agent",
                 "--controller", str(self.socket_path), *devices],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def listen(self):
        """The controller comes back."""
        self.forget()
        with contextlib.suppress(FileNotFoundError):
            self.socket_path.unlink()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.socket_path))
        self.listener.listen()

    def vanish(self):
        """The controller is gone."""
        for one in (self.connection, self.listener):
            if one is not None:
                one.close()
        self.connection = self.listener = None

    def receive(self, timeout_s):
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            if self.connection is not None:
                selector.register(self.connection, selectors.EVENT_READ)
            for key, _ in selector.select(timeout_s):
                if key.fileobj is self.listener:
                    if self.connection is not None:
                        self.connection.close()
                    self.connection, _ = self.listener.accept()
                    self.decoder = REPORTS.decoder()
                    self.synced = False
                elif key.fileobj is self.connection:
                    self.read()

    def read(self):
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.connection.close()
            self.connection, self.synced = None, False
            return
        for report in self.decoder.feed(data):
            self.history.append(report)
            match report:
                case AgentHello():
                    self.hello = report
                case Synced():
                    self.synced = True
                case AttemptSeen():
                    self.seen[report.job, report.attempt] = report
                case AttemptProgress():
                    self.progress[report.job, report.attempt] = report
                case DeviceSeen():
                    self.device[report.device] = report

    def until(self, holds, timeout_s=TIMEOUT_S):
        deadline_s = time.monotonic() + timeout_s
        while not (found := holds()):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"never came true: {self.seen}\n{(self.folder / 'agent.log').read_text()}"
            self.receive(min(left_s, 0.5))
        return found

    def send(self, order):
        self.connection.sendall(ORDERS.encode(order))

    def capture(self, *command, env=None, cwd=None, **more):
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(env or {})}
        folder = captures_folder(self.agent_folder)
        return write_capture(folder, list(map(str, command)), env, str(cwd or self.folder), **more)

    def order(self, job, attempt, capture, **more):
        self.sequence += 1
        more = {"devices": (0,), "grace_s": 3.0, "sequence": self.sequence, **more}
        return StartAttempt(job=job, attempt=attempt, capture=capture[0], digest=capture[1], **more)

    def run(self, job, attempt, capture, **more):
        self.send(self.order(job, attempt, capture, **more))

    def ended(self, job, attempt=1, timeout_s=TIMEOUT_S):
        """Wait for the end, and take note of it."""
        end = self.until(
            lambda: (s := self.seen.get((job, attempt))) is not None and s.state == ENDED and s, timeout_s
        )
        self.send(ForgetAttempt(job=job, attempt=attempt))
        return end

    def in_state(self, job, state, attempt=1):
        return self.until(lambda: (s := self.seen.get((job, attempt))) is not None and s.state == state and s)

    def attempt_folder(self, job, attempt=1):
        return attempt_folder(self.agent_folder, job, attempt)

    def log(self, job, attempt=1, rank=0):
        path = log_folder(self.agent_folder, job, attempt) / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def until_logged(self, text, job, attempt=1, rank=0):
        self.until(lambda: (self.receive(0.02) or True) and text in self.log(job, attempt, rank))

    def kill_agent(self):
        self.process.kill()
        self.process.wait()
        if self.connection is not None:
            self.until(lambda: self.connection is None)

    def close(self):
        self.vanish()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture
def node():
    """Nodes of this test; whatever they have started is gone after it, or the test fails."""
    nodes, folder = [], Path(tempfile.mkdtemp(prefix="node-"))
    os.environ["BRIM_TEST_MARK"] = str(folder)

    def start(**options):
        place = folder / str(len(nodes))
        place.mkdir()
        nodes.append(Node(place, **options))
        return nodes[-1].start()

    yield start
    for one in nodes:
        one.close()
    left = hunt_until_gone(f"BRIM_TEST_MARK={folder}", END_S)
    del os.environ["BRIM_TEST_MARK"]
    shutil.rmtree(folder, ignore_errors=True)
    assert not left
