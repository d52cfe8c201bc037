"""Who descends from whom on this machine, and ending all of them. Linux only; reads /proc.

A process is named by its id and its start time, so that a signal never reaches a stranger who got the same id later.
With a child subreaper at the root, whoever double-forks away from a rank becomes a child of the root, and is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

KILL_DEADLINE_S: Final = 10.0
"""How long to wait for killed processes to go. Ours; one in uninterruptible sleep may not go for minutes."""
JANITOR_S: Final = 1.0
"""How long processes that only clean up may outlive those they clean up for. Ours: they need about 20 ms."""
_PAUSE_S: Final = 0.005
_PR_SET_CHILD_SUBREAPER: Final = 36
_JANITORS: Final = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""They unlink the shared memory of those they watch as soon as these are gone; killed first, they leave it behind."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process as it was seen."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    state: str


def become_subreaper() -> None:
    """Let orphans below this process become its children instead of init's.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(errno)}")


def seen(pid: int) -> Process | None:
    """The process with this id, if there is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    words = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return Process(pid, int(words[1]), int(words[3]), int(words[19]), words[0].decode())


def everybody() -> list[Process]:
    """Every process there is."""
    return [found for name in os.listdir("/proc") if name.isdecimal() and (found := seen(int(name)))]


def descendants(root: int, among: Iterable[Process] | None = None) -> list[Process]:
    """All below ``root``, zombies included, parents before children."""
    below: dict[int, list[Process]] = {}
    for process in everybody() if among is None else among:
        below.setdefault(process.parent, []).append(process)
    found, queue = [], [root]
    while queue:
        children = below.pop(queue.pop(), [])
        found += children
        queue += [child.pid for child in children]
    return found


def environ_of(pid: int) -> dict[bytes, bytes]:
    """The environment the process was executed with; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return {}
    return dict(entry.partition(b"=")[::2] for entry in text.split(b"\0") if entry)


def is_janitor(pid: int) -> bool:
    """Whether the process only cleans up after others."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read()
    except OSError:
        return False
    return any(name in text for name in _JANITORS)


def send(process: Process, number: int) -> bool:
    """Signal exactly this process; whether it was still there."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = seen(process.pid)  # the descriptor holds on to whoever has the id now: is it the one that was seen?
        if now is None or now.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended: process id and wait status."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def end_launcher(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Ask a launcher to end, which ends its ranks; killed where it does not, and then its zygote ends them."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_all(
    whom: Callable[[], list[Process]],
    reaped: Callable[[list[tuple[int, int]]], None] = lambda _: None,
    deadline_s: float = KILL_DEADLINE_S,
) -> list[Process]:
    """SIGKILL whoever ``whom`` names until it names nobody, janitors last. Reaps children of this process meanwhile.

    Args:
        whom: Asked again and again, since what is killed may have forked a moment before.
        reaped: Told which children of this process ended, with their wait status.
        deadline_s: Give up after this long.

    Returns:
        Who is still there: in uninterruptible sleep, or of another user.
    """
    start_s = time.monotonic()
    while True:
        reaped(reap())
        left = [process for process in whom() if process.state not in "ZX"]
        waited_s = time.monotonic() - start_s
        if not left or waited_s > deadline_s:
            reaped(reap())
            return left
        for process in left:
            if waited_s > JANITOR_S or not is_janitor(process.pid):
                send(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)
