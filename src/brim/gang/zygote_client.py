"""The supervisor's connection to a zygote: it requests processes, and receives how they started and ended."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from brim.gang import zygote

PRELOAD_S: Final = 600.0
"""Longest wait for a zygote to be ready. Our choice: torch on a slow network file system takes minutes."""
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ZygoteReady:
    """The zygote is ready. If it can only start fresh interpreters, ``never`` is the reason."""

    preload_s: float
    pid: int
    never: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """A process has started. ``handle`` is its pidfd, for the receiver to close; ``why`` is why it was not forked."""

    number: int
    pid: int
    handle: int
    how: str
    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A process could not be started; ``status`` is the exit code that a shell would give."""

    number: int
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended, with this wait status."""

    number: int
    status: int


@dataclass(frozen=True, slots=True)
class ZygoteLost:
    """The connection has ended. The processes it had started continue if this process is their subreaper."""


Word: TypeAlias = ZygoteReady | Started | Refused | Ended | ZygoteLost


class Starter:
    """A connection to a zygote: a private one, or one that listens on a path."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self._connection, self._process = connection, process
        connection.settimeout(PRELOAD_S)  # a zygote that preloads, or is stopped, does not read
        self._rest = b""
        self._fds: list[int] = []

    @classmethod
    def private(
        cls, python: str, preload: Sequence[str], env: Mapping[str, str], cwd: str, grace_s: float, marker: str
    ) -> Starter:
        """Start a zygote as a child of this process. ``marker`` is added to its environment, to find it by."""
        ours, theirs = socket.socketpair()
        name, _, value = marker.partition("=")
        process = subprocess.Popen(
            [python, "-c", zygote.SHORT, "--fd", str(theirs.fileno()), "--preload", ",".join(preload),
             "--grace-s", str(grace_s)],
            env={**env, name: value}, cwd=cwd, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        theirs.close()
        return cls(ours, process)

    @classmethod
    def shared(cls, path: str) -> Starter:
        """Connect to a zygote that listens.

        Raises:
            OSError: no zygote listens there.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise OSError(f"{path}: {error.strerror or error}; expected the socket of a zygote") from None
        return cls(connection, None)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._connection.fileno()

    @property
    def pid(self) -> int | None:
        """Process id of a private zygote."""
        return None if self._process is None else self._process.pid

    def start(self, number: int, command: Sequence[str], env: Mapping[str, str], cwd: str, fds: Sequence[int]) -> None:
        """Request a process with these three descriptors; the caller may close them on return.

        Raises:
            OSError: the zygote has ended.
        """
        request = {"start": number, "command": list(command), "env": dict(env), "cwd": cwd}
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(self._connection, [data], list(fds))
        self._connection.sendall(data[sent:])

    def receive(self) -> list[Word]:
        """Return the zygote's messages; called when the connection is readable."""
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, _READ_BYTES, 64)
        except OSError:
            data, fds = b"", []
        self._fds += fds
        if not data:
            return [ZygoteLost()]
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._word(json.loads(line)) for line in lines]

    def _word(self, said: dict[str, Any]) -> Word:
        if "started" in said:
            return Started(said["started"], said["pid"], self._fds.pop(0), said["how"], said["why"])
        if "refused" in said:
            return Refused(said["refused"], said["status"], said["detail"])
        if "ended" in said:
            return Ended(said["ended"], said["status"])
        return ZygoteReady(said["ready"], said["pid"], said["never"])

    def close(self) -> None:
        """Disconnect. The zygote then ends its remaining descendants and itself; a private one is reaped elsewhere."""
        self._connection.close()
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0  # `processes.reap` collects it with all other children


def this_python() -> str:
    """Return the interpreter of this environment."""
    return sys.executable
