"""The files of one attempt, which its process and the agents of its time share.

    fence           the order that was fenced; written durably before anything is started
    launch.json     what its process is to run
    analysis.json   the step times that were measured first, if that was asked for
    pids.json       which process runs it
    processes.json  every process that this one has named (``adoption.note_processes``)
    end.json        how it ended; written durably before anyone is told
    forgotten       exists once the controller knows the end
    log/            rank-N.log of each rank, supervisor.log

Times are in ms of the boot-time clock, and mean nothing after another start of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

FENCE: Final = "fence"
LAUNCH: Final = "launch.json"
PIDS: Final = "pids.json"
END: Final = "end.json"
ANALYSIS: Final = "analysis.json"
FORGOTTEN: Final = "forgotten"
LOG: Final = "log"
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a volume that takes nothing more says, and may take back."""
_END_BYTES: Final = 4096
"""Room that is reserved for ``end.json``: a block, and more than it needs."""
_ROOM_BYTES: Final = 1 << 16
"""Room without which no attempt is started: its other files, and the first lines that it writes."""
_PROBE: Final = ".probe"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What the process of an attempt is to run; see ``gang.LaunchConfig`` for what has the same name there."""

    job: int
    attempt: int
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    ranks: int
    devices: tuple[str, ...]
    grace_s: float
    gang: str
    control: str
    zygote: str | None
    umask: int = -1
    cgroup: str = ""
    mem_mib_per_gpu: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    batch: int = -1
    analyse: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisFile:
    """Step times of a job that were measured before it trained; see ``AttemptSeen.analysis``."""

    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PidsFile:
    """Which process runs the attempt: an id and a start time name one process of one boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @property
    def started_ms(self) -> int:
        """When the process started."""
        return self.start_ticks * 1000 // _TICKS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFile:
    """How an attempt ended: fields of `AttemptEnd`; ``left`` are processes that could not be killed."""

    outcome: str
    exit_code: int
    detail: str
    blame: str
    started_ms: int
    ended_ms: int
    boot_id: str
    left: tuple[int, ...] = ()
    cpu_ms: int = -1
    memory_peak_bytes: int = -1
    processes_peak: int = -1
    oom_kills: int = -1
    oom_at_limit: int = -1


def write_whole(folder: Path, name: str, plain: Mapping[str, Any]) -> None:
    """Write a file as a whole, of this user only. It is needed in this boot only: after a power cut it may be gone.

    Raises:
        OSError: it cannot be written; the former content, if any, is still there.
    """
    with _replacing(folder, name, plain):
        pass


def write_durably(folder: Path, name: str, plain: Mapping[str, Any]) -> None:
    """Write a file as a whole, of this user only; on return it survives a power cut.

    Raises:
        OSError: it cannot be written; the former content, if any, is still there.
    """
    with _replacing(folder, name, plain) as fd:
        os.fsync(fd)
    sync_folder(folder)


@contextlib.contextmanager
def _replacing(folder: Path, name: str, plain: Mapping[str, Any]) -> Iterator[int]:
    part, data = _part(folder, name), json.dumps(plain).encode()
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:  # over what may be reserved
            file.write(data)
            file.flush()
            os.ftruncate(fd, len(data))
            yield fd
        os.replace(part, folder / name)
    except OSError:
        if name != END:  # whose room is reserved
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise


def _part(folder: Path, name: str) -> Path:
    return folder / f".{name}.part"


def room_problem(folder: Path) -> str:
    """Why a volume has no room for the files of an attempt, found by trying; empty if it has."""
    probe = folder / _PROBE
    try:
        try:
            probe.write_bytes(bytes(_ROOM_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def reserve_end(folder: Path) -> None:
    """Keep room for ``end.json``, so that a volume that fills up later does not take it.

    Raises:
        OSError: there is none.
    """
    fd = os.open(_part(folder, END), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _END_BYTES)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: the disk does not.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_launch(folder: Path, launch: LaunchFile) -> None:
    """Write ``launch.json``; raises like ``write_whole``."""
    write_whole(folder, LAUNCH, asdict(launch))


def write_pids(folder: Path, pids: PidsFile) -> None:
    """Write ``pids.json``; raises like ``write_whole``."""
    write_whole(folder, PIDS, asdict(pids))


def write_end(folder: Path, end: EndFile) -> None:
    """Write ``end.json`` durably; raises like ``write_durably``."""
    write_durably(folder, END, asdict(end))


def read_fields(folder: Path, name: str, kind: type[T]) -> T | None:
    """Read a dataclass that was written here; None if it is not there or not whole. Unknown fields are ignored."""
    try:
        plain = json.loads((folder / name).read_bytes())
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every kind is a dataclass
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
        return kind(**{key: value for key, value in values.items() if key in known})
    except (OSError, ValueError, AttributeError, TypeError):
        return None
