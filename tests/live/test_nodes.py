"""The agent is an executor that obeys the rules, and the rules find executors that do not."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.agent.capture import write_capture
from brim.agent.folders import captures_folder
from brim.agent.protocol import ENDED, ORDERS, REPORTS, AttemptSeen, ForgetAttempt
from brim.testing.conformance_executor import ExecutorViolation, check_executor


class OneAgent:
    """The executor of one agent: it listens where the agent connects."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(60)
        self._decoder = REPORTS.decoder()

    def adopt(self) -> None:
        self._connection, _ = self._listener.accept()

    def send(self, order) -> None:
        self._connection.sendall(ORDERS.encode(order))

    start = resize = tune = preempt = stop = send

    def forget(self, job: int, attempt: int) -> None:
        self.send(ForgetAttempt(job=job, attempt=attempt))

    def observe(self, timeout_s: float) -> list:
        self._connection.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            return list(self._decoder.feed(self._connection.recv(1 << 16)))
        return []

    def close(self) -> None:
        self._connection.close()
        self._listener.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))
    (path / "r").mkdir(mode=0o700)
    (path / "work").mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def agent_in(folder: Path) -> Iterator[None]:
    env = {**os.environ, "BRIM_STATE": str(folder / "s"), "BRIM_RUNTIME": str(folder / "r")}
    with open(folder / "log", "wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "brim.agent", "--devices", "2"], env=env, stdout=log, stderr=log,
        )
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(60)


def try_out(folder: Path, kind: type[OneAgent]) -> None:
    made: list[OneAgent] = []

    def make() -> OneAgent:
        if made:
            made[-1].close()
        made.append(kind(folder / "r" / "agents.sock"))
        return made[-1]

    def sign(command):
        return write_capture(captures_folder(folder / "s" / "agent"), command, dict(os.environ), str(folder))

    try:
        with agent_in(folder):
            check_executor(make, sign, folder / "work")
    finally:
        made[-1].close()


@pytest.mark.slow
def test_the_agent_obeys_every_rule_of_an_executor(folder: Path) -> None:
    try_out(folder, OneAgent)


class Flattering(OneAgent):
    """Says that all went well."""

    def observe(self, timeout_s: float) -> list:
        return [
            AttemptSeen(job=one.job, attempt=one.attempt, sequence=1, state=ENDED, outcome="finished", exit_code=0)
            if isinstance(one, AttemptSeen) and one.state == ENDED else one for one in super().observe(timeout_s)
        ]


def test_an_executor_that_hides_failures_is_found(folder: Path) -> None:
    with pytest.raises(ExecutorViolation, match="exits with 3 has failed with this code: found finished"):
        try_out(folder, Flattering)
