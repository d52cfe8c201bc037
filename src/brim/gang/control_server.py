"""The supervisor's socket: connections, received messages, and messages still to be sent. Nothing here blocks."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import struct
from dataclasses import dataclass, field
from typing import Final

from brim.gang.codec import Decoder, ProtocolError, encode
from brim.gang.messages import Error, Message

PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket on Linux (sockaddr_un)."""
UNSENT_BYTES_MAX: Final = 4 << 20
"""A peer that does not read is disconnected once more than this waits for it. Our choice: thousands of messages."""
_READ_BYTES: Final = 1 << 16
_BACKLOG: Final = 128


@dataclass(slots=True, eq=False)
class Connection:
    """The connection of one peer. ``pid`` comes from the kernel; ``rank`` is set by its `Hello`."""

    socket: socket.socket
    pid: int
    decoder: Decoder = field(default_factory=Decoder)
    unsent: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    closing: bool = False


class Channel:
    """Listens on a path, for processes of the same user only.

    Args:
        path: Path of the socket; one that no process listens on any more is replaced.
        selector: The channel registers its descriptors here, with ``self`` or a ``Connection`` as data.

    Raises:
        OSError: the path cannot be used; the text says why.
    """

    def __init__(self, path: str, selector: selectors.BaseSelector) -> None:
        length = len(os.fsencode(path))
        if length > PATH_BYTES_MAX:
            raise OSError(f"{path}: found {length} bytes, expected at most {PATH_BYTES_MAX} for a socket")
        self.path, self._selector = path, selector
        self._server = socket.socket(socket.AF_UNIX)
        self._server.setblocking(False)
        self._connections: set[Connection] = set()
        try:
            self._bind()
        except OSError:
            self._server.close()
            raise
        self._inode = os.stat(path).st_ino
        selector.register(self._server, selectors.EVENT_READ, self)

    def _bind(self) -> None:
        if is_socket(self.path):
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(self.path)
                except ConnectionRefusedError:
                    os.unlink(self.path)  # left by a supervisor that was killed
                else:
                    raise OSError(f"{self.path}: another supervisor listens there; choose another path")
        try:
            self._server.bind(self.path)
        except OSError as error:
            raise OSError(f"{self.path}: {error.strerror}; expected a path in a writable folder") from None
        os.chmod(self.path, 0o600)
        self._server.listen(_BACKLOG)

    def accept(self) -> None:
        """Accept a connection if it comes from the same user."""
        with contextlib.suppress(OSError):
            peer, _ = self._server.accept()
            found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, uid, _ = struct.unpack("3i", found)
            if uid != os.getuid():
                peer.close()
                return
            peer.setblocking(False)
            connection = Connection(peer, pid)
            self._connections.add(connection)
            self._selector.register(peer, selectors.EVENT_READ, connection)

    def ready(self, connection: Connection, events: int) -> list[Message]:
        """Read and write without blocking; return the messages. Invalid ones are answered with an error.

        ``connection.closing`` is set when the connection is over.
        """
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        if not events & selectors.EVENT_READ or connection.closing:
            return []
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        said: list[Message] = []
        for message in connection.decoder.feed(data):
            if isinstance(message, ProtocolError):
                self.send(connection, message.answer())
                connection.closing |= message.fatal
            else:
                said.append(message)
        connection.closing |= not data
        return said

    def send(self, connection: Connection, message: Message) -> None:
        """Send the message as soon as the peer reads."""
        connection.unsent += encode(message)
        self._flush(connection)
        if len(connection.unsent) > UNSENT_BYTES_MAX:
            connection.unsent.clear()
            connection.closing = True

    def _flush(self, connection: Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent) if connection.unsent else 0
            del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            connection.unsent.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if connection in self._connections and self._selector.get_key(connection.socket).events != wanted:
            self._selector.modify(connection.socket, wanted, connection)

    def close_one(self, connection: Connection) -> None:
        """Close the connection of one peer."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def refuse(self, connection: Connection, why: str) -> None:
        """Answer a message that is not possible with an error; the connection stays open."""
        self.send(connection, Error(why))

    def close(self) -> None:
        """Close all connections, and remove the path if it is still this socket's."""
        for connection in list(self._connections):
            self.close_one(connection)
        self._selector.unregister(self._server)
        self._server.close()
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
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
