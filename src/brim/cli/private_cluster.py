"""A cluster of one command: a controller and an agent with folders of their own, which end with the command.

They are the processes that ``brim up`` starts, and outlive whoever started them. So the command ends them and their
jobs also when a signal ends it, and takes no signal while it does so. SIGKILL it cannot take: a guard, which reads a
pipe that nobody else can write to, does the same in its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from brim.agent.folders import RUNTIME_VARIABLE, STATE_VARIABLE, agent_folder, runtime_folder, state_folder
from brim.cli.agents import END_S, end_process
from brim.cli.locks import is_locked
from brim.cli.up import STOP_MARGIN_S, start_cluster
from brim.errors import BrimError
from brim.gang import processes

if TYPE_CHECKING:
    from brim.api.client import Client
    from brim.gang.processes import Process

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S: Final = 0.05
_ENDED: Final = b"ended"
"""What the guard is told by a command that has ended its cluster."""
_RUNTIME_PARENT: Final = "/tmp"
"""The path of a socket has at most 107 bytes, which other temporary folders may exceed."""


@contextlib.contextmanager
def private_cluster(state: Path, words: Sequence[str], *, temporary: Path | None = None) -> Iterator[Client]:
    """Run a controller and an agent for as long as the context lasts, and leave neither them nor a job of theirs.

    The first of ``SIGNALS`` raises ``KeyboardInterrupt`` inside the context; until the processes have ended, nothing
    else interrupts. What does not end by itself is killed.

    Args:
        state: New folder for the state of both.
        words: Options of the controller.
        temporary: Folder that the caller removes afterwards, and the guard if this process is killed.

    Raises:
        BrimError: a process does not start, or does not end.
    """
    from brim.api.client import Client

    processes.become_subreaper()
    runtime = Path(tempfile.mkdtemp(prefix="brim-", dir=_RUNTIME_PARENT))
    with (
        _environment({STATE_VARIABLE: str(state), RUNTIME_VARIABLE: str(runtime)}), _held_signals() as signals,
        _guard(() if temporary is None else (str(temporary),)),
    ):
        before = frozenset(one.pid for one in processes.descendants(os.getpid()))
        at = Client(runtime_folder() / "api.sock")
        try:
            start_cluster(at, words)
            with signals.raised():
                yield at
        finally:
            try:
                _end(at, lambda: _left(before))
            finally:
                shutil.rmtree(runtime, ignore_errors=True)


class _Signals:
    """Signals that have arrived, and whether they may interrupt now."""

    def __init__(self) -> None:
        self._have_come, self._may_raise = False, False

    def handle(self, number: int, frame: object) -> None:
        first, self._have_come = not self._have_come, True
        if first and self._may_raise:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the first signal, also one that has come before."""
        self._may_raise = True
        try:
            if self._have_come:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False


@contextlib.contextmanager
def _held_signals() -> Iterator[_Signals]:
    signals = _Signals()
    before = [signal.signal(number, signals.handle) for number in SIGNALS]
    try:
        yield signals
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _guard(temporary: Sequence[str]) -> Iterator[None]:
    """Have the cluster ended, and folders removed, also if this process is killed inside."""
    words = [sys.executable, "-m", "brim.cli.private_cluster", *temporary]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        start_new_session=True,
    ) as guard:  # fmt: skip
        yield
        with contextlib.suppress(BrokenPipeError):  # the guard was killed, too
            os.write(cast(IO[bytes], guard.stdin).fileno(), _ENDED)


def main() -> None:
    """End what the command that started this guard has left, once it has ended without doing so itself."""
    from brim.api.client import Client

    if sys.stdin.buffer.read() == _ENDED:
        return
    try:
        _end(Client(runtime_folder() / "api.sock"), _ours)
    finally:
        for folder in (runtime_folder(), *map(Path, sys.argv[1:])):
            shutil.rmtree(folder, ignore_errors=True)


def _ours() -> list[Process]:
    """Processes of the cluster of this environment: its runtime folder is its own. Jobs have ended with their agent."""
    mine = os.environ[RUNTIME_VARIABLE].encode()
    return [
        one for one in processes.all_processes()
        if one.pid != os.getpid() and one.state not in "ZX"
        and processes.environment_of(one.pid).get(RUNTIME_VARIABLE.encode()) == mine
    ]  # fmt: skip


def _end(at: Client, left_now: Callable[[], list[Process]]) -> None:
    """Cancel every job, end agent and controller, and wait until nothing is left."""
    try:
        if at.is_there():
            _cancel_jobs(at)
        for folder, what in ((agent_folder(), "the agent"), (state_folder() / "controller", "the controller")):
            if is_locked(folder / "lock"):
                end_process(folder / "lock", what)
        end_s = time.monotonic() + END_S
        while left_now() and time.monotonic() < end_s:  # zygotes end by themselves
            processes.reap()
            time.sleep(LOOK_S)
    finally:
        left = processes.kill_all(left_now)
    if left:
        raise BrimError(f"process {left[0].pid} cannot be ended")


def _left(before: frozenset[int]) -> list[Process]:
    """Processes below this one, whoever has started them: it is their subreaper."""
    return [one for one in processes.descendants(os.getpid()) if one.pid not in before and one.state not in "ZX"]


def _cancel_jobs(at: Client) -> None:
    jobs = at.jobs().jobs
    if jobs:
        at.command("cancel", [job.id for job in jobs])  # those that have just ended are refused
    end_s = time.monotonic() + max((job.request.grace_s for job in jobs), default=0.0) + STOP_MARGIN_S
    while left := at.jobs().jobs:
        if time.monotonic() > end_s:
            raise BrimError(f"job {left[0].id} has not ended in time; the state of the cluster is in {state_folder()}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
