"""Finds and ends the processes of an attempt whose supervisor does not do it any more.

A process belongs to an attempt if it is the supervisor, a process that the supervisor has named, in the session of
one, below one of these, or marked by ``$BRIM_GANG``. A rank that a zygote has forked shows the environment of the
zygote, so it must have been named; its zygote ends it when the supervisor ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from brim.gang import processes
from brim.gang.messages import GANG_VARIABLE
from brim.gang.processes import Process

SWEEP_S: Final = 1.5
"""Longest time in which the agent does nothing else but kill the processes of one attempt. Ours."""


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process by its id and start time, which name it as long as the machine runs."""

    pid: int
    start_ticks: int


def known(pids: Iterable[int]) -> frozenset[KnownProcess]:
    """Name these processes, as far as they live."""
    found = (processes.find_process(pid) for pid in pids if pid > 0)
    return frozenset(KnownProcess(process.pid, process.start_ticks) for process in found if process is not None)


Strays = Callable[[Collection[Process]], Collection[int]]
"""Receives all processes of the machine but this one: returns its children that belong to no other attempt."""


def processes_of(gang: str, named: Collection[KnownProcess], strays: Strays) -> list[Process]:
    """Return the living processes of an attempt; /proc is read once.

    Args:
        gang: The gang's id.
        named: Its supervisor, zygote and ranks.
        strays: Says which children of this process belong to no other attempt.
    """
    everything = [process for process in processes.all_processes() if process.pid != os.getpid()]
    by_pid = {process.pid: process for process in everything}
    roots = set(strays(everything))
    sessions = set()
    for one in named:
        there = by_pid.get(one.pid)
        if there is None or there.start_ticks == one.start_ticks:  # else another process has the id now
            roots.add(one.pid)
            sessions.add(one.pid)
    found = {process.pid: process for process in everything
             if process.pid in roots or process.session in sessions
             or processes.was_executed_with(process.pid, GANG_VARIABLE, gang)}  # fmt: skip
    for pid in list(found):
        found |= {below.pid: below for below in processes.descendants(pid, everything)}
    return [process for process in found.values() if process.state not in "ZX"]


def kill(
    gang: str, named: Collection[KnownProcess], strays: Strays,
    on_reaped: Callable[[list[tuple[int, int]]], None],
) -> list[Process]:  # fmt: skip
    """Kill the processes of an attempt, see ``processes_of``; return those that are still there after a moment.

    ``on_reaped`` is told of children of this process that have ended meanwhile.
    """
    return processes.kill_all(lambda: processes_of(gang, named, strays), on_reaped, SWEEP_S)
