"""JSON objects and file descriptors over a Unix stream socket, between a supervisor and a zygote."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

_READ_BYTES: Final = 1 << 16
_FDS_MAX: Final = 64


class FdChannel:
    """One end of the connection. Each message is one line; descriptors arrive in the order in which they were sent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._fds: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message with descriptors, which the caller may close on return.

        Raises:
            OSError: the peer has ended.
        """
        data = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self._connection, [data], list(fds))
        self._connection.sendall(data[sent:])

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data; return the messages that are complete, or None if the peer has ended."""
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, _READ_BYTES, _FDS_MAX)
        except OSError:
            return None
        self._fds += fds
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def take_fds(self, number: int) -> list[int]:
        """Return the next received descriptors, for the caller to close."""
        taken, self._fds = self._fds[:number], self._fds[number:]
        return taken

    def close(self) -> None:
        """Close the connection, and the received descriptors that were not taken."""
        self._connection.close()
        for fd in self.take_fds(len(self._fds)):
            with contextlib.suppress(OSError):
                os.close(fd)
