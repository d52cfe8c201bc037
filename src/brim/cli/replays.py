"""Run many replays, long ones on all cores, show progress, and keep finished results after Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from brim.cli.compiling import compile_first, kernels
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.errors import BrimError
from brim.gang.processes import end_with_parent
from brim.policies.presets import PRESETS, find_policy
from brim.policies.sockets import Policy
from brim.sim.faults import Faults
from brim.sim.feasibility import checked_types
from brim.sim.loop import Progress as OnProgress
from brim.sim.truth_option import RIGID
from brim.sim.truths.truth import Truth
from brim.sim.twin import BOUNDS, Bounds, ReplaySettings, bounds_of, replay

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_S: Final = 2.0
"""A replay shorter than this shows no progress bar."""
REPORT_S: Final = 10.0
"""Time between two lines of progress where stderr is no terminal."""
JOBS_HERE: Final = 1_000
"""With no more jobs than this in all replays together, in compiled loops, they run in this process: each takes
milliseconds (100 jobs: 4), and a process 2 s of CPU time to start (measured)."""
MANY: Final = 16
"""With more replays than this, one more bar shows how many are done."""
_POLL_S: Final = 0.1
_DIED: Final = "the process of a replay died; run the same policy with `brim sim run` to see where"
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_NO_ROWS: Final = np.zeros(0, dtype=np.int64)


class Buildable(Protocol):
    """Recipe of a truth; light, so that it can be sent to other processes."""

    def build(self, trace: Trace, cluster: Cluster, seed: int = 0) -> Truth:
        """Make the truth of one trace on one cluster."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One replay to run. It names a user's policy, because parts from a file cannot be sent to another process.

    Each process makes the truth from its recipe.
    """

    trace: Trace
    cluster: Cluster
    policy: str | Policy
    settings: ReplaySettings
    truth: Buildable = RIGID


def run_all(tasks: Sequence[Task]) -> Iterator[Replay]:
    """Run the tasks and yield their replays in order; after Ctrl-C, yield finished ones, and running ones as partial.

    A second Ctrl-C ends at once. Kernels that were never compiled are compiled first.

    Raises:
        ConfigError: A job could not run even on the empty cluster.
    """
    for trace, cluster in {(id(task.trace), id(task.cluster)): (task.trace, task.cluster) for task in tasks}.values():
        checked_types(trace, cluster)  # before a minute of compiling
    compile_first(kernels())
    if len(tasks) == 1 or _are_short(tasks) or (os.cpu_count() or 1) == 1:
        yield from _run_here(tasks)
    else:
        yield from _run_in_processes(tasks)


def _are_short(tasks: Sequence[Task]) -> bool:
    """Return whether all replays together take less time than a process takes to start."""
    shipped = [PRESETS.get(task.policy) if isinstance(task.policy, str) else None for task in tasks]
    compiled = all(policy is not None and not policy.changes_running for policy in shipped) and all(
        task.settings.faults == Faults() for task in tasks
    )
    return compiled and sum(len(task.trace) for task in tasks) <= JOBS_HERE


def replay_task(
    task: Task, on_progress: OnProgress = lambda ended, now_ms: True, bounds: Bounds | None = None
) -> Replay:
    """Run one replay in this process."""
    truth = task.truth.build(task.trace, task.cluster, task.settings.seed)
    policy = find_policy(task.policy) if isinstance(task.policy, str) else task.policy
    return replay(
        task.trace, task.cluster, policy, task.settings, truth=truth, on_progress=on_progress, bounds=bounds
    )


_Known: TypeAlias = dict[tuple[int, int, int, int], Bounds]
"""Bounds of tasks, by what they depend on."""


def _same(task: Task) -> tuple[int, int, int, int]:
    """What the bounds of a task depend on: trace, cluster, truth and seed."""
    return id(task.trace), id(task.cluster), id(task.truth), task.settings.seed


def _bounds(task: Task, known: _Known) -> Bounds:
    """Bounds of a task, which are kept for the other tasks that have the same."""
    if _same(task) not in known:
        truth = task.truth.build(task.trace, task.cluster, task.settings.seed)
        known[_same(task)] = bounds_of(task.trace, truth)
    return known[_same(task)]


def _run_here(tasks: Sequence[Task]) -> Iterator[Replay]:
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    known: _Known = {}
    with _on_interrupt(stop), _Bars(tasks) as bars:
        for index, task in enumerate(tasks):
            if stopped:
                return

            def on_progress(ended: int, now_ms: int, index: int = index) -> bool:
                bars.show(index, ended)
                return not stopped

            done = replay_task(task, on_progress, known.get(_same(task)))
            known[_same(task)] = {name: getattr(done, name) for name in BOUNDS}
            yield done


# -- several processes -------------------------------------------------------------------------------------------------

def _serve(parent: int, path: str, ended: Any, stop: Any, pipe: Connection) -> None:
    """Run the tasks whose index comes through the pipe, until the parent closes its end or is killed."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    with suppress(FileNotFoundError, EOFError, ConnectionError):  # the parent was killed, or needs no more
        with open(path, "rb") as file:
            tasks: Sequence[Task] = pickle.load(file)
        while True:
            index = pipe.recv()
            found: Replay | BaseException | None
            try:
                found = None if stop.value else _replay_counted(tasks[index], index, ended, stop)
            except (Exception, KeyboardInterrupt) as error:  # the latter from a policy: Ctrl-C is ignored here
                error.add_note(f"In the process of the replay:\n{traceback.format_exc()}")
                found = error
            pipe.send(found)


def _replay_counted(task: Task, index: int, ended: Any, stop: Any) -> Replay:
    def on_progress(jobs: int, now_ms: int) -> bool:
        ended[index] = jobs
        return not stop.value

    done = replay_task(task, on_progress, dict.fromkeys(BOUNDS, _NO_ROWS))
    return replace(done, trace=task.trace.take(_NO_ROWS))  # the parent has the trace and computes the bounds


def _ask(idle: SimpleQueue[Connection], index: int) -> Replay | None:
    """Let an idle process run a task. If it dies the others end, too: it may have sent half of a result."""
    pipe = idle.get()
    try:
        pipe.send(index)
        found = pipe.recv()
    except (EOFError, OSError):
        _kill_processes()
        raise BrimError(_DIED) from None
    finally:
        idle.put(pipe)
    if isinstance(found, BaseException):
        raise found
    result: Replay | None = found
    return result


def _kill_processes() -> None:
    for process in multiprocessing.active_children():
        process.kill()


def _run_in_processes(tasks: Sequence[Task]) -> Iterator[Replay]:
    """Spawn, not fork: the parent has threads by now (polars), and a fork would copy their locks.

    Each process has a pipe of its own, and a thread here that reads it: a process that is killed while it sends closes
    it. In the queue of a pool, which all share, the reader would wait for the rest for ever.
    """
    context = multiprocessing.get_context("spawn")
    ended, stop = context.Array("q", len(tasks), lock=False), context.Value("b", 0, lock=False)
    workers = min(len(tasks), os.cpu_count() or 1)
    idle: SimpleQueue[Connection] = SimpleQueue()

    def set_stop() -> None:
        stop.value = 1

    with (
        _in_memory(tasks) as path,
        ThreadPoolExecutor(workers) as threads,
        _on_interrupt(set_stop),
        _Bars(tasks) as bars,
    ):
        known: _Known = {}
        try:
            resource_tracker.ensure_running()  # the first process starts it, and that unblocks interrupts
            with _interrupts_blocked(), _one_thread_each():
                for _ in range(workers):
                    ours, theirs = context.Pipe()
                    context.Process(target=_serve, args=(os.getpid(), path, ended, stop, theirs)).start()
                    theirs.close()
                    idle.put(ours)
            futures = [threads.submit(_ask, idle, index) for index in range(len(tasks))]
            for task, future in zip(tasks, futures, strict=True):
                if not stop.value:
                    _bounds(task, known)  # while the processes replay
                result = _wait(future, lambda: bars.show_all(ended))
                if result is not None:
                    yield replace(result, trace=task.trace, **_bounds(task, known))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            _kill_processes()


@contextmanager
def _in_memory(tasks: Sequence[Task]) -> Iterator[str]:
    """Keep the tasks in a file in memory, from which every process reads them, and give its path.

    As arguments of a process they would go through a pipe, of which this process holds both ends while it writes:
    a process that died during its start would leave it writing for ever.
    """
    with open(os.memfd_create("brim-tasks"), "wb") as file:
        pickle.dump(tasks, file, pickle.HIGHEST_PROTOCOL)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _wait(future: Future[Replay | None], show: Callable[[], object]) -> Replay | None:
    while not future.done():
        show()
        time.sleep(_POLL_S)
    show()
    return future.result()


# -- Ctrl-C and progress -----------------------------------------------------------------------------------------------


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    def first(signum: int, frame: object) -> None:
        print("brim: stopping; what is complete will be reported (Ctrl-C again to end at once)", file=sys.stderr)
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C cannot end before they ignore it: a process inherits the signal mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Start processes in which linear algebra uses one thread, because there is a process for every core.

    The threads of OpenBLAS wait for work in a loop: on busy cores they doubled the CPU time of short replays.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update({name: value or "1" for name, value in before.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Bars:
    """Show a progress bar per replay longer than two seconds, or one for many; in a pipe, a line every ten seconds."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._began_s = [0.0] * len(tasks)
        self._progress: Progress | None = None
        self._ids: dict[int, TaskID] = {}
        self._ended = [0] * len(tasks)
        self._all: TaskID | None = None
        self._printed_s = time.monotonic()

    def __enter__(self) -> _Bars:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f} jobs"), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )
            self._progress.start()
            if len(self._tasks) > MANY:
                jobs = sum(len(task.trace) for task in self._tasks)
                self._all = self._progress.add_task(f"all {len(self._tasks)} replays", total=jobs)
        return self

    def __exit__(self, *args: object) -> None:
        if self._progress:
            self._progress.stop()

    def show_all(self, ended: Sequence[int]) -> None:
        """Report how many jobs of every replay have ended."""
        for index, jobs in enumerate(ended):
            self.show(index, jobs)

    def show(self, index: int, ended: int) -> None:
        """Report how many jobs of a replay have ended."""
        if self._progress is None:
            self._ended[index] = ended
            self._print_progress()
            return
        total = len(self._tasks[index].trace)
        if self._all is not None:
            self._progress.advance(self._all, ended - self._ended[index])
            self._ended[index] = ended
        if index not in self._ids:
            if not ended:
                return
            self._began_s[index] = self._began_s[index] or time.monotonic()
            if time.monotonic() - self._began_s[index] < QUIET_S:
                return
            task = self._tasks[index]
            name = task.policy if isinstance(task.policy, str) else task.policy.name
            label = name + (f" seed {task.settings.seed}" if task.settings.seed else "")
            self._ids[index] = self._progress.add_task(label, total=total)
        self._progress.update(self._ids[index], completed=ended, visible=ended < total)

    def _print_progress(self) -> None:
        """Write a line of progress, if the last one is long ago."""
        if time.monotonic() - self._printed_s < REPORT_S:
            return
        self._printed_s = time.monotonic()
        jobs, replays = sum(len(task.trace) for task in self._tasks), len(self._tasks)
        of = f" in {replays} replays" if replays > 1 else ""
        print(f"brim: {sum(self._ended):,} of {jobs:,} jobs{of} have ended", file=sys.stderr, flush=True)
