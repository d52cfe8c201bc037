"""Forwards what ranks write to stderr, so that the exception that ended the gang is printed before its consequences.

When one rank fails, its peers fail within milliseconds, with long tracebacks about lost connections. The forwarder
therefore holds a rank's traceback for a moment: if the gang ends meanwhile, ``finish`` writes the first cause first.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from dataclasses import dataclass
from typing import Final

HOLD_S: Final = 0.5
"""How long a traceback is held. Our choice: a peer's failure is noticed within 0.1 s on one node."""
HELD_BYTES_MAX: Final = 1 << 18
"""Most bytes held for one rank. Our choice."""
_TRACEBACK: Final = b"Traceback (most recent call last)"
_READ_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Source:
    rank: int
    held: bytearray
    since_s: float = 0.0
    ended: bool = False


class Forwarder:
    """A thread that copies from pipes, one per rank, to one descriptor.

    Args:
        to_fd: The descriptor to write to, such as this process's stderr.
    """

    def __init__(self, to_fd: int) -> None:
        self._to_fd = to_fd
        self._selector = selectors.DefaultSelector()
        self._sources: dict[int, _Source] = {}  # by descriptor
        self._lock = threading.Lock()
        self._hold_for_ever = False
        self._over = threading.Event()
        self._wake_fd, self._waker_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="brim-stderr", daemon=True)
        self._thread.start()

    def add(self, rank: int) -> int:
        """Open a pipe for this rank; return its write end, which the caller closes once the rank has it."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        with self._lock:
            self._sources[read_fd] = _Source(rank, bytearray())
            self._selector.register(read_fd, selectors.EVENT_READ)
        self._wake()
        return write_fd

    def failing(self) -> None:
        """The gang is ending: hold all tracebacks until ``finish`` knows their order."""
        with self._lock:
            self._hold_for_ever = True

    def finish(self, order: list[int], timeout_s: float = 5.0) -> None:
        """Write what is still held, ranks in this order first, and end the thread."""
        self._over.set()
        self._wake()
        self._thread.join(timeout_s)  # times out only if our stderr is a pipe that is not read
        if self._thread.is_alive():
            return
        place = {rank: number for number, rank in enumerate(order)}
        for fd, source in sorted(self._sources.items(), key=lambda item: place.get(item[1].rank, len(place))):
            with contextlib.suppress(OSError):
                while data := os.read(fd, _READ_BYTES):
                    source.held += data
            self._write(source)
            os.close(fd)
        self._selector.close()
        os.close(self._wake_fd)
        os.close(self._waker_fd)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker_fd, b"!")

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                holding = any(source.held for source in self._sources.values()) and not self._hold_for_ever
            for key, _ in self._selector.select(HOLD_S / 5 if holding else None):
                if key.fd == self._wake_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_fd, 4096)
                else:
                    self._copy(key.fd)
            with self._lock:
                sources = [] if self._hold_for_ever else list(self._sources.items())
            for fd, source in sources:
                if source.held and time.monotonic() - source.since_s > HOLD_S:
                    self._write(source)
                    self._forget_if_done(fd, source)

    def _copy(self, fd: int) -> None:
        source = self._sources[fd]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(fd)
            source.ended = True
            self._forget_if_done(fd, source)
            return
        if not source.held and _TRACEBACK in data:
            source.since_s = time.monotonic()
            before, mark, after = data.partition(_TRACEBACK)
            self._write_bytes(before)
            source.held += mark + after
        elif source.held and len(source.held) < HELD_BYTES_MAX:
            source.held += data
        else:
            self._write(source)
            self._write_bytes(data)

    def _forget_if_done(self, fd: int, source: _Source) -> None:
        if source.ended and not source.held:
            with self._lock:
                del self._sources[fd]
            os.close(fd)

    def _write(self, source: _Source) -> None:
        held = bytes(source.held)
        source.held.clear()
        self._write_bytes(held)

    def _write_bytes(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader of our stderr is gone
            while data:
                data = data[os.write(self._to_fd, data) :]
