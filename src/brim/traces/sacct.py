"""Slurm accounting: ``sacct -P`` (pipe-separated, with header, columns in any order).

Meant for ``sacct -a -X -D -P --noconvert -o JobIDRaw,User,Account,Partition,Submit,Start,End,Timelimit,State,ReqTRES,
AllocTRES,Suspended``. Records of one job id are the attempts of a requeued job: run times add up, the submission is the
earliest, the state the last. Without ``-X``, job steps are dropped. Resources are what was allocated, else what was
asked; the GPU type counts as a constraint only where the request names it. Times are the cluster's wall clock; where
the clock went back during a job (end before start by up to an hour, at night), an hour is added. A slice of a
partitioned GPU (MIG) counts as a GPU. Source: Slurm manual, sacct(1).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from brim.core.arrays import BoolArray, IntArray
from brim.core.trace import NONE, Trace, trace_of
from brim.traces.lifecycle import (
    CPU_ONLY,
    NEVER_STARTED,
    SLURM_STATES,
    STILL_RUNNING,
    at_least_a_second,
    check_run,
    no_negative_wait,
    per_gpu,
    recorded_jct,
)
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import LINE, MAX_AMOUNT, MAX_GPUS, MAX_RUN_MS, Table, csv_table, parsed_once
from brim.units import MS_PER_DAY, MS_PER_H, MS_PER_MIN, MS_PER_S

NAME: Final = "sacct"
COLUMNS: Final = ("Submit", "Start", "End", "State")
WANTED: Final = (
    "JobIDRaw", "JobID", "User", "Account", "Partition", "Submit", "Start", "End", "Timelimit", "TimelimitRaw",
    "State", "ReqTRES", "AllocTRES", "Suspended",
)  # fmt: skip
_ID: Final = r"^\d+([_+.].*)?$"
_UNFINISHED: Final = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_NO_LIMIT: Final = ("UNLIMITED", "Partition_Limit", "INVALID")
_NIGHT_MS: Final = 4 * MS_PER_H
"""Clocks are set back between midnight and 04:00 local time everywhere."""
_MEMORY_MIB: Final = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_CLOCK: Final = r"^(?:(\d{1,5})-)?(\d{1,7}):(\d{1,2})(?::(\d{1,2}))?(?:\.\d+)?$"
_TEXT: Final = pl.col("text")
_BAD_TRES: Final = (
    r"(?:^|,)(?:cpu|gres/gpu(?::[^=,]*)?)=(?:\d{10}|\d*[^0-9,]|,|$)|(?:^|,)mem=(?:\d{16}|[^0-9]|$)|^[^=]*$"
)


def score(source: Source) -> float:
    """Say how much the content looks like this format, 0 to 1."""
    names = {name.strip() for name in source.first_line.split("|")}
    if len(names) < 3:
        return 0.0
    known = names.intersection((*WANTED, "QOS", "Eligible", "ExitCode", "NodeList", "Restarts", "Reason", "JobName"))
    return max(len(known) / len(names), 0.6 if "|" in source.first_line and known else 0.0)


def read(source: Source, report: ReadReport) -> Trace:
    """Read an export.

    Raises:
        TraceError: a column is missing or a value corrupt.
    """
    table = csv_table(source, report, separator="|", quoted=False, wanted=WANTED)
    table = _merged(_records(_with_gpus(_jobs(table))))
    table = table.drop((table.frame["start"] == NONE).to_numpy(), NEVER_STARTED)
    table = table.drop(table.frame["running"].to_numpy(), STILL_RUNNING)
    column = {name: table.frame[name].to_numpy() for name in table.frame.columns if table.frame[name].dtype == pl.Int64}
    check_run(table, column["run"], "End")
    gpus = column["gpus"]
    run_ms = at_least_a_second(column["run"], report)
    wait_ms = no_negative_wait(column["start"] - column["submit"], report)
    names: dict[str, Any] = {}
    for key, plural, source_column in (("user", "users", "User"), ("group", "groups", _group_column(table))):
        if source_column in table:
            names[key], names[plural] = table.names(source_column)
    names["gpu_type"], names["gpu_types"] = table.names("type")
    return trace_of(
        name=source.name, format=NAME, origin_ms=0, job_id=table.frame["id"].to_list(), submit_ms=column["submit"],
        gpus=gpus, run_ms=run_ms, wait_ms=wait_ms,
        jct_ms=recorded_jct(column["end"], column["submit"], wait_ms, run_ms),
        cpu_milli=per_gpu(column["cpu"] * 1_000, gpus), mem_mib=per_gpu(column["mem"], gpus),
        time_limit_ms=column["limit"],
        status=table.statuses("State", SLURM_STATES, "a state of Slurm, such as COMPLETED"), **names,
    )  # fmt: skip


def _group_column(table: Table) -> str:
    return "Account" if "Account" in table else "Partition"


def _jobs(table: Table) -> Table:
    """Check the columns, name the id column ``id`` and drop job steps."""
    id_column = "JobIDRaw" if "JobIDRaw" in table else "JobID"
    table.require(id_column, *COLUMNS)
    if "AllocTRES" not in table:
        table.require("ReqTRES")
    text = table.text(id_column)
    odd = (~text.str.contains(_ID)).fill_null(True).to_numpy()
    if odd.any():
        raise table.error(int(odd.argmax()), id_column, "a job id such as 1234, 1234_5 or 1234+1")
    renamed = Table(file=table.file, frame=table.frame.with_columns(text.alias("id")), report=table.report)
    return renamed.drop(text.str.contains(".", literal=True).to_numpy(), "a job step, not a job")


def _with_gpus(table: Table) -> Table:
    """Add the resources of each record and drop those without a GPU."""
    frame = table.frame.with_columns(_resources(table).get_columns())
    wide = Table(file=table.file, frame=frame, report=table.report)
    return wide.drop((frame["gpus"] == 0).to_numpy(), CPU_ONLY)


def _records(table: Table) -> Table:
    """Parse one record per row: times and state; ``run`` is its own run time."""
    submit_ms = table.clock_ms("Submit")
    start_ms, end_ms = table.clock_ms("Start", missing=True), table.clock_ms("End", missing=True)
    state = table.text("State").str.extract(r"^([A-Z_]+)").fill_null("")
    if "AllocTRES" in table:  # cancelled before the start: Slurm repeats the end as the start
        start_ms = np.where((start_ms == end_ms) & table.blank("AllocTRES"), NONE, start_ms)
    start_ms = np.where(state.is_in(_UNFINISHED).to_numpy() & (end_ms == NONE), NONE, start_ms)
    whole = (start_ms != NONE) & (end_ms != NONE)
    suspended_ms = _clock_ms(table, "Suspended") if "Suspended" in table else np.zeros(len(table), dtype=np.int64)
    run_ms = np.where(whole, end_ms - start_ms, 0)
    set_back = whole & (run_ms < 0) & (run_ms >= -MS_PER_H) & (start_ms % MS_PER_DAY < _NIGHT_MS)
    table.report.repair("clock set back during the job: an hour added", int(set_back.sum()))
    run_ms = np.where(set_back, run_ms + MS_PER_H, run_ms)
    check_run(table, run_ms, "End")
    suspended_ms = np.where(whole, np.clip(suspended_ms, 0, run_ms), 0)
    table.report.repair("time suspended left out of the run time", int((suspended_ms > 0).sum()))
    keep = ("id", LINE, "User", "Account", "Partition", "gpus", "cpu", "mem", "type")
    frame = table.frame.select(name for name in keep if name in table).with_columns(
        state.alias("State"),
        *(
            pl.Series(name, values)
            for name, values in (
                ("submit", submit_ms), ("start", start_ms), ("end", end_ms), ("run", run_ms - suspended_ms),
                ("limit", _limit_ms(table)), ("running", (start_ms != NONE) & (end_ms == NONE)),
            )
        ),
    )  # fmt: skip
    return Table(file=table.file, frame=frame, report=table.report)


def _merged(table: Table) -> Table:
    """Join the records of each job id: attempts of a requeued job."""
    repeated = table.frame["id"].is_duplicated()
    if not repeated.any():
        return table
    records = table.frame.filter(repeated)
    distinct = records.unique(subset=[name for name in records.columns if name != LINE], keep="any")
    table.report.drop("exact repeat of a record", records.height - distinct.height)
    order = ["submit", "start", "end", "State", *(name for name in ("gpus", "cpu", "mem", "limit") if name in records)]
    begun = pl.col("start") != NONE
    merged = (
        distinct.sort(order)
        .group_by("id", maintain_order=True)
        .agg(
            pl.len().alias("records"),
            pl.col(LINE).min(),
            pl.col("submit").min(),
            pl.col("start").filter(begun).min().fill_null(NONE),
            pl.col("run").sum(),
            pl.col("gpus").max(),
            pl.col("cpu", "mem").sort_by("gpus", maintain_order=True).last(),
            (pl.col("running").last() | pl.col("State").last().is_in(_UNFINISHED)).alias("running"),
            *(pl.col(name).last() for name in ("end", "State", "limit", "type", "User", "Account", "Partition")
              if name in records.columns),
        )
    )  # fmt: skip
    table.report.drop("earlier attempt of a requeued job, merged", distinct.height - merged.height)
    single = table.frame.filter(~repeated)
    frame = pl.concat([single, merged.select(single.columns)])
    return Table(file=table.file, frame=frame, report=table.report)


def _resources(table: Table) -> pl.DataFrame:
    """Columns gpus, cpu, mem (MiB) of the job, and the GPU type that it names."""
    if not ("ReqTRES" in table and "AllocTRES" in table):
        return _tres(table, "AllocTRES" if "AllocTRES" in table else "ReqTRES")
    asked, given = _tres(table, "ReqTRES"), _tres(table, "AllocTRES")
    from_given = given["gpus"] > 0
    columns = [given[name].zip_with(from_given, asked[name]) for name in ("gpus", "cpu", "mem")]
    return pl.DataFrame([*columns, asked["type"]])


def _tres(table: Table, column: str) -> pl.DataFrame:
    text = table.text(column)
    bad = text.str.contains(_BAD_TRES).fill_null(False)
    if bad.any():
        raise table.error(int(bad.arg_max() or 0), column, "resources like cpu=32,mem=120G,gres/gpu:a100=4")
    typed = _TEXT.str.extract_all(r"(?:^|,)gres/gpu:[^=,]+=\d+")
    number = _TEXT.str.extract(r"(?:^|,)mem=(\d+(?:\.\d+)?)").cast(pl.Float64)
    unit = _TEXT.str.extract(r"(?:^|,)mem=[\d.]+([KMGTP]?)")
    resources = parsed_once(
        text,
        pl.struct(
            pl.coalesce(
                _TEXT.str.extract(r"(?:^|,)gres/gpu=(\d+)").cast(pl.Int64),
                typed.list.eval(pl.element().str.extract(r"=(\d+)$").cast(pl.Int64)).list.sum(),
                pl.lit(0, dtype=pl.Int64),
            ).alias("gpus"),
            _TEXT.str.extract(r"(?:^|,)cpu=(\d+)").cast(pl.Int64).fill_null(0).alias("cpu"),
            (number * unit.replace_strict(_MEMORY_MIB, default=0.0, return_dtype=pl.Float64))
            .ceil().fill_null(0).clip(0, 2.0**62).cast(pl.Int64).alias("mem"),
            pl.when(typed.list.len() == 1).then(_TEXT.str.extract(r"(?:^|,)gres/gpu:([^=,]+)=")).alias("type"),
        ),
    )  # fmt: skip
    absurd = (resources["gpus"] > MAX_GPUS) | (resources["cpu"] > MAX_GPUS * 1_000) | (resources["mem"] > MAX_AMOUNT)
    if absurd.any():
        raise table.error(int(absurd.arg_max() or 0), column, f"at most {MAX_GPUS} GPUs and 2^40 MiB")
    return resources


def _limit_ms(table: Table) -> IntArray:
    if "TimelimitRaw" in table and "Timelimit" not in table:
        unlimited = table.text("TimelimitRaw").is_in(_NO_LIMIT).fill_null(True)
        minutes = table.frame.with_columns(table.text("TimelimitRaw").set(unlimited, None))
        return Table(file=table.file, frame=minutes, report=table.report).number(
            "TimelimitRaw", "minutes", high=MAX_RUN_MS / MS_PER_MIN, unit=MS_PER_MIN, missing=NONE
        )
    if "Timelimit" in table:
        return _clock_ms(table, "Timelimit")
    table.report.repair("no column Timelimit: no time limit", len(table))
    return np.full(len(table), NONE, dtype=np.int64)


def _clock_ms(table: Table, column: str) -> IntArray:
    """Parse Slurm durations ([days-]hours:minutes:seconds or minutes:seconds); NONE for none."""
    text = table.text(column)
    part = [_TEXT.str.extract(_CLOCK, group).cast(pl.Int64) for group in (1, 2, 3, 4)]
    long = (part[1] * 60 + part[2]) * 60 + part[3].fill_null(0)
    seconds = pl.when(part[3].is_null() & part[0].is_null()).then(part[1] * 60 + part[2]).otherwise(long)
    parsed = parsed_once(text, pl.struct((seconds + part[0].fill_null(0) * 86_400).alias("seconds")))["seconds"]
    absent = (text.is_null() | text.is_in(_NO_LIMIT)).fill_null(True)
    values = (parsed.set(absent, None).fill_null(NONE) * MS_PER_S).to_numpy()
    bad: BoolArray = (parsed.is_null() & ~absent).to_numpy() | (values > MAX_RUN_MS)
    if bad.any():
        raise table.error(int(bad.argmax()), column, "a duration like 1-12:00:00, at most ten years")
    return np.where(absent.to_numpy(), NONE, values)
