"""A cluster of one command: a controller and an agent with folders of their own, which end with the command.

They are the processes that ``brim up`` starts, and outlive whoever started them. So the command ends them and their
jobs also when a signal ends it, and takes no signal while it does so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.agent.folders import RUNTIME_VARIABLE, STATE_VARIABLE, agent_folder, runtime_folder, state_folder
from brim.cli.agents import end_process
from brim.cli.controller import is_locked
from brim.cli.up import END_S, STOP_MARGIN_S, start_cluster
from brim.errors import BrimError
from brim.gang import processes

if TYPE_CHECKING:
    from brim.api.client import Client
    from brim.gang.processes import Process

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S: Final = 0.05
_RUNTIME_PARENT: Final = "/tmp"
"""The path of a socket has at most 107 bytes, which other temporary folders may exceed."""


@contextlib.contextmanager
def private_cluster(state: Path, words: Sequence[str]) -> Iterator[Client]:
    """Run a controller and an agent for as long as the context lasts, and leave neither them nor a job of theirs.

    The first of ``SIGNALS`` raises ``KeyboardInterrupt`` inside the context; until the processes have ended, nothing
    else interrupts. What does not end by itself is killed.

    Args:
        state: New folder for the state of both.
        words: Options of the controller.

    Raises:
        BrimError: a process does not start, or does not end.
    """
    from brim.api.client import Client

    processes.become_subreaper()
    before = frozenset(one.pid for one in processes.descendants(os.getpid()))
    runtime = Path(tempfile.mkdtemp(prefix="brim-", dir=_RUNTIME_PARENT))
    with _environment({STATE_VARIABLE: str(state), RUNTIME_VARIABLE: str(runtime)}), _held_signals() as signals:
        at = Client(runtime_folder() / "api.sock")
        try:
            start_cluster(at, words)
            with signals.raised():
                yield at
        finally:
            try:
                _end(at, before)
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


def _end(at: Client, before: frozenset[int]) -> None:
    """Cancel every job, end agent and controller, and wait until nothing is left that was not there before."""
    try:
        if at.is_there():
            _cancel_jobs(at)
        for folder, what in ((agent_folder(), "the agent"), (state_folder() / "controller", "the controller")):
            if is_locked(folder / "lock"):
                end_process(folder / "lock", what, END_S, is_locked)
        end_s = time.monotonic() + END_S
        while _left(before) and time.monotonic() < end_s:  # zygotes end by themselves
            processes.reap()
            time.sleep(LOOK_S)
    finally:
        left = processes.kill_all(lambda: _left(before))
    if left:
        raise BrimError(f"process {left[0].pid} cannot be ended")


def _left(before: frozenset[int]) -> list[Process]:
    """Processes below this one, whoever has started them: it is their subreaper."""
    return [one for one in processes.descendants(os.getpid()) if one.pid not in before and one.state not in "ZX"]


def _cancel_jobs(at: Client) -> None:
    jobs = at.jobs().jobs
    for job in jobs:
        with contextlib.suppress(BrimError):  # it has just ended
            at.command("cancel", job.id)
    end_s = time.monotonic() + max((job.request.grace_s for job in jobs), default=0.0) + STOP_MARGIN_S
    while left := at.jobs().jobs:
        if time.monotonic() > end_s:
            raise BrimError(f"job {left[0].id} has not ended in time; the state of the cluster is in {state_folder()}")
        time.sleep(LOOK_S)
