"""Finds and ends the processes of this machine that belong to a gang."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

from brim.gang import processes
from brim.gang.messages import GANG_VARIABLE, ID_VARIABLE
from brim.gang.processes import Process
from brim.gang.rank_process import RankProcess


class GangProcesses:
    """All processes that a gang has started, directly or indirectly. This process is their child subreaper.

    Args:
        gang: The gang's id, which marks the environment of its processes.
        zygote_is_shared: Whether the zygote serves several supervisors, and so is not a child of this process.

    Attributes:
        zygote_pid: Process id of its zygote, which belongs to no rank; 0 if unknown.
        has_orphans: Whether a shared zygote was lost: what it had started may be a child of no process of this gang.
    """

    def __init__(self, gang: str, *, zygote_is_shared: bool) -> None:
        self.zygote_pid, self.has_orphans = 0, False
        self._zygote_is_shared = zygote_is_shared
        self._gang = gang.encode()
        self._others: frozenset[int] = frozenset()

    def exclude_present_children(self) -> None:
        """Note the present children of this process: they do not belong to the gang."""
        me = os.getpid()
        self._others = frozenset(process.pid for process in processes.all_processes() if process.parent == me)

    def zygote_lost(self) -> None:
        """Its zygote has ended: another process may get its id."""
        self.zygote_pid, self.has_orphans = 0, self._zygote_is_shared

    def all(self, among: Iterable[Process] | None = None) -> list[Process]:
        """Return all processes of the gang, zombies included."""
        everything = processes.all_processes() if among is None else list(among)
        me = os.getpid()
        children = [process for process in everything if process.parent == me and process.pid not in self._others]
        found = children + [below for child in children for below in processes.descendants(child.pid, everything)]
        if self._zygote_is_shared and self.zygote_pid:
            found += processes.descendants(self.zygote_pid, everything)
        if self.has_orphans:
            known, gang = {process.pid for process in found}, GANG_VARIABLE.encode()
            found += [process for process in everything
                      if process.pid not in known and processes.environment_of(process.pid).get(gang) == self._gang]
        return [process for process in found if process.pid not in (me, self.zygote_pid)]

    def of_rank(self, rank: RankProcess) -> list[Process]:
        """Return the rank's process and the processes that it has started, as far as these can be attributed to it."""
        everything, pid = processes.all_processes(), rank.pid
        below = {found.pid for found in processes.descendants(pid, everything)} if pid else set()
        mark = {ID_VARIABLE.encode(): str(rank.id).encode(), GANG_VARIABLE.encode(): self._gang}

        def belongs(process: Process) -> bool:
            if pid in (process.pid, process.session) or process.pid in below:
                return True
            return mark.items() <= processes.environment_of(process.pid).items()

        return [process for process in self.all(everything) if process.state not in "ZX" and belongs(process)]

    def kill_rank(self, rank: RankProcess) -> None:
        """Send SIGKILL to all processes of the rank, except resource trackers."""
        _kill(self.of_rank(rank), resource_trackers=False)
        with contextlib.suppress(OSError):  # wherever it is
            signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)

    def terminate_rank(self, rank: RankProcess) -> None:
        """Send SIGTERM to the rank's process group, since a shell does not forward it."""
        found = processes.find_process(rank.pid)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(rank.pidfd, 0)  # fails if the process has ended and its id may be reused
            if found is not None and found.session == rank.pid:
                os.killpg(rank.pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(rank.pidfd, signal.SIGTERM)

    def clean_up_rank(self, rank: RankProcess, waited_s: float) -> list[Process] | None:
        """Kill the processes that an exited rank has left behind; to be called until it returns a list.

        Args:
            rank: The rank.
            waited_s: Time since its exit.

        Returns:
            The processes that could not be killed in time; None while some are still being killed.
        """
        left = self.of_rank(rank)
        if left and waited_s < processes.KILL_DEADLINE_S:
            _kill(left, resource_trackers=waited_s > processes.RESOURCE_TRACKER_S)
            return None
        return left


def _kill(which: Iterable[Process], *, resource_trackers: bool) -> None:
    for process in which:
        if resource_trackers or not processes.is_resource_tracker(process.pid):
            processes.send_signal(process, signal.SIGKILL)
