"""The process of one attempt: it runs the supervisor of the attempt's gang, and writes down how that ended.

The agent forks it into a session of its own, which outlives the agent. A fork starts in milliseconds, an interpreter
in a tenth of a second. Requests come over the socket of the supervisor. A command that is no gang is a gang of one
process without torchrun's variables, so one kill ladder serves all.

It holds a lock on its folder for as long as it lives: whoever finds the lock free knows that it is dead, whatever
process has its id by then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from brim.agent import attempt_files, boot_clock
from brim.agent.attempt_files import EndFile, LaunchFile, PidsFile
from brim.agent.protocol import BLAME_JOB, BLAME_NODE, FAILED, FINISHED, LOST, NONE, STOPPED, UNUSABLE
from brim.gang import processes
from brim.gang.inherited import Inherited
from brim.gang.launch_config import PRELOAD, TERM_S, LaunchConfig
from brim.gang.result import GangResult
from brim.gang.supervisor import Supervisor
from brim.gang.usage import NOT_MEASURED, Usage

REPLACEMENTS_MAX: Final = 3
"""Ranks of a gang that are replaced within ``REPLACEMENT_WINDOW_S``; the gang fails with the next one that is lost.
Ours: as many as attempts whose ends nobody saw."""
REPLACEMENT_WINDOW_S: Final = 3600.0
"""Ours: a rank that is lost every 20 minutes costs a few seconds each, one that cannot live is found in less."""
_RETRY_S: Final = 1.0
"""Between two tries to write an end where there is no room; ours."""
_KILLED: Final = 128 + signal.SIGKILL
_ANALYSIS: Final = "brim.cli.analysis"
"""Program that times steps; by name, because what it calls is above this folder."""
_NOT_FOUND: Final = 127
"""What a shell returns for a command that does not exist; `GangResult` has it for a working folder, too."""


def fork_attempt(folder: Path, launch: LaunchFile) -> int:
    """Fork the process of the attempt in this folder; return its process id.

    Raises:
        OSError: there is no room for files or another process.
    """
    attempt_files.write_launch(folder, launch)
    attempt_files.reserve_end(folder)
    (folder / attempt_files.LOG).mkdir(0o700, exist_ok=True)
    log_fd = os.open(folder / attempt_files.LOG / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        lock_fd = _lock(folder)
        try:
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _become_attempt(folder, launch, log_fd, lock_fd)
        finally:
            os.close(lock_fd)
    finally:
        os.close(log_fd)
    return pid


def is_running(folder: Path) -> bool:
    """Whether the process of the attempt in this folder lives."""
    try:
        os.close(_lock(folder))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lock(folder: Path) -> int:
    """Lock the folder; the lock ends with the last process that has the descriptor, and is not passed on by exec."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _become_attempt(folder: Path, launch: LaunchFile, log_fd: int, lock_fd: int) -> None:
    """In the forked child: run the attempt, and never return."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null_fd = os.open(os.devnull, os.O_RDONLY)
        for to_fd, fd in enumerate((null_fd, log_fd, log_fd)):
            os.dup2(fd, to_fd)
        for name in os.listdir("/proc/self/fd"):  # the agent's connections are not this process's
            if int(name) > 2 and int(name) != lock_fd:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        run_attempt(folder, launch)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run_attempt(folder: Path, launch: LaunchFile) -> None:
    """Run the attempt in this folder to its end, in this process.

    Raises:
        OSError: the end cannot be written, not even later: the agent will find none, and sweep.
    """
    me = processes.find_process(os.getpid())
    assert me is not None
    pids = PidsFile(pid=me.pid, start_ticks=me.start_ticks, boot_id=boot_clock.boot_id())
    try:
        attempt_files.write_pids(folder, pids)
        if launch.analyse:
            _analyse(folder, launch)
        supervisor = Supervisor(LaunchConfig(
            command=launch.command, nproc=max(1, launch.ranks), control=launch.control, cwd=launch.cwd, env=launch.env,
            devices=launch.devices, grace_s=launch.grace_s, term_s=min(TERM_S, launch.grace_s / 2),
            log_folder=str(folder / attempt_files.LOG), zygote=launch.zygote,
            preload=PRELOAD if launch.ranks else (), is_gang=launch.ranks > 0, gang=launch.gang,
            fence=(launch.job, launch.attempt), inherits=Inherited(umask=launch.umask, limits=launch.limits),
            cgroup=launch.cgroup, replacements_max=REPLACEMENTS_MAX, replacement_window_s=REPLACEMENT_WINDOW_S,
            keeps_size=True,  # how many ranks there are is the controller's decision, who gives their devices to nobody
        ))  # fmt: skip
        result = supervisor.run(ignore_later_signals=True)
    except OSError as error:  # no socket, no memory for another process
        detail = f"cannot be supervised: {error}"
        _write_end(folder, _end_file(pids, FAILED, NONE, detail, BLAME_NODE))
        return
    except Exception as error:
        traceback.print_exc()
        detail = f"its supervisor ended with an error: {type(error).__name__}: {error}"
        _write_end(folder, _end_file(pids, LOST, NONE, detail, ""))
        return
    outcome, code = _outcome(result, has_started=supervisor.has_started)
    blame = BLAME_JOB if outcome in (FAILED, UNUSABLE) else ""
    detail = result.detail.partition("; start the same command again")[0]
    if not launch.ranks:  # it has no other rank
        detail = detail.removeprefix("rank 0 failed first: ").removeprefix("rank 0: ")
    if outcome == LOST:
        detail += ", since its zygote had ended"
    elif outcome == FAILED and supervisor.usage.oom_kills > 0:
        detail += f"; out of memory: the kernel killed {supervisor.usage.oom_kills} of its processes"
    elif outcome == FAILED and code == _KILLED and supervisor.usage.oom_kills == NONE:
        detail += "; nothing here measures by whom: if the machine ran out of memory, its kernel log says so"
    left = tuple(supervisor.unkillable)
    _write_end(folder, _end_file(pids, outcome, code, detail, blame, left, supervisor.usage))


def _analyse(folder: Path, launch: LaunchFile) -> None:
    """Time the steps of the job's script first, on the first device; whatever comes of it, the attempt goes on.

    A supervisor of its own ends all processes of it. It listens where the agent does not look, which therefore ends
    this whole process if the attempt is to stop.
    """
    logs = folder / attempt_files.LOG / "analysis"
    logs.mkdir(0o700)
    Supervisor(LaunchConfig(
        command=(sys.executable, "-P", "-m", _ANALYSIS, str(folder)), nproc=1, control=f"{launch.control}.a",
        cwd=launch.cwd, env=launch.env, devices=launch.devices[:1], log_folder=str(logs), preload=(), is_gang=False,
        gang=launch.gang, inherits=Inherited(umask=launch.umask, limits=launch.limits),
    )).run()  # fmt: skip


def _write_end(folder: Path, end: EndFile) -> None:
    """Write the end, as soon as there is room: an attempt without one counts as lost, and its job would run again."""
    if end.outcome == FAILED and (problem := attempt_files.room_problem(folder)):
        end = replace(end, detail=f"{end.detail}; {folder} then took nothing more: {problem}", blame=BLAME_NODE)
    while True:
        try:
            attempt_files.write_end(folder, end)
        except OSError as error:
            if error.errno not in attempt_files.FULL:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def _outcome(result: GangResult, *, has_started: bool) -> tuple[str, int]:
    """Return the outcome, and the exit code as of a shell: the true one, where the launcher's says less."""
    if result.is_unseen:
        return LOST, NONE
    code = result.exit_code if result.cause_code is None else result.cause_code
    code = code if code >= 0 else 128 - code
    if result.status == "failed" and not has_started and code == _NOT_FOUND:
        return UNUSABLE, code
    return {"finished": FINISHED, "preempted": STOPPED, "failed": FAILED}[result.status], code


def _end_file(
    pids: PidsFile, outcome: str, code: int, detail: str, blame: str, left: tuple[int, ...] = (),
    usage: Usage = NOT_MEASURED,
) -> EndFile:
    return EndFile(
        outcome=outcome, exit_code=code, detail=detail, blame=blame, started_ms=pids.started_ms,
        ended_ms=boot_clock.boot_time_ms(), boot_id=pids.boot_id, left=left, **asdict(usage),
    )  # fmt: skip
