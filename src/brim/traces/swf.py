"""Standard Workload Format (.swf): 18 numbers per job, comments after ``;``, -1 for unknown.

Processors are read as GPUs: that is the only way to replay these logs on a GPU cluster, and the report says so. A
preceding job becomes a dependency, with the think time as its delay. ``UnixStartTime`` in the comments gives the
wall clock. Records of status 2 to 4 are parts of a job that has its own record, and are dropped.
Source: Feitelson, Standard Workload Format version 2.2 (Parallel Workloads Archive).
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from brim.core.arrays import IntArray
from brim.core.trace import NONE, Status, Trace, trace_of
from brim.errors import TraceError
from brim.traces.lifecycle import NEVER_STARTED, at_least_a_second
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import LINE, MAX_AMOUNT, MAX_GPUS, MAX_RUN_MS, MAX_TIME_MS, Table, coded, without_unusable
from brim.units import MS_PER_S

NAME: Final = "swf"
COLUMNS: Final = (
    "job", "submit", "wait", "run", "allocated", "cpu_time", "used_memory", "requested", "requested_time",
    "requested_memory", "status", "user", "group", "application", "queue", "partition", "preceding", "think_time",
)  # fmt: skip
_STATES: Final = {
    "-1": Status.UNKNOWN, "0": Status.FAILED, "1": Status.COMPLETED, "5": Status.CANCELLED, "": Status.UNKNOWN,
}  # fmt: skip
_NUMBERS: Final = re.compile(r"\s*(-?[\d.]+\s+){17}-?[\d.]+\s*")
_START: Final = re.compile(r"^;\s*UnixStartTime:\s*(\d{1,12})\s*$", re.MULTILINE)
KIB_PER_MIB: Final = 1_024


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    first = next((line for line in source.head if line.strip() and not line.lstrip().startswith(";")), "")
    if _NUMBERS.fullmatch(first):
        return 1.0
    return 0.9 if source.first_line.lstrip().startswith(";") or source.name.endswith((".swf", ".swf.gz")) else 0.0


def read(source: Source, report: ReadReport) -> Trace:
    """Read a log.

    Raises:
        TraceError: a row does not have 18 fields, or a value is corrupt.
    """
    table = _table(source, report)
    parts = table.text("status").is_in(["2", "3", "4"]).fill_null(False)
    table = table.drop(parts.to_numpy(), "part of another record")
    table.ids("job")
    asked = table.number("requested", "processors or -1", low=-1, high=MAX_GPUS, whole=True)
    given = table.number("allocated", "processors or -1", low=-1, high=MAX_GPUS, whole=True)
    gpus = np.where(asked > 0, asked, given)
    run_ms = _seconds_ms(table, "run", MAX_RUN_MS)
    idle = (run_ms < 0) | ((run_ms == 0) & (table.text("status") != "1").fill_null(True).to_numpy())
    report.drop("no processors recorded", int((gpus <= 0).sum()))
    report.drop(NEVER_STARTED, int((idle & (gpus > 0)).sum()))
    used = (gpus > 0) & ~idle
    table, gpus, run_ms = table.keep(used), gpus[used], run_ms[used]
    report.repair("processors read as GPUs", len(table))
    after, after_ms = _dependencies(table)
    user, users = _names(table, "user")
    group, groups = _names(table, "group")
    profile, profiles = _names(table, "application")
    memory_kib = table.number("requested_memory", "KiB per processor or -1", low=-1, high=MAX_AMOUNT)
    limit_ms = _seconds_ms(table, "requested_time", MAX_RUN_MS)
    return trace_of(
        name=source.name, format=NAME, origin_ms=_origin_ms(source), job_id=table.ids("job"),
        submit_ms=table.seconds_ms("submit"), gpus=gpus, run_ms=at_least_a_second(run_ms, report),
        wait_ms=_seconds_ms(table, "wait", MAX_TIME_MS), time_limit_ms=np.where(limit_ms > 0, limit_ms, NONE),
        mem_mib=-(-np.maximum(memory_kib, 0) // KIB_PER_MIB),
        status=table.statuses("status", _STATES, "a status of -1 to 5"), after=after, after_ms=after_ms,
        user=user, users=users, group=group, groups=groups, profile=profile, profiles=profiles,
    )  # fmt: skip


def _table(source: Source, report: ReadReport) -> Table:
    lines = pl.Series(source.data.decode("utf-8").split("\n"), dtype=pl.String).str.strip_chars()
    frame = pl.DataFrame({LINE: pl.int_range(1, len(lines) + 1, dtype=pl.Int64, eager=True), "text": lines})
    frame = frame.filter((pl.col("text") != "") & ~pl.col("text").str.starts_with(";"))
    if not frame.height:
        report.check_unusable(0)  # all rows may be unusable
        raise TraceError(source.file, found="no rows", expected="at least one job")
    fields = frame["text"].str.replace_all(r"\s+", " ").str.split(" ")
    for row, count in zip(frame[LINE], fields.list.len(), strict=True):
        if count != len(COLUMNS):
            found, expected = f"{count} fields", f"{len(COLUMNS)} fields"
            report.unusable.setdefault(row, TraceError(source.file, row=row, found=found, expected=expected))
    table = fields.list.to_struct(fields=list(COLUMNS)).struct.unnest().with_columns(frame[LINE])
    return without_unusable(Table(file=source.file, frame=table, report=report))


def _origin_ms(source: Source) -> int | None:
    start = _START.search("\n".join(source.head))
    if start is None:
        return None
    if int(start[1]) * MS_PER_S > MAX_TIME_MS:
        raise TraceError(source.file, found=f"UnixStartTime {start[1]}", expected="a time before 2100")
    return int(start[1]) * MS_PER_S


def _seconds_ms(table: Table, column: str, high_ms: int) -> IntArray:
    """Parse seconds; -1 gives NONE."""
    seconds_ms = table.number(column, "seconds, or -1", low=-1, high=high_ms / MS_PER_S, unit=MS_PER_S)
    return np.where(seconds_ms < 0, NONE, seconds_ms)


def _names(table: Table, column: str) -> tuple[IntArray, tuple[str, ...]]:
    text = table.text(column)
    return coded(text.set((text == "-1").fill_null(False), None))


def _dependencies(table: Table) -> tuple[IntArray, IntArray]:
    """Return the row of the preceding job and the think time; a predecessor must have a smaller number."""
    number = table.number("job", "a job number, 1 or more", low=1, whole=True)
    before = table.number("preceding", "the number of an earlier job, or -1", low=-1, whole=True)
    if (odd := before >= number).any():
        raise table.unusable(odd, "preceding", "the number of an earlier job, or -1")
    order = np.argsort(number)
    place = np.minimum(np.searchsorted(number[order], before), len(number) - 1)
    found = (before > 0) & (number[order][place] == before) if len(number) else before > 0
    table.report.repair("preceding job is not in the trace: starts without it", int(((before > 0) & ~found).sum()))
    after = np.where(found, order[place], NONE) if len(number) else before
    think_ms = _seconds_ms(table, "think_time", MAX_RUN_MS)
    return after, np.where(found, np.maximum(think_ms, 0), 0)
