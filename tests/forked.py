"""Python commands in processes forked from one that has imported their modules: the same results seconds sooner.

``tests/gang/test_run_script.py`` shows that a process forked by a zygote cannot be told from a fresh one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from brim.gang.zygote_client import ZygoteClient
from brim.gang.zygote_events import ProcessExited, ProcessStarted, StartFailed, ZygoteReady

ROOT = Path(__file__).parents[1]
COMMAND = "tests.cli.loaded"
"""Imports what the ``brim`` command does."""


THREADS = {"OMP_NUM_THREADS": "1"}
"""As ranks have it; a zygote forks only what has the variables with which it started."""
OURS = {"PYTHONPATH": str(ROOT)}
"""Where the zygote with the command finds ``COMMAND``."""


class Forks:
    """A zygote, and the processes that it starts one after the other."""

    def __init__(self, client: ZygoteClient) -> None:
        self._client, self._number = client, 0
        atexit.register(client.close)
        (ready,) = client.receive()
        assert isinstance(ready, ZygoteReady)
        obstacle = ready.fork_obstacle or ""  # where torch opens a GPU as it is imported, what follows is only slower
        assert not obstacle or "/dev/nvidia" in obstacle, obstacle

    def run(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: BinaryIO | None, stdout: int | None,
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        self._number += 1
        pipes = [os.pipe() for _ in range(2)]
        texts: dict[int, str] = {}
        with open(os.devnull, "rb") as nothing:
            out, err = (write for _, write in pipes)
            fds = [(stdin or nothing).fileno(), out if stdout is None else stdout, err]
            self._client.start(self._number, command, env, cwd, fds)
        for _, write in pipes:
            os.close(write)
        readers = [
            threading.Thread(target=_read, args=(texts, n, fd), daemon=True) for n, (fd, _) in enumerate(pipes)
        ]
        for reader in readers:
            reader.start()
        code = self._wait(timeout_s)
        for reader in readers:
            reader.join(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout_s, texts.get(0), texts.get(1))
        return subprocess.CompletedProcess(command, code, texts[0], texts[1])

    def _wait(self, timeout_s: float) -> int | None:
        """Exit code of the newest process; None if it was killed because it took too long."""
        pidfd, late = -1, False
        with contextlib.ExitStack() as opened:
            while True:
                if not select.select([self._client], [], [], None if late else timeout_s)[0]:
                    late = True
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                for event in self._client.receive():
                    if isinstance(event, ProcessStarted):
                        opened.callback(os.close, event.pidfd)
                    if not isinstance(event, ProcessStarted | ProcessExited | StartFailed):
                        raise AssertionError(event)
                    if event.rank != self._number:
                        continue  # of a process whose run was cut off by an exception
                    if isinstance(event, StartFailed):
                        raise AssertionError(event)
                    if isinstance(event, ProcessExited):
                        return None if late else os.waitstatus_to_exitcode(event.wait_status)
                    pidfd = event.pidfd


class Process:
    """``python WORDS``, forked from a zygote with torch, which goes on beside this process.

    Args:
        zygote: Path of the zygote's socket.
        output: Where it writes what it prints.
    """

    def __init__(self, *words: object, zygote: str, cwd: str, env: Mapping[str, str], output: BinaryIO) -> None:
        self._client = ZygoteClient.shared(zygote)
        with open(os.devnull, "rb") as nothing:
            fds = [file.fileno() for file in (nothing, output, output)]
            self._client.start(0, [sys.executable, *map(str, words)], {**env, **THREADS}, cwd, fds)
        self._started = self._event(ProcessStarted, 60)
        assert self._started.start_method == "fork", self._started.spawn_reason

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._send(signal.SIGKILL)

    def wait(self, timeout_s: float = 60) -> None:
        """Wait for its end; what it has started goes on until ``close``."""
        self._event(ProcessExited, timeout_s)

    def close(self) -> None:
        """End what is left of it and of all that it has started."""
        self._client.close()
        os.close(self._started.pidfd)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._started.pidfd, number)

    def _event(self, kind: type, timeout_s: float) -> Any:
        while select.select([self._client], [], [], timeout_s)[0]:
            for event in self._client.receive():
                if isinstance(event, kind):
                    return event
                assert isinstance(event, ZygoteReady), event
        raise AssertionError(f"no {kind.__name__} in {timeout_s} s")


def _read(texts: dict[int, str], place: int, fd: int) -> None:
    with open(fd, encoding="utf-8") as file:
        texts[place] = file.read()


@functools.cache
def _of(zygote: str | None) -> Forks:
    """Processes of a zygote that listens there; None: of one with the command, which ends with this process."""
    if zygote is not None:
        return Forks(ZygoteClient.shared(zygote))
    env = {name: value for name, value in os.environ.items() if name != "BRIM_TEST_MARK"} | OURS  # outlives a test
    return Forks(ZygoteClient.private(sys.executable, [COMMAND], env, str(ROOT), grace_s=1.0))


def run_fresh(*words: object, cwd: object, timeout_s: float) -> None:
    """Run ``python WORDS`` in a new interpreter with the default number of threads, and demand that it succeeds.

    What it comes to does not depend on the zygote: a fault that all forks share shows as a difference.
    """
    env = {name: value for name, value in os.environ.items() if name not in {*THREADS, "OPENBLAS_NUM_THREADS"}}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=str(cwd), env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def run(
    *words: object, zygote: str | None = None, cwd: object = None, env: Mapping[str, str] | None = None,
    stdin: BinaryIO | None = None, stdout: int | None = None, timeout_s: float = 60, check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What ``python WORDS`` comes to, and prints.

    Args:
        zygote: Path of a zygote with torch, as the fixture of this name; None: one that has imported the command.
        stdin: Its standard input; None: nothing can be read there.
        stdout: Descriptor of its standard output; None: what it prints is returned.

    Raises:
        AssertionError: it failed, and ``check`` is set.
        subprocess.TimeoutExpired: it took longer; it was killed.
    """
    env = {**(os.environ if env is None else env), **(OURS if zygote is None else THREADS)}
    command = [sys.executable, *map(str, words)]
    done = _of(zygote).run(command, cwd=str(cwd or os.getcwd()), env=env, stdin=stdin, stdout=stdout,
                            timeout_s=timeout_s)  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr
    return done
