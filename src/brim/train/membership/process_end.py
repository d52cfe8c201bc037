"""How the process of a rank may end: by SIGTERM, which asks it to leave, or by an exception, which is reported."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from brim.gang.messages import Failed
from brim.train.membership.supervisor_client import SupervisorClient


class _OnSigterm:
    """Asks the run to leave, then calls the handler that was installed before."""

    def __init__(self, call: Callable[[], None], before: Any) -> None:
        self._call, self.before = call, before

    def __call__(self, number: int, frame: Any) -> None:
        self._call()
        if callable(self.before):
            self.before(number, frame)


def on_sigterm(call: Callable[[], None]) -> None:
    """On SIGTERM, call ``call``, which asks the run to leave, then the handler that was installed before.

    Of several runs in one process, only the newest is asked: a finished one would end the process at once.
    """
    before: Any = signal.getsignal(signal.SIGTERM)
    if isinstance(before, _OnSigterm):
        before = before.before
    signal.signal(signal.SIGTERM, _OnSigterm(call, before))


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
