"""What the controller decides, and the supervisor does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brim.gang.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a rank, if it is connected."""

    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class StartRank:
    """Start the process of a rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class TerminateRank:
    """Send SIGTERM to a rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class KillRank:
    """Send SIGKILL to a rank and to all processes that it has started."""

    rank: int


@dataclass(frozen=True, slots=True)
class HoldTracebacks:
    """Hold the tracebacks of ranks until it is known which rank failed first."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to stderr."""

    text: str


GangAction: TypeAlias = Send | StartRank | TerminateRank | KillRank | HoldTracebacks | Log
