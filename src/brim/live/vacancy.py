"""Whether anything of an attempt is left, as far as the machine shows it to a process that may belong to another user.

An agent that never returns cannot say that its attempts have ended. Their devices are given on only when it is proven
that nothing is there: the machine was started since, or every process that the agent named has ended; and the agent of
another user sees the devices empty (``controller.py``). Otherwise they stay where they are, and are shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from typing import Final, Literal

from brim.gang.processes import find_process
from brim.live.inputs import Vacated
from brim.live.records import HOLDS_DEVICES, AttemptRecord

LOOK_S: Final = 5.0
"""Time between two looks at the attempts of agents that are away. Ours."""
Vacancy = Literal["gone", "alive", "unknown"]


def vacancy_of(attempt: AttemptRecord, booted_ms: int) -> Vacancy:
    """Say whether processes of an attempt are there.

    Args:
        attempt: The attempt.
        booted_ms: See ``Store.booted_ms``.
    """
    if attempt.decided_ms <= booted_ms:
        return "gone"
    if not attempt.processes or not sees_others():
        return "unknown"
    pairs = zip(attempt.processes[::2], attempt.processes[1::2], strict=True)
    return "alive" if any(_lives(pid, ticks) for pid, ticks in pairs) else "gone"


def orphans_of(attempts: Iterable[AttemptRecord], present: Container[int]) -> list[AttemptRecord]:
    """Return the attempts that keep devices, and whose agents are away; ``present`` are users whose agents are not."""
    return [one for one in attempts if one.state in HOLDS_DEVICES and one.devices and one.uid not in present]


def vacated(orphans: Iterable[AttemptRecord], booted_ms: int, now_ms: int) -> list[Vacated]:
    """Return what to tell the controller of attempts of which nothing is left."""
    gone = (attempt for attempt in orphans if vacancy_of(attempt, booted_ms) == "gone")
    return [Vacated(at_ms=now_ms, job=attempt.job, attempt=attempt.number) for attempt in gone]


def sees_others(exists: Callable[[str], bool] = os.path.exists) -> bool:
    """Whether processes of other users can be seen here: the first one is root's."""
    return exists("/proc/1/stat")


def _lives(pid: int, start_ticks: int) -> bool:
    found = find_process(pid)
    return found is not None and found.start_ticks == start_ticks and found.state not in "ZX"
