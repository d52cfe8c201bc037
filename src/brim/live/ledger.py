"""The attempts that may have processes, and the devices on which these may be.

The engine grants a device as soon as its job is told to leave it. The ledger says when it has left: a device is given
on only when no attempt may have a process there, whoever owns that attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from brim.live.records import HOLDS_DEVICES, AttemptRecord


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
        """Store an attempt as it now is; returns whether a device may have been left.

        An attempt that has ended is remembered until ``changed`` is taken.
        """
        before = self._of_job.get(attempt.job)
        if before == attempt:
            return False
        held, holds = _held(before), _held(attempt)
        for device in held - holds:
            self._on[device].discard(attempt.job)
        for device in holds - held:
            self._on.setdefault(device, set()).add(attempt.job)
        if attempt.state == "ended":
            self._of_job.pop(attempt.job, None)
        else:
            self._of_job[attempt.job] = attempt
        self.changed[attempt.job, attempt.number] = attempt
        return bool(held - holds)

    def taken(self, devices: Iterable[int], job: int) -> bool:
        """Whether a process of another job may be on one of the devices."""
        return any(self._on.get(device, set()) - {job} for device in devices)

    def jobs_on(self, device: int) -> frozenset[int]:
        """Jobs whose processes may be on a device."""
        return frozenset(self._on.get(device, ()))


def _held(attempt: AttemptRecord | None) -> set[int]:
    return set(attempt.devices) if attempt and attempt.state in HOLDS_DEVICES else set()
