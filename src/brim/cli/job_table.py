"""Tables of jobs, in the columns that users of Slurm and gflow look for. Without ``rich``: they must come at once."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from brim.agent.folders import agent_folder, attempt_folder
from brim.live.records import JobRecord
from brim.live.requests import ON_CPU
from brim.units import MS_PER_S

NO_TERMINAL_WIDTH: Final = 10_000
"""Where no terminal sets a limit, no line is cut."""


def clock(seconds: float) -> str:
    """Show a duration as Slurm does: ``1-02:03:04``, ``02:03:04`` or ``3:04``."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, second = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{second:02}"
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def ranges(ids: Iterable[int]) -> list[str]:
    """Ids as words of a command line, such as ``7-16``, in order."""
    found: list[list[int]] = []
    for number in sorted(ids):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{first}-{last}" if last > first else str(first) for first, last in found]


def printable(text: str) -> str:
    """A text without what a terminal would obey: control and format characters, and surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co") else sign for sign in text)


def gpus_of(job: JobRecord) -> str:
    """Show the devices that a job has, or else those for which it asks."""
    if job.devices:
        return str(sum(device != ON_CPU for device in job.devices))
    if job.request.is_cpu_only:
        return "0"
    least, most = job.request.limits
    return str(least) if least == most else f"{least}-{most}"


def run_s(job: JobRecord, now_ms: int) -> float:
    """Seconds since a job's first start, up to its end; 0 before it."""
    if job.first_start_ms < 0:
        return 0.0
    end_ms = job.ended_ms if job.ended_ms >= 0 else now_ms
    return (end_ms - job.first_start_ms) / MS_PER_S


def name_of(job: JobRecord) -> str:
    """The name of a job, with its index in an array."""
    index = job.request.array_index
    return job.request.name if index < 0 else f"{job.request.name}[{index}]"


def is_removed(job: JobRecord) -> bool:
    """Whether the files of an ended job of this user are gone, see ``retention``; others' cannot be seen."""
    ran = job.has_ended and job.attempt > 0 and job.uid == os.getuid()
    return ran and not attempt_folder(agent_folder(), job.id, job.attempt).exists()


def queue_rows(jobs: Sequence[JobRecord], now_ms: int) -> list[tuple[str, ...]]:
    """Rows of ``brim ps``, with the headings."""
    rows: list[tuple[str, ...]] = [("JOB", "NAME", "USER", "STATE", "GPUS", "TIME", "LIMIT", "DEVICES (REASON)")]
    for job in jobs:
        where = "cpu" if ON_CPU in job.devices else ",".join(map(str, job.devices))
        why = f"({job.reason})" if job.reason and not (job.devices and job.state == "running") else ""
        why = why or ("(waits for devices)" if job.state == "pending" else "")
        limit = clock(job.request.time_limit_s) if job.request.time_limit_s else "-"
        ran_s = run_s(job, now_ms) if job.devices else 0.0  # as Slurm shows it: a job that waits again does not run
        rows.append((str(job.id), name_of(job), job.user, job.state, gpus_of(job), clock(ran_s), limit,
                     f"{where} {why}".strip() or "-"))
    return rows


def history_rows(jobs: Sequence[JobRecord], now_ms: int) -> list[tuple[str, ...]]:
    """Rows of ``brim history``, with the headings."""
    headings = ("JOB", "NAME", "USER", "STATE", "EXIT", "GPUS", "WAITED", "RAN", "ATTEMPTS", "REASON")
    rows: list[tuple[str, ...]] = [headings]
    for job in jobs:
        start_ms = job.first_start_ms if job.first_start_ms >= 0 else max(job.ended_ms, job.submit_ms)
        rows.append((str(job.id), name_of(job), job.user, job.state, str(job.exit_code) if job.exit_code >= 0 else "-",
                     gpus_of(job), clock((start_ms - job.submit_ms) / MS_PER_S), clock(run_s(job, now_ms)),
                     str(job.attempt), _reason_of(job) + ("; its log was removed" if is_removed(job) else "")))
    return rows


def _reason_of(job: JobRecord) -> str:
    """How a job ended; for one that was started again, where it says why."""
    if not job.reason:  # another user's: `brim explain` would not tell of it either
        return "-"
    again = job.state == "finished" and job.attempt > 1 and not job.preemptions
    return job.reason + (f" in attempt {job.attempt}: see brim explain {job.id}" if again else "")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows; on a terminal, the last column is cut at its edge."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]) - 1)]
    edge = os.get_terminal_size(1).columns if sys.stdout.isatty() else NO_TERMINAL_WIDTH
    lines = []
    for row in cells:
        line = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        lines.append(line if len(line) <= edge else line[: edge - 3] + "...")
    return "\n".join(lines)
