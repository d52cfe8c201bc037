"""What a supervisor learns from its zygote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ZygoteReady:
    """The zygote is ready. If it cannot be forked safely and only spawns, ``fork_obstacle`` is the reason."""

    preload_s: float
    pid: int
    fork_obstacle: str | None


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A process has started. The receiver closes its ``pidfd``; ``spawn_reason`` is why it was not forked, or empty."""

    rank: int
    pid: int
    pidfd: int
    start_method: str
    spawn_reason: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A process could not be started; the exit code is the one that a shell would give."""

    rank: int
    exit_code: int
    detail: str


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process has exited, with this wait status."""

    rank: int
    wait_status: int


@dataclass(frozen=True, slots=True)
class ZygoteLost:
    """The connection has ended. The processes it had started continue if this process is their subreaper."""


ZygoteEvent: TypeAlias = ZygoteReady | ProcessStarted | StartFailed | ProcessExited | ZygoteLost
