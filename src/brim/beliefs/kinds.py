"""How long a job runs, believed from jobs like it: of its name and size, of its name, of its user, or any.

Users name a job after what it does, and submit the same again; a name is therefore the kind of a job. A job that was
preempted runs longer than its like, by what it repeats at each return: its own start, and what it had not saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.change_costs import trimmed_mean

BASES: Final = ("name and size", "name", "user", "all jobs")
"""On what a run time is based, the best first."""


class JobKind(NamedTuple):
    """What is known of a job before it runs."""

    name: str
    user: str
    gpus: int


@dataclass(frozen=True, slots=True)
class KindRunTimes:
    """Trimmed means of recorded run times without what was repeated, in ms, by what the jobs have in common.

    Attributes:
        of: The means.
        repeat_ms: What a job runs longer for each return, 0 where nothing tells.
    """

    of: Mapping[tuple[object, ...], float]
    repeat_ms: float

    def run_ms(self, kind: JobKind) -> tuple[int, int]:
        """Return the run time to expect, at least 1 ms, and on which of ``BASES`` it rests.

        Raises:
            LookupError: no run time was recorded at all.
        """
        for basis, key in enumerate(alike(kind)):
            if key in self.of:
                return max(1, round(self.of[key])), basis
        raise LookupError(kind.name)


def learn_run_times(kinds: Sequence[JobKind], run_ms: Sequence[int], returns: Sequence[int]) -> KindRunTimes:
    """Learn run times from jobs that ran to their end.

    Args:
        kinds: Their kinds.
        run_ms: How long each ran, all its attempts together.
        returns: How often each was started again.
    """
    repeat_ms = _repeat_ms(kinds, run_ms, returns)
    groups = grouped(kinds, [ran - number * repeat_ms for ran, number in zip(run_ms, returns, strict=True)])
    return KindRunTimes({key: trimmed_mean(group) for key, group in groups.items()}, repeat_ms)


def grouped(kinds: Sequence[JobKind], run_ms: Sequence[float]) -> dict[tuple[object, ...], list[float]]:
    """Return the run times of jobs by what the jobs have in common, see ``alike``."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for kind, ran_ms in zip(kinds, run_ms, strict=True):
        for key in alike(kind):
            groups.setdefault(key, []).append(ran_ms)
    return groups


def _repeat_ms(kinds: Sequence[JobKind], run_ms: Sequence[int], returns: Sequence[int]) -> float:
    """Least squares of run times over returns, with a constant for each kind; not below 0."""
    ran, number = np.array(run_ms, dtype=np.float64), np.array(returns, dtype=np.float64)
    for kind in set(kinds):
        same = np.array([one == kind for one in kinds])
        ran[same] -= ran[same].mean()
        number[same] -= number[same].mean()
    spread = float(number @ number)
    return max(0.0, float(ran @ number) / spread) if spread else 0.0


def alike(kind: JobKind) -> tuple[tuple[object, ...], ...]:
    """What identifies jobs like it, in the order of ``BASES``."""
    return ("size", kind.name, kind.gpus), ("name", kind.name), ("user", kind.user), ("all",)
