"""This user's agent: started when it is first needed, in the background, and outliving the shell that did so."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.agent.folders import agent_folder
from brim.agent.starting import start_process
from brim.cli.locks import agent_runs, is_locked
from brim.core.gpu_names import CPU
from brim.errors import BrimError, NotFoundError, RefusedError, UserError

if TYPE_CHECKING:
    from brim.api.client import Client

START_S: Final = 120.0
"""Longest wait until a process answers; ours. Its end is noticed at once, so this bounds one that hangs: a start is 3 s
of CPU time, which take more than 30 s on a machine that others keep busy."""
END_S: Final = 10.0
"""Longest wait for a process to end after SIGTERM; ours."""
LOOK_S: Final = 0.05
NVML_S: Final = 10.0
"""Longest wait for NVML, which takes seconds where the driver is not loaded; ours."""


def gpu_names() -> list[str]:
    """Return the names of the GPUs that NVML knows; in a process of its own, because a driver may block."""
    words = [sys.executable, "-P", "-m", "brim.agent.nvml"]
    try:
        done = subprocess.run(words, input=b"\n", capture_output=True, timeout=NVML_S, check=False)
        return [str(gpu["name"]) for gpu in json.loads(done.stdout or b"{}").get("gpus", ())]
    except (subprocess.TimeoutExpired, ValueError):
        return []


def agent_words(at: Client) -> list[str]:
    """Arguments of this user's agent for a controller, with devices as it has them."""
    facts = at.status()["status"]
    slots = ["--devices", str(facts["devices"])] if f"x{CPU}:" in facts["cluster"] else []
    return ["--controller", str(at.path.parent / "agents.sock"), *slots]


def running_words(lock: Path) -> list[str]:
    """Words of the command line of the process that holds a lock; none if it has just ended."""
    try:
        return Path(f"/proc/{holder_of(lock)}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def slots_of(words: Sequence[str]) -> str:
    """The number of CPU slots that the words of an agent name; empty where it gives out GPUs."""
    return words[words.index("--devices") + 1] if "--devices" in words else ""


def ensure_agent(at: Client) -> None:
    """Start this user's agent for a controller, if none runs, or the one that does has another number of slots."""
    lock = agent_folder() / "lock"
    if agent_runs():
        if slots_of(running_words(lock)) == slots_of(agent_words(at)):
            return
        end_process(lock, "the agent")  # its jobs, if it has any, go on under the next one
    start_agent(at)


def start_agent(at: Client) -> None:
    """Start this user's agent for a controller, with devices as it has them, and wait until the controller knows it.

    Raises:
        BrimError: the agent ended, or does not answer.
    """
    started = start_process("brim.agent", agent_words(at), agent_folder())
    try:
        wait_for(lambda: agent_is_known(at), started, "the agent", agent_folder() / "log")
    except RefusedError:  # another process has started it at the same time
        if not wait_until(lambda: agent_is_known(at), agent_runs):
            raise


def agent_is_known(at: Client) -> bool:
    """Whether the controller is connected to this user's agent."""
    return any(agent["uid"] == os.getuid() for node in at.nodes() for agent in node["agents"])


def wait_for(done: Callable[[], bool], process: subprocess.Popen[bytes], what: str, log: Path) -> None:
    """Wait until a process that was started does what it should.

    Raises:
        BrimError: it ended, or takes too long; with its last words, and its exit code if it has one of brim's.
    """
    end = time.monotonic() + START_S
    while not done():
        code = process.poll()
        if code is not None:
            kind = {2: UserError, 3: NotFoundError, 4: RefusedError}.get(code, BrimError)
            raise kind(f"{what} ended with exit code {code}: {_last_line(log)}; see {log}")
        if time.monotonic() > end:
            raise BrimError(f"{what} does not answer after {START_S:g} s; see {log}")
        time.sleep(LOOK_S)


def wait_until(done: Callable[[], bool], may_come: Callable[[], bool]) -> bool:
    """Wait until something is done, as long as it may still be and ``START_S`` at most; return whether it is."""
    end = time.monotonic() + START_S
    while not (found := done()) and may_come() and time.monotonic() < end:
        time.sleep(LOOK_S)
    return found


def _last_line(log: Path) -> str:
    if not shutil.disk_usage(log.parent).free:
        return f"the volume of {log.parent} is full"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(": ")[2] or line for line in reversed(lines) if line.strip()), "it wrote nothing")


def holder_of(lock: Path) -> int:
    """Return the id of the process that holds a lock, which stands first in the file."""
    number = re.search(r"\d+", lock.read_text(encoding="ascii"))
    if number is None:
        raise BrimError(f"{lock}: found no process id, expected that of the process that holds it")
    return int(number[0])


def end_process(lock: Path, what: str) -> int:
    """Ask the process that holds a lock to end, and wait until it has; return its id.

    Raises:
        BrimError: it does not end.
    """
    pid = holder_of(lock)
    fd = os.pidfd_open(pid)
    try:
        if is_locked(lock):  # it still is that process
            signal.pidfd_send_signal(fd, signal.SIGTERM)
        if not select.select([fd], [], [], END_S)[0]:  # readable once the process has ended
            raise BrimError(f"{what} (process {pid}) has not ended {END_S:g} s after SIGTERM")
    finally:
        os.close(fd)
    return pid
