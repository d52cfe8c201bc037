"""The server of the control socket: connections, received messages, and messages still to be sent. Nothing blocks."""

from __future__ import annotations

import selectors
import socket
from dataclasses import dataclass, field
from typing import Final

from brim.gang.codec import Decoder, ProtocolError, encode
from brim.gang.messages import Error, Message
from brim.gang.unix_socket import ListeningSocket

UNSENT_BYTES_MAX: Final = 4 << 20
"""A peer that does not read is disconnected once more than this waits for it. Our choice: thousands of messages."""
_READ_BYTES: Final = 1 << 16


@dataclass(slots=True, eq=False)
class Connection:
    """The connection of one peer. ``pid`` comes from the kernel; ``rank`` is set once its `Hello` is accepted."""

    socket: socket.socket
    pid: int
    decoder: Decoder = field(default_factory=Decoder)
    unsent: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    closing: bool = False


class ControlServer:
    """Listens on a path, for processes of the same user only.

    Args:
        path: Path of the socket; one that no process listens on any more is replaced.
        selector: The server registers its sockets here, with itself or a `Connection` as data.

    Raises:
        OSError: the path cannot be used; the text says why.
    """

    def __init__(self, path: str, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._listener = ListeningSocket(path)
        self._connections: set[Connection] = set()
        selector.register(self._listener, selectors.EVENT_READ, self)

    def accept(self) -> None:
        """Accept a connection if it comes from the same user."""
        accepted = self._listener.accept()
        if accepted is not None:
            peer, pid = accepted
            peer.setblocking(False)
            connection = Connection(peer, pid)
            self._connections.add(connection)
            self._selector.register(peer, selectors.EVENT_READ, connection)

    def receive(self, connection: Connection, events: int) -> list[Message]:
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
        messages: list[Message] = []
        for message in connection.decoder.feed(data):
            if isinstance(message, ProtocolError):
                self.send(connection, message.answer())
                connection.closing |= message.fatal
            else:
                messages.append(message)
        connection.closing |= not data
        return messages

    def send(self, connection: Connection, message: Message) -> None:
        """Send the message as soon as the peer reads."""
        connection.unsent += encode(message)
        self._flush(connection)
        if len(connection.unsent) > UNSENT_BYTES_MAX:
            connection.unsent.clear()
            connection.closing = True

    def send_error(self, connection: Connection, detail: str) -> None:
        """Answer a message that is not allowed here; the connection stays open."""
        self.send(connection, Error(detail))

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

    def disconnect(self, connection: Connection) -> None:
        """Close the connection of one peer."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def close(self) -> None:
        """Close all connections, and remove the path."""
        for connection in list(self._connections):
            self.disconnect(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
