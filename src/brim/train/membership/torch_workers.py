"""Keeps the worker processes of PyTorch's ``DataLoader`` alive when SIGTERM asks this process to leave.

Slurm, ``timeout`` and others send SIGTERM to all processes of a job. A worker would die of it, and PyTorch would then
raise an error in the main thread of this process, wherever that is: in a step, or in the save. The workers started from
now on go on: the step gets its batch, and they end as usual when the loader does or this process. A worker that dies of
anything else is reported by PyTorch as ever.

Left out: loaders that are not PyTorch's own. With ``forkserver``, SIGTERM ends the server, and workers that wait for
work notice that within PyTorch's 5 s.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import weakref
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import torch.utils.data.dataloader as torch_dataloader
from torch.utils.data._utils import signal_handling, worker

from brim.gang.processes import end_by_signal

_iterator: Any = torch_dataloader._MultiProcessingDataLoaderIter
_handling: Any = signal_handling
_worker: Any = worker
_begin, _work, _handlers_of_torch = _iterator.__init__, _worker._worker_loop, _handling._set_worker_signal_handlers


def let_workers_outlive_sigterm() -> None:
    """Let the workers of every ``DataLoader`` that starts them from now on in this process ignore SIGTERM."""
    _worker._worker_loop = work
    _iterator.__init__ = _start_workers


def work(*args: Any) -> None:
    """Run in a worker process, in place of PyTorch's own function; a spawned one finds it by its name."""
    _handling._set_worker_signal_handlers = _set_handlers
    _work(*args)


def _set_handlers() -> None:
    """Set PyTorch's handlers in a worker, but for SIGTERM one that does nothing.

    It is a handler, since processes that the dataset starts would inherit a signal that is ignored or blocked.
    """
    own = os.getpid()

    def go_on(number: int, _frame: Any) -> None:
        if os.getpid() != own:  # a process that the dataset forks
            end_by_signal(number)

    _handlers_of_torch()
    signal.signal(signal.SIGTERM, go_on)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@functools.wraps(_begin)
def _start_workers(self: Any, loader: Any) -> None:
    method = (loader.multiprocessing_context or multiprocessing).get_start_method()
    with contextlib.nullcontext() if method == "forkserver" else _sigterm_blocked(method):
        try:
            _begin(self, loader)
        finally:
            for process in getattr(self, "_workers", ()):
                popen = process._popen
                popen.terminate = functools.partial(_kill, weakref.proxy(popen), id(self))


@contextlib.contextmanager
def _sigterm_blocked(method: str) -> Iterator[None]:
    """Block SIGTERM in this thread: a worker inherits that, and begins with no handler."""
    if method == "spawn":
        resource_tracker.ensure_running()  # as it starts, it unblocks SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill(popen: Any, iterator: int) -> None:
    """End a worker, in place of ``terminate``, which sends SIGTERM.

    PyTorch takes SIGTERM from this process for a regular end. It must forget the workers, to take SIGKILL for one.
    """
    with contextlib.suppress(ValueError):  # they were forgotten before
        _handling._remove_worker_pids(iterator)
        _handling._set_worker_pids(iterator, ())
    popen.kill()
