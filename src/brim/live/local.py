"""The executor of one machine: each attempt is a process in its own session, and each slot serves one at a time.

To stop an attempt, the executor sends SIGTERM to its process group and, after the grace, SIGKILL to every process left
in the session. A slot is free when the whole session has ended, not only its first process. Nothing polls: exits arrive
on process descriptors (Linux 5.3) and the job's reports on a pipe, both through one selector.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from brim.errors import RefusedError
from brim.live.executor import AttemptReport, Command, ReportKind

GRACE_MS: Final = 5_000
"""Time from SIGTERM to SIGKILL. Ours: the twin's default time to save (sim/overheads.py)."""
RESUMABLE: Final = frozenset({75, 85, 99})
"""Exit codes that mean "resume me" after an announced stop: EX_TEMPFAIL, and two that training scripts use on Slurm."""
_BY_OUR_SIGNAL: Final = frozenset({-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL})
"""Exit codes of a command that does not handle SIGTERM when it is stopped; the second pair comes from shells."""
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_TEXT_MAX: Final = 65_536


@dataclass(slots=True)
class _AttemptProcess:
    """One attempt, from the decision to start it until its session has ended."""

    job: int
    number: int
    slots: tuple[int, ...]
    command: Command
    loader_workers: int
    process: subprocess.Popen[bytes] | None = None
    exit_fd: int = -1
    report_fd: int = -1
    text: bytes = b""
    started: bool = False
    stop_announced: bool = False
    kill_at_s: float | None = None
    member_fds: set[int] = field(default_factory=set)


class LocalExecutor:
    """Runs attempts on the slots of this machine. A context manager: leaving it ends every process it started.

    Args:
        slots: Number of slots.
        directory: Folder in which each job has a folder ``job-N``, with its ``log`` and its ``checkpoint`` folder.
        grace_ms: Time from SIGTERM to SIGKILL.

    Raises:
        RefusedError: the system is not Linux 5.3 or newer.
    """

    def __init__(self, slots: int, directory: Path, *, grace_ms: int = GRACE_MS) -> None:
        if not hasattr(os, "pidfd_open"):
            raise RefusedError("running jobs needs Linux 5.3 or newer: this system has no process descriptors")
        self._free = set(range(slots))
        self._directory = directory
        self._grace_s = grace_ms / 1000
        self._selector = selectors.DefaultSelector()
        self._attempts: dict[int, _AttemptProcess] = {}  # by job: holding or leaving their slots
        self._queue: deque[_AttemptProcess] = deque()  # to be started once their slots are free
        self._reports: list[AttemptReport] = []
        self._wake_fd, self._waker_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def folder(self, job: int) -> Path:
        """Folder of the job's log and checkpoint."""
        return self._directory / f"job-{job}"

    # -- the protocol ----------------------------------------------------------------------------------------------

    def start(self, job: int, attempt: int, slots: tuple[int, ...], command: Command, loader_workers: int = 0) -> None:
        """See ``Executor``."""
        self._queue.append(_AttemptProcess(job, attempt, slots, command, loader_workers))
        self._launch_ready()

    def stop(self, job: int, attempt: int) -> None:
        """See ``Executor``."""
        for waiting in self._queue:
            if (waiting.job, waiting.number) == (job, attempt):
                self._queue.remove(waiting)
                self._say(waiting, ReportKind.STOPPED, "before it began")
                return
        running = self._attempts.get(job)
        if running and running.number == attempt and not running.stop_announced:
            running.stop_announced = True
            running.kill_at_s = time.monotonic() + self._grace_s
            self._signal_group(running, signal.SIGTERM)

    def wait(self, timeout_ms: int | None) -> list[AttemptReport]:
        """See ``Executor``."""
        if self._reports:
            timeout_ms = 0
        timeouts_s = [] if timeout_ms is None else [timeout_ms / 1000]
        timeouts_s += [
            attempt.kill_at_s - time.monotonic() for attempt in self._attempts.values() if attempt.kill_at_s is not None
        ]
        timeout_s = max(0.0, min(timeouts_s)) if timeouts_s else None
        for key, _ in self._selector.select(timeout_s):
            self._ready(key.fd, key.data)
        now_s = time.monotonic()
        for attempt in self._attempts.values():
            if attempt.kill_at_s is not None and now_s >= attempt.kill_at_s:
                attempt.kill_at_s = None
                self._kill(attempt)
        reports, self._reports = self._reports, []
        return reports

    def wake(self) -> None:
        """Make the present or the next ``wait`` return; may be called from a signal handler."""
        with contextlib.suppress(OSError):  # full: ``wait`` returns anyway; closed: nothing waits
            os.write(self._waker_fd, b"!")

    def close(self) -> None:
        """End every process: SIGTERM to all, SIGKILL after the grace, and wait until all have ended."""
        if self._waker_fd < 0:
            return
        self._queue.clear()
        try:
            for attempt in self._attempts.values():
                self.stop(attempt.job, attempt.number)
            while self._attempts:
                self.wait(None)
        finally:  # also when a second Ctrl-C interrupts the wait
            for attempt in list(self._attempts.values()):
                self._kill(attempt)
                while attempt.job in self._attempts:
                    self.wait(None)
            self._selector.close()
            os.close(self._wake_fd)
            os.close(self._waker_fd)
            self._waker_fd = -1

    # -- starting --------------------------------------------------------------------------------------------------

    def _launch_ready(self) -> None:
        """Launch each queued attempt whose slots are free and not claimed by an attempt ahead of it in the queue."""
        spoken_for: set[int] = set()
        for attempt in list(self._queue):
            slots = set(attempt.slots)
            if slots <= self._free and not slots & spoken_for and attempt.job not in self._attempts:
                self._queue.remove(attempt)
                self._launch(attempt)
            spoken_for |= slots

    def _launch(self, attempt: _AttemptProcess) -> None:
        folder = self.folder(attempt.job)
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        env = os.environ | dict.fromkeys(_THREADS, "1") | dict(attempt.command.env) | {
            "BRIM_JOB_ID": str(attempt.job), "BRIM_ATTEMPT": str(attempt.number),
            "BRIM_DEVICES": ",".join(map(str, attempt.slots)), "BRIM_CKPT_DIR": str(folder / "checkpoint"),
        }
        if attempt.loader_workers:
            env["BRIM_LOADER_WORKERS"] = str(attempt.loader_workers)
        read_fd = write_fd = -1
        if attempt.command.reports:
            read_fd, write_fd = os.pipe()
            os.set_blocking(read_fd, False)
            env["BRIM_REPORT_FD"] = str(write_fd)
        with (folder / "log").open("ab") as log:
            try:
                attempt.process = subprocess.Popen(
                    attempt.command.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env,
                    start_new_session=True, pass_fds=(write_fd,) if write_fd >= 0 else (),
                )
            except (OSError, ValueError) as error:
                detail = f"cannot start {attempt.command.argv[0]!r}: {getattr(error, 'strerror', None) or error}"
                log.write(f"brim: {detail}\n".encode())
            finally:
                if write_fd >= 0:
                    os.close(write_fd)
        if attempt.process is None:
            if read_fd >= 0:
                os.close(read_fd)
            self._say(attempt, ReportKind.UNUSABLE, detail)
            return
        attempt.exit_fd = os.pidfd_open(attempt.process.pid)
        self._attempts[attempt.job] = attempt
        self._free -= set(attempt.slots)
        self._selector.register(attempt.exit_fd, selectors.EVENT_READ, attempt)
        self._say(attempt, ReportKind.LAUNCHED)
        if read_fd >= 0:
            attempt.report_fd = read_fd
            self._selector.register(read_fd, selectors.EVENT_READ, attempt)
        else:
            self._say(attempt, ReportKind.STARTED)

    # -- reports ---------------------------------------------------------------------------------------------------

    def _ready(self, fd: int, attempt: _AttemptProcess | None) -> None:
        if attempt is None:
            os.read(fd, _TEXT_MAX)
        elif fd == attempt.report_fd:
            self._read_reports(attempt)
        elif fd in attempt.member_fds:
            self._close_fd(fd)
            attempt.member_fds.discard(fd)
            if not attempt.member_fds:
                self._clear_session(attempt)
        elif fd == attempt.exit_fd:
            self._close_fd(fd)
            attempt.exit_fd = -1
            self._clear_session(attempt)

    def _read_reports(self, attempt: _AttemptProcess) -> None:
        try:
            data = os.read(attempt.report_fd, _TEXT_MAX)
        except BlockingIOError:
            return
        if not data:
            self._close_reports(attempt)
            return
        *lines, attempt.text = (attempt.text + data).split(b"\n")
        attempt.text = attempt.text[-_TEXT_MAX:]
        if lines and not attempt.started:
            attempt.started = True
            self._say(attempt, ReportKind.STARTED)
        for line in reversed(lines):  # lines before the last progress are out of date
            done, slash, total = line.partition(b"/")
            if slash and done.isdigit() and total.isdigit() and int(total):
                self._reports.append(
                    AttemptReport(
                        attempt.job, attempt.number, ReportKind.PROGRESS, min(int(done), int(total)), int(total)
                    )
                )
                break

    def _clear_session(self, attempt: _AttemptProcess) -> None:
        """Once the first process has ended, kill the rest of its session; when none is left, end the attempt.

        Until then the first process is not reaped, so that its process id cannot be reused.
        """
        process = attempt.process
        if process is None or attempt.exit_fd >= 0:
            return
        rest = _session_members(process.pid)
        for pid in rest:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                attempt.member_fds.add(fd)
                self._selector.register(fd, selectors.EVENT_READ, attempt)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        if not attempt.member_fds:
            self._end(attempt, process.wait())

    def _end(self, attempt: _AttemptProcess, code: int) -> None:
        if attempt.report_fd >= 0:
            self._read_reports(attempt)
        if attempt.report_fd >= 0:
            self._close_reports(attempt)
        del self._attempts[attempt.job]
        self._free |= set(attempt.slots)
        if code == 0:
            self._say(attempt, ReportKind.FINISHED)
        elif attempt.stop_announced and (code in RESUMABLE or code in _BY_OUR_SIGNAL):
            self._say(attempt, ReportKind.STOPPED, _ending(code))
        else:
            self._say(attempt, ReportKind.FAILED, f"{_ending(code)}; see {self.folder(attempt.job) / 'log'}")
        self._launch_ready()

    def _say(self, attempt: _AttemptProcess, kind: ReportKind, detail: str = "") -> None:
        self._reports.append(AttemptReport(attempt.job, attempt.number, kind, detail=detail))

    def _close_reports(self, attempt: _AttemptProcess) -> None:
        """Close the pipe and forget its number, which may be reused while the selector still lists it as ready."""
        self._close_fd(attempt.report_fd)
        attempt.report_fd = -1

    def _close_fd(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    # -- stopping --------------------------------------------------------------------------------------------------

    def _signal_group(self, attempt: _AttemptProcess, number: signal.Signals) -> None:
        if attempt.process and attempt.exit_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(attempt.process.pid, number)

    def _kill(self, attempt: _AttemptProcess) -> None:
        """Send SIGKILL to the group; when its first process ends, ``_clear_session`` kills the rest of the session."""
        self._signal_group(attempt, signal.SIGKILL)


def _session_members(session: int) -> list[int]:
    """Ids of a session's living processes, without its first, in increasing order."""
    members = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == session:
            continue
        with contextlib.suppress(OSError):
            fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                members.append(int(entry.name))
    return sorted(members)


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
