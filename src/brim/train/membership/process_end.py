"""How the process of a rank may end: by SIGTERM, which asks it to leave, or by an exception, which is reported."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from brim.gang.messages import Failed
from brim.gang.processes import end_by_signal
from brim.train.membership.supervisor_client import SupervisorClient
from brim.train.membership.torch_workers import let_workers_outlive_sigterm


class OnSigterm:
    """A handler of SIGTERM that asks the run to leave, then calls the handler that was installed before.

    In a process that the script forks, as that of a pool is, only the handler of before counts: it ends as asked.
    """

    def __init__(self, call: Callable[[], None], before: Any) -> None:
        self._call, self.before, self._pid = call, before, os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        """Handle the signal."""
        is_fork = os.getpid() != self._pid
        if not is_fork:
            self._call()
        if callable(self.before):
            self.before(number, frame)
        elif is_fork and self.before is not signal.SIG_IGN:
            end_by_signal(number)


def on_sigterm(call: Callable[[], None]) -> None:
    """On SIGTERM, call ``call``, which asks the run to leave, then the handler that was installed before.

    Of several runs in one process, only the newest is asked: a finished one would end the process at once. Workers of
    PyTorch's loaders, whom the signal may reach as well, go on.
    """
    let_workers_outlive_sigterm()
    before: Any = signal.getsignal(signal.SIGTERM)
    if isinstance(before, OnSigterm):
        before = before.before
    signal.signal(signal.SIGTERM, OnSigterm(call, before))


class _Fork(threading.local):
    mask: set[Any] | None = None
    """Signals that were blocked before this thread forked; None while it does not."""


_fork = _Fork()


def _before_fork() -> None:
    """Hold back SIGTERM until the fork is done: in the child, Python forgets one that comes before."""
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    if _fork.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)
        _fork.mask = None


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

NO_DEFAULT_GROUP = "Default process group has not been initialized"
"""The beginning of PyTorch's message when a collective is called without a default group."""


def report_exceptions(client: SupervisorClient | None) -> Callable[[], None]:
    """Report an exception that ends this process to the supervisor; explain PyTorch's error on a missing group.

    Returns:
        A function that sets ``sys.excepthook`` to what it was, unless something else has replaced it since.
    """
    before = sys.excepthook

    def report(kind: Any, error: BaseException, trace: Any) -> None:
        if str(error).startswith(NO_DEFAULT_GROUP):
            error.add_note(
                "brim.train uses its own process group, and creates no default group: use run.gather, run.broadcast "
                "and run.reduce in place of torch.distributed"
            )
        if client is not None:
            client.send(Failed("".join(traceback.format_exception(kind, error, trace))))
        before(kind, error, trace)

    def restore() -> None:
        if sys.excepthook is report:
            sys.excepthook = before

    sys.excepthook = report
    return restore
