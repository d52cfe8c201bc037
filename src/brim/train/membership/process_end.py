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
from brim.train.membership.supervisor_client import SupervisorClient
from brim.train.membership.torch_workers import let_workers_outlive_sigterm


class OnSigterm:
    """A handler of SIGTERM that asks the run to leave, then calls the handler that was installed before.

    A process that the script forks, as that of a pool is, has the handler of before: it ends when it is asked to.
    """

    def __init__(self, call: Callable[[], None], before: Any) -> None:
        self._call, self.before = call, before

    def __call__(self, number: int, frame: Any) -> None:
        """Handle the signal."""
        self._call()
        if callable(self.before):
            self.before(number, frame)


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
    """Signals that were blocked before this thread forked; None if it has blocked none."""


_fork = _Fork()


def _before_fork() -> None:
    """Hold back a SIGTERM to the child until it has its own handler: Python forgets one that comes before."""
    if isinstance(signal.getsignal(signal.SIGTERM), OnSigterm):
        _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    if _fork.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)
        _fork.mask = None


def _in_fork() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(handler, OnSigterm):
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler.before is None else handler.before)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_fork)

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
