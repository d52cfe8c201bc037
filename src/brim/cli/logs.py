"""``brim logs``: what a job of this user wrote, through all its attempts."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brim.agent.folders import agent_folder, log_folder
from brim.agent.log_cap import read_log
from brim.cli.completion import JobArgument
from brim.cli.controller import FollowedJob, client, find_job
from brim.cli.job_table import is_removed, printable
from brim.cli.options import whole
from brim.cli.retention import KEPT_DAYS
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import NotFoundError

if TYPE_CHECKING:
    from brim.api.client import Client

app = typer.Typer()

LOOK_S: Final = 0.05
"""Time between two looks at a log that is followed; ours."""
ASK_S: Final = 0.3
"""Time between two questions whether the job has ended; ours."""
_SEQUENCE: Final = (
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)|\x1b[ -/]*[0-OQ-WYZ\\\\`-~]"
)
"""What a terminal obeys (ECMA-48): control sequences, strings, and others."""
_WHOLE: Final = re.compile(_SEQUENCE)
_CONTROL: Final = re.compile(_SEQUENCE + "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Sequences, and single control characters but tab, newline and carriage return."""
_OPEN_MAX: Final = 4_096
"""Longest sequence whose end is waited for."""


class Output:
    """Writes bytes of a log to standard output; on a terminal, without what a terminal obeys."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def write(self, data: bytes) -> None:
        """Write a part."""
        if not self._is_terminal:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        text = self._rest + self._decoder.decode(data)
        shown, self._rest = without_control(text)
        sys.stdout.write(shown)
        sys.stdout.flush()


def without_control(text: str) -> tuple[str, str]:
    """A text without control sequences, and its end if that may be the beginning of one."""
    last = text.rfind("\x1b")
    rest = ""
    if last >= 0 and len(text) - last < _OPEN_MAX and not _WHOLE.match(text, last):
        text, rest = text[:last], text[last:]
    return _CONTROL.sub("", text), rest


@app.command(cls=UnconvertedCommand)
def logs(
    job: JobArgument = "@",
    follow_on: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[str, typer.Option("--rank", metavar="N", help="Which process of a gang.")] = "0",
    tail: Annotated[str | None, typer.Option("--tail", metavar="N", help="Only the last N lines.")] = None,
) -> None:
    """Show what a job wrote, through all its attempts."""
    of_rank, lines = whole(rank, "--rank"), None if tail is None else whole(tail, "--tail")
    at = client()
    found = find_job(at, job)
    if found.uid != os.getuid():
        raise NotFoundError(f"job {found.id} is of user {found.user}, who alone can read what it wrote")
    places: dict[int, int] = {}
    if lines is not None:
        places = _tail(found.id, found.attempt, of_rank, lines)
    elif not follow_on:
        output = Output()
        parts = [_copy(_path(found.id, attempt, of_rank), 0, output) for attempt in range(1, found.attempt + 1)]
        if not any(parts) and not any(_path(found.id, n, of_rank).exists() for n in range(1, found.attempt + 1)):
            said = "has not started" if not found.attempt else f"has written nothing as rank {rank}"
            if is_removed(found):
                said = f"ended long ago, and its log was removed: logs are kept for {KEPT_DAYS} days"
            raise NotFoundError(f"job {found.id} {said}" + (f": {found.reason}" if found.reason else ""))
    if follow_on:
        follow(at, found.id, of_rank, places)


def follow(at: Client, job: int, rank: int, places: dict[int, int] | None = None) -> None:
    """Show what a job writes, attempt by attempt, until it has ended and all is shown.

    Args:
        at: The controller.
        job: Job id.
        rank: Which process of a gang.
        places: Bytes that have been shown already, by attempt.
    """
    output, seen, followed = Output(), dict(places or {}), FollowedJob(at, job)
    asked_s, told = -ASK_S, ""
    while True:
        if time.monotonic() - asked_s >= ASK_S:
            found, asked_s = followed.look(), time.monotonic()
        if not found.devices and not found.has_ended and found.reason not in ("", told):
            told = found.reason
            print(f"brim: job {job} waits: {printable(told)}", file=sys.stderr)
        moved = 0
        for attempt in range(max(seen, default=1), found.attempt + 1):
            copied = _copy(_path(job, attempt, rank), seen.get(attempt, 0), output)
            seen[attempt] = seen.get(attempt, 0) + copied
            moved += copied
        if found.has_ended and not moved:
            return
        if not moved:
            time.sleep(LOOK_S)


def _path(job: int, attempt: int, rank: int) -> Path:
    return log_folder(agent_folder(), job, attempt) / f"rank-{rank}.log"


def _copy(path: Path, offset: int, output: Output) -> int:
    """Show a log from an offset on; return the number of bytes."""
    shown = offset
    with contextlib.suppress(FileNotFoundError):
        for end, data in read_log(path, offset):
            output.write(data)
            shown = end
    return shown - offset


def _tail(job: int, attempts: int, rank: int, lines: int) -> dict[int, int]:
    """Show the last lines; return the size of every log that was read."""
    last: deque[bytes] = deque(maxlen=lines)
    sizes: dict[int, int] = {}
    rest = b""
    for attempt in range(1, attempts + 1):
        try:
            for end, data in read_log(_path(job, attempt, rank)):
                *whole, rest = (rest + data).split(b"\n")
                last.extend(line + b"\n" for line in whole)
                sizes[attempt] = end
        except FileNotFoundError:
            continue
        if rest:
            last.append(rest)
            rest = b""
    output = Output()
    for line in last:
        output.write(line)
    return sizes
