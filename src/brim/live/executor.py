"""What the live driver asks of an executor, which runs the processes, and what the executor reports.

The driver knows jobs, attempts and time; an executor knows processes. Every message carries the attempt's epoch, so
that a late report about an attempt that is over changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a job runs.

    Attributes:
        argv: The command and its arguments.
        reports: The command writes lines ``done/total`` (samples, steps or epochs, in whole numbers) to the descriptor
            named in ``BRIM_REPORT_FD``; the first one says that it makes progress. Any other command counts as making
            progress once its process exists.
        env: Added to the environment of the driver.
    """

    argv: tuple[str, ...]
    reports: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


class What(Enum):
    """What a report says of an attempt."""

    LAUNCHED = "launched"
    """It has its slots to itself and its process exists."""
    STARTED = "started"
    """It makes progress."""
    PROGRESS = "progress"
    """It is this far; see ``done`` and ``total``."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """It ended because it was told to, and can be resumed."""
    FAILED = "failed"
    UNUSABLE = "unusable"
    """The command could not be started at all: trying again would not help."""


ENDS = frozenset({What.FINISHED, What.STOPPED, What.FAILED, What.UNUSABLE})
"""Reports after which nothing more comes of the attempt, and its slots are free."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one attempt. ``done`` of ``total`` in the job's own unit, for PROGRESS; ``detail`` for people."""

    job: int
    epoch: int
    what: What
    done: int = 0
    total: int = 0
    detail: str = ""

    @property
    def fraction(self) -> float:
        """Part of the job's work that is done; 0 where the report is about something else."""
        return self.done / self.total if self.total else 0.0


class Executor(Protocol):
    """Starts, stops and watches the processes of attempts."""

    def start(self, job: int, epoch: int, slots: tuple[int, ...], command: Command, loader_workers: int = 0) -> None:
        """Run the command once the attempts that leave these slots are gone.

        Its environment says how many data-loading processes each rank should have: ``BRIM_LOADER_WORKERS``, absent
        where the policy did not say (0).
        """
        ...

    def stop(self, job: int, epoch: int) -> None:
        """Announce the end to an attempt; unknown and ended attempts are ignored."""
        ...

    def wait(self, timeout_ms: int | None) -> list[Report]:
        """Sleep until something happened, at most so long (None: for ever), and say what."""
        ...
