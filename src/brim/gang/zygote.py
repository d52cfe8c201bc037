"""A process with torch preloaded that forks ranks: four ranks start in milliseconds instead of seconds.

There is one zygote per Python environment. It imports the modules that ranks will need, and touches no GPU. Then it
starts the requested processes, each in a session of its own, and reports the wait status of each that exits. A command
that a fork cannot run is spawned as a fresh process, and the zygote reports why. When its supervisor has ended, the
zygote ends all its descendants and itself; one that listens ends with the process that started it.

    python -c "from brim.gang.zygote import main; main()" --fd 7            one supervisor, on an inherited socket
    python -m brim.gang.zygote --listen PATH                                any number; each gets a fork of its own

The messages are lines of JSON on a Unix stream socket, with descriptors attached:

    to it    {"start": id, "command": [...], "env": {...}, "cwd": path,
              "inherits": {"umask": ..., "limits": {...}}, "cgroup": path or ""}    stdin, stdout, stderr
    from it  {"ready": seconds, "pid": ..., "fork_obstacle": reason or null}
             {"started": id, "pid": ..., "start_method": "fork" | "spawn", "spawn_reason": text}
                                                      its pidfd; of a fork also the pipe where it waits for one byte
             {"refused": id, "exit_code": 126 | 127, "detail": text}
             {"exited": id, "wait_status": number}
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from brim.gang import fork_safety, processes, run_script
from brim.gang.cgroup import Cgroup
from brim.gang.fd_channel import FdChannel
from brim.gang.fork_safety import PythonCommand
from brim.gang.inherited import Inherited, read_inherited
from brim.gang.launch_config import PRELOAD
from brim.gang.unix_socket import ListeningSocket
from brim.gang.wakeup import WakeupPipe

GRACE_S: Final = 5.0
"""Time from SIGTERM to SIGKILL for ranks whose supervisor has ended. Our choice."""
PROGRAM: Final = "import sys; sys.flags.safe_path or sys.path.pop(0); from brim.gang.zygote import main; main()"
"""The code that starts a private zygote. With ``-m``, a module in the current folder could hide one that it needs."""
FOLDER_PREFIX: Final = "brim-gang-"
"""Prefix of the temporary folders of supervisors."""


@dataclass(frozen=True, slots=True)
class ForkedRank:
    """What a forked child is to run. The child returns to ``main`` with it, and so leaves the zygote's own frames."""

    command: PythonCommand
    env: dict[str, str]
    cwd: str
    inherits: Inherited


class Zygote:
    """The preloaded modules, and whether this process can be forked safely.

    Args:
        preload: Modules to import.
        log: Where problems are reported.

    Attributes:
        startup_env, startup_path: Environment and ``sys.path`` before the imports.
        fork_obstacle: Why this process must not be forked; None if it can be.
    """

    def __init__(self, preload: Sequence[str], log: TextIO) -> None:
        start_s = time.monotonic()
        self.startup_env = dict(os.environ)
        self.startup_path = list(sys.path)
        self._log = log
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that counting GPUs does not start the driver
        gc.disable()  # nothing that an import makes is garbage, and to look for it takes a tenth of the time
        for name in preload:
            try:
                importlib.import_module(name)
            except Exception as error:
                self.log(f"cannot preload {name}: {type(error).__name__}: {error}")
        gc.enable()
        if "PYTORCH_NVML_BASED_CUDA_CHECK" not in self.startup_env:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        self.fork_obstacle = fork_safety.process_obstacle(threading.active_count()) or self._child_obstacle()
        if self.fork_obstacle:
            self.log(f"spawning fresh interpreters, not forking: {self.fork_obstacle}")
        gc.collect()
        gc.freeze()  # keeps the present objects in pages that all forks share
        self.preload_s = time.monotonic() - start_s

    def log(self, text: str) -> None:
        """Write one line to the log."""
        self._log.write(f"brim zygote {os.getpid()}: {text}\n")
        self._log.flush()

    def command_to_fork(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> PythonCommand | str:
        """Return what a fork is to run, or why the command needs a fresh process."""
        if self.fork_obstacle:
            return self.fork_obstacle
        if not fork_safety.is_this_python(command[0], env):
            return f"{command[0]} is not {sys.executable}"
        parsed = fork_safety.parse_command(command[1:], cwd)
        if isinstance(parsed, str):
            return parsed
        return fork_safety.command_obstacle(parsed, env, cwd, self.startup_env) or parsed

    @staticmethod
    def _child_obstacle() -> str | None:
        """Check in a forked child, since libraries report only there that a fork has broken them."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write_fd, (fork_safety.child_obstacle() or "").encode())
            os._exit(0)
        os.close(write_fd)
        with open(read_fd, "rb") as answer:
            text = answer.read().decode()
        os.waitpid(pid, 0)
        return text or None


class ZygoteSession:
    """Serves one supervisor until its connection ends.

    Args:
        zygote: The preloaded modules.
        connection: The supervisor's.
        grace_s: Time from SIGTERM to SIGKILL for ranks whose supervisor has ended.
    """

    def __init__(self, zygote: Zygote, connection: socket.socket, grace_s: float) -> None:
        self._zygote, self._grace_s = zygote, grace_s
        self._channel = FdChannel(connection)
        self._rank_of_pid: dict[int, int] = {}
        self._cgroup = ""
        self._folders: set[str] = set()  # of the supervisor, which may die before it removes them
        self._wakeup = WakeupPipe()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> ForkedRank | None:
        """Serve until the connection ends, then return None. In each forked child, return what the child is to run."""
        processes.become_subreaper()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakeup.wake_on_signals()
        obstacle = self._zygote.fork_obstacle
        self._send({"ready": self._zygote.preload_s, "pid": os.getpid(), "fork_obstacle": obstacle})
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wakeup:
                    self._wakeup.drain()
                    self._report_exits(processes.reap())
                    continue
                requests = self._channel.receive()
                if requests is None:
                    self._end_everything()
                    return None
                for request in requests:
                    if (child := self._start(request)) is not None:
                        return child

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the next read finds out that the supervisor has ended
            self._channel.send(message, fds)

    def _start(self, request: dict[str, Any]) -> ForkedRank | None:
        rank, command, env, cwd = request["start"], request["command"], request["env"], request["cwd"]
        inherits = read_inherited(request.get("inherits", {}))
        self._join(request.get("cgroup", ""))
        fds = self._channel.take_fds(3)
        if run_script.ERROR_FILE_VARIABLE in env:
            self._folders.add(os.path.dirname(env[run_script.ERROR_FILE_VARIABLE]))
        parsed = self._zygote.command_to_fork(command, env, cwd)
        try:
            if isinstance(parsed, str):
                with inherits.for_a_child():
                    process = subprocess.Popen(
                        command, env=env, cwd=cwd, stdin=fds[0], stdout=fds[1], stderr=fds[2], start_new_session=True
                    )
                process.returncode = 0  # collected by `processes.reap`
                self._report_start(rank, process.pid, "spawn", parsed)
                return None
            return self._fork(rank, ForkedRank(parsed, env, cwd, inherits), fds)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._send({"refused": rank, "exit_code": code, "detail": f"cannot start {command[0]}: {error}"})
            return None
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _join(self, cgroup: str) -> None:
        """Move into the supervisor's cgroup, so that whatever starts is born there."""
        if cgroup == self._cgroup:
            return
        self._cgroup = cgroup
        try:
            Cgroup(cgroup).join()
        except OSError as error:  # the other ways to find an attempt's processes are left
            self._zygote.log(f"cannot move into {cgroup}: {error.strerror}")

    def _report_start(self, rank: int, pid: int, start_method: str, spawn_reason: str, fds: Sequence[int] = ()) -> None:
        self._rank_of_pid[pid] = rank
        pidfd = os.pidfd_open(pid)
        message = {"started": rank, "pid": pid, "start_method": start_method, "spawn_reason": spawn_reason}
        self._send(message, [pidfd, *fds])
        os.close(pidfd)

    def _fork(self, rank: int, child: ForkedRank, fds: list[int]) -> ForkedRank | None:
        """Fork a rank. The child waits until the supervisor has read the report, and ends if it never does."""
        go_fd, reported_fd = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(reported_fd)
            self._set_up_child(go_fd, fds)
            return child
        os.close(go_fd)
        try:
            self._report_start(rank, pid, "fork", "", [reported_fd])
        finally:
            os.close(reported_fd)
        return None

    def _set_up_child(self, go_fd: int, fds: list[int]) -> None:
        """In the child: start a session, install the three given descriptors, and close those of the zygote."""
        signal.set_wakeup_fd(-1)
        os.setsid()
        if os.read(go_fd, 1) != b"!":
            os.kill(os.getpid(), signal.SIGKILL)  # so that no exit code is mistaken for the script's
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        self._close()
        os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)

    def _close(self) -> None:
        self._selector.close()
        self._channel.close()
        self._wakeup.close()

    def _report_exits(self, exits: Iterable[tuple[int, int]]) -> None:
        for pid, status in exits:
            if pid in self._rank_of_pid:  # others are orphans of ranks
                self._send({"exited": self._rank_of_pid.pop(pid), "wait_status": status})

    def _end_everything(self) -> None:
        """The supervisor has ended: give the ranks time to save, then end all descendants."""
        ranks = [found for pid in self._rank_of_pid if (found := processes.find_process(pid)) is not None]
        for rank in ranks:
            processes.send_signal(rank, signal.SIGTERM)
        deadline_s = time.monotonic() + self._grace_s
        while self._rank_of_pid and time.monotonic() < deadline_s:
            self._report_exits(processes.reap())
            time.sleep(0.01)
        left = processes.kill_all(lambda: processes.descendants(os.getpid()))
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            self._zygote.log(f"still running after SIGKILL: processes {pids}")
        for folder in self._folders:
            if os.path.basename(folder).startswith(FOLDER_PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
        signal.set_wakeup_fd(-1)
        self._close()


def listen(zygote: Zygote, listener: ListeningSocket, grace_s: float) -> ForkedRank | None:
    """Serve supervisors that connect to the listener; each gets a fork of this process as its own zygote."""
    processes.become_subreaper()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, _exit_now)
    sessions: set[int] = set()  # processes
    wakeup = WakeupPipe()
    wakeup.wake_on_signals()
    with contextlib.closing(listener), selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        zygote.log(f"ready after {zygote.preload_s:.2f} s, listening on {listener.path}")
        while True:
            for key, _ in selector.select():
                if key.fileobj is wakeup:
                    wakeup.drain()
                    sessions -= {pid for pid, _ in processes.reap()}
                    _kill_orphans(sessions)
                    continue
                accepted = listener.accept()
                if accepted is None:
                    continue
                connection, _ = accepted
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    signal.set_wakeup_fd(-1)
                    os.setsid()
                    run_script.leave_finalizers_to_the_zygote()
                    selector.close()
                    listener.close()
                    wakeup.close()
                    return ZygoteSession(zygote, connection, grace_s).serve()
                sessions.add(pid)
                connection.close()


def _kill_orphans(sessions: set[int]) -> None:
    """Kill the orphans of a session that was killed, since their ends could not be reported any more."""
    me = os.getpid()

    def orphans() -> list[processes.Process]:
        everything = processes.all_processes()
        top = [process for process in everything if process.parent == me and process.pid not in sessions]
        return top + [below for one in top for below in processes.descendants(one.pid, everything)]

    if orphans():
        processes.kill_all(orphans, lambda exits: sessions.difference_update(pid for pid, _ in exits))


def _exit_now(*_: object) -> None:
    raise SystemExit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the zygote; in a forked child, run the rank."""
    parser = argparse.ArgumentParser(prog="brim.gang.zygote", description="A preloaded process that forks ranks.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="serve one supervisor on this inherited socket")
    where.add_argument("--listen", metavar="PATH", help="serve any number of supervisors on this socket")
    parser.add_argument("--parent", type=int, metavar="PID", help="process that starts this one, and may end meanwhile")
    parser.add_argument("--preload", default=",".join(PRELOAD), help="modules to import, separated by commas")
    parser.add_argument("--grace-s", type=float, default=GRACE_S, help="seconds before SIGKILL if a supervisor dies")
    options = parser.parse_args(arguments)
    listener = None
    if options.listen:
        processes.end_with_parent(options.parent)
        try:
            listener = ListeningSocket(options.listen)  # before the imports: who connects meanwhile waits
        except OSError as error:
            raise SystemExit(f"brim zygote: --listen {error}") from None
    zygote = Zygote([name for name in options.preload.split(",") if name], sys.stderr)
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN: fresh processes would inherit it
    if listener is not None:
        try:
            child = listen(zygote, listener, options.grace_s)
        except SystemExit:  # SIGTERM
            child = None
    else:
        child = ZygoteSession(zygote, socket.socket(fileno=options.fd), options.grace_s).serve()
    if child is not None:
        child.inherits.set()
        run_script.reset_process(child.command, child.env, child.cwd, zygote.startup_path)
        del zygote
        run_script.run_script(child.command)
    run_script.end_process()


if __name__ == "__main__":
    main()
