"""The zygotes of an agent: processes that start the ranks of all its attempts, and have loaded what these need.

There is one without anything loaded, which starts programs, and one for each Python environment, with torch. A zygote
ends with its agent, and the processes that it has started for an attempt go on: each attempt has a fork of its own.
An environment without brim has none; its attempts have a private one, which starts its interpreter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from brim.agent.folders import make_private
from brim.gang import processes, zygote
from brim.gang.environment import gang_environment
from brim.gang.fork_safety import FORBID_VARIABLE, READ_AT_STARTUP, parse_command
from brim.gang.launch_config import PRELOAD
from brim.gang.processes import Process
from brim.gang.unix_socket import PATH_BYTES_MAX, is_socket

PLAIN: Final = "plain"
"""Name of the one that starts programs."""
IDLE_MS: Final = 600_000
"""How long a zygote with torch stays although no attempt uses it: it takes 223 MB. Ours."""
_ENVIRONMENT: Final = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(slots=True)
class _ZygoteProcess:
    """A zygote that was started; ``process`` is None if it ended before it was ready, and so is of no use."""

    process: Process | None
    path: str
    used_ms: int
    may_end: bool
    has_listened: bool = False


class Zygotes:
    """Starts zygotes and says where they listen.

    Args:
        folder: Folder for their sockets and logs, of this user only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._zygotes: dict[str, _ZygoteProcess] = {}
        make_private(folder)

    def pids(self) -> set[int]:
        """Return the process ids of all zygotes."""
        return {one.process.pid for one in self._zygotes.values() if one.process is not None}

    def start_plain(self, now_ms: int) -> None:
        """Start the one that starts programs, if it does not run."""
        self._start(PLAIN, sys.executable, (), os.environ, now_ms, may_end=False)

    def for_command(
        self, command: Sequence[str], env: Mapping[str, str], now_ms: int, *, is_gang: bool
    ) -> str | None:
        """Return the socket of the zygote that is to start this command, None if there is none.

        The zygote of its Python environment is started. A gang waits for it, since all ranks need what it has loaded;
        a plain command that comes too early starts without.

        Raises:
            BlockingIOError: the zygote has just been started, and does not listen yet.
        """
        name = self._start_for(command, env, now_ms, is_gang=is_gang)
        return self._path(name if is_gang or self._is_ready(name) else PLAIN, now_ms)

    def warm(self, command: Sequence[str], env: Mapping[str, str], now_ms: int, *, is_gang: bool) -> bool:
        """Start the zygote of a command that may be run again; returns whether one of its own would start it."""
        return self._start_for(command, env, now_ms, is_gang=is_gang) != PLAIN

    def ended(self, pid: int) -> None:
        """A child of this process has ended; a zygote is started again when it is needed, if it ever listened."""
        for name, one in list(self._zygotes.items()):
            if one.process is not None and one.process.pid == pid:
                if one.has_listened or self._listens(name):
                    del self._zygotes[name]
                else:
                    one.process = None  # an environment without brim: it would fail again

    def end_idle(self, now_ms: int, busy: bool) -> None:
        """End those that no attempt has needed for a while."""
        for one in self._zygotes.values():
            if one.process is not None and one.may_end:
                if busy:
                    one.used_ms = now_ms
                elif now_ms - one.used_ms > IDLE_MS:
                    one.has_listened = True  # it is not to blame for its end
                    processes.send_signal(one.process, signal.SIGTERM)

    def close(self) -> None:
        """End all zygotes; what they have started for attempts goes on."""
        for one in self._zygotes.values():
            if one.process is not None:
                processes.send_signal(one.process, signal.SIGTERM)

    def _start_for(
        self, command: Sequence[str], env: Mapping[str, str], now_ms: int, *, is_gang: bool
    ) -> str:
        """Start the zygote that is to start a command, and return its name."""
        python = shutil.which(command[0], path=env.get("PATH"))
        if python is None or not os.path.basename(python).startswith("python"):
            return PLAIN
        if env.get(FORBID_VARIABLE) == "off" or isinstance(parse_command(command[1:], "/"), str):  # not to be forked
            return PLAIN
        shared = gang_environment(env, "", "", is_gang=is_gang)
        shown = {name: value for name, value in shared.items() if name.startswith(READ_AT_STARTUP)}
        key = sha256(repr((os.path.abspath(python), sorted(shown.items()))).encode("utf-8", "replace"))
        name = key.hexdigest()[:16]
        shown |= {name: env[name] for name in _ENVIRONMENT if name in env}
        self._start(name, python, PRELOAD, shown, now_ms, may_end=True)
        return name

    def _listens(self, name: str) -> bool:
        one = self._zygotes.get(name)
        if one is None or one.process is None:
            return False
        with contextlib.suppress(OSError):
            one.has_listened |= is_socket(one.path)
            return is_socket(one.path)
        return False

    def _is_ready(self, name: str) -> bool:
        """Whether it has loaded what it loads: it says so in its log."""
        with contextlib.suppress(OSError):
            return self._listens(name) and b": ready after " in (self._folder / f"{name}.log").read_bytes()
        return False

    def _path(self, name: str, now_ms: int) -> str | None:
        one = self._zygotes.get(name)
        if one is None or one.process is None:
            return None
        one.used_ms = now_ms
        if not self._listens(name):
            raise BlockingIOError(f"{one.path}: its zygote is starting")
        return one.path

    def _start(
        self, name: str, python: str, preload: Sequence[str], env: Mapping[str, str], now_ms: int, *, may_end: bool
    ) -> None:
        path = str(self._folder / name)
        if name in self._zygotes or len(os.fsencode(path)) > PATH_BYTES_MAX:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an agent that was killed
        words = [python, "-c", zygote.PROGRAM, "--listen", path, "--preload", ",".join(preload)]
        words += ["--parent", str(os.getpid())]
        opener = os.open(self._folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(opener, "wb") as log:
            try:
                child = subprocess.Popen(
                    words, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            except OSError:
                self._zygotes[name] = _ZygoteProcess(None, path, now_ms, may_end)
                return
        child.returncode = 0  # collected by the agent, with all its children
        self._zygotes[name] = _ZygoteProcess(processes.find_process(child.pid), path, now_ms, may_end)
