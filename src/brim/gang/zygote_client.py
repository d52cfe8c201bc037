"""The supervisor's connection to a zygote: it requests processes, and receives how they started and exited."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from brim.gang import zygote
from brim.gang.fd_channel import FdChannel
from brim.gang.inherited import AS_IT_IS, Inherited
from brim.gang.launch_config import PRELOAD_TIMEOUT_S
from brim.gang.zygote_events import (
    ProcessExited,
    ProcessStarted,
    StartFailed,
    ZygoteEvent,
    ZygoteLost,
    ZygoteReady,
)


class ZygoteClient:
    """A connection to a zygote: a private one, or one that listens on a path."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        connection.settimeout(PRELOAD_TIMEOUT_S)  # a zygote that preloads, or is stopped, does not read
        self._channel, self._process = FdChannel(connection), process

    @classmethod
    def private(
        cls, python: str, preload: Sequence[str], env: Mapping[str, str], cwd: str, grace_s: float
    ) -> ZygoteClient:
        """Start a zygote as a child of this process."""
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [python, "-c", zygote.PROGRAM, "--fd", str(theirs.fileno()), "--preload", ",".join(preload),
             "--grace-s", str(grace_s)],
            env=env, cwd=cwd, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        return cls(ours, process)

    @classmethod
    def shared(cls, path: str) -> ZygoteClient:
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
        return self._channel.fileno()

    @property
    def pid(self) -> int | None:
        """Process id of a private zygote."""
        return None if self._process is None else self._process.pid

    def start(
        self, rank: int, command: Sequence[str], env: Mapping[str, str], cwd: str, fds: Sequence[int],
        inherits: Inherited = AS_IT_IS, cgroup: str = "",
    ) -> None:  # fmt: skip
        """Request a process with these three descriptors; the caller may close them on return.

        Raises:
            OSError: the zygote has ended.
        """
        what = {"command": list(command), "env": dict(env), "cwd": cwd, "inherits": inherits.plain()}
        self._channel.send({"start": rank, **what, "cgroup": cgroup}, fds)

    def receive(self) -> list[ZygoteEvent]:
        """Return the zygote's messages; called when the connection is readable."""
        messages = self._channel.receive()
        return [ZygoteLost()] if messages is None else [self._event(message) for message in messages]

    def _event(self, message: dict[str, Any]) -> ZygoteEvent:
        if "started" in message:
            (pidfd,) = self._channel.take_fds(1)
            if message["start_method"] == "fork":
                _let_go(*self._channel.take_fds(1))
            return ProcessStarted(
                message["started"], message["pid"], pidfd, message["start_method"], message["spawn_reason"]
            )
        if "refused" in message:
            return StartFailed(message["refused"], message["exit_code"], message["detail"])
        if "exited" in message:
            return ProcessExited(message["exited"], message["wait_status"])
        return ZygoteReady(message["ready"], message["pid"], message["fork_obstacle"])

    def close(self) -> None:
        """Disconnect. The zygote then ends its remaining descendants and itself; a private one is reaped elsewhere."""
        self._channel.close()
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0  # `processes.reap` collects it with all other children


def _let_go(reported_fd: int) -> None:
    """Let a fork run, now that its process id is known here; the zygote may be stopped meanwhile."""
    with contextlib.suppress(BrokenPipeError):  # it was killed
        os.write(reported_fd, b"!")
    os.close(reported_fd)
