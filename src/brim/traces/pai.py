"""Alibaba PAI (2020): job, task and, where given, instance tables, as a folder or as one file beside the others.

The published tables have no header line; one is accepted. A job's gang is all instances of its tasks that use a GPU;
``plan_gpu`` is a percentage: up to 100 it is a share of one GPU, above 100 it is rounded up to whole GPUs. If the tasks
of a job ask for different shares, the largest is used for all. Cores and memory are those of all tasks (parameter
servers too) divided by the GPUs. A job runs from the first start of an instance (of a task, without the instance table)
to its end. ``gpu_type`` is the assigned type, not a requested one, so it does not constrain placement. Time 0 is
secret; the hour of day is right in UTC+8.
Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2020, README.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from brim.core.trace import NONE, Status, Trace, trace_of
from brim.errors import TraceError
from brim.traces.lifecycle import (
    CPU_ONLY,
    NEVER_STARTED,
    STILL_RUNNING,
    at_least_a_second,
    check_run,
    no_negative_wait,
    per_gpu,
)
from brim.traces.report import ReadReport
from brim.traces.source import Source, check_text, open_source
from brim.traces.table import MAX_GPUS, Table, csv_table, header_share
from brim.units import WHOLE_GPU

NAME: Final = "pai"
TABLES: Final = {
    "job": ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "task": (
        "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
        "gpu_type",
    ),
    "instance": (
        "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine",
    ),
}  # fmt: skip
_FILE: Final = re.compile(r"pai_(job|task|instance)_table")
_STATES: Final = {
    "Terminated": Status.COMPLETED, "Failed": Status.FAILED, "Running": Status.UNKNOWN, "Waiting": Status.UNKNOWN,
    "Interrupted": Status.UNKNOWN, "": Status.UNKNOWN,
}  # fmt: skip
_EXPECTED_STATE: Final = "Terminated, Failed, Running or Waiting"
PERCENT: Final = 100
MIB_PER_GB: Final = 1_024


def score(source: Source) -> float:
    """Return how much the content resembles one of the tables, from 0 to 1."""
    by_header = max(header_share(source.first_line, columns) for columns in TABLES.values())
    fields = source.first_line.split(",")
    bare = any(
        len(fields) == len(columns) and fields[columns.index("status")] in _STATES for columns in TABLES.values()
    )
    return max(by_header, 0.9 if bare or _FILE.search(source.name) else 0.0)


def is_folder(folder: Path) -> bool:
    """Whether the folder holds a job table."""
    return any(_FILE.search(path.name) for path in folder.iterdir())


def read(source: Source, report: ReadReport) -> Trace:
    """Read the table and those beside it.

    Raises:
        TraceError: a table or column is missing, or a value is corrupt.
    """
    kind = _FILE.search(source.name)
    if not kind:
        expected = "files named pai_job_table and pai_task_table, or their folder"
        raise TraceError(source.file, found="one table of PAI", expected=expected)
    found = {kind[1]: source}
    for other in TABLES:
        path = Path(source.file).with_name(source.name.replace(kind[0], f"pai_{other}_table"))
        candidates = (path, Path(f"{path}.gz"), path.with_suffix("") if path.suffix == ".gz" else path)
        beside = next((candidate for candidate in candidates if candidate.is_file()), None)
        if other not in found and beside:
            found[other] = check_text(open_source(beside), NAME)
    return _read_tables(source.file, found, report)


def read_folder(folder: Path, report: ReadReport) -> Trace:
    """Read the tables in a folder.

    Raises:
        TraceError: a table or column is missing or appears twice, or a value is corrupt.
    """
    found: dict[str, Source] = {}
    for path in sorted(folder.iterdir()):
        kind = _FILE.match(path.name)
        if not kind or ".csv" not in path.suffixes:
            continue
        if kind[1] in found:
            raise TraceError(str(folder), found=f"{found[kind[1]].name} and {path.name}", expected="one of them")
        found[kind[1]] = check_text(open_source(path), NAME)
    return _read_tables(str(folder), found, report)


def _read_tables(file: str, found: dict[str, Source], report: ReadReport) -> Trace:
    for kind in ("job", "task"):
        if kind not in found:
            raise TraceError(file, found=f"no pai_{kind}_table", expected="this table beside the others")
    tasks = _tasks(_table(found["task"], "task", report))
    jobs = _table(found["job"], "job", report)
    jobs.ids("job_name")
    known = tasks["job_name"].is_in(jobs.text("job_name").to_list())
    report.drop("task row joined to its job", int(tasks.filter(known)["rows"].sum()))
    report.drop("task row without a job", int(tasks.filter(~known)["rows"].sum()))
    joined = jobs.frame.join(tasks, on="job_name", how="left", maintain_order="left")
    if "instance" in found:
        joined = _with_instances(joined, _table(found["instance"], "instance", report))
    return _trace(Path(file).name, Table(file=found["job"].file, frame=joined, report=report))


def _trace(name: str, table: Table) -> Trace:
    report = table.report
    table = table.drop((table.frame["gpus"].fill_null(0) == 0).to_numpy(), CPU_ONLY)
    table = table.drop((table.text("status") == "Waiting").fill_null(False).to_numpy(), NEVER_STARTED)
    table = table.drop((table.frame["first_start"].fill_null(NONE) == NONE).to_numpy(), NEVER_STARTED)
    running = (table.text("status") == "Running").fill_null(False).to_numpy()
    table = table.drop(running | (table.seconds_ms("end_time", missing=NONE) == NONE), STILL_RUNNING)
    gpus, share, start_ms = (table.frame[column].to_numpy() for column in ("gpus", "share", "first_start"))
    if (odd := gpus > MAX_GPUS).any():
        raise table.unusable(odd, "job_name", f"at most {MAX_GPUS} GPUs", lambda row: f"{gpus[row]} GPUs")
    unlike = (table.frame["share"] != table.frame["share_min"]).sum()
    report.repair("tasks ask for different shares of a GPU: the largest is used", int(unlike))
    report.repair("more than one GPU, not a whole number: rounded up", int(table.frame["rounded"].sum()))
    submit_ms, end_ms = table.seconds_ms("start_time"), table.seconds_ms("end_time")
    check_run(table, end_ms - start_ms, "end_time")
    user, users = table.names("user")
    return trace_of(
        name=name, format=NAME, job_id=table.ids("job_name"), submit_ms=submit_ms, gpus=gpus, share_milli=share,
        run_ms=at_least_a_second(end_ms - start_ms, report), wait_ms=no_negative_wait(start_ms - submit_ms, report),
        cpu_milli=per_gpu(table.frame["cpu"].to_numpy(), gpus), mem_mib=per_gpu(table.frame["mem"].to_numpy(), gpus),
        status=table.statuses("status", _STATES, _EXPECTED_STATE), user=user, users=users,
    )  # fmt: skip


def _table(source: Source, kind: str, report: ReadReport) -> Table:
    report.unusable.update(source.unusable)
    named = source.first_line.split(",")[0].strip() == "job_name"
    table = csv_table(source, report, columns=None if named else TABLES[kind])
    table.require(*TABLES[kind])
    names = table.text("job_name")
    if names.null_count():
        raise table.unusable(names.is_null().to_numpy(), "job_name", "a job name")
    return Table(file=table.file, frame=table.frame.with_columns(names.alias("job_name")), report=report)


def _tasks(table: Table) -> pl.DataFrame:
    """Sum up the tasks of each job: gpus, share, cpu, mem, first start."""
    table.statuses("status", _STATES, _EXPECTED_STATE)
    instances = table.number("inst_num", "a number of instances", low=0, high=1e6, whole=True, missing=1)
    percent = table.number("plan_gpu", "percent of a GPU", high=1e6, unit=10, missing=0)
    whole = -(-percent // WHOLE_GPU)
    frame = pl.DataFrame(
        {
            "job_name": table.frame["job_name"],
            "gpus": instances * whole,
            "share": np.where(percent > WHOLE_GPU, WHOLE_GPU, percent),
            "rounded": (percent > WHOLE_GPU) & (percent % WHOLE_GPU > 0),
            "cpu": instances * table.number("plan_cpu", "percent of a core", high=1e7, unit=1_000 / PERCENT, missing=0),
            "mem": instances * table.number("plan_mem", "gigabytes", high=1e6, unit=MIB_PER_GB, missing=0),
            "start": table.seconds_ms("start_time", missing=NONE),
        }
    )
    asks = pl.col("gpus") > 0
    return frame.group_by("job_name").agg(
        pl.len().alias("rows"),
        pl.col("gpus", "cpu", "mem").sum(),
        pl.col("share").filter(asks).max(),
        pl.col("share").filter(asks).min().alias("share_min"),
        pl.col("rounded").any(),
        pl.col("start").filter(pl.col("start") != NONE).min().alias("first_start"),
    )


def _with_instances(jobs: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Replace the first start of a job by that of its instances, where recorded."""
    start_ms = pl.Series("start", table.seconds_ms("start_time", missing=NONE))
    starts = pl.DataFrame({"job_name": table.frame["job_name"], "start": start_ms})
    known = starts["job_name"].is_in(jobs["job_name"].to_list())
    table.report.drop("instance row joined to its job", int(known.sum()))
    table.report.drop("instance row without a job", int((~known).sum()))
    first = starts.filter(pl.col("start") != NONE).group_by("job_name").agg(pl.col("start").min())
    joined = jobs.join(first, on="job_name", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("start", "first_start").alias("first_start"))
