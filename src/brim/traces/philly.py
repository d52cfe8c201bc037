"""Microsoft Philly (2017), as published: ``cluster_job_log``, a JSON list of jobs with their attempts.

The run time is the sum over attempts that have both times; a job has as many GPUs as its largest attempt. Jobs that
never started or are still running are dropped. Row numbers in messages count the jobs of the list from 1. Times are
the cluster's wall clock.
Source: github.com/msr-fiddle/philly-traces, README, "cluster_job_log".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import polars as pl

from brim.core.trace import NONE, Status, Trace, trace_of
from brim.errors import TraceError, shown
from brim.traces.lifecycle import (
    CPU_ONLY,
    NEVER_STARTED,
    STILL_RUNNING,
    at_least_a_second,
    check_run,
    no_negative_wait,
    recorded_jct,
)
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import LINE, MAX_GPUS, MISSING, Table, without_unusable

NAME: Final = "philly"
_STATES: Final = {"Pass": Status.COMPLETED, "Killed": Status.CANCELLED, "Failed": Status.FAILED, "": Status.UNKNOWN}
_KEYS: Final = ("jobid", "submitted_time", "attempts")
_TIME: Final = "a time like 2017-10-07 01:11:39, or None"
TIME_LENGTH: Final = len("2017-10-07 01:11:39")
_EPOCH: Final = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    start_ms: int
    end_ms: int
    gpus: int


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    text = "\n".join(source.head)
    if not text.lstrip().startswith("["):
        return 0.0
    return 1.0 if any(f'"{key}"' in text for key in _KEYS) else 0.5


def read(source: Source, report: ReadReport) -> Trace:
    """Read the list.

    Raises:
        TraceError: the file is not such a list, or a job in it is corrupt.
    """
    jobs = _decoded(source)
    rows = []
    for row, job in enumerate(jobs, 1):
        try:
            rows.append(_row(source.file, row, job, report))
        except TraceError as error:
            report.unusable.setdefault(row, error)
    report.rows += len(jobs) - len(rows)
    frame = pl.DataFrame(
        rows,
        schema={
            LINE: pl.Int64, "jobid": pl.String, "user": pl.String, "vc": pl.String, "status": pl.String,
            "submitted_time": pl.Int64, "start": pl.Int64, "end": pl.Int64, "run": pl.Int64, "gpus": pl.Int64,
            "running": pl.Boolean,
        },
        orient="row",
    )  # fmt: skip
    table = without_unusable(Table(file=source.file, frame=frame, report=report))
    table.ids("jobid")
    table = table.drop((table.frame["start"] == NONE).to_numpy(), NEVER_STARTED)
    table = table.drop(table.frame["running"].to_numpy(), STILL_RUNNING)
    table = table.drop((table.frame["gpus"] == 0).to_numpy(), CPU_ONLY)
    submit_ms, start_ms, end_ms = (table.frame[column].to_numpy() for column in ("submitted_time", "start", "end"))
    check_run(table, table.frame["run"].to_numpy(), "attempts")
    run_ms = at_least_a_second(table.frame["run"].to_numpy(), report)
    wait_ms = no_negative_wait(start_ms - submit_ms, report)
    user, users = table.names("user")
    group, groups = table.names("vc")
    return trace_of(
        name=source.name, format=NAME, origin_ms=0, job_id=table.ids("jobid"), submit_ms=submit_ms,
        gpus=table.frame["gpus"].to_numpy(), run_ms=run_ms, wait_ms=wait_ms,
        jct_ms=recorded_jct(end_ms, submit_ms, wait_ms, run_ms),
        status=table.statuses("status", _STATES, "Pass, Killed or Failed"),
        user=user, users=users, group=group, groups=groups,
    )  # fmt: skip


def _decoded(source: Source) -> list[Any]:
    try:
        jobs = json.loads(source.data, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise TraceError(
            source.file, row=error.lineno, found=f"broken JSON ({error.msg})", expected="a JSON list of jobs"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0][:80]
        raise TraceError(source.file, found=f"unusable JSON ({reason})", expected="a JSON list of jobs") from None
    if not isinstance(jobs, list):
        raise TraceError(source.file, found=f"a JSON {type(jobs).__name__}", expected="a JSON list of jobs")
    if not jobs:
        raise TraceError(source.file, found="an empty list", expected="at least one job")
    return jobs


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a value")


def _row(file: str, row: int, job: Any, report: ReadReport) -> tuple[object, ...]:
    if not isinstance(job, dict):
        raise TraceError(file, row=row, found=f"a {type(job).__name__}", expected="a JSON object per job")
    for key in _KEYS:
        if key not in job:
            keys = ", ".join(sorted(map(str, job)))[:60] or "no keys"
            raise TraceError(file, row=row, column=key, found=keys, expected=f"a key {key!r}")
    for key in ("jobid", "user", "vc", "status"):
        if not isinstance(job.get(key), str | None):
            raise TraceError(file, row=row, column=key, found=shown(job[key]), expected="text")
    submit_ms = _time_ms(file, row, "submitted_time", job["submitted_time"])
    if submit_ms == NONE:
        raise TraceError(file, row=row, column="submitted_time", found="nothing", expected=_TIME)
    attempts = list(_attempts(file, row, job["attempts"]))
    whole = [attempt for attempt in attempts if NONE not in (attempt.start_ms, attempt.end_ms)]
    started = [attempt.start_ms for attempt in attempts if attempt.start_ms != NONE]
    running = bool(started) and attempts[-1].end_ms == NONE
    if whole and not running:
        report.repair("attempts without start or end left out of the run time", int(len(whole) < len(attempts)))
        report.repair("attempts of different sizes: the largest is used", int(len({a.gpus for a in whole}) > 1))
    if any(attempt.end_ms < attempt.start_ms for attempt in whole):
        raise TraceError(file, row=row, column="attempts", found="an end before its start", expected="start, then end")
    return (
        row, job["jobid"], job.get("user"), job.get("vc"), job.get("status"), submit_ms,
        min(started, default=NONE) if whole or running else NONE,
        max((attempt.end_ms for attempt in whole), default=NONE),
        sum(attempt.end_ms - attempt.start_ms for attempt in whole),
        max((attempt.gpus for attempt in attempts), default=0), running,
    )  # fmt: skip


def _attempts(file: str, row: int, attempts: Any) -> Iterator[_Attempt]:
    if not isinstance(attempts, list):
        raise TraceError(file, row=row, column="attempts", found=shown(attempts), expected="a list")
    for attempt in attempts:
        detail = attempt.get("detail", []) if isinstance(attempt, dict) else None
        if not isinstance(detail, list) or not all(
            isinstance(node, dict) and isinstance(node.get("gpus", []), list) for node in detail
        ):
            raise TraceError(
                file, row=row, column="attempts", found=shown(attempt), expected="start_time, end_time, detail"
            )
        gpus = sum(len(node.get("gpus", [])) for node in detail)
        if gpus > MAX_GPUS:
            raise TraceError(file, row=row, column="attempts", found=f"{gpus} GPUs", expected=f"at most {MAX_GPUS}")
        yield _Attempt(
            start_ms=_time_ms(file, row, "start_time", attempt.get("start_time")),
            end_ms=_time_ms(file, row, "end_time", attempt.get("end_time")),
            gpus=gpus,
        )


def _time_ms(file: str, row: int, column: str, value: object) -> int:
    if value is None or value in MISSING:
        return NONE
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) and len(value) == TIME_LENGTH else None
    except ValueError:
        time = None
    if time is None or time.tzinfo or not 1970 <= time.year < 2100:
        raise TraceError(file, row=row, column=column, found=shown(value), expected=_TIME)
    return round((time - _EPOCH).total_seconds()) * 1_000
