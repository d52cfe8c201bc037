"""The agent's connection to the supervisor of one attempt."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Collection
from typing import Any, Final

from brim.agent.effects import GangSeen, Key
from brim.agent.leftovers import KnownProcess, known
from brim.agent.protocol import AttemptProgress
from brim.gang.codec import Decoder, ProtocolError, encode
from brim.gang.messages import PreemptRequest, ResizeRequest, Response, StatusRequest, TuneSettings

_READ_BYTES: Final = 1 << 16
_STATUS: Final = -1
"""The number of a status among those of requests."""


class SupervisorLink:
    """One attempt's process and socket, as the loop of the agent sees them.

    Args:
        key: Which attempt.
        pid: Its process.
        control: Path of its socket.
        selector: The connection and the process are registered here, with this link as data.

    Attributes:
        status_at_ms: When to ask for the status next.
        named: Its processes, as far as they are known; see ``leftovers``.
    """

    def __init__(self, key: Key, pid: int, control: str, selector: selectors.BaseSelector) -> None:
        self.key, self.pid = key, pid
        self.status_at_ms = 0
        self.named: frozenset[KnownProcess] = known([pid])
        self._control, self._selector = control, selector
        self._socket: socket.socket | None = None
        self._decoder = Decoder()
        self._asked: deque[int] = deque()
        self._pidfd = os.pidfd_open(pid)
        selector.register(self._pidfd, selectors.EVENT_READ, self)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    @property
    def awaits_status(self) -> bool:
        """Whether a status was asked for and has not come."""
        return _STATUS in self._asked

    def is_process(self, fd: int) -> bool:
        """Whether this descriptor is that of the process, which has ended if it is readable."""
        return fd == self._pidfd

    def connect(self) -> bool:
        """Connect, if the supervisor listens already."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self._control)
        except OSError:
            connection.close()
            return False
        self._socket, self._decoder = connection, Decoder()
        self._asked.clear()
        self._selector.register(connection, selectors.EVENT_READ, self)
        return True

    def ask_status(self) -> None:
        """Ask for the status; the answer comes through ``receive``."""
        self._send(StatusRequest(), _STATUS)

    def request(self, message: ResizeRequest | TuneSettings | PreemptRequest) -> None:
        """Send a request; the answer comes through ``receive``, with the number in its fence."""
        self._send(message, message.fence[-1])

    def _send(self, message: StatusRequest | ResizeRequest | TuneSettings | PreemptRequest, number: int) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(encode(message))  # a few hundred bytes, which its buffer takes
            self._asked.append(number)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self.disconnect()

    def receive(self) -> list[tuple[int | None, Response]]:
        """Return the answers that have come, each with the number of its request, None for a status.

        ``connected`` is false afterwards if the supervisor has closed the connection, or said what ends it.
        """
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        answers: list[tuple[int | None, Response]] = []
        is_over = not data
        for message in self._decoder.feed(data):
            if self._asked:
                number = self._asked.popleft()
                detail = str(getattr(message, "detail", message))
                answer = message if isinstance(message, Response) else Response(ok=False, detail=detail)
                answers.append((None if number == _STATUS else number, answer))
            is_over |= isinstance(message, ProtocolError) and message.fatal
        if is_over:
            self.disconnect()
        return answers

    def disconnect(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Close everything."""
        self.disconnect()
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._pidfd)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def note_processes(self, status: dict[str, Any]) -> bool:
        """Remember the processes that a status names; return whether there are new ones."""
        pids = [self.pid, status.get("zygote", 0), *(rank["pid"] or 0 for rank in status["ranks"] if rank["alive"])]
        before = self.named
        have = {one.pid for one in before}
        self.named |= known(pid for pid in pids if pid not in have)
        return self.named != before


def in_words(named: Collection[KnownProcess]) -> tuple[int, ...]:
    """Return processes as `AttemptSeen` names them."""
    return tuple(number for one in sorted(named, key=lambda one: one.pid) for number in (one.pid, one.start_ticks))


def gang_seen(key: Key, status: dict[str, Any], names: tuple[str, ...]) -> GangSeen:
    """Return what a status means to the agent; ``names`` are the devices by number."""
    ranks = [rank for rank in status["ranks"] if rank["alive"] or rank.get("cleaning")]
    used = {rank.get("device", "") for rank in ranks}
    members = [rank for rank in ranks if rank["id"] in status["members"]]
    devices = tuple(number for number, name in enumerate(names) if name in used)
    return GangSeen(
        sequence=status.get("sequence", -1), has_processes=any(rank["pid"] for rank in status["ranks"]),
        is_grouped=status["generation"] > 0, is_stopping=status["state"] != "running",
        is_settled=status.get("settled", False), ranks=len(members), devices=devices or None,
        is_speaking=any(rank["connected"] for rank in ranks), progress=_progress(key, members, status),
        loss=status.get("loss", ""),
    )  # fmt: skip


def _progress(key: Key, members: list[dict[str, Any]], status: dict[str, Any]) -> AttemptProgress | None:
    """Return what the ranks have reported: the newest; times of the slowest rank, once all have measured this group."""
    if not any("samples" in rank for rank in members):
        return None
    newest = max(members, key=lambda rank: rank.get("step", -1) if "samples" in rank else -1)
    measured = {(rank.get("ranks"), rank.get("global_batch")) for rank in members}
    timed = members if len(measured) == 1 and newest.get("ranks") == len(members) else []
    step_s, batch = _most(timed, "step_s"), newest.get("global_batch") if timed else None
    bounds = {rank.get("loader_workers_max") for rank in timed}
    bound = next(iter(bounds)) if len(bounds) == 1 else None
    waits = [min(rank["loader_wait_s"] / rank["step_s"], 1.0) for rank in timed
             if len(bounds) == 1 and rank.get("loader_wait_s") is not None and rank["step_s"] > 0]  # fmt: skip
    return AttemptProgress(
        job=key[0], attempt=key[1], ranks=len(members), step=newest.get("step"), samples=newest.get("samples"),
        total=newest.get("total"), samples_per_s=batch / step_s if batch and step_s else None,
        loss=newest.get("loss"), step_s=step_s, sync_s=_most(timed, "sync_s"),
        loader_wait_ratio=max(waits, default=None), loader_workers=_most(timed, "loader_workers"),
        loader_workers_max=bound, local_batch=newest.get("local_batch") if timed else None,
        global_batch=batch, gradient_noise=_most(members, "gradient_noise"), checkpoint_step=status.get("saved"),
        sizes=tuple(status.get("sizes", ())),
    )  # fmt: skip


def _most(members: list[dict[str, Any]], name: str) -> Any:
    return max((rank[name] for rank in members if rank.get(name) is not None), default=None)
