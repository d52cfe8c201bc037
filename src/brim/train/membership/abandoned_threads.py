"""Threads that are left behind: they wait in gloo for a dead rank, and gloo returns only after its time-out.

Their tensors are neither reused nor freed while they wait. Their number is bounded, and their memory is reported.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from typing import Final

LEFT_MAX: Final = 8
"""Most threads left behind at a time. Our choice: each holds a bucket of gradients or a copy of the state."""

FREEZE_SIGNAL: Final = signal.SIGRTMAX - 5
"""The signal sent to threads left behind when the process ends. Our choice: one that has no other use."""

_threads: list[threading.Thread] = []


def living() -> list[threading.Thread]:
    """Return the threads that have not returned from gloo."""
    _threads[:] = [thread for thread in _threads if thread.is_alive()]
    return list(_threads)


def add(thread: threading.Thread, generation: int, num_bytes: int, timeout_s: float) -> None:
    """Leave this thread behind, and report it, since its memory stays in use until the thread returns."""
    _threads.append(thread)
    _say(
        f"a thread of generation {generation} is left behind with {num_bytes / 1e6:.0f} MB: it waits in gloo, and "
        f"returns after {timeout_s:g} s at the latest ({len(living())} of at most {LEFT_MAX} threads)"
    )


def make_room(timeout_s: float) -> None:
    """Wait until another thread may be left behind."""
    while len(there := living()) >= LEFT_MAX:
        _say(f"{LEFT_MAX} threads wait in gloo, the most that may: the next group is formed when one returns")
        there[0].join(timeout_s)


@atexit.register  # registered before the runs that end their groups at exit, and so called after them
def freeze() -> None:
    """Stop the threads at exit: Python aborts the process if one returns from C++ while the interpreter ends."""
    if there := living():
        libc = ctypes.CDLL(None)
        libc.signal(FREEZE_SIGNAL, ctypes.cast(libc.pause, ctypes.c_void_p))
        for thread in there:
            signal.pthread_kill(thread.ident or 0, FREEZE_SIGNAL)


def _say(text: str) -> None:
    sys.stderr.write(f"brim: process {os.getpid()}: {text}\n")
