"""The attempts that may have processes, and the devices on which these may be.

The engine grants a device, or cores, as soon as a job is told to leave them. The ledger says when it has left: a device
is given on only when no attempt may have a process there but those that the engine has granted a share beside it,
whoever owns them, and cores only when there are enough that no attempt has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from brim.live.records import HOLDS_DEVICES, AttemptRecord
from brim.units import WHOLE_GPU


class Ledger:
    """The newest attempt of each job that has not ended."""

    def __init__(self) -> None:
        self._of_job: dict[int, AttemptRecord] = {}
        self._on: dict[int, set[int]] = {}  # jobs by device
        self.changed: dict[tuple[int, int], AttemptRecord] = {}

    def __contains__(self, job: int) -> bool:
        return job in self._of_job

    def __iter__(self) -> Iterator[AttemptRecord]:
        return iter(tuple(self._of_job.values()))

    def of(self, job: int) -> AttemptRecord | None:
        """The job's attempt that has not ended, None if it has none."""
        return self._of_job.get(job)

    def put(self, attempt: AttemptRecord) -> bool:
        """Store an attempt as it now is; returns whether a device, a part of it, or cores may have been left.

        An attempt that has ended is remembered until ``changed`` is taken.
        """
        before = self._of_job.get(attempt.job)
        if before == attempt:
            return False
        held, holds = _held(before), attempt.own_devices
        for device in held - holds:
            self._on[device].discard(attempt.job)
        for device in holds - held:
            self._on.setdefault(device, set()).add(attempt.job)
        if attempt.state == "ended":
            self._of_job.pop(attempt.job, None)
        else:
            self._of_job[attempt.job] = attempt
        self.changed[attempt.job, attempt.number] = attempt
        return bool(held - holds) or (before is not None and (
            attempt.share_milli < before.share_milli or cores_held(attempt) < cores_held(before)
        ))

    def taken(self, devices: Iterable[int], job: int, share_milli: int, stays: Callable[[int, int], bool]) -> bool:
        """Whether a job has to wait for others to leave the devices, or a part of them.

        Args:
            devices: The devices.
            job: The job.
            share_milli: Thousandths of each device that it is to have.
            stays: Whether another job, the first argument, is to be on a device, the second one.
        """
        for device in devices:
            others = self._on.get(device, set()) - {job}
            given_milli = sum(self._of_job[other].share_milli for other in others)
            if given_milli + share_milli > WHOLE_GPU or not all(stays(other, device) for other in others):
                return True
        return False

    def cores_left(self, total_milli: int, job: int) -> int:
        """Milli-cores of a node that no attempt of another job has, of all that it has."""
        return total_milli - sum(cores_held(other) for other in self._of_job.values() if other.job != job)

    def jobs_on(self, device: int) -> frozenset[int]:
        """Jobs whose processes may be on a device."""
        return frozenset(self._on.get(device, ()))


def cores_held(attempt: AttemptRecord) -> int:
    """Milli-cores on which processes of an attempt may be."""
    return attempt.cores_milli if attempt.state in HOLDS_DEVICES else 0


def _held(attempt: AttemptRecord | None) -> frozenset[int]:
    return attempt.own_devices if attempt else frozenset()
