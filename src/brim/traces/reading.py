"""Read a trace from a path: detect the format, run its reader and check that the counts add up."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from brim.core.trace import Trace
from brim.errors import ConfigError, InvariantError, TraceError, shown
from brim.traces import own, pai
from brim.traces.formats import FORMATS, Format
from brim.traces.lifecycle import check_gpu_time
from brim.traces.report import UNUSABLE, ReadReport
from brim.traces.source import Source, check_text, open_source

SURE_ENOUGH: Final = 0.5
"""A file must match at least half of a format's features; the reader then names what is missing."""


def read(path: str | Path, format: str | None = None) -> tuple[Trace, ReadReport]:
    """Read a trace in any known format, through gzip; a folder is read as the tables of PAI.

    Args:
        path: File or folder.
        format: Name of the format; None finds it from the content.

    Returns:
        The trace, and how many rows were used, repaired and dropped: rows = used + dropped.

    Raises:
        TraceError: the file cannot be read, or too many of its rows cannot be used; the message names file, row,
            column, what was found and expected.
        ConfigError: no format has that name.
    """
    chosen = None if format is None else _named(format)
    if not str(path):
        raise ConfigError("the name of the trace is empty: give a file, or - for standard input")
    if Path(path).is_dir():
        if (chosen is None or chosen.name == pai.NAME) and pai.is_folder(Path(path)):
            report = ReadReport(file=str(path), format=pai.NAME)
            return _balanced(pai.read_folder(Path(path), report), report, strict=True)
        raise TraceError(str(path), found="a folder", expected="a trace file, or a folder with the tables of PAI")
    source = open_source(path)
    found = chosen or _detected(source)
    return _read_usable(found, source if found.name == own.NAME else check_text(source, found.name))


def _named(name: str) -> Format:
    known = {row.name: row for row in FORMATS}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
        raise ConfigError(f"unknown trace format {name!r}: {hint}")
    return known[name]


def _detected(source: Source) -> Format:
    best = max(FORMATS, key=lambda row: row.score(source))
    if best.score(source) < SURE_ENOUGH:
        known = ", ".join(row.name for row in FORMATS)
        raise TraceError(source.file, row=1, found=shown(source.first_line), expected=f"one of the formats {known}")
    return best


def _read_usable(chosen: Format, source: Source) -> tuple[Trace, ReadReport]:
    """Read the file again without its unusable rows, until all rows are usable or too few are left.

    Each check of a reader records all rows that fail it, so there are at most as many passes as checks.
    """
    unusable = dict(source.unusable)
    while True:
        known = len(unusable)
        report = ReadReport(file=source.file, format=chosen.name, rows=len(source.unusable), unusable=unusable)
        try:
            trace = chosen.read(source, report)
        except TraceError:
            if chosen.strict or len(unusable) == known:
                raise
            report.check_unusable(report.rows - len(unusable))
        else:
            return _balanced(trace, report, chosen.strict)


def _balanced(trace: Trace, report: ReadReport, strict: bool) -> tuple[Trace, ReadReport]:
    if strict and report.unusable:
        raise report.first_unusable(1)[0]
    report.used = len(trace)
    report.drop(UNUSABLE, len(report.unusable))
    if report.rows != report.used + sum(report.dropped.values()):
        raise InvariantError(f"{report.file}: {report.rows} rows, but {report.used} used and {report.dropped} dropped")
    report.check_unusable(len(trace))
    if not len(trace):
        reasons = ", ".join(f"{rows} {reason}" for reason, rows in report.dropped.items())
        raise TraceError(report.file, found=f"no usable job ({reasons})", expected="at least one GPU job that ran")
    check_gpu_time(report.file, trace.gpus, trace.run_ms)
    return trace, report
