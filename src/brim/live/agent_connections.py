"""Connections of agents: who they are is the kernel's word, what they say becomes inputs, orders go back.

A user has one agent: a new connection takes the place of the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from brim.agent.boot_clock import boot_time_ms
from brim.agent.protocol import (
    FOREIGN,
    NONE,
    OPEN,
    ORDERS,
    QUARANTINED,
    REPORTS,
    VERSION,
    AgentHello,
    AgentReport,
    AttemptProgress,
    AttemptSeen,
    DeviceSeen,
    Synced,
)
from brim.gang.codec import ProtocolError
from brim.live.engine_thread import EngineThread
from brim.live.inputs import AgentJoined, AgentLost, AgentSynced, AttemptReported, Device, Input, Progress
from brim.live.nodes import Dispatch

LOG: Final = logging.getLogger(__name__)
READ_BYTES: Final = 1 << 16
UNSENT_BYTES_MAX: Final = 16 << 20
"""An agent that does not read is disconnected once more than this waits for it: it is told all anew. As on its side."""
BACKLOG_MAX: Final = 5_000
"""Inputs that may wait before nothing more is read from agents; ours: a second of steps."""
HELLO_S: Final = 10.0
"""Time in which an agent must say who it is. Ours."""
_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid and gid, as in ``struct ucred``."""


class AgentConnections:
    """The socket for agents. Everything here happens in one event loop.

    Args:
        path: Where to listen, in a folder of this user.
        allowed: Users whose agents may connect.
        now_ms: Cluster time.
        engine: Takes what they say.
    """

    def __init__(
        self, path: Path, allowed: frozenset[int], now_ms: Callable[[], int], engine: EngineThread
    ) -> None:
        self._path, self._allowed, self._now_ms, self._engine = path, allowed, now_ms, engine
        self._devices = 0
        self._reads_ms: deque[int] = deque(maxlen=2)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self.hellos: dict[int, AgentHello] = {}
        self.seen: dict[int, dict[int, DeviceSeen]] = {}
        """What agents last said of devices, by device and user."""

    async def start(self, devices: int) -> None:
        """Listen, in place of what a controller that was killed has left, for agents of so many devices."""
        self._devices = devices
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        mask = os.umask(0o177)  # nobody can connect before the mode is set
        try:
            listener.bind(str(new))
        finally:
            os.umask(mask)
        if self._allowed != {os.getuid()}:
            new.chmod(0o666)  # who connects is asked of the kernel
        listener.listen()
        new.replace(self._path)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def stop(self) -> None:
        """Close the socket and all connections; agents go on."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers.values()):
            writer.close()
        self._path.unlink(missing_ok=True)

    def send(self, dispatch: Dispatch) -> None:
        """Send an order to the agent of a user; if it is not there, it is ordered again when it is."""
        writer = self._writers.get(dispatch.uid)
        if writer is None:
            return
        writer.write(ORDERS.encode(dispatch.order))
        if writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            LOG.warning("the agent of user %d does not read: disconnected", dispatch.uid)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid = int(_CREDENTIALS.unpack(found)[1])
        try:
            if uid in self._allowed:
                await self._converse(uid, reader, writer)
            else:
                LOG.warning("an agent of user %d was refused: it is not on the list of those allowed", uid)
        except (ConnectionError, TimeoutError, OverflowError) as error:  # the last: a number that no float holds
            LOG.info("the agent of user %d: %s", uid, error or type(error).__name__)
        finally:
            if self._writers.get(uid) is writer:
                self._drop(uid)
            writer.close()

    async def _converse(self, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder, joined = REPORTS.decoder(), False
        while data := await asyncio.wait_for(reader.read(READ_BYTES), None if joined else HELLO_S):
            for report in decoder.feed(data):
                if isinstance(report, ProtocolError):
                    LOG.warning("the agent of user %d: %s", uid, report)
                    if report.fatal:
                        return
                elif isinstance(report, AgentHello):
                    if not self._join(uid, report, writer):
                        return
                    joined = True
                elif not joined:
                    LOG.warning("the agent of user %d did not say hello", uid)
                    return
                elif self._writers.get(uid) is not writer:
                    return  # another connection has taken its place
                else:
                    self._engine.give((self._input(uid, report),))
            while self._engine.backlog > BACKLOG_MAX:
                await asyncio.sleep(0.05)

    def _join(self, uid: int, hello: AgentHello, writer: asyncio.StreamWriter) -> bool:
        """Note that an agent is there; returns whether it can be used."""
        if hello.version != VERSION:
            LOG.warning("the agent of user %d speaks version %d, expected %d", uid, hello.version, VERSION)
            return False
        if len(hello.devices) != self._devices:
            LOG.warning("the agent of user %d has %d devices, expected %d", uid, len(hello.devices), self._devices)
            return False
        before = self._writers.get(uid)
        if before is not None and before is not writer:
            self._drop(uid)
            before.close()
        self._writers[uid], self.hellos[uid] = writer, hello
        self._engine.give((AgentJoined(at_ms=self._now_ms(), uid=uid, hello=hello),))
        return True

    def _drop(self, uid: int) -> None:
        del self._writers[uid]
        with contextlib.suppress(KeyError):
            del self.hellos[uid]
        self._engine.give((AgentLost(at_ms=self._now_ms(), uid=uid),))

    def reads(self) -> None:
        """Note that this process reads what agents say as it comes; to be called regularly."""
        self._reads_ms.append(boot_time_ms())

    def _unread_ms(self, told_ms: int) -> int:
        """Time for which a message has lain unread: no longer, whatever its agent says, than this may not have read.

        The last call but one of ``reads`` is meant: after a suspension it may be called before all is read.
        """
        now_ms = boot_time_ms()
        return 0 if told_ms == NONE or not self._reads_ms else max(0, now_ms - max(told_ms, self._reads_ms[0]))

    def _input(self, uid: int, report: AgentReport) -> Input:
        now_ms = self._now_ms()
        match report:
            case AttemptSeen():
                return AttemptReported(at_ms=now_ms, uid=uid, seen=report, unread_ms=self._unread_ms(report.told_ms))
            case AttemptProgress():
                return Progress(at_ms=now_ms, uid=uid, progress=report)
            case DeviceSeen():
                if 0 <= report.device < self._devices and report.state in (OPEN, FOREIGN, QUARANTINED):
                    self.seen.setdefault(report.device, {})[uid] = report
                return Device(at_ms=now_ms, uid=uid, device=report)
            case Synced():
                return AgentSynced(at_ms=now_ms, uid=uid)
            case AgentHello():
                return AgentJoined(at_ms=now_ms, uid=uid, hello=report)
