"""What ``NodeAttempts`` asks to be done, and what it is told of gangs and ends: values without behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brim.agent.protocol import NONE, AgentReport, AttemptProgress, StartAttempt
from brim.gang.messages import PreemptRequest, ResizeRequest, TuneSettings
from brim.gang.usage import NOT_MEASURED, Usage

Key: TypeAlias = tuple[int, int]
"""Job and attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended; times in ms of the boot-time clock of the present boot, ``NONE``: unknown.

    ``is_written``: whether it is on disk already, written by the attempt itself.
    """

    outcome: str
    exit_code: int = NONE
    detail: str = ""
    blame: str = ""
    started_ms: int = NONE
    ended_ms: int = NONE
    is_written: bool = False
    usage: Usage = NOT_MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSeen:
    """What a supervisor says of its gang.

    Attributes:
        sequence: Newest request that it has accepted.
        has_processes: Whether a rank's process exists.
        is_grouped: Whether its ranks train together, so that it can be resized.
        is_stopping: Whether it was asked to save and leave.
        is_settled: Whether it trains as it was asked to, and nothing is left of other ranks.
        ranks: Ranks that train.
        devices: Numbers of the devices in use; None: all that were granted.
        is_speaking: Whether a rank is connected, and therefore uses ``brim.train``.
        progress: Measurements; None if it has reported none.
        processes: Its processes; see ``AttemptSeen``.
        loss: How the rank that was replaced last had ended, in words; empty: none was replaced.
    """

    sequence: int = NONE
    has_processes: bool = False
    is_grouped: bool = False
    is_stopping: bool = False
    is_settled: bool = False
    ranks: int = 0
    devices: tuple[int, ...] | None = None
    is_speaking: bool = False
    progress: AttemptProgress | None = None
    processes: tuple[int, ...] = ()
    loss: str = ""


@dataclass(frozen=True, slots=True)
class CheckDevices:
    """Effect: check that these devices are healthy, and empty but for who ``shares`` them; then call ``checked``."""

    key: Key
    devices: tuple[int, ...]
    shares: bool = False


@dataclass(frozen=True, slots=True)
class WriteFence:
    """Effect: write the fence of this attempt durably; then call ``fenced`` or ``not_written``."""

    order: StartAttempt


@dataclass(frozen=True, slots=True)
class Launch:
    """Effect: start the supervisor of this attempt; then call ``launched`` or ``launch_failed``."""

    order: StartAttempt


@dataclass(frozen=True, slots=True)
class Request:
    """Effect: send this to the supervisor; then call ``answered``."""

    key: Key
    message: ResizeRequest | TuneSettings | PreemptRequest


@dataclass(frozen=True, slots=True)
class Sweep:
    """Effect: kill the processes of this attempt that are left, its supervisor too; then call ``swept``."""

    key: Key


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """Effect: write the end durably; then call ``end_written`` or ``not_written``."""

    key: Key
    end: AttemptEnd


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Effect: note that the controller knows the end. If the note is lost, the end is told once more."""

    key: Key


@dataclass(frozen=True, slots=True)
class SendReport:
    """Effect: tell the controller, if it is connected."""

    report: AgentReport


AgentEffect: TypeAlias = CheckDevices | WriteFence | Launch | Request | Sweep | WriteEnd | Forgotten | SendReport
