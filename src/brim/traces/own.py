"""brim's own trace files, Parquet or CSV: ``read`` returns what ``write`` wrote, without loss.

A file has one row per job with the columns of ``Trace``. Names, states, classes and the id of the job that must end
first are text; a list of sizes is numbers separated by spaces (``1 2 4``); an empty cell means "not recorded". Facts
that are not columns (name, format, origin, order of names and lists) are JSON: in Parquet in the metadata under
``brim``, in CSV on the first line after ``# brim trace``, which may be as a spreadsheet writes it: quoted, split at its
commas, or followed by empty cells. A CSV may lack that line, and only ``job_id``, ``submit_ms`` and ``gpus`` are
required: convert your own logs to this format.
"""

from __future__ import annotations

import difflib
import gzip
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from polars import selectors

from brim.core.arrays import BoolArray, IntArray
from brim.core.cluster import Cluster, NodeGroup, cluster_of
from brim.core.trace import DEFAULTS, INT_COLUMNS, NONE, JobClass, Status, Trace, trace_of
from brim.errors import ConfigError, TraceError, shown
from brim.replacing import replacing
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import LINE, MAX_AMOUNT, MAX_GPUS, MAX_RUN_MS, MAX_TIME_MS, Table, csv_table, header_share
from brim.units import MS_PER_S, WHOLE_GPU

NAME: Final = "brim"
SCHEMA: Final = 1
COLUMNS: Final = ("job_id", "submit_ms", "gpus")
NAMED: Final = {"user": "users", "group": "groups", "gpu_type": "gpu_types", "profile": "profiles"}
ROUNDED_MS: Final = 2 * MS_PER_S
"""What a completion time may be below the sum of wait and run time, which are rounded to seconds each. Ours."""
NEAR: Final = 0.85
"""How alike names of columns are, by `difflib`, from which one is taken for the other misspelt. Ours."""
_MARK: Final = "# brim trace "
_MARKS: Final = (_MARK, f'"{_MARK}')
_QUOTED: Final = re.compile(r'"([^"]*(?:""[^"]*)*)"')
_KEY: Final = "brim"
_CATEGORIES: Final = selectors.by_dtype(pl.Categorical, pl.Enum)
"""What pandas writes of names that repeat."""
_SIZES: Final = "numbers of GPUs in increasing order, such as '1 2 4'"
_NUMBERS: Final = re.compile(r"[1-9][0-9]{0,6}( [1-9][0-9]{0,6})*")
_STATES: Final = {**{status.name.lower(): status for status in Status}, "": Status.UNKNOWN}
_CLASSES: Final = {**{job_class.name.lower(): job_class for job_class in JobClass}, "": JobClass.REGULAR}
_BOUNDS: Final = {
    "submit_ms": (0, MAX_TIME_MS), "gpus": (1, MAX_GPUS), "share_milli": (1, WHOLE_GPU), "cpu_milli": (0, MAX_AMOUNT),
    "mem_mib": (0, MAX_AMOUNT), "time_limit_ms": (NONE, MAX_RUN_MS), "run_ms": (NONE, MAX_RUN_MS),
    "wait_ms": (NONE, MAX_TIME_MS), "jct_ms": (NONE, MAX_TIME_MS), "after_ms": (0, MAX_RUN_MS),
    "batch": (NONE, MAX_AMOUNT), "priority": (-MAX_AMOUNT, MAX_AMOUNT), "relative_deadline_ms": (NONE, MAX_TIME_MS),
    "gpu_util_milli": (NONE, WHOLE_GPU), "gpu_mem_mib": (NONE, MAX_AMOUNT),
}  # fmt: skip


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    if source.is_parquet or source.first_line.startswith(_MARKS):
        return 1.0
    return header_share(source.first_line, COLUMNS)


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace; the ending ``.parquet``, ``.csv`` or ``.csv.gz`` selects the format.

    Raises:
        ConfigError: the ending is none of these.
        BrimError: the file cannot be written.
    """
    target = Path(path)
    ending = "".join(target.suffixes[-2:]) if target.suffix == ".gz" else target.suffix
    buffer = io.BytesIO()
    if ending == ".parquet":
        _frame(trace).write_parquet(buffer, compression="zstd", metadata={_KEY: _facts(trace)})
    elif ending in (".csv", ".csv.gz"):
        buffer.write(f"{_MARK}{_without_commas(_facts(trace))}\n".encode())
        _frame(trace).write_csv(buffer)
        if any(character in buffer.getvalue() for character in (b"\r", b"\0")):
            raise ConfigError(f"trace file {target}: an id or name has a control character; write it as .parquet")
    else:
        raise ConfigError(f"trace file {target}: found the ending {ending!r}, expected .parquet, .csv or .csv.gz")
    data = gzip.compress(buffer.getvalue(), mtime=0) if ending == ".csv.gz" else buffer.getvalue()
    with replacing(target) as part:
        part.write_bytes(data)


def read(source: Source, report: ReadReport) -> Trace:
    """Read what ``write`` wrote, or a CSV with at least the required columns.

    Raises:
        TraceError: the file is neither, or a value is corrupt.
    """
    table, facts = _parquet(source, report) if source.is_parquet else _csv(source, report)
    table.require(*COLUMNS)
    _check_names(source.file, table.frame.columns)
    ids = table.distinct("job_id", _verbatim(table, "job_id"))
    columns: dict[str, Any] = {}
    for column, (low, high) in _BOUNDS.items():
        if column in table:
            missing = None if column in COLUMNS else DEFAULTS.get(column, NONE)
            expected = f"a whole number, {low} to {high}"
            if low == NONE:
                expected = f"a whole number, 0 to {high}, or nothing"
            columns[column] = table.number(column, expected, low=low, high=high, whole=True, missing=missing)
    _check_times(table, columns)
    for column, plural in NAMED.items():
        columns[plural] = facts.get(plural, [])
        if column in table:
            columns[column], columns[plural] = _codes(_verbatim(table, column), columns[plural])
    if "status" in table:
        columns["status"] = table.statuses("status", _STATES, "completed, failed, cancelled or unknown")
    if "job_class" in table:
        columns["job_class"] = table.statuses("job_class", _CLASSES, "regular, urgent or padding")
    if "size_list" in table:
        known = facts.get("size_lists", [])
        columns["size_list"], columns["size_lists"] = _size_lists(table, known, gpus=columns["gpus"])
    if "after" in table:
        columns["after"] = _after_rows(table, ids)
    return trace_of(
        name=facts.get("name", source.name), format=facts.get("format", NAME),
        synthetic=facts.get("synthetic", False), origin_ms=facts.get("origin_ms"),
        cluster=_cluster(source.file, facts.get("cluster")), job_id=ids, **columns,
    )  # fmt: skip


def _check_times(table: Table, columns: Mapping[str, IntArray]) -> None:
    """Refuse jobs that ended before they had waited and run: a column is in another unit, or means something else."""
    if not all(name in columns for name in ("run_ms", "wait_ms", "jct_ms")):
        return
    run_ms, wait_ms, jct_ms = columns["run_ms"], columns["wait_ms"], columns["jct_ms"]
    known = (run_ms != NONE) & (wait_ms != NONE) & (jct_ms != NONE)
    bad = known & (jct_ms + ROUNDED_MS < wait_ms + run_ms)
    if bad.any():
        raise table.unusable(
            bad, "jct_ms", "at least wait_ms and run_ms together",
            lambda row: f"{jct_ms[row]} with wait_ms {wait_ms[row]} and run_ms {run_ms[row]}",
        )


def _check_names(file: str, columns: Sequence[str]) -> None:
    """Refuse a column whose name is nearly that of an optional one, which would be missing without a word."""
    absent = {*_BOUNDS, *NAMED, "status", "job_class", "size_list", "after"} - {*columns}
    for column in columns:
        near = difflib.get_close_matches(column, absent, n=1, cutoff=NEAR)
        if near:
            expected = f"{near[0]!r}, or a name that is less like it"
            raise TraceError(file, found=f"column {column!r}", expected=expected)


def _facts(trace: Trace) -> str:
    facts = {name: getattr(trace, name) for name in ("name", "format", "synthetic", "origin_ms", *NAMED.values())}
    facts["size_lists"] = _size_texts(trace)
    if trace.cluster is not None:
        facts["cluster"] = [asdict(group) for group in trace.cluster.groups]
    return json.dumps({"schema": SCHEMA, **facts}, ensure_ascii=True)


def _frame(trace: Trace) -> pl.DataFrame:
    columns: dict[str, pl.Series] = {"job_id": pl.Series(trace.job_id, dtype=pl.String)}
    for name in INT_COLUMNS:
        values = pl.Series(getattr(trace, name))
        behind = {**{column: getattr(trace, plural) for column, plural in NAMED.items()}, "after": trace.job_id}
        behind["size_list"] = _size_texts(trace)
        if name in behind:
            texts = pl.Series(behind[name], dtype=pl.String)
            columns[name] = texts.gather(values.set(values == NONE, None))
        elif name == "status":
            columns[name] = pl.Series([status.name.lower() for status in Status]).gather(values)
        elif name == "job_class":
            columns[name] = pl.Series([job_class.name.lower() for job_class in JobClass]).gather(values)
        elif name in DEFAULTS:
            columns[name] = values
        else:
            columns[name] = values.set(values == NONE, None)
    return pl.DataFrame(columns)


def _size_texts(trace: Trace) -> list[str]:
    return [" ".join(map(str, sizes)) for sizes in trace.size_lists]


def _parquet(source: Source, report: ReadReport) -> tuple[Table, dict[str, Any]]:
    try:
        said = pl.read_parquet_metadata(io.BytesIO(source.data))
        frame = pl.read_parquet(io.BytesIO(source.data)).cast({_CATEGORIES: pl.String})
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0][:80]
        raise TraceError(source.file, found=f"a broken Parquet file ({reason})", expected="an intact one") from None
    if not frame.height:
        raise TraceError(source.file, found="no rows", expected="at least one job")
    report.rows += frame.height
    rows = pl.int_range(1, frame.height + 1, dtype=pl.Int64, eager=True).alias(LINE)
    facts = _checked_facts(source.file, said.get(_KEY, "{}"))
    return Table(file=source.file, frame=frame.with_columns(rows), report=report), facts


def _csv(source: Source, report: ReadReport) -> tuple[Table, dict[str, Any]]:
    line = source.data.partition(b"\n")[0].decode()
    if not line.startswith(_MARKS):
        return csv_table(source, report, missing=()), {}
    facts = _checked_facts(source.file, _as_written(line).removeprefix(_MARK))
    return csv_table(source, report, skip_lines=1, missing=()), facts


def _as_written(line: str) -> str:
    """The first line without the quotes and the empty cells that a spreadsheet adds."""
    if line.startswith('"'):  # cells may be longer than the `csv` module takes
        line = _QUOTED.sub(lambda cell: cell[1].replace('""', '"'), line)
    return line.rstrip(",")


def _without_commas(facts: str) -> str:
    """The same JSON with commas between values only, each before a space: what splits it there loses no quote."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', lambda text: text[0].replace(",", r"\u002c"), facts)


def _checked_facts(file: str, text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise TraceError(file, row=1, found="a broken description of the trace", expected="the JSON that brim wrote")
    if facts.get("schema", SCHEMA) != SCHEMA:
        raise TraceError(file, row=1, found=f"schema {shown(facts['schema'])}", expected=f"schema {SCHEMA}")
    kinds: dict[str, Any] = {"name": str, "format": str, "synthetic": bool, "origin_ms": int | None}
    for key, value in facts.items():
        if key in kinds and not isinstance(value, kinds[key]):
            raise TraceError(file, row=1, column=key, found=shown(value), expected="what brim wrote")
        is_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
        if key in (*NAMED.values(), "size_lists") and not is_names:
            raise TraceError(file, row=1, column=key, found=shown(value), expected="a list of names")
        if key == "size_lists" and not all(map(_sizes, value)):
            raise TraceError(file, row=1, column=key, found=shown(value), expected=f"a list of {_SIZES}")
    if abs(facts.get("origin_ms") or 0) > MAX_TIME_MS:
        found = shown(facts["origin_ms"])
        raise TraceError(file, row=1, column="origin_ms", found=found, expected="a time before 2100")
    return facts


def _cluster(file: str, groups: Any) -> Cluster | None:
    if groups is None:
        return None
    try:
        return cluster_of(tuple(NodeGroup(**group) for group in groups))
    except (ConfigError, TypeError):
        raise TraceError(file, row=1, column="cluster", found=shown(groups), expected="what brim wrote") from None


def _codes(text: pl.Series, names: list[str]) -> tuple[IntArray, tuple[str, ...]]:
    """Encode names: those of the description first, then the others, sorted."""
    known = set(names)
    order = list(dict.fromkeys((*names, *sorted(name for name in text.drop_nulls().unique() if name not in known))))
    if not order:
        return np.full(len(text), NONE, dtype=np.int64), ()
    codes = text.replace_strict(order, list(range(len(order))), default=NONE, return_dtype=pl.Int64)
    return codes.to_numpy(), tuple(order)


def _size_lists(table: Table, known: list[str], *, gpus: IntArray) -> tuple[IntArray, tuple[tuple[int, ...], ...]]:
    """Encode lists of sizes as ``_codes`` encodes names."""
    codes, texts = _codes(table.text("size_list").str.replace_all(r"\s+", " "), known)
    lists = [_sizes(text) for text in texts]
    broken = np.array([not listed for listed in lists] + [False])[codes]  # NONE indexes the last cell
    if broken.any():
        raise table.unusable(broken, "size_list", _SIZES)
    for code, listed in enumerate(lists):
        others = (codes == code) & ~np.isin(gpus, listed)
        if others.any():
            raise table.unusable(others, "size_list", "a list with the job's own number of GPUs")
    return codes, tuple(lists)


def _sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of a list of sizes; none if it is not one."""
    if not _NUMBERS.fullmatch(text):
        return ()
    sizes = tuple(map(int, text.split(" ")))
    return sizes if list(sizes) == sorted(set(sizes)) and sizes[-1] <= MAX_GPUS else ()


def _verbatim(table: Table, column: str) -> pl.Series:
    """Return the text unchanged: in brim's own files "None" and "" are names like any other."""
    series = table.frame[column]
    return series if series.dtype == pl.String else table.text(column)


def _after_rows(table: Table, ids: list[str]) -> IntArray:
    text = _verbatim(table, "after")
    if text.null_count() == len(text):
        return np.full(len(text), NONE, dtype=np.int64)
    rows = text.replace_strict(ids, list(range(len(ids))), default=NONE, return_dtype=pl.Int64).to_numpy()
    unknown = (rows == NONE) & text.is_not_null().to_numpy() & (text != "").fill_null(False).to_numpy()
    if unknown.any():
        raise table.unusable(unknown, "after", "the id of another job")
    circular = _leads_back(rows)
    if circular.any():
        raise table.unusable(circular, "after", "dependencies without a cycle")
    return rows


def _leads_back(rows: IntArray) -> BoolArray:
    """Mark rows whose chain of dependencies never ends, by doubling the steps until they exceed the number of rows."""
    ahead = np.append(rows, NONE)  # NONE indexes the last cell, which stays NONE
    for _ in range(len(rows).bit_length()):
        ahead = ahead[ahead]
    endless: BoolArray = ahead[:-1] != NONE
    return endless
