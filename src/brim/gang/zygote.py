"""A process with torch preloaded that forks ranks: four ranks start in milliseconds instead of seconds.

There is one zygote per Python environment. It imports the modules that ranks will need, and touches no GPU. Then it
starts the requested processes, each in a session of its own, and reports the wait status of each that ends. A command
that a fork cannot run is started as a fresh process, and the zygote reports why. When its supervisor has ended, the
zygote ends all its descendants and itself.

    python -c "from brim.gang.zygote import main; main()" --fd 7            one supervisor, on an inherited socket
    python -m brim.gang.zygote --listen PATH                                any number; each gets a copy of its own

The messages are lines of JSON on a Unix stream socket, with descriptors attached:

    to it    {"start": id, "command": [...], "env": {...}, "cwd": path}     stdin, stdout, stderr
    from it  {"ready": seconds, "pid": ..., "never": reason or null}
             {"started": id, "pid": ..., "how": "fork" | "fresh", "why": reason or ""}   a descriptor of the process
             {"refused": id, "status": 126 | 127, "detail": text}
             {"ended": id, "status": wait status}
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.gang import processes, run_script
from brim.gang.control_server import is_socket

PRELOAD: Final = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data", "torch._dynamo")
"""``torch._dynamo`` is in the list because the first optimizer that is built imports it, which takes a second."""
GRACE_S: Final = 5.0
"""Time from SIGTERM to SIGKILL for ranks whose supervisor has ended. Our choice."""
SHORT: Final = "import sys; sys.flags.safe_path or sys.path.pop(0); from brim.gang.zygote import main; main()"
"""The code that starts a private zygote. With ``-m``, a module in the current folder could hide one that it needs."""
FOLDER_PREFIX: Final = "brim-gang-"
"""Prefix of the temporary folders of supervisors."""
_BACKLOG: Final = 16


@dataclass(frozen=True, slots=True)
class Child:
    """What a forked child is to run. The child returns to ``main`` with it, and so leaves the zygote's own frames."""

    run: run_script.PythonRun
    env: dict[str, str]
    cwd: str


class Zygote:
    """The preloaded modules, and whether this process can be forked safely."""

    def __init__(self, preload: Sequence[str], log: Any) -> None:
        start_s = time.monotonic()
        self.at_start = dict(os.environ)
        self.base_path = list(sys.path)
        self._log = log
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that counting GPUs does not start the driver
        for name in preload:
            try:
                importlib.import_module(name)
            except Exception as error:
                self.say(f"cannot preload {name}: {type(error).__name__}: {error}")
        if "PYTORCH_NVML_BASED_CUDA_CHECK" not in self.at_start:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        self.never = run_script.why_never_fork(threading.active_count()) or self._why_child_unsound()
        if self.never:
            self.say(f"starting fresh interpreters, not by fork: {self.never}")
        gc.collect()
        gc.freeze()  # keeps the present objects in pages that all forks share
        self.preload_s = time.monotonic() - start_s

    def say(self, text: str) -> None:
        """Write one line to the log."""
        self._log.write(f"brim zygote {os.getpid()}: {text}\n")
        self._log.flush()

    def why_fresh(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> run_script.PythonRun | str:
        """Return what a fork is to run, or why the command needs a fresh process."""
        if self.never:
            return self.never
        if not is_this_python(command[0], env):
            return f"{command[0]} is not {sys.executable}"
        run = run_script.read_command(command[1:], cwd)
        if isinstance(run, str):
            return run
        return run_script.why_not_fork(run, env, cwd, self.at_start) or run

    @staticmethod
    def _why_child_unsound() -> str | None:
        """Check in a forked child, since libraries report only there that a fork has broken them."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write_fd, (run_script.why_child_unsound() or "").encode())
            os._exit(0)
        os.close(write_fd)
        with open(read_fd, "rb") as answer:
            text = answer.read().decode()
        os.waitpid(pid, 0)
        return text or None


class Branch:
    """Serves one supervisor until its connection ends."""

    def __init__(self, zygote: Zygote, connection: socket.socket, grace_s: float) -> None:
        self._zygote, self._connection, self._grace_s = zygote, connection, grace_s
        self._ids: dict[int, int] = {}  # by process
        self._folders: set[str] = set()  # of the supervisor, which may die before it removes them
        self._rest = b""
        self._fds: list[int] = []
        self._wake_fd, self._waker_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> Child | None:
        """Serve until the connection ends, then return None. In each forked child, return what the child is to run."""
        processes.become_subreaper()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker_fd, warn_on_full_buffer=False)
        self._tell({"ready": self._zygote.preload_s, "pid": os.getpid(), "never": self._zygote.never})
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_fd, 4096)
                    self._ended(processes.reap())
                    continue
                requests = self._receive()
                if requests is None:
                    self._end_all()
                    return None
                for request in requests:
                    if (child := self._start(request)) is not None:
                        return child

    def _receive(self) -> list[dict[str, Any]] | None:
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, 1 << 16, 64)
        except OSError:
            return None
        self._fds += fds
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _tell(self, message: dict[str, Any], fds: Iterable[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the next read finds out that the supervisor has ended
            socket.send_fds(self._connection, [json.dumps(message).encode() + b"\n"], list(fds))

    def _start(self, request: dict[str, Any]) -> Child | None:
        number, command, env, cwd = request["start"], request["command"], request["env"], request["cwd"]
        fds, self._fds = self._fds[:3], self._fds[3:]
        if run_script.ERROR_FILE_VARIABLE in env:
            self._folders.add(os.path.dirname(env[run_script.ERROR_FILE_VARIABLE]))
        what = self._zygote.why_fresh(command, env, cwd)
        try:
            if isinstance(what, str):
                self._start_fresh(number, command, env, cwd, fds, what)
                return None
            return self._fork(number, Child(what, env, cwd), fds)
        except OSError as error:
            status = 127 if isinstance(error, FileNotFoundError) else 126
            self._tell({"refused": number, "status": status, "detail": f"cannot start {command[0]}: {error}"})
            return None
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _start_fresh(
        self, number: int, command: list[str], env: dict[str, str], cwd: str, fds: list[int], why: str
    ) -> None:
        process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=fds[0], stdout=fds[1], stderr=fds[2], start_new_session=True
        )
        process.returncode = 0  # collected by reap
        self._started(number, process.pid, "fresh", why)

    def _started(self, number: int, pid: int, how: str, why: str) -> None:
        self._ids[pid] = number
        handle = os.pidfd_open(pid)
        self._tell({"started": number, "pid": pid, "how": how, "why": why}, [handle])
        os.close(handle)

    def _fork(self, number: int, child: Child, fds: list[int]) -> Child | None:
        """Fork a rank. The child waits until it has been reported to the supervisor, and ends if it never is."""
        go_fd, gone_fd = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(gone_fd)
            self._leave(go_fd, fds)
            return child
        os.close(go_fd)
        try:
            self._started(number, pid, "fork", "")
            with contextlib.suppress(BrokenPipeError):
                os.write(gone_fd, b"!")
        finally:
            os.close(gone_fd)
        return None

    def _leave(self, go_fd: int, fds: list[int]) -> None:
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
        self._connection.close()
        os.close(self._wake_fd)
        os.close(self._waker_fd)

    def _ended(self, ended: list[tuple[int, int]]) -> None:
        for pid, status in ended:
            if pid in self._ids:  # others are orphans of ranks
                self._tell({"ended": self._ids.pop(pid), "status": status})

    def _end_all(self) -> None:
        """The supervisor has ended: give the ranks time to save, then end all descendants."""
        ranks = [found for pid in self._ids if (found := processes.seen(pid)) is not None]
        for rank in ranks:
            processes.send(rank, signal.SIGTERM)
        deadline_s = time.monotonic() + self._grace_s
        while self._ids and time.monotonic() < deadline_s:
            self._ended(processes.reap())
            time.sleep(0.01)
        left = processes.kill_all(lambda: processes.descendants(os.getpid()))
        if left:
            self._zygote.say(f"still running after SIGKILL: processes {', '.join(str(one.pid) for one in left)}")
        for folder in self._folders:
            if os.path.basename(folder).startswith(FOLDER_PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
        signal.set_wakeup_fd(-1)
        self._close()


def listen(zygote: Zygote, path: str, grace_s: float) -> Child | None:
    """Serve supervisors that connect to ``path``; each gets a fork of this process as its own zygote."""
    processes.become_subreaper()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, _exit_now)
    branches: set[int] = set()
    wake_fd, waker_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker_fd, warn_on_full_buffer=False)
    with _listening(path) as server, selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(wake_fd, selectors.EVENT_READ)
        zygote.say(f"ready after {zygote.preload_s:.2f} s, listening on {path}")
        while True:
            for key, _ in selector.select():
                if key.fd == wake_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_fd, 4096)
                    branches -= {pid for pid, _ in processes.reap()}
                    _kill_strays(branches)
                    continue
                connection, _ = server.accept()
                if _uid_of(connection) != os.getuid():
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    signal.set_wakeup_fd(-1)
                    os.setsid()
                    selector.close()
                    server.close()
                    os.close(wake_fd)
                    os.close(waker_fd)
                    return Branch(zygote, connection, grace_s).serve()
                branches.add(pid)
                connection.close()


@contextlib.contextmanager
def _listening(path: str) -> Iterator[socket.socket]:
    """Listen on a path. At the end, the process that made the socket removes it; its forks do not."""
    me = os.getpid()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            if is_socket(path):
                os.unlink(path)
            server.bind(path)
        except OSError as error:
            raise SystemExit(f"brim zygote: --listen {path}: {error.strerror or error}") from None
        os.chmod(path, 0o600)
        server.listen(_BACKLOG)
        inode = os.stat(path).st_ino
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                if os.getpid() == me and os.stat(path).st_ino == inode:
                    os.unlink(path)


def _kill_strays(branches: set[int]) -> None:
    """Kill the orphans of a fork that was killed, since their ends could not be reported any more."""
    me = os.getpid()

    def strays() -> list[processes.Process]:
        all_of_them = processes.everybody()
        top = [process for process in all_of_them if process.parent == me and process.pid not in branches]
        return top + [below for one in top for below in processes.descendants(one.pid, all_of_them)]

    if strays():
        processes.kill_all(strays, lambda ended: branches.difference_update(pid for pid, _ in ended))


def _exit_now(*_: object) -> None:
    raise SystemExit(0)


def _uid_of(connection: socket.socket) -> int:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", found)[1]
    return uid


def is_this_python(word: str, env: Mapping[str, str]) -> bool:
    """Whether the word would start this interpreter in this environment. Its folder counts, since venvs differ."""
    found = shutil.which(word, path=env.get("PATH"))
    if found is None:
        return False
    same_folder = os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)


def main(words: Sequence[str] | None = None) -> None:
    """Run the zygote; in a forked child, run the rank."""
    parser = argparse.ArgumentParser(prog="brim.gang.zygote", description="A preloaded process that forks ranks.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="serve one supervisor on this inherited socket")
    where.add_argument("--listen", metavar="PATH", help="serve any number of supervisors on this socket")
    parser.add_argument("--preload", default=",".join(PRELOAD), help="modules to import, separated by commas")
    parser.add_argument("--grace-s", type=float, default=GRACE_S, help="seconds before SIGKILL if a supervisor dies")
    options = parser.parse_args(words)
    zygote = Zygote([name for name in options.preload.split(",") if name], sys.stderr)
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN: fresh processes would inherit it
    if options.listen:
        child = listen(zygote, options.listen, options.grace_s)
    else:
        child = Branch(zygote, socket.socket(fileno=options.fd), options.grace_s).serve()
    if child is not None:
        run_script.become(child.run, child.env, child.cwd, zygote.base_path)
        del zygote
        run_script.run(child.run)


if __name__ == "__main__":
    main()
