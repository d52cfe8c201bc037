"""Forwards what ranks write to stderr, so that the exception that ended the gang is printed before its consequences.

When one rank fails, its peers fail within milliseconds, with long tracebacks about lost connections. The forwarder
therefore holds a rank's traceback for a moment: if the gang ends meanwhile, ``close`` writes the first cause first.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import threading
import time
from dataclasses import dataclass
from typing import Final

from brim.gang.wakeup import WakeupPipe

HOLD_S: Final = 0.5
"""How long a traceback is held. Our choice: a peer's failure is noticed within 0.1 s on one node."""
HELD_BYTES_MAX: Final = 1 << 18
"""Most bytes held for one rank. Our choice."""
_TRACEBACK: Final = b"Traceback (most recent call last)"
_READ_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Stream:
    rank: int
    held: bytearray
    held_since_s: float = 0.0
    ended: bool = False


class StderrForwarder:
    """A thread that copies from pipes, one per rank, to one descriptor.

    Args:
        to_fd: The descriptor to write to, such as this process's stderr.
    """

    def __init__(self, to_fd: int) -> None:
        self._to_fd = to_fd
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, _Stream] = {}  # by descriptor
        self._lock = threading.Lock()
        self._hold_all = False
        self._stopping = threading.Event()
        self._wakeup = WakeupPipe()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="brim-stderr", daemon=True)
        self._thread.start()

    def add(self, rank: int) -> int:
        """Open a pipe for this rank; return its write end, which the caller closes once the rank has it."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        with self._lock:
            self._streams[read_fd] = _Stream(rank, bytearray())
            self._selector.register(read_fd, selectors.EVENT_READ)
        self._wakeup.wake()
        return write_fd

    def hold_all(self) -> None:
        """Hold all tracebacks until ``close``, which knows their order."""
        with self._lock:
            self._hold_all = True

    def close(self, order: list[int], timeout_s: float = 5.0) -> None:
        """Write what is still held, ranks in this order first, and end the thread."""
        self._stopping.set()
        self._wakeup.wake()
        self._thread.join(timeout_s)  # times out only if our stderr is a pipe that is not read
        if self._thread.is_alive():
            return
        position = {rank: number for number, rank in enumerate(order)}
        for fd, stream in sorted(self._streams.items(), key=lambda item: position.get(item[1].rank, len(position))):
            with contextlib.suppress(OSError):
                while data := os.read(fd, _READ_BYTES):
                    stream.held += data
            self._write(stream)
            os.close(fd)
        self._selector.close()
        self._wakeup.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                holding = any(stream.held for stream in self._streams.values()) and not self._hold_all
            for key, _ in self._selector.select(HOLD_S / 5 if holding else None):
                if key.fileobj is self._wakeup:
                    self._wakeup.drain()
                else:
                    self._copy(key.fd)
            with self._lock:
                streams = [] if self._hold_all else list(self._streams.items())
            for fd, stream in streams:
                if stream.held and time.monotonic() - stream.held_since_s > HOLD_S:
                    self._write(stream)
                    self._remove_if_done(fd, stream)

    def _copy(self, fd: int) -> None:
        stream = self._streams[fd]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(fd)
            stream.ended = True
            self._remove_if_done(fd, stream)
            return
        if not stream.held and _TRACEBACK in data:
            stream.held_since_s = time.monotonic()
            before, mark, after = data.partition(_TRACEBACK)
            self._write_bytes(before)
            stream.held += mark + after
        elif stream.held and len(stream.held) < HELD_BYTES_MAX:
            stream.held += data
        else:
            self._write(stream)
            self._write_bytes(data)

    def _remove_if_done(self, fd: int, stream: _Stream) -> None:
        if stream.ended and not stream.held:
            with self._lock:
                del self._streams[fd]
            os.close(fd)

    def _write(self, stream: _Stream) -> None:
        held = bytes(stream.held)
        stream.held.clear()
        self._write_bytes(held)

    def _write_bytes(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader of our stderr is gone
            while data:
                try:
                    data = data[os.write(self._to_fd, data) :]
                except BlockingIOError:  # a full pipe that another process of the user's has made non-blocking
                    select.select([], [self._to_fd], [])
