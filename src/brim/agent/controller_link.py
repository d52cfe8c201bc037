"""The agent's connection to the controller, which may vanish and return at any time."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from pathlib import Path
from typing import Final

from brim.agent.folders import check_runtime_folder
from brim.agent.protocol import ORDERS, REPORTS, AgentOrder, AgentReport
from brim.errors import RefusedError
from brim.gang.codec import ProtocolError

BACKOFF_MS: Final = 100
BACKOFF_MS_MAX: Final = 5_000
"""The first and the longest time between two tries to connect. Ours: a controller that restarts is back in 2 s."""
UNSENT_BYTES_MAX: Final = 16 << 20
"""A controller that does not read is disconnected once more than this waits for it; it is told all anew. Ours."""
_READ_BYTES: Final = 1 << 16


class ControllerLink:
    """A connection that is made again after it has ended.

    Args:
        path: The controller's socket for agents.
        selector: The connection is registered here, with this link as data.
    """

    def __init__(self, path: Path, selector: selectors.BaseSelector) -> None:
        self._path, self._selector = path, selector
        self._socket: socket.socket | None = None
        self._decoder = ORDERS.decoder()
        self._unsent = bytearray()
        self._backoff_ms = BACKOFF_MS
        self.retry_at_ms = 0
        self.problem = ""

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    def connect(self, now_ms: int) -> bool:
        """Try to connect, if it is time to; return whether there is a new connection. ``problem`` says why not."""
        if self.connected or now_ms < self.retry_at_ms:
            return False
        self.retry_at_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MS_MAX)
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            owner = os.lstat(self._path.parent).st_uid
            check_runtime_folder(self._path.parent, owner)
            connection.connect(str(self._path))
            peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if peer != owner:
                raise RefusedError(f"{self._path}: user {peer} listens there, expected {owner}, the folder's owner")
        except (OSError, RefusedError) as error:
            connection.close()
            self.problem = str(error)
            return False
        self._socket, self._decoder, self.problem = connection, ORDERS.decoder(), ""
        self._backoff_ms = BACKOFF_MS
        self._unsent.clear()
        self._selector.register(connection, selectors.EVENT_READ, self)
        return True

    def send(self, report: AgentReport) -> None:
        """Send a report as soon as the controller reads; nothing if there is no connection."""
        if self._socket is None:
            return
        self._unsent += REPORTS.encode(report)
        self._flush()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.disconnect()

    def receive(self, events: int) -> list[AgentOrder | ProtocolError]:
        """Read and write without blocking; return the orders, and an error for each line that is none."""
        if events & selectors.EVENT_WRITE:
            self._flush()
        if self._socket is None or not events & selectors.EVENT_READ:
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        orders = list(self._decoder.feed(data))
        if not data or any(isinstance(order, ProtocolError) and order.fatal for order in orders):
            self.disconnect()
        return orders

    def disconnect(self) -> None:
        """Close the connection; ``connect`` makes another one."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            if self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        with contextlib.suppress(KeyError):
            if self._selector.get_key(self._socket).events != wanted:
                self._selector.modify(self._socket, wanted, self)
