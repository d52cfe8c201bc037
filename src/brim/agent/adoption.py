"""What an agent finds of the agents before it: attempts that live, have ended, or are lost."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from brim.agent import attempt_files
from brim.agent.attempt import is_running
from brim.agent.attempt_files import EndFile, LaunchFile, PidsFile
from brim.agent.effects import AttemptEnd, Key
from brim.agent.leftovers import KnownProcess
from brim.agent.protocol import BLAME_NODE, LOST, NONE, ORDERS, StartAttempt
from brim.agent.sockets import folder_id
from brim.gang import processes
from brim.gang.codec import ProtocolError
from brim.gang.messages import GANG_VARIABLE
from brim.gang.usage import Usage

LAUNCHES_READ: Final = 20
"""Attempts, newest first, among which one that used a zygote is looked for. Ours: what was run in the last hours."""
PROCESSES: Final = "processes.json"
"""File of an attempt's folder: the processes that its supervisor has named."""
BEGIN_S: Final = 5.0
"""Longest time from the fork of an attempt's process until it has written who it is. Ours: a loaded machine."""
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttempt:
    """An attempt whose folder is on disk.

    Attributes:
        folder: Its folder.
        order: The order of its fence.
        end: Its end; None if there is none.
        pids: Its process, if that lives; None otherwise.
        forgotten: Whether the controller knows its end.
    """

    folder: Path
    order: StartAttempt
    end: AttemptEnd | None
    pids: PidsFile | None
    forgotten: bool

    @property
    def key(self) -> Key:
        """Job and attempt."""
        return self.order.job, self.order.attempt


def found_attempts(parent: Path, boot_id: str) -> list[FoundAttempt]:
    """Return the attempts whose folders are in this one, by job and attempt."""
    names = (tuple(path.name.split("-")) for path in parent.iterdir())
    keys = sorted((int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(str.isdecimal, name)))
    return [_find(parent / f"{job}-{attempt}", (job, attempt), boot_id) for job, attempt in keys]


def newest_launches(parent: Path) -> Iterator[LaunchFile]:
    """Yield what the newest attempts ran, newest first."""
    times: list[tuple[float, Path]] = []
    for path in parent.glob(f"*/{attempt_files.LAUNCH}"):
        with contextlib.suppress(OSError):
            times.append((path.stat().st_mtime, path.parent))
    for _, folder in sorted(times, reverse=True)[:LAUNCHES_READ]:
        launch = attempt_files.read_fields(folder, attempt_files.LAUNCH, LaunchFile)
        if launch is not None:
            yield launch


def _find(folder: Path, key: Key, boot_id: str) -> FoundAttempt:
    pids = _begun(folder)
    alive = pids is not None and pids.boot_id == boot_id and is_running(folder)
    end = None if alive else end_in(folder, boot_id)
    if end is None and pids is not None and pids.boot_id != boot_id:
        end = AttemptEnd(outcome=LOST, detail="the machine has restarted", blame=BLAME_NODE)
    return FoundAttempt(
        folder=folder, order=_fenced_order(folder, key), end=end,
        pids=pids if alive else None, forgotten=(folder / attempt_files.FORGOTTEN).exists(),
    )  # fmt: skip


def _begun(folder: Path) -> PidsFile | None:
    """Return the process of an attempt; one that was forked just before its agent was killed writes it soon."""
    end_s = time.monotonic() + BEGIN_S
    while (pids := attempt_files.read_fields(folder, attempt_files.PIDS, PidsFile)) is None:
        if not is_running(folder) or time.monotonic() > end_s:
            return attempt_files.read_fields(folder, attempt_files.PIDS, PidsFile)
        time.sleep(_LOOK_S)
    return pids


def _fenced_order(folder: Path, key: Key) -> StartAttempt:
    """Return the order of a fence; one without capture if it is not whole, since nothing was started then."""
    with contextlib.suppress(OSError, ProtocolError):
        order = ORDERS.decode((folder / attempt_files.FENCE).read_bytes())
        if isinstance(order, StartAttempt) and (order.job, order.attempt) == key:
            return order
    return StartAttempt(job=key[0], attempt=key[1], sequence=NONE, capture="", digest="", devices=())


def end_in(folder: Path, boot_id: str) -> AttemptEnd | None:
    """Return the end that is on disk, None if there is none; its times only if they are of this boot."""
    end = attempt_files.read_fields(folder, attempt_files.END, EndFile)
    if end is None:
        return None
    same = end.boot_id == boot_id
    return AttemptEnd(
        outcome=end.outcome, exit_code=end.exit_code, detail=end.detail, blame=end.blame,
        started_ms=end.started_ms if same else NONE, ended_ms=end.ended_ms if same else NONE, is_written=True,
        usage=Usage(**{one.name: getattr(end, one.name) for one in fields(Usage)}),
    )  # fmt: skip


def outlived(parent: Path, boot_id: str) -> Iterator[tuple[Key, int]]:
    """Yield the processes of attempts in this folder whose end the controller knows: job and attempt, process id.

    There are none, or brim has given devices on too early, or left something behind (I7, I10, I11).
    """
    ended: dict[bytes, Key] = {}
    named: dict[KnownProcess, Key] = {}
    for path in parent.glob(f"*-*/{attempt_files.FORGOTTEN}"):
        job, _, attempt = path.parent.name.partition("-")
        if job.isdecimal() and attempt.isdecimal():
            key = int(job), int(attempt)
            ended[folder_id(path.parent).encode()] = key
            named |= dict.fromkeys(noted_processes(path.parent, boot_id), key)
    for process in processes.all_processes():
        mark = processes.environment_of(process.pid).get(GANG_VARIABLE.encode(), b"")
        key_of = named.get(KnownProcess(process.pid, process.start_ticks)) or ended.get(mark)
        if key_of is not None and process.state not in "ZX":
            yield key_of, process.pid


def note_processes(folder: Path, boot_id: str, named: Iterable[KnownProcess]) -> None:
    """Note the processes of an attempt. They are needed only if its supervisor and the agent are killed.

    Raises:
        OSError: they cannot be written.
    """
    plain = {"boot_id": boot_id, "processes": [[one.pid, one.start_ticks] for one in named]}
    attempt_files.write_whole(folder, PROCESSES, plain)


def noted_processes(folder: Path, boot_id: str) -> frozenset[KnownProcess]:
    """Return the processes that the files of an attempt name; none of another boot."""
    found = set()
    pids = attempt_files.read_fields(folder, attempt_files.PIDS, PidsFile)
    if pids is not None and pids.boot_id == boot_id:
        found.add(KnownProcess(pids.pid, pids.start_ticks))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        plain = json.loads((folder / PROCESSES).read_bytes())
        if plain["boot_id"] == boot_id:
            found |= {KnownProcess(int(pid), int(ticks)) for pid, ticks in plain["processes"]}
    return frozenset(found)
