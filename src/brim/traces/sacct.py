"""Slurm accounting: ``sacct -P`` (pipe-separated, with header, columns in any order).

Made for ``TZ=UTC SLURM_TIME_FORMAT=standard sacct -a -X -D -P --noconvert -o JobID,JobIDRaw,User,Account,Partition,
Submit,Eligible,Start,End,Timelimit,State,ReqTRES,AllocTRES,Suspended,NodeList``. A job arrives when it became eligible:
what its user had it wait for (another job, a begin time, a hold, a limit of its array) is no waiting for the
scheduler. Records of one job id are the attempts of a requeued job, or the sizes that a resized job had one after the
other: the reader adds up their run times and keeps the earliest arrival and the last state. If they had different
numbers of GPUs, the job has the most of them, for as long as makes the same GPU time. Slurm gives an id again once it
has counted to its largest, and two clusters give the same ones: records of another user or cluster, or submitted after
the job of that id had ended, are another job. Slurm writes the time of a requeue by hand over the end of a job that had
ended before, so it is not certain how long such an attempt held its GPUs; it counts as run time, and is counted in the
report. Without ``-X``, it drops job steps. Each part of a heterogeneous job is a job.
Resources are those allocated, else those requested. The GPU type is the requested one, else the allocated one, because
the recorded run time holds for it. Times are used as recorded: if a clock was set back during a job, so that the job
ends before it starts, the job is left out. A slice of a partitioned GPU (MIG) counts as its share of the GPU's compute
slices. The record does not say what part of a GPU a shard is, so jobs with shards are left out.
Source: Slurm manual, sacct(1).
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import polars as pl

from brim.core.arrays import BoolArray, IntArray
from brim.core.cluster import Cluster
from brim.core.trace import NONE, Status, Trace, trace_of
from brim.errors import TraceError
from brim.traces.lifecycle import (
    CPU_ONLY,
    NEVER_STARTED,
    SLURM_STATES,
    STILL_RUNNING,
    WAITS_AGAIN,
    at_least_a_second,
    check_run,
    no_negative_wait,
    per_gpu,
    recorded_jct,
)
from brim.traces.nodes import cluster_seen, node_names
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import LINE, MAX_AMOUNT, MAX_GPUS, MAX_RUN_MS, Table, csv_table, parsed_once
from brim.units import MS_PER_MIN, MS_PER_S, WHOLE_GPU

NAME: Final = "sacct"
COLUMNS: Final = ("Submit", "Start", "End", "State")
WANTED: Final = (
    "JobIDRaw", "JobID", "User", "Account", "Partition", "Submit", "Eligible", "Start", "End", "Timelimit",
    "TimelimitRaw", "State", "ReqTRES", "AllocTRES", "Suspended", "NodeList", "Cluster",
)  # fmt: skip
_ID: Final = r"^\d+([_+.].*)?$"
_KNOWN: Final = frozenset(
    (*WANTED, "QOS", "ExitCode", "Restarts", "Reason", "JobName", "AllocCPUS", "Elapsed")
)
_UNFINISHED: Final = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_NO_LIMIT: Final = ("UNLIMITED", "Partition_Limit", "INVALID")
SHARDED: Final = "asks for shards of a GPU (gres/shard or gres/mps), whose size is not in the record"
LATER: Final = (
    "eligible only after its submission (a dependency, a begin time, a hold, an array's limit): arrives when it became "
    "eligible"
)
NO_ELIGIBLE: Final = "no column Eligible: waiting for dependencies, begin times and holds counts as waiting"
OTHER_GPUS: Final = "allocated GPUs differ from the requested ones (as with --exclusive): the allocated are used"
ENDED: Final = tuple(name for name, status in SLURM_STATES.items() if status != Status.UNKNOWN)
NO_END: Final = "has ended, but its end is not in the record"
BY_HAND: Final = (
    "attempt requeued by hand: recorded until its requeue, before which it may have ended; all of it counts as run time"
)
ID_AGAIN: Final = "has the id of an earlier job (of another user or cluster, or that had ended before): told apart"
ATTEMPT: Final = "earlier attempt of a requeued job, merged"
SIZE: Final = "earlier size of a resized job, merged"
OTHER_SIZES: Final = (
    "number of GPUs changed between attempts or by a resize: the most of them, for as long as makes the same GPU time"
)
AFTER_MS: Final = MS_PER_MIN
"""A job that is submitted longer than this after the end of one with its id is another one: Slurm writes the time of a
requeue, within seconds of the end, as the submission of the next attempt. Ours."""
_ENDS: Final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED")
"""States after which a later submission with the same id is another job: a requeue by hand writes REQUEUED."""
_RESIZED: Final = "RESIZING"
PART: Final = "part of a heterogeneous job: replayed as a job of its own"
_NOTED: Final = {"later": LATER, "other_gpus": OTHER_GPUS, "part": PART}
"""Column that marks jobs -> what is said of them."""
_TIME: Final = (
    "a time like 2026-05-01T08:00:00 between 1970 and 2100 (run sacct with SLURM_TIME_FORMAT=standard, which a profile "
    "may have set to another form)"
)
_PIPE: Final = "; a | in a name makes one more: leave out columns of free text, such as JobName"
_HINT: Final = "the output of sacct -P: names and values separated by |, and a header line"
_SLICE: Final = r"(\d)g\.(\d+)gb"
"""MIG profile, such as 3g.20gb: compute slices and memory."""
_MEMORY_MIB: Final = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_CLOCK: Final = r"^(?:(\d{1,5})-)?(\d{1,7}):(\d{1,2})(?::(\d{1,2}))?(?:\.\d+)?$"
_TEXT: Final = pl.col("text")
_BY_HAND: Final = pl.col("State") == "REQUEUED"
_BAD_TRES: Final = (
    r"(?:^|,)(?:cpu|gres/gpu(?::[^=,]*)?)=(?:\d{10}|\d*[^0-9,]|,|$)|(?:^|,)mem=(?:\d{16}|[^0-9]|$)|^[^=]*$"
)


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    if _other_form(source):
        return 0.9
    names = {name.strip() for name in source.first_line.split("|")}
    if len(names) < 3:
        return 0.0
    known = names.intersection(_KNOWN)
    return max(len(known) / len(names), 0.6 if "|" in source.first_line and known else 0.0)


def _other_form(source: Source) -> str:
    """Describe the form of sacct's output if it is one that cannot be read; return an empty text otherwise."""
    first, second, *_ = *(line for line in source.head if line.strip()), "", ""
    if first.lstrip().startswith("{"):
        text = "\n".join(source.head)
        return "the JSON of sacct --json" if '"jobs"' in text and "slurm" in text.lower() else ""
    if first.count("|") >= 3:
        is_row = not _KNOWN.intersection(first.split("|")) and re.match(_ID, first.split("|")[0])
        return "rows of sacct without a header line (-n)" if is_row else ""
    if len(_KNOWN.intersection(first.split())) >= 3 and second and not second.strip("- "):
        return "columns of sacct cut to a fixed width"
    names = re.findall(r"[A-Za-z]+", first)
    if "|" in first or len(names) < 3 or len(_KNOWN.intersection(names)) < max(3, len(names) / 2):
        return ""
    between = first[len(names[0]) : first.index(names[1], len(names[0]))]
    commas = "commas, which also occur inside AllocTRES"
    return f"columns of sacct separated by {commas if between == ',' else repr(between)}"


def read(source: Source, report: ReadReport) -> Trace:
    """Read an export.

    Raises:
        TraceError: a column is missing, or a value is corrupt.
    """
    if form := _other_form(source):
        raise TraceError(source.file, row=1, found=form, expected=_HINT)
    _check_last_line(source, report)
    id_column = "JobIDRaw" if "JobIDRaw" in source.first_line else "JobID"
    table = csv_table(source, report, separator="|", quoted=False, wanted=WANTED, together=id_column,
                      too_many=_PIPE)
    records = _told_apart(_records(_with_gpus(_jobs(table))))
    cluster = _cluster_seen(records)
    table = _merged(records)
    table = table.drop((table.frame["start"] == NONE).to_numpy(), NEVER_STARTED)
    table = table.drop(table.frame["waits"].to_numpy(), WAITS_AGAIN)
    running = table.frame["running"].to_numpy()
    table = table.drop(running & table.frame["State"].is_in(ENDED).to_numpy(), NO_END)
    table = table.drop(table.frame["running"].to_numpy(), STILL_RUNNING)
    column = {name: table.frame[name].to_numpy() for name in table.frame.columns if table.frame[name].dtype == pl.Int64}
    check_run(table, column["run"], "End")
    gpus, share = column["gpus"], column["share"]
    for name, reason in _NOTED.items():
        report.repair(reason, int(table.frame[name].sum()))
    run_ms = at_least_a_second(column["run"], report)
    wait_ms = no_negative_wait(column["start"] - column["submit"], report)
    names: dict[str, Any] = {}
    for key, plural, source_column in (("user", "users", "User"), ("group", "groups", _group_column(table))):
        if source_column in table:
            names[key], names[plural] = table.names(source_column)
    names["gpu_type"], names["gpu_types"] = table.names("type")
    return trace_of(
        name=source.name, format=NAME, origin_ms=0, cluster=cluster, job_id=table.frame["id"].to_list(),
        submit_ms=column["submit"], gpus=gpus, share_milli=share, run_ms=run_ms, wait_ms=wait_ms,
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
    if "ReqTRES" not in table:
        table.require("AllocTRES")
    table = table.drop((table.text(id_column) == id_column).fill_null(False).to_numpy(), "header line, repeated")
    text = table.text(id_column)
    odd = (~text.str.contains(_ID)).fill_null(True).to_numpy()
    if odd.any():
        raise table.unusable(odd, id_column, "a job id such as 1234, 1234_5 or 1234+1")
    renamed = Table(file=table.file, frame=table.frame.with_columns(text.alias("id")), report=table.report)
    return renamed.drop(text.str.contains(".", literal=True).to_numpy(), "a job step, not a job")


def _with_gpus(table: Table) -> Table:
    """Add the resources of each record and drop those without a GPU."""
    frame = table.frame.with_columns(_resources(table).get_columns())
    wide = Table(file=table.file, frame=frame, report=table.report)
    wide = wide.drop((frame["sharded"] & (frame["gpus"] == 0)).to_numpy(), SHARDED)
    no_gpus = (wide.frame["gpus"] == 0).to_numpy()
    if "ReqTRES" not in table:  # the record shows what a job got, which is nothing until it starts
        unstarted = no_gpus & wide.blank("AllocTRES")
        requeued = wide.frame["id"].is_in(wide.frame["id"].filter(pl.Series(~no_gpus)).to_list()).to_numpy()
        later, no_gpus = unstarted & ~requeued, no_gpus & ~unstarted
        wide, no_gpus = wide.drop(later, NEVER_STARTED), no_gpus[~later]
    wide = wide.drop(no_gpus, CPU_ONLY)
    wide.report.repair(
        "GPU type taken from the allocation: the request names none", int(wide.frame["type_allocated"].sum())
    )
    sliced = wide.frame["slice"].drop_nulls()
    profiles = ", ".join(sliced.unique().sort().to_list())
    wide.report.repair(f"slices of a GPU (MIG {profiles}) counted as their share of it", len(sliced))
    return wide


def _records(table: Table) -> Table:
    """Parse one record per row: times and state; ``run`` is its own run time."""
    submit_ms = table.clock_ms("Submit", expected=_TIME)
    start_ms, end_ms = (table.clock_ms(name, missing=True, expected=_TIME) for name in ("Start", "End"))
    state = table.text("State").str.extract(r"^([A-Z_]+)").fill_null("")
    if "AllocTRES" in table:  # cancelled before the start: Slurm repeats the end as the start
        start_ms = np.where((start_ms == end_ms) & table.blank("AllocTRES"), NONE, start_ms)
    start_ms = np.where(state.is_in(_UNFINISHED).to_numpy() & (end_ms == NONE), NONE, start_ms)
    whole = (start_ms != NONE) & (end_ms != NONE)
    suspended_ms = np.zeros(len(table), dtype=np.int64)
    if "Suspended" in table:
        suspended_ms = _clock_ms(table, "Suspended")
    else:
        table.report.repair("no column Suspended: suspended time counted as run time", len(table))
    run_ms = np.where(whole, end_ms - start_ms, 0)
    check_run(table, run_ms, "End")
    suspended_ms = np.where(whole, np.maximum(suspended_ms, 0), 0)
    if (odd := suspended_ms > run_ms).any():
        raise table.unusable(odd, "Suspended", "at most the time from Start to End")
    table.report.repair("time suspended left out of the run time", int((suspended_ms > 0).sum()))
    keep = (
        "id", LINE, "Cluster", "User", "Account", "Partition", "gpus", "share", "cpu", "mem", "type", "NodeList",
        "other_gpus", "more",
    )  # fmt: skip
    arrival_ms = _arrival_ms(table, submit_ms, start_ms)
    frame = table.frame.select(name for name in keep if name in table).with_columns(
        state.alias("State"),
        *(
            pl.Series(name, values)
            for name, values in (
                ("submitted", submit_ms), ("submit", arrival_ms), ("later", arrival_ms > submit_ms),
                ("part", _parts(table)), ("start", start_ms), ("end", end_ms), ("run", run_ms - suspended_ms),
                ("limit", _limit_ms(table)), ("running", (start_ms != NONE) & (end_ms == NONE)),
                ("waits", state.is_in(_UNFINISHED).to_numpy() & (start_ms != NONE)),
            )
        ),
    )  # fmt: skip
    return Table(file=table.file, frame=frame, report=table.report)


def _arrival_ms(table: Table, submit_ms: IntArray, start_ms: IntArray) -> IntArray:
    """Return when each record became eligible to start: not before its submission, nor after its start."""
    if "Eligible" not in table:
        table.report.repair(NO_ELIGIBLE, len(table))
        return submit_ms
    eligible_ms = table.clock_ms("Eligible", missing=True, expected=_TIME)
    eligible_ms = np.where(start_ms == NONE, eligible_ms, np.minimum(eligible_ms, start_ms))
    return np.maximum(submit_ms, eligible_ms)


def _parts(table: Table) -> BoolArray:
    """Mark parts of heterogeneous jobs, whose id is like 12+1; JobIDRaw does not show them."""
    column = "JobID" if "JobID" in table else "id"
    return table.text(column).str.contains("+", literal=True).fill_null(False).to_numpy()


_ORDER: Final = ("start", "end", "State", "gpus", "cpu", "mem", "limit")
"""Columns by which records of a job are sorted that were submitted at one time."""
_OWNER: Final = ("User", "Cluster")
_LAST: Final = ("end", "State", "limit", "type", "User", "Account", "Partition", "NodeList")
"""Columns taken from the last attempt of a requeued job."""


def _told_apart(table: Table) -> Table:
    """Drop repeated records, give each job an id of its own, and let records of a resized job follow one another."""
    repeated = table.frame["id"].is_duplicated()
    if not repeated.any():
        return _without_marks(table, table.frame)
    records = table.frame.filter(repeated)
    distinct = records.unique(subset=[name for name in records.columns if name != LINE], keep="any")
    table.report.drop("exact repeat of a record", records.height - distinct.height)
    distinct = distinct.sort("submitted", *_ORDER, *(name for name in _OWNER if name in distinct))
    if "Cluster" in distinct:
        several = pl.col("Cluster").n_unique().over("id") > 1
        distinct = distinct.with_columns(
            pl.when(several).then(pl.concat_str("id", pl.lit("@"), pl.col("Cluster").fill_null(""))).otherwise("id")
            .alias("id")
        )  # fmt: skip
    one = ["id"]
    if "User" in distinct:  # null: unknown in one record
        one.append("owner")
        known = pl.col("User").fill_null(pl.col("User").drop_nulls().first().over("id"))
        distinct = distinct.with_columns(known.alias("owner"))
    before = {name: pl.col(name).shift().over(one) for name in ("State", "start", "end")}
    begun = (pl.col("start") != NONE) & (before["start"] != NONE)
    is_later = pl.col("submitted") > before["end"] + AFTER_MS
    overlaps = begun & (pl.col("start") < before["end"] - AFTER_MS)
    is_other = before["State"].is_in(_ENDS) & (before["end"] != NONE) & (is_later | overlaps)
    distinct = distinct.with_columns(
        is_other.fill_null(False).cast(pl.Int64).cum_sum().over(one).alias("nth"), pl.int_range(pl.len()).alias("at")
    )
    number = pl.col("at").min().over([*one, "nth"]).rank("dense").over("id")
    distinct = distinct.with_columns(
        pl.when(number > 1).then(pl.concat_str("id", pl.lit("#"), number)).otherwise("id").alias("id")
    ).drop("nth", "at", "owner", strict=False)
    before = {name: pl.col(name).shift().over("id") for name in before}
    begun = (pl.col("start") != NONE) & (before["start"] != NONE) & (before["end"] != NONE)
    table.report.repair(ID_AGAIN, distinct["id"].n_unique() - records["id"].n_unique())
    held_ms = pl.max_horizontal(before["end"] - pl.col("start"), 0)  # by the record of an earlier size
    held_ms = pl.when(begun & (before["State"] == _RESIZED)).then(held_ms).otherwise(0)
    resized = (pl.col("State") == _RESIZED).any().over("id")
    distinct = distinct.with_columns(
        (pl.col("start") + held_ms).alias("start"), pl.max_horizontal(pl.col("run") - held_ms, 0).alias("run"),
        (pl.col("other_gpus") & ~resized).alias("other_gpus"),
    )
    return _without_marks(table, pl.concat([table.frame.filter(~repeated), distinct]))


def _without_marks(table: Table, frame: pl.DataFrame) -> Table:
    """The records, without the columns by which jobs of one id are told apart."""
    return Table(file=table.file, frame=frame.drop("submitted", "Cluster", strict=False), report=table.report)


def _merged(table: Table) -> Table:
    """Join the records of each job: attempts of a requeued job, sizes of a resized one."""
    repeated = table.frame["id"].is_duplicated()
    if not repeated.any():
        return table
    records = table.frame.filter(repeated)
    begun = pl.col("start") != NONE
    ran = pl.col("run") > 0
    most = pl.coalesce(pl.col("gpus").filter(ran).max(), pl.col("gpus").max())  # not what one asks for that never ran
    merged = (
        records.sort("submit", *_ORDER)
        .group_by("id", maintain_order=True)
        .agg(
            pl.len().alias("records"),
            pl.col(LINE).min(),
            pl.col("submit", "later").sort_by("submit", maintain_order=True).first(),
            pl.col("part", "other_gpus", "more").any(),
            pl.col("start").filter(begun).min().fill_null(NONE),
            -(-(pl.col("run") * pl.col("gpus")).sum() // most).alias("run"),
            most.alias("gpus"),
            (pl.col("gpus").filter(ran).n_unique() > 1).alias("other_sizes"),
            (pl.col("State").head(pl.len() - 1) == _RESIZED).sum().alias("sizes"),
            pl.col("share", "cpu", "mem").sort_by(pl.when(ran).then("gpus").otherwise(0), maintain_order=True).last(),
            pl.col("running").last(),
            (pl.col("State").last().is_in(_UNFINISHED) & begun.any()).alias("waits"),
            *(pl.col(name).last() for name in _LAST if name in records.columns),
            (pl.col("running") & (pl.int_range(pl.len()) < pl.len() - 1)).sum().alias("endless"),
            (_BY_HAND & begun & ~pl.col("running")).sum().alias("by_hand"),
        )
    )  # fmt: skip
    table.report.repair("earlier attempt without an end left out of the run time", int(merged["endless"].sum()))
    table.report.repair(BY_HAND, int(merged["by_hand"].sum()))
    table.report.repair(OTHER_SIZES, int(merged["other_sizes"].sum()))
    sizes = int(merged["sizes"].sum())
    table.report.drop(SIZE, sizes)
    table.report.drop(ATTEMPT, records.height - merged.height - sizes)
    single = table.frame.filter(~repeated)
    frame = pl.concat([single, merged.select(single.columns)])
    return Table(file=table.file, frame=frame, report=table.report)


def _resources(table: Table) -> pl.DataFrame:
    """Return the columns gpus, share, cpu, mem (MiB), MIG profile, GPU type, and four marks.

    The marks: whether the job holds shards, whether its type is the allocated one, whether it was given other GPUs than
    it asked for, and whether more GPUs and more cores.
    """
    if not ("ReqTRES" in table and "AllocTRES" in table):
        only = _tres(table, "AllocTRES" if "AllocTRES" in table else "ReqTRES")
        return only.with_columns(type_allocated=pl.lit(False), other_gpus=pl.lit(False), more=pl.lit(False))
    asked, given = _tres(table, "ReqTRES"), _tres(table, "AllocTRES")
    from_given = given["gpus"] > 0
    columns = [given[name].zip_with(from_given, asked[name]) for name in ("gpus", "share", "cpu", "mem", "slice")]
    type_allocated = (asked["type"].is_null() & given["type"].is_not_null()).alias("type_allocated")
    kind, sharded = asked["type"].fill_null(given["type"]), asked["sharded"] | given["sharded"]
    known = from_given & ~pl.Series(table.blank("ReqTRES"))
    other = (known & (given["gpus"] != asked["gpus"])).alias("other_gpus")
    more = (known & (given["gpus"] > asked["gpus"]) & (given["cpu"] > asked["cpu"])).alias("more")
    return pl.DataFrame([*columns, kind, sharded, type_allocated, other, more])


def _tres(table: Table, column: str) -> pl.DataFrame:
    text = table.text(column)
    bad = text.str.contains(_BAD_TRES).fill_null(False)
    if bad.any():
        raise table.unusable(bad.to_numpy(), column, "resources like cpu=32,mem=120G,gres/gpu:a100=4")
    typed = _TEXT.str.extract_all(r"(?:^|,)gres/gpu:[^=,]+=\d+")
    number = _TEXT.str.extract(r"(?:^|,)mem=(\d+(?:\.\d+)?)").cast(pl.Float64)
    unit = _TEXT.str.extract(r"(?:^|,)mem=[\d.]+([KMGTP]?)")
    kinds = typed.list.eval(pl.element().str.extract(r"gres/gpu:([^=,]+)="))
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
            kinds.list.eval(_slice_milli(pl.element())).list.max().fill_null(WHOLE_GPU).alias("share"),
            _TEXT.str.extract(rf"gres/gpu:[^=,]*?({_SLICE})").alias("slice"),
            pl.when(kinds.list.len() == 1).then(kinds.list.first().str.replace(rf"[_.-]?{_SLICE}.*$", ""))
            .replace("", None).alias("type"),
            _TEXT.str.contains(r"(?:^|,)gres/(?:shard|mps)[:=]").fill_null(False).alias("sharded"),
        ),
    )  # fmt: skip
    absurd = (resources["gpus"] > MAX_GPUS) | (resources["cpu"] > MAX_GPUS * 1_000) | (resources["mem"] > MAX_AMOUNT)
    if absurd.any():
        raise table.unusable(absurd.to_numpy(), column, f"at most {MAX_GPUS} GPUs and 2^40 MiB")
    return resources


def _slice_milli(kind: pl.Expr) -> pl.Expr:
    """Return thousandths of a GPU: a MIG profile counts compute slices out of 7, or out of 4 on an A30 (6 GB each)."""
    slices, memory_gb = (kind.str.extract(_SLICE, group).cast(pl.Int64) for group in (1, 2))
    of = pl.when(memory_gb == 6 * slices).then(4).otherwise(7)
    return pl.min_horizontal(slices * WHOLE_GPU // of, pl.lit(WHOLE_GPU)).fill_null(WHOLE_GPU)


def _cluster_seen(records: Table) -> Cluster | None:
    if "NodeList" not in records:
        return None
    frame = records.frame.filter((pl.col("start") != NONE) & (pl.col("gpus") > 0)).unique(subset=["id", "start"])
    names = frame["NodeList"].unique()
    nodes = names.drop_nulls().to_list()
    lists = pl.DataFrame(
        {"NodeList": nodes, "nodes": [node_names(text.strip()) for text in nodes]},
        schema={"NodeList": pl.String, "nodes": pl.List(pl.String)},
    )
    last = pl.col("start") == pl.col("start").max().over("id")
    suspended = ~pl.col("running") & (pl.col("run") < pl.col("end") - pl.col("start"))
    ends_unknown = pl.col("running") & (~last | pl.col("State").is_in(ENDED))
    end = pl.when(suspended | ends_unknown | _BY_HAND).then("start").when(~pl.col("running")).then("end")
    held = frame.with_columns(end.alias("end")).join(lists, on="NodeList").select(
        "nodes", "start", "end", "gpus", "type", "more", pl.col("share").alias("gpu_milli"),
        (-(-pl.col("cpu") * 1_000 // pl.col("gpus"))).alias("cpu_milli"),
        (-(-pl.col("mem") // pl.col("gpus"))).alias("mem_mib"),
    )  # fmt: skip
    return cluster_seen(held, records.report)


def _check_last_line(source: Source, report: ReadReport) -> None:
    """Record a last line without a newline as unusable: its last field may be cut."""
    if not source.data.endswith(b"\n") and source.first_line.split("|")[-1].strip() in WANTED:
        row = source.data.count(b"\n") + 1
        error = TraceError(source.file, row=row, found="a last line without a newline", expected="a whole line")
        report.unusable.setdefault(row, error)


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
    """Parse Slurm durations ([days-]hours:minutes:seconds or minutes:seconds); NONE where there is none."""
    text = table.text(column)
    part = [_TEXT.str.extract(_CLOCK, group).cast(pl.Int64) for group in (1, 2, 3, 4)]
    long = (part[1] * 60 + part[2]) * 60 + part[3].fill_null(0)
    seconds = pl.when(part[3].is_null() & part[0].is_null()).then(part[1] * 60 + part[2]).otherwise(long)
    parsed = parsed_once(text, pl.struct((seconds + part[0].fill_null(0) * 86_400).alias("seconds")))["seconds"]
    absent = (text.is_null() | text.is_in(_NO_LIMIT)).fill_null(True)
    values = (parsed.set(absent, None).fill_null(NONE) * MS_PER_S).to_numpy()
    bad: BoolArray = (parsed.is_null() & ~absent).to_numpy() | (values > MAX_RUN_MS)
    if bad.any():
        raise table.unusable(bad, column, "a duration like 1-12:00:00, at most ten years")
    return np.where(absent.to_numpy(), NONE, values)
