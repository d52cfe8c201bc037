"""A Unix socket that listens on a path, for processes of the same user only."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from typing import Final

PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket on Linux (sockaddr_un)."""
_BACKLOG: Final = 128


class ListeningSocket:
    """Accepts connections without blocking.

    Args:
        path: Path of the socket; one that no process listens on any more is replaced.

    Raises:
        OSError: the path cannot be used; the text begins with the path and says why.
    """

    def __init__(self, path: str) -> None:
        length = len(os.fsencode(path))
        if length > PATH_BYTES_MAX:
            raise OSError(f"{path}: found {length} bytes, expected at most {PATH_BYTES_MAX} for a socket")
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        try:
            self._bind()
        except OSError:
            self._socket.close()
            raise
        self._inode, self._owner = os.stat(path).st_ino, os.getpid()

    def _bind(self) -> None:
        if is_socket(self.path):
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(self.path)
                except ConnectionRefusedError:
                    os.unlink(self.path)  # left by a process that was killed
                else:
                    raise OSError(f"{self.path}: another process listens there; choose another path")
        try:
            self._socket.bind(self.path)
        except OSError as error:
            raise OSError(f"{self.path}: {error.strerror}; expected a path in a writable folder") from None
        os.chmod(self.path, 0o600)
        self._socket.listen(_BACKLOG)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def accept(self) -> tuple[socket.socket, int] | None:
        """Accept a connection; return it with the peer's process id, or None if it comes from another user."""
        with contextlib.suppress(OSError):
            connection, _ = self._socket.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, uid, _ = struct.unpack("3i", credentials)
            if uid == os.getuid():
                return connection, pid
            connection.close()
        return None

    def close(self) -> None:
        """Stop listening. The process that made the socket removes the path, if it is still this socket's."""
        self._socket.close()
        with contextlib.suppress(OSError):
            if os.getpid() == self._owner and os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)


def is_socket(path: str) -> bool:
    """Whether there is a socket at this path; False if there is nothing.

    Raises:
        OSError: there is something else, which must not be removed.
    """
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISSOCK(mode):
        raise OSError(f"{path}: this file is not a socket; expected a socket or a path that does not exist")
    return True
