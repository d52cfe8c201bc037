"""Who asks: the kernel's word for a Unix socket, a token for TCP; and what they may see and do.

Nothing in a request says who its sender is. Every rule on whose job is whose is in `Caller.may_see` and
`Caller.may_change`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from brim.agent.users import user_name
from brim.live.records import JobRecord

PEER: Final = "peer_uid"
"""Key of the connection's state: uid of the process that connected; absent for TCP."""
_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid and gid, as in ``struct ucred``."""
_OVERFLOW_UID: Final = 65534
"""Every user of another user namespace that has no number here: nobody in particular."""
SILENT_S: Final = 10.0
"""Time in which a connection must have asked; ours. Clients connect when they ask."""
SPARE: Final = 50
"""Connections above the limit of concurrency that are answered, with 503; ours."""


class PeerProtocol(H11Protocol):
    """HTTP/1.1 that knows, on a Unix socket, which user has connected.

    It closes connections that ask nothing, and those far above the limit at once: each has a descriptor, and a
    controller without one ends.
    """

    app_state: dict[str, Any]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(found)
            self.app_state: dict[str, Any] = {**self.app_state, PEER: uid}
        self._silence = asyncio.get_running_loop().call_later(SILENT_S, transport.close)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency + SPARE:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the head of a request is there
            self._silence.cancel()
        elif self._silence.cancelled():
            self._silence = asyncio.get_running_loop().call_later(SILENT_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._silence.cancel()
        super().connection_lost(exc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A user who was recognised.

    Attributes:
        uid: The kernel's number of the user.
        user: Name of the user.
        is_admin: Whether it is the user who runs the controller.
        token: Id of the token that recognised the caller; empty on a Unix socket.
    """

    uid: int
    user: str
    is_admin: bool
    token: str = ""

    def may_see(self, job: JobRecord) -> bool:
        """Whether all of a job may be shown to the caller, not only what everybody may know."""
        return self.is_admin or job.uid == self.uid

    def may_change(self, job: JobRecord) -> bool:
        """Whether the caller may cancel, hold, release or requeue a job."""
        return self.is_admin or job.uid == self.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who may use the controller: its owner, and the users whom the owner allows."""

    owner: int
    allowed: frozenset[int] = frozenset()

    def caller(self, uid: int, token: str = "") -> Caller | None:
        """Return the user as a caller; None if the user is not admitted."""
        if uid != self.owner and (uid not in self.allowed or uid == _OVERFLOW_UID):
            return None
        return Caller(uid=uid, user=user_name(uid), is_admin=uid == self.owner, token=token)
