"""Standard Workload Format (.swf): 18 numbers per job, comments after ``;``, -1 for unknown.

Processors are read as GPUs: that is the only way to replay these logs on a GPU cluster, and the report says so. A job
has its allocated processors, because its recorded run time holds for them; where they are not known, it has the
requested ones. A preceding job becomes a dependency, with the think time as its delay, unless the log says that the job
did not wait for it. Of the comments,
``UnixStartTime`` gives the wall clock, and ``MaxNodes`` and ``MaxProcs`` give the cluster, if all nodes can be alike.
Records of status 2 to 4 are parts of a job that has its own record, and are dropped.
Source: Feitelson, Standard Workload Format version 2.2 (Parallel Workloads Archive).
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from brim.core.arrays import IntArray
from brim.core.cluster import MAX_GPUS_PER_NODE, MAX_NODES, Cluster, NodeGroup, cluster_of
from brim.core.trace import NONE, Status, Trace, trace_of
from brim.errors import TraceError, shown
from brim.traces.lifecycle import NEVER_STARTED, at_least_a_second
from brim.traces.nodes import UNNAMED_TYPE
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import LINE, MAX_AMOUNT, MAX_GPUS, MAX_RUN_MS, MAX_TIME_MS, Table, coded, without_unusable
from brim.units import MS_PER_S, counted

NAME: Final = "swf"
COLUMNS: Final = (
    "job", "submit", "wait", "run", "allocated", "cpu_time", "used_memory", "requested", "requested_time",
    "requested_memory", "status", "user", "group", "application", "queue", "partition", "preceding", "think_time",
)  # fmt: skip
_STATES: Final = {
    "-1": Status.UNKNOWN, "0": Status.FAILED, "1": Status.COMPLETED, "5": Status.CANCELLED, "": Status.UNKNOWN,
}  # fmt: skip
_NUMBERS: Final = re.compile(r"\s*(-?[\d.]+\s+){17}-?[\d.]+\s*")
_HEADER: Final = re.compile(r"^;\s*(UnixStartTime|MaxNodes|MaxProcs)[ \t]*:[ \t]*(\S[^\n]*)", re.MULTILINE)
_HEADER_NUMBER: Final = re.compile(r"\d{1,12}(?!\S)")
KIB_PER_MIB: Final = 1_024
NO_RUN_TIME: Final = "its run time is not recorded"
WAITS_FOR: Final = (
    "waits for the end of its preceding job, and the think time after it (fields 17 and 18): counts as waiting"
)
DID_NOT_WAIT: Final = "started before its preceding job and the think time had ended: replayed without that dependency"
ROUNDED_MS: Final = 2 * MS_PER_S
"""By how much times rounded to seconds may disagree. Our choice."""


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
    run_ms = _seconds_ms(table, "run", MAX_RUN_MS)
    cancelled, completed = ((table.text("status") == state).fill_null(False).to_numpy() for state in ("5", "1"))
    idle = ((run_ms < 0) & cancelled) | ((run_ms == 0) & ~completed)
    table, run_ms = table.drop(idle, NEVER_STARTED), run_ms[~idle]
    unknown = run_ms < 0
    table, run_ms = table.drop(unknown, NO_RUN_TIME), run_ms[~unknown]
    gpus = _processors(table)
    none = gpus <= 0
    table, gpus, run_ms = table.drop(none, "no processors allocated, or none recorded"), gpus[~none], run_ms[~none]
    header = dict(_HEADER.findall("\n".join(source.head)))
    submit_ms, wait_ms = table.seconds_ms("submit"), _seconds_ms(table, "wait", MAX_TIME_MS)
    start_ms = np.where(wait_ms == NONE, NONE, submit_ms + wait_ms)
    after, after_ms = _dependencies(table, start_ms, run_ms)
    user, users = _names(table, "user")
    group, groups = _names(table, "group")
    profile, profiles = _names(table, "application")
    memory_kib = table.number("requested_memory", "KiB per processor or -1", low=-1, high=MAX_AMOUNT)
    limit_ms = _seconds_ms(table, "requested_time", MAX_RUN_MS)
    return trace_of(
        name=source.name, format=NAME, origin_ms=_origin_ms(source, header), job_id=table.ids("job"),
        cluster=_cluster(header, int(gpus.max(initial=0)), report),
        submit_ms=submit_ms, gpus=gpus, run_ms=at_least_a_second(run_ms, report),
        wait_ms=wait_ms, time_limit_ms=np.where(limit_ms > 0, limit_ms, NONE),
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
            found, expected = counted(count, "field"), counted(len(COLUMNS), "field")
            report.unusable.setdefault(row, TraceError(source.file, row=row, found=found, expected=expected))
    table = fields.list.to_struct(fields=list(COLUMNS)).struct.unnest().with_columns(frame[LINE])
    return without_unusable(Table(file=source.file, frame=table, report=report))


def _processors(table: Table) -> IntArray:
    """Return the allocated processors of each job, or the requested ones where the former are not known."""
    allocated, requested = (
        table.number(column, "processors or -1", low=-1, high=MAX_GPUS, whole=True)
        for column in ("allocated", "requested")
    )
    processors = np.where(allocated == NONE, requested, allocated)
    replaced = (allocated == NONE) & (requested > 0)
    differ = (allocated > 0) & (requested > 0) & (allocated != requested)
    table.report.repair("processors read as GPUs", int((processors > 0).sum()))
    table.report.repair(
        "allocated processors differ from the requested ones: the allocated are used", int(differ.sum())
    )
    table.report.repair("allocated processors not recorded: the requested are used", int(replaced.sum()))
    return processors


def _header_number(header: dict[str, str], name: str) -> int | None:
    """Return the number with which a value of the header begins; None if there is none."""
    found = _HEADER_NUMBER.match(header.get(name, ""))
    return int(found[0]) if found else None


def _origin_ms(source: Source, header: dict[str, str]) -> int | None:
    start_s = _header_number(header, "UnixStartTime")
    if start_s is not None and start_s * MS_PER_S > MAX_TIME_MS:
        raise TraceError(source.file, found=f"UnixStartTime {start_s}", expected="a time before 2100")
    return None if start_s is None else start_s * MS_PER_S


def _cluster(header: dict[str, str], most: int, report: ReadReport) -> Cluster | None:
    """Return the cluster of the header, and describe it, or why there is none, in the report.

    Args:
        header: Values of the comments, by name.
        most: Processors of the largest job.
        report: Receives the description.
    """
    if "MaxNodes" not in header and "MaxProcs" not in header:
        return None
    nodes, processors = _header_number(header, "MaxNodes"), _header_number(header, "MaxProcs")
    if nodes is None or processors is None:
        numbers = {"MaxProcs": processors, "MaxNodes": nodes}
        known = [f"{name} {number}" for name, number in numbers.items() if number is not None]
        missing = [f"no {name}" for name in numbers if name not in header]
        unreadable = [
            f"an unreadable {name}, {shown(header[name])},"
            for name, number in numbers.items() if number is None and name in header
        ]
        report.cluster = f"{' but '.join(known + unreadable + missing)} in its header, so no cluster is inferred"
        return None
    stated = f"MaxNodes {nodes} and MaxProcs {processors} in its header"
    if why := _why_none(nodes, processors, most):
        report.cluster = f"{stated}, but {why}, so no cluster is inferred"
        return None
    cluster = cluster_of((NodeGroup(count=nodes, gpus=processors // nodes, gpu_type=UNNAMED_TYPE),))
    report.cluster = f"{cluster}, {counted(cluster.num_gpus, 'GPU')}: {stated}"
    return cluster


def _why_none(nodes: int, processors: int, most: int) -> str:
    """Return why the numbers of the header are no cluster of like nodes on which all jobs ran; empty if they are."""
    if not 1 <= nodes <= MAX_NODES:
        return f"the number of nodes must be 1 to {MAX_NODES:,}"
    if processors % nodes or not processors:
        return f"{processors:,} processors cannot be divided evenly over {nodes:,} nodes"
    if processors > MAX_GPUS_PER_NODE * nodes:
        return f"a node can have at most {MAX_GPUS_PER_NODE} GPUs"
    return f"a job has {most:,} processors" if most > processors else ""


def _seconds_ms(table: Table, column: str, high_ms: int) -> IntArray:
    """Parse seconds; -1 gives NONE."""
    seconds_ms = table.number(column, "seconds, or -1", low=-1, high=high_ms / MS_PER_S, unit=MS_PER_S)
    return np.where(seconds_ms < 0, NONE, seconds_ms)


def _names(table: Table, column: str) -> tuple[IntArray, tuple[str, ...]]:
    text = table.text(column)
    return coded(text.set((text == "-1").fill_null(False), None))


def _dependencies(table: Table, start_ms: IntArray, run_ms: IntArray) -> tuple[IntArray, IntArray]:
    """Return the row of the preceding job and the think time; a predecessor must have a smaller number.

    Args:
        table: The jobs.
        start_ms: Their recorded starts; NONE where not recorded.
        run_ms: Their run times.
    """
    number = table.number("job", "a job number, 1 or more", low=1, whole=True)
    before = table.number("preceding", "the number of an earlier job, or -1", low=-1, whole=True)
    if (odd := before >= number).any():
        raise table.unusable(odd, "preceding", "the number of an earlier job, or -1")
    think_ms = np.maximum(_seconds_ms(table, "think_time", MAX_RUN_MS), 0)
    if not len(number):
        return before, think_ms
    order = np.argsort(number)
    row = order[np.minimum(np.searchsorted(number[order], before), len(number) - 1)]
    found = (before > 0) & (number[row] == before)
    released_ms = start_ms[row] + run_ms[row] + think_ms
    dated = found & (start_ms != NONE) & (start_ms[row] != NONE)
    ignored = dated & (start_ms + ROUNDED_MS < released_ms)
    report, waits = table.report, found & ~ignored
    report.repair("preceding job is not in the trace: starts without it", int(((before > 0) & ~found).sum()))
    report.repair(WAITS_FOR, int(waits.sum()))
    report.repair(DID_NOT_WAIT, int(ignored.sum()))
    return np.where(waits, row, NONE), np.where(waits, think_ms, 0)
