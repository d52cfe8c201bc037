"""How long a job runs, believed from jobs like it: of its name and size, of its name, of its user, or any.

Users name a job after what it does, and submit the same again; a name is therefore the kind of a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
    """Trimmed means of recorded run times in ms, by what the jobs have in common."""

    of: Mapping[tuple[object, ...], float]

    def run_ms(self, kind: JobKind) -> tuple[int, int]:
        """Return the run time to expect, at least 1 ms, and on which of ``BASES`` it rests.

        Raises:
            LookupError: no run time was recorded at all.
        """
        for basis, key in enumerate(_keys(kind)):
            if key in self.of:
                return max(1, round(self.of[key])), basis
        raise LookupError(kind.name)


def learn_run_times(kinds: Sequence[JobKind], run_ms: Sequence[int]) -> KindRunTimes:
    """Learn run times from jobs that ran to their end."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for kind, ran_ms in zip(kinds, run_ms, strict=True):
        for key in _keys(kind):
            groups.setdefault(key, []).append(ran_ms)
    return KindRunTimes({key: trimmed_mean(group) for key, group in groups.items()})


def _keys(kind: JobKind) -> tuple[tuple[object, ...], ...]:
    """What identifies jobs like it, in the order of ``BASES``."""
    return ("size", kind.name, kind.gpus), ("name", kind.name), ("user", kind.user), ("all",)
