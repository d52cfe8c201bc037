"""The interface between the live driver and an executor, which runs the processes and reports on them.

The driver knows jobs, attempts and time; an executor knows processes. Every message carries the attempt's number, so
that a late report about an attempt that has ended changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command of a job.

    Attributes:
        argv: The command and its arguments.
        reports: Whether the command writes lines ``done/total`` (samples, steps or epochs, in whole numbers) to the
            descriptor named in ``BRIM_REPORT_FD``; the first line means that it makes progress. Any other command
            counts as making progress once its process exists.
        env: Variables added to the environment of the driver.
    """

    argv: tuple[str, ...]
    reports: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


class ReportKind(Enum):
    """Kind of a report about an attempt."""

    LAUNCHED = "launched"
    """The attempt has its slots to itself, and its process exists."""
    STARTED = "started"
    """The attempt makes progress."""
    PROGRESS = "progress"
    """The attempt has done ``done`` of ``total``."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """The attempt ended because it was stopped, and can be resumed."""
    FAILED = "failed"
    UNUSABLE = "unusable"
    """The command could not be started at all, so another attempt would not help."""


ENDS = frozenset({ReportKind.FINISHED, ReportKind.STOPPED, ReportKind.FAILED, ReportKind.UNUSABLE})
"""Kinds of report that are the last of an attempt; its slots are then free."""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """A report about one attempt: for PROGRESS, ``done`` of ``total`` in the job's own unit; users read ``detail``."""

    job: int
    attempt: int
    kind: ReportKind
    done: int = 0
    total: int = 0
    detail: str = ""

    @property
    def fraction(self) -> float:
        """Part of the job's work that is done; 0 for other kinds of report."""
        return self.done / self.total if self.total else 0.0


class Executor(Protocol):
    """Starts, stops and watches the processes of attempts."""

    def start(self, job: int, attempt: int, slots: tuple[int, ...], command: Command, loader_workers: int = 0) -> None:
        """Run the command once the attempts that are leaving these slots have ended.

        ``BRIM_LOADER_WORKERS`` in its environment is the number of data-loading processes each rank should have; it is
        absent if the policy did not decide (0).
        """
        ...

    def stop(self, job: int, attempt: int) -> None:
        """Stop an attempt; unknown and ended attempts are ignored."""
        ...

    def wait(self, timeout_ms: int | None) -> list[AttemptReport]:
        """Wait until there are reports, at most ``timeout_ms`` (None: no limit), and return them."""
        ...
