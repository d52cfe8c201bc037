"""The pool of worker processes, as the training process sees it: sends tasks, receives batches, replaces dead workers.

It needs no thread and no lock: it reads messages when the training process requests a batch or changes something. A
task that a killed worker had, or may have had, is submitted again under a new id, and answers with an old id are
ignored. So a batch may be loaded twice, and none is lost or returned twice.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import BrimError
from brim.train.data.fetch import Recipe
from brim.train.data.sampler import Span
from brim.train.data.shared_memory import BufferPool, SharedBuffer, read, write
from brim.train.data.worker import (
    ANSWER,
    DIED,
    FAILED,
    FLOOR,
    LOADED,
    SLOTS,
    STOP,
    TASK,
    Failure,
    Shared,
    shared_array,
    start_spawner,
)

TRIES = 3
"""A task fails after this many workers were killed while loading it. Our choice."""

IDLE_DEATHS_MAX = 32
"""Most workers that may die in a row without a batch loaded in between. Our choice."""

RECENT = 0.95
"""Decay per batch of the running estimate of the supply. Our choice."""

PATIENCE_S = 0.01
"""Shorter waits are those of any two processes, whatever they load. Our choice."""

RETRY_S = 0.05
"""Longest wait before sending to a full socket is tried again. Our choice."""

READY_S = (1, 2, 4, 8, 16)
"""Time-outs of the successive attempts to start the spawner, which takes hundredths of a second. Our choice."""

CLOSE_S = 5.0
"""Time for the spawner to end its workers before it is killed; it takes milliseconds."""


def _nothing() -> bool:
    return False


class LoaderError(BrimError):
    """Worker processes were killed or did not answer; the message gives the cause and the samples."""


class LoadTask:
    """A span to load: submitted under ``id``, then ``done`` with ``size`` bytes in ``buffer``, then ``taken``."""

    __slots__ = ("buffer", "done", "failed", "id", "pinned", "size", "span", "taken", "tries")

    def __init__(self, span: Span, number: int, buffer: SharedBuffer) -> None:
        self.span, self.id, self.buffer = span, number, buffer
        self.done, self.failed, self.taken, self.size, self.tries = False, False, False, 0, 0
        self.pinned: Future[Any] | None = None


class Pool:
    """Worker processes that load spans.

    Attributes:
        target: Number of workers there should be.
    """

    def __init__(self, recipe: Recipe, orders: NDArray[np.int64] | None) -> None:
        self._recipe, self._orders, self._owner = recipe, orders, os.getpid()
        self._wanted: dict[int, LoadTask] = {}
        self._unsent: deque[LoadTask | None] = deque()  # None asks a worker to stop
        self._buffers = BufferPool()
        self._next_id = 1
        self._spawner = 0
        self._alive: set[int] = set()
        self._stopping, self._idle_deaths = 0, 0
        self.target = 0
        self._recent_s, self._recent_samples = 0.0, 0.0
        self._open()

    @property
    def alive(self) -> int:
        """Number of workers, including those asked to stop."""
        return len(self._alive)

    @property
    def idle(self) -> bool:
        """Whether some worker has nothing to load."""
        return len(self._wanted) < self.target

    @property
    def supply_sps(self) -> float:
        """Recent estimate of the samples per second that the workers load if never idle; 0 before the first batch."""
        return self.target * self._recent_samples / self._recent_s if self._recent_s else 0.0

    def resize(self, target: int) -> None:
        """Change the number of workers: new ones start now, surplus ones stop after the tasks already submitted."""
        self.target = target
        self._reconcile()
        self._send()

    def submit(self, span: Span) -> LoadTask:
        """Submit a span for loading."""
        task = LoadTask(span, self._new_id(), self._buffers.get())
        self._wanted[task.id] = task
        self._unsent.append(task)
        self._send()
        return task

    def cancel(self, tasks: list[LoadTask]) -> None:
        """Cancel tasks; those that no worker has begun will not be loaded."""
        begun = False
        for task in tasks:
            if task.taken:
                continue
            if task.done:
                self._buffers.release(task.buffer)
            else:
                del self._wanted[task.id]
                self._buffers.discard(task.buffer)
                begun = True
        if begun:
            self._give_out_again()

    def wait(self, task: LoadTask, timeout_s: float | None = None, meanwhile: Callable[[], bool] = _nothing) -> bool:
        """Wait until a task is done; return False if no worker is left to do it.

        ``meanwhile`` is called while workers have nothing to do for longer than loading a span takes; it may submit
        more tasks, and returns whether it could.
        """
        self._poll(0)
        began_s = time.monotonic()
        until = None if timeout_s is None else began_s + timeout_s
        while not task.done:
            overdue_s = time.monotonic() - began_s - max(PATIENCE_S, self._recent_s * (1 - RECENT))
            looks_on = self.idle and (overdue_s < 0 or meanwhile())
            if not self._alive and self.target == 0:
                return False
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise LoaderError(
                    f"{place(task.span)} not loaded after {timeout_s:g} s, with {self.alive} worker processes alive: "
                    "the dataset hangs, or timeout_s is too short"
                )
            if looks_on:
                left_s = PATIENCE_S if left_s is None else min(left_s, PATIENCE_S)
            if self._unsent:  # the kernel limits files in sockets per user: another process may have made room
                left_s = RETRY_S if left_s is None else min(left_s, RETRY_S)
            self._poll(left_s)
            self._send()
        return True

    def take(self, task: LoadTask) -> Any:
        """Return the batch of a task that is done, or raise the exception of its dataset."""
        task.taken = True
        if task.failed:
            self._fail(task)
        return read(self._buffers.take(task.buffer, task.size))

    def worker_ids(self) -> list[int]:
        """Return the process ids of the spawner and the workers, for tests and reports."""
        return [self._spawner, *children(self._spawner)]

    def close(self) -> None:
        """End all processes, wait for them, and close all files. Does nothing in a fork of the owner."""
        if self._owner != os.getpid() or not self._spawner:
            return
        self._end_spawner()
        self._wanted.clear()
        self._buffers.close()

    def trim(self, keep: int) -> None:
        """Close unused files, except ``keep`` of them."""
        self._buffers.trim(keep)

    def _open(self) -> None:
        """Start a spawner. One that was forked while a thread held a lock may hang: it is killed and forked again."""
        for timeout_s in READY_S:
            self._start()
            if self._poller.poll(timeout_s * 1000) and self._answers.recv(ANSWER.size):
                return
            os.kill(self._spawner, signal.SIGKILL)
            self._end_spawner()
        raise LoaderError(
            f"the process that forks workers hung {len(READY_S)} times in a row: a thread of this process holds a lock "
            "whenever it forks; create the loader before that thread starts, or use workers=0"
        )

    def _start(self) -> None:
        kind = socket.SOCK_SEQPACKET
        self._tasks, tasks = socket.socketpair(socket.AF_UNIX, kind)
        self._answers, answers = socket.socketpair(socket.AF_UNIX, kind)
        self._control, control = socket.socketpair(socket.AF_UNIX, kind)
        self._board = shared_array(SLOTS + 1)
        shared = Shared(tasks, answers, control, self._board, self._orders, self._recipe)
        on_main = threading.current_thread() is threading.main_thread()
        self._spawner = start_spawner(shared, with_parent_thread=on_main)
        for end in (tasks, answers, control):
            end.close()
        self._tasks.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._answers, select.POLLIN)

    def _reopen(self) -> None:
        """Start a new spawner after the old one, and with it all workers, was killed."""
        self._end_spawner()
        self._alive.clear()
        self._stopping = 0
        self._unsent.clear()
        self._died("the spawner")
        self._open()
        self._reconcile()
        self._give_out_again()

    def _end_spawner(self) -> None:
        for end in (self._tasks, self._answers, self._control):
            end.close()
        child, self._spawner = self._spawner, 0
        until, ended = time.monotonic() + CLOSE_S, 0
        with suppress(ChildProcessError):  # other code's waitpid may have reaped it
            while not ended:
                ended, _ = os.waitpid(child, os.WNOHANG)
                if not ended and time.monotonic() > until:
                    os.kill(child, signal.SIGKILL)
                time.sleep(0 if ended else 0.001)

    def _reconcile(self) -> None:
        while len(self._alive) - self._stopping < self.target:
            slot = next(slot for slot in range(SLOTS) if slot not in self._alive)
            self._alive.add(slot)
            with suppress(OSError):  # the spawner is gone: _poll sees the end of its answers and starts a new one
                self._control.send(slot.to_bytes(8, "little"))
        while len(self._alive) - self._stopping > self.target:
            self._stopping += 1
            self._unsent.append(None)

    def _send(self) -> None:
        """Send as many tasks as the socket takes; the rest is sent after the next answers."""
        while self._unsent:
            task = self._unsent[0]
            try:
                if task is None:
                    self._tasks.send(TASK.pack(STOP, 0, 0, 0))
                else:
                    span = task.span
                    message = TASK.pack(task.id, span.epoch, span.start, span.stop)
                    socket.send_fds(self._tasks, [message], [task.buffer.handle])
            except OSError:  # full, too many files in sockets, or the spawner is gone, which _poll notices
                return
            self._unsent.popleft()

    def _poll(self, timeout_s: float | None) -> None:
        """Process all answers that have arrived; if there is none, wait for one."""
        if not self._poller.poll(None if timeout_s is None else timeout_s * 1000):
            return
        while True:
            try:
                message = self._answers.recv(ANSWER.size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                message = b""
            if not message:
                self._reopen()
                break
            kind, number, value, size, seconds = ANSWER.unpack(message)
            if kind == DIED:
                self._worker_ended(slot=number, status=value)
            else:
                self._answered(kind, number, size, seconds)
        self._send()

    def _answered(self, kind: int, number: int, size: int, seconds: float) -> None:
        task = self._wanted.get(number)
        if task is None:
            return
        if kind not in (LOADED, FAILED):  # skipped although it is wanted: submit it again
            self._unsent.append(task)
            self._renumber(task)
            return
        del self._wanted[number]
        task.done, task.failed, task.size = True, kind == FAILED, size
        self._idle_deaths = 0
        self._recent_s = self._recent_s * RECENT + seconds
        self._recent_samples = self._recent_samples * RECENT + len(task.span)

    def _worker_ended(self, *, slot: int, status: int) -> None:
        held = int(self._board[slot])
        self._board[slot] = 0
        self._alive.discard(slot)
        if held == STOP:
            self._stopping -= 1
            return
        task = self._wanted.get(held)
        if task is not None:
            task.tries += 1
            if task.tries >= TRIES:
                self._buffers.discard(task.buffer)
                task.buffer = self._buffers.get()
                fail_later(task, status)
                del self._wanted[held]
        else:
            self._died(f"a worker process ({ending(status)})")
        self._reconcile()
        self._give_out_again()

    def _died(self, what: str) -> None:
        self._idle_deaths += 1
        if self._idle_deaths > IDLE_DEATHS_MAX:
            raise LoaderError(
                f"{what} died {self._idle_deaths} times in a row before it loaded anything: check memory limits, and "
                "whether native code in the dataset survives fork; workers=0 loads without processes"
            )

    def _give_out_again(self) -> None:
        """Give new ids to all tasks that no worker has begun, and send them in order."""
        self._board[FLOOR] = self._next_id + 1
        begun = {int(self._board[slot]) for slot in self._alive}
        stops = [entry for entry in self._unsent if entry is None]
        unsent = {id(entry) for entry in self._unsent}
        self._unsent.clear()
        for task in sorted(self._wanted.values(), key=lambda task: task.id):
            if task.id not in begun or id(task) in unsent:
                if id(task) not in unsent:  # a worker may still write to the old buffer
                    self._buffers.discard(task.buffer)
                    task.buffer = self._buffers.get()
                self._renumber(task)
                self._unsent.append(task)
        self._unsent.extend(stops)
        self._send()

    def _renumber(self, task: LoadTask) -> None:
        del self._wanted[task.id]
        task.id = self._new_id()
        self._wanted[task.id] = task

    def _fail(self, task: LoadTask) -> None:
        try:
            failure = read(task.buffer.copy(task.size)) if task.size else None
        finally:
            self._buffers.release(task.buffer)
        if not isinstance(failure, Failure):
            if isinstance(failure, LoaderError):
                raise failure
            raise LoaderError(f"{place(task.span)}: loading failed, and memory ran out before the error was reported")
        note = f"in a worker process, at {place(task.span)}:\n{failure.text}"
        if failure.error is None:
            raise LoaderError(note)
        failure.error.add_note(note)
        raise failure.error

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def fail_later(task: LoadTask, status: int) -> None:
    """Make ``take`` raise for a task that killed several workers."""
    error = LoaderError(
        f"{place(task.span)}: {task.tries} worker processes in a row {ending(status)} while loading them; "
        "signal 9 usually means out of memory, 11 or 7 an error in native code of the dataset"
    )
    task.size, task.done, task.failed = write(task.buffer.handle, error), True, True


def place(span: Span) -> str:
    """Describe a span for messages."""
    return f"samples {span.start} to {span.stop - 1} in the order of epoch {span.epoch}"


def ending(status: int) -> str:
    """Describe how a process ended, for messages."""
    return f"killed by signal {-status}" if status < 0 else f"exited with {status}"


def children(process: int) -> list[int]:
    """Return the process ids of the children of a process."""
    try:
        with open(f"/proc/{process}/task/{process}/children") as found:
            return [int(word) for word in found.read().split()]
    except FileNotFoundError:
        return []

