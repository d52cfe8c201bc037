"""The cgroup of an attempt (version 2): no process leaves it by forking, by a new session or without its environment.

Processes are put into it before they start others, and the kernel then says what they have used, ends them all in one
step, and says that none is left. A process of the same user can still move itself elsewhere, so that the cgroup comes
on top of the other ways to find an attempt's processes (``gang_processes``, ``agent.leftovers``), not in their place.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from brim.gang.usage import NONE, NOT_MEASURED, Usage

_PAUSE_S: Final = 0.002


class Cgroup:
    """The cgroup in this folder, which may have been removed; it then has no processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def join(self) -> None:
        """Move this process into it, and with it all that it starts from now on.

        Raises:
            OSError: the kernel refuses, or it has been removed.
        """
        (self.path / "cgroup.procs").write_text("0")

    def processes(self) -> list[int]:
        """Return the ids of its processes, and of those in cgroups that they have made below it."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError):
                found += map(int, Path(folder, "cgroup.procs").read_text().split())
        return sorted(found)

    def is_empty(self) -> bool:
        """Whether the kernel says that no process is in it or below it; a zombie is none, and holds no device."""
        try:
            return _numbers(self.path / "cgroup.events").get("populated") == 0
        except FileNotFoundError:
            return True
        except OSError:
            return not self.path.exists()

    def end(self, deadline_s: float) -> list[int]:
        """Kill all its processes; return those that are still there after this long, [0] if their ids are hidden."""
        end_s = time.monotonic() + deadline_s
        while not self.is_empty():
            with contextlib.suppress(OSError):
                (self.path / "cgroup.kill").write_text("1")
            if time.monotonic() > end_s:
                return self.processes() or [0]
            time.sleep(_PAUSE_S)
        return []

    def usage(self) -> Usage:
        """Return what its processes have used until now."""
        memory = self._numbers_in("memory.events")
        cpu_us = self._numbers_in("cpu.stat").get("usage_usec")
        return Usage(
            cpu_ms=NONE if cpu_us is None else cpu_us // 1000,
            memory_peak_bytes=self._number_in("memory.peak"), processes_peak=self._number_in("pids.peak"),
            oom_kills=memory.get("oom_kill", NONE), oom_at_limit=memory.get("oom", NONE),
        )  # fmt: skip

    def remove(self) -> bool:
        """Remove it, with those below it; return whether it is gone. One that is not empty stays."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not self.path.exists()

    def _number_in(self, name: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / name).read_text())
        return NONE

    def _numbers_in(self, name: str) -> dict[str, int]:
        with contextlib.suppress(OSError):
            return _numbers(self.path / name)
        return {}


def close_cgroup(path: str, deadline_s: float) -> tuple[list[int], Usage]:
    """End a cgroup and all its processes: the last step of a kill ladder.

    Args:
        path: Its folder; empty if there is none.
        deadline_s: Longest time to wait for its processes.

    Returns:
        The processes that are left, and what all have used. If none is left, by the kernel's word, it is removed.
    """
    if not path:
        return [], NOT_MEASURED
    cgroup = Cgroup(path)
    left, usage = cgroup.end(deadline_s), cgroup.usage()
    cgroup.remove()
    return left, usage


def _numbers(path: Path) -> dict[str, int]:
    """Read a file with a name and a number in each line."""
    words = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number in words}
