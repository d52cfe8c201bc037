"""Finds and ends the descendants of a process. Linux only; reads /proc.

A process is identified by its id and its start time, so that a signal never reaches an unrelated process that got the
same id later. With a child subreaper at the root, a process that double-forks away from a rank becomes a child of the
root, and is found there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

KILL_DEADLINE_S: Final = 10.0
"""How long to wait for killed processes to end. Our choice; one in uninterruptible sleep may need minutes."""
RESOURCE_TRACKER_S: Final = 1.0
"""How long resource trackers may outlive the processes they clean up after. Our choice: they need about 20 ms."""
_PAUSE_S: Final = 0.005
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PTRACE_DETACH: Final = 17
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_RESOURCE_TRACKERS: Final = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Processes that unlink the shared memory of others once these have ended; if killed first, they would leave it."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as read from /proc."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    state: str


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(errno)}")


def end_with_parent(parent: int | None = None) -> None:
    """Ask the kernel for a SIGTERM when the thread that started this process ends; forks of it do not get one.

    Args:
        parent: Process id of the parent, if it may have ended before this call.

    Raises:
        SystemExit: it has.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if parent not in (None, os.getppid()):
        raise SystemExit(0)


def end_by_signal(number: int) -> None:
    """End this process by a signal, as one ends that has no handler of it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let signals interrupt a command, which ends its ranks and removes its files, and end it after that."""
    caught: list[int] = []

    def stop(number: int, frame: object) -> None:
        caught.append(number)
        if len(caught) == 1:  # a second one does not interrupt this
            raise KeyboardInterrupt

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in ending if signal.getsignal(number) != signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        if caught:
            end_by_signal(caught[0])


def find_process(pid: int) -> Process | None:
    """Return the process with this id, if there is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    words = text[text.rindex(b")") + 2 :].split()  # the process name before it may contain anything
    return Process(pid, int(words[1]), int(words[3]), int(words[19]), words[0].decode())


def all_processes() -> list[Process]:
    """Return all processes of the machine."""
    return [found for name in os.listdir("/proc") if name.isdecimal() and (found := find_process(int(name)))]


def descendants(root: int, among: Iterable[Process] | None = None) -> list[Process]:
    """Return all descendants of ``root``, zombies included, parents before children."""
    below: dict[int, list[Process]] = {}
    for process in all_processes() if among is None else among:
        below.setdefault(process.parent, []).append(process)
    found, queue = [], [root]
    while queue:
        children = below.pop(queue.pop(), [])
        found += children
        queue += [child.pid for child in children]
    return found


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Return the environment that the process was executed with; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return {}
    return dict(entry.partition(b"=")[::2] for entry in text.split(b"\0") if entry)


def was_executed_with(pid: int, variable: str, value: str) -> bool:
    """Whether the process was executed with this variable of the environment; not if that cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return False
    return f"\0{variable}={value}\0".encode() in b"\0" + text + b"\0"


def is_resource_tracker(pid: int) -> bool:
    """Whether the process only frees what others leave behind when they end."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read()
    except OSError:
        return False
    return any(name in text for name in _RESOURCE_TRACKERS)


def send_signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; return whether it still existed."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = find_process(process.pid)  # the descriptor is for the process that has the id now: is it the same one?
        if now is None or now.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended; return process ids and wait statuses.

    A child that has asked to be traced stops at each signal until its parent lets it go on: it is let go for good.
    """
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                _stop_tracing(pid, os.WSTOPSIG(status))
            else:
                ended.append((pid, status))
    return ended


def _stop_tracing(pid: int, number: int) -> None:
    """Let a traced child go on with the signal at which it has stopped; if the kernel refuses, it stays stopped."""
    told = 0 if number == signal.SIGTRAP else number  # the kernel's word to the tracer, such as after an exec
    _libc.ptrace(_PTRACE_DETACH, pid, None, told)


def terminate_launcher(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Terminate a launcher, which ends its ranks. If it does not, kill it; its zygote then ends the ranks."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_all(
    list_processes: Callable[[], list[Process]],
    on_reaped: Callable[[list[tuple[int, int]]], None] = lambda _: None,
    deadline_s: float = KILL_DEADLINE_S,
) -> list[Process]:
    """Send SIGKILL to the processes that ``list_processes`` returns until it returns none, resource trackers last.

    Children of this process are reaped meanwhile.

    Args:
        list_processes: Called repeatedly, since a process may have forked just before it was killed.
        on_reaped: Called with the process ids and wait statuses of children of this process that have ended.
        deadline_s: Give up after this long.

    Returns:
        The processes that are left: they are in uninterruptible sleep, or belong to another user.
    """
    start_s = time.monotonic()
    while True:
        on_reaped(reap())
        left = [process for process in list_processes() if process.state not in "ZX"]
        waited_s = time.monotonic() - start_s
        if not left or waited_s > deadline_s:
            on_reaped(reap())
            return left
        for process in left:
            if waited_s > RESOURCE_TRACKER_S or not is_resource_tracker(process.pid):
                send_signal(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)
