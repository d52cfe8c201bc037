"""Finds the processes of this machine that belong to a gang, and the rank that each belongs to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from brim.gang import processes
from brim.gang.messages import GANG_VARIABLE, ID_VARIABLE
from brim.gang.processes import Process


class Belongings:
    """All processes that a gang has started, directly or indirectly.

    Args:
        gang: The gang's id, which marks the environment of its processes.

    Attributes:
        zygote: Process id of its zygote, which belongs to no rank; 0 if unknown.
        shared: Whether the zygote serves several supervisors, and so is not a child of this process.
    """

    def __init__(self, gang: str) -> None:
        self.zygote, self.shared = 0, False
        self._gang = gang.encode()
        self._before: frozenset[int] = frozenset()

    def begin(self) -> None:
        """Note the present children of this process: they do not belong to the gang."""
        me = os.getpid()
        self._before = frozenset(process.pid for process in processes.everybody() if process.parent == me)

    def all(self, everybody: Iterable[Process] | None = None) -> list[Process]:
        """Return all processes of the gang, zombies included."""
        everybody = processes.everybody() if everybody is None else list(everybody)
        me = os.getpid()
        top = [process for process in everybody if process.parent == me and process.pid not in self._before]
        found = top + [below for one in top for below in processes.descendants(one.pid, everybody)]
        if self.shared and self.zygote:
            found += processes.descendants(self.zygote, everybody)
        return [process for process in found if process.pid != self.zygote]

    def of(self, rank: int, pid: int) -> list[Process]:
        """Return the rank's process and the processes that it has started, as far as these can be attributed to it."""
        everybody = processes.everybody()
        below = {found.pid for found in processes.descendants(pid, everybody)} if pid else set()

        def belongs(process: Process) -> bool:
            if pid in (process.pid, process.session) or process.pid in below:
                return True
            env = processes.environ_of(process.pid)
            return env.get(ID_VARIABLE.encode()) == str(rank).encode() and env.get(GANG_VARIABLE.encode()) == self._gang

        return [process for process in self.all(everybody) if process.state not in "ZX" and belongs(process)]


def kill(whom: Iterable[Process], *, janitors: bool = False) -> None:
    """Send SIGKILL to the processes; to those that clean up after others only with ``janitors``."""
    for process in whom:
        if janitors or not processes.is_janitor(process.pid):
            processes.send(process, signal.SIGKILL)
