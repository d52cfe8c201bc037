"""Ends the wait of a selector, from another thread or when a signal arrives."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable


class WakeupPipe:
    """A pipe whose read end is registered with a selector. Nothing here blocks."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable, for a selector."""
        return self._read_fd

    def wake(self) -> None:
        """Make the descriptor readable."""
        with contextlib.suppress(OSError):  # full, and so readable already
            os.write(self._write_fd, b"!")

    def wake_on_signals(self) -> int:
        """Make the descriptor readable at every signal that has a handler; return the descriptor used before."""
        return signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def drain(self) -> None:
        """Make the descriptor unreadable again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read_fd)
        os.close(self._write_fd)


class SignalQueue:
    """Handles signals by queueing their numbers, until it is closed.

    Args:
        signals: Signals to handle; one that is ignored, as by nohup, stays ignored.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._received: list[int] = []
        self._pipe = WakeupPipe()
        handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._handle) for number in handled}
        self._wakeup_fd = self._pipe.wake_on_signals()

    def _handle(self, number: int, _: object) -> None:
        self._received.append(number)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives, for a selector."""
        return self._pipe.fileno()

    def take(self) -> list[int]:
        """Return the signals received since the last call, in order."""
        self._pipe.drain()
        received, self._received = self._received, []
        return received

    def close(self, *, ignore_later_signals: bool = False) -> None:
        """Restore the handlers that were installed before, or ignore from now on what would end the process."""
        signal.set_wakeup_fd(self._wakeup_fd)
        for number, handler in self._handlers.items():
            ignored = ignore_later_signals and number != signal.SIGCHLD  # to ignore it would discard exit statuses
            signal.signal(number, signal.SIG_IGN if ignored else handler)
        self._pipe.close()
