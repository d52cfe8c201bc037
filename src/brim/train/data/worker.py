"""The loader's processes: workers, and the spawner that forks them.

The spawner is forked once from the training process, early, and only forks and reaps workers. So workers always start
in milliseconds from a small process with one thread, even if the training process has a GPU context, communication
threads and gigabytes of tables by then; and no script is imported twice, as with ``spawn`` and ``forkserver``. All
workers take tasks from one socket and answer on another: a message is received whole or not at all, and no lock is
held, so a worker may be killed at any instant.

Spawner and workers ignore SIGTERM and the signals that the training process handles, and are killed when it ends.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import select
import signal
import socket
import stat
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from brim.gang.processes import reap
from brim.train.data.fetch import Recipe, Samples, Streams, reseed
from brim.train.data.shared_memory import write

TASK = struct.Struct("<qqqq")     # id, epoch, start, stop
ANSWER = struct.Struct("<bqqqd")  # kind, task, slot (or wait status), bytes, seconds
LOADED, FAILED, SKIPPED, DIED, READY = range(5)
STOP = -1
"""Id that stops the worker that receives it."""

SLOTS = 256
"""Most workers at a time: the size of a table, far above any use."""

FLOOR = SLOTS
"""Index on the board of the lowest task id that is still wanted; lower indices hold the current task of each worker."""

PR_SET_PDEATHSIG = 1
NVIDIA_MAJOR = 195


@dataclass(frozen=True)
class Shared:
    """What the training process, the spawner and the workers share.

    Attributes:
        tasks: Socket of TASK messages, each with the file to write to; all workers read from it.
        answers: Socket of ANSWER messages, written by workers and spawner.
        control: Socket of slots for which the spawner forks a worker; at end of file, spawner and workers end.
        board: Current task id of each slot, then the lowest id still wanted, shape (SLOTS + 1,).
        orders: Sample ids in the order of the even and of the odd epoch, shape (2, samples); None: not shuffled.
        recipe: How samples are loaded.
    """

    tasks: socket.socket
    answers: socket.socket
    control: socket.socket
    board: NDArray[np.int64]
    orders: NDArray[np.int64] | None
    recipe: Recipe


@dataclass(frozen=True)
class Failure:
    """An exception of the dataset: its traceback, and the exception itself if it can be pickled."""

    error: BaseException | None
    text: str


def start_spawner(shared: Shared, *, with_parent_thread: bool) -> int:
    """Fork the spawner; return its process id."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Newer Pythons warn if there are threads. The child runs none of their code: it only forks and reaps.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Waits until no thread holds the lock of torch's generator: in a child forked meanwhile, it stays locked.
            torch.default_generator.get_state()
            child = os.fork()
        if child == 0:
            run_and_exit(lambda: spawner(shared, parent if with_parent_thread else None))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return child


def run_and_exit(body: Callable[[], None]) -> NoReturn:
    """Run the body of a forked process, and exit without running the parent's exit handlers."""
    code = 1
    try:
        body()
        code = 0
    except (BrokenPipeError, ConnectionResetError):  # the training process has closed the loader
        pass
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code)


def spawner(shared: Shared, parent: int | None) -> None:
    """Fork a worker for each slot received, and report workers that died; at end of file, kill all workers."""
    gc.freeze()
    detach(keep={shared.tasks.fileno(), shared.answers.fileno(), shared.control.fileno()})
    ignore_signals()
    if parent is not None:
        die_with(parent)
    torch.set_num_threads(1)
    check_locks()
    shared.answers.send(ANSWER.pack(READY, 0, 0, 0, 0.0))
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    slots: dict[int, int] = {}
    poll = select.poll()
    for handle in (shared.control.fileno(), woken):
        poll.register(handle, select.POLLIN)
    while True:
        ready = {handle for handle, _ in poll.poll()}
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            report_dead(shared, slots)
        if shared.control.fileno() in ready:
            message = shared.control.recv(8)
            if not message:
                break
            slot = int.from_bytes(message, "little")
            slots[fork_worker(shared, slot)] = slot
    for child in slots:
        os.kill(child, signal.SIGKILL)
    for child in slots:
        os.waitpid(child, 0)


def check_locks() -> None:
    """Load and write a tiny batch, to find out whether an inherited lock blocks this process.

    A lock that another thread of the training process held at the fork, such as that of torch's generator, stays locked
    here forever. If this function returns, loading is not blocked here, nor in the workers forked from here.
    """
    samples: list[Any] = [(torch.rand(2), np.zeros(2), index, "") for index in range(2)]
    recipe = Recipe(samples, len(samples), 0, stream=False)
    handle = os.memfd_create("brim-loader-check", os.MFD_CLOEXEC)
    write(handle, Samples(recipe).load(0, [0, 1]))
    os.close(handle)
    reseed(0)


def report_dead(shared: Shared, slots: dict[int, int]) -> None:
    """Reap workers that have ended, and report them to the training process."""
    for child, status in reap():
        slot = slots.pop(child)
        shared.answers.send(ANSWER.pack(DIED, slot, os.waitstatus_to_exitcode(status), 0, 0.0))


def fork_worker(shared: Shared, slot: int) -> int:
    """Fork a worker; return its process id."""
    spawner_id = os.getpid()
    child = os.fork()
    if child == 0:
        def body() -> None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with(spawner_id)
            shared.control.close()
            work(shared, slot)
        run_and_exit(body)
    return child


def work(shared: Shared, slot: int) -> None:
    """Load tasks and answer them until a STOP task."""
    streams, maps = Streams(shared.recipe), Samples(shared.recipe)
    while True:
        message, handles, _, _ = socket.recv_fds(shared.tasks, TASK.size, 1)
        if not message:
            return
        task, epoch, start, stop = TASK.unpack(message)
        if task == STOP:
            shared.board[slot] = STOP
            return
        # The floor is read before the slot is written: a task seen in a slot has passed the check against the floor.
        wanted = task >= shared.board[FLOOR]
        shared.board[slot] = task
        began, kind, size = time.monotonic(), SKIPPED, 0
        if wanted:
            if shared.recipe.stream:
                load = partial(streams.load, epoch, start, stop)
            else:
                load = partial(maps.load, epoch, sample_ids(shared.orders, epoch, start, stop))
            kind, size = answer(load, handles[0])
        for handle in handles:
            os.close(handle)
        shared.answers.send(ANSWER.pack(kind, task, slot, size, time.monotonic() - began))
        shared.board[slot] = 0


def answer(load: Callable[[], Any], handle: int) -> tuple[int, int]:
    """Load a batch and write it to the file, or the exception that was raised."""
    try:
        return LOADED, write(handle, load())
    except BaseException as error:  # `fetch` raises any exception of the dataset
        text = traceback.format_exc()
        with suppress(Exception):
            return FAILED, write(handle, Failure(error if survives(error) else None, text))
        return FAILED, 0


def survives(error: BaseException) -> bool:
    """Return whether an exception can be sent to another process."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False


def ignore_signals() -> None:
    """Ignore the signals that the training process handles; it decides when its workers end."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) or number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def detach(keep: set[int]) -> None:
    """Release inherited sockets and GPUs, so that peers of a killed rank see their connections close at once.

    File descriptors are redirected to /dev/null, not closed: inherited code that closes one later then cannot close a
    new file with the same number. Ordinary files stay open, because a dataset may read from them.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number in keep or number <= 2:
            continue
        with suppress(OSError):
            found = os.fstat(number)
            gpu = stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) == NVIDIA_MAJOR
            if stat.S_ISSOCK(found.st_mode) or gpu:
                os.dup2(null, number, inheritable=False)


def shared_array(places: int) -> NDArray[np.int64]:
    """Return an array of zeros that a process shares with the processes it forks, shape (places,)."""
    memory: Any = mmap.mmap(-1, max(places, 1) * 8)
    return np.frombuffer(memory, np.int64, places)


def sample_ids(orders: NDArray[np.int64] | None, epoch: int, start: int, stop: int) -> list[int]:
    """Return the sample ids at positions ``start`` to ``stop`` - 1 of an epoch; see `Shared`."""
    if orders is None:
        return list(range(start, stop))
    found: list[int] = orders[epoch % 2, start:stop].tolist()
    return found
