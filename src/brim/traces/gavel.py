"""Gavel (OSDI 2020) and Shockwave (NSDI 2023) traces: tab-separated, without header or ids.

The job type becomes the profile; it names the batch size per worker, so the batch column stays empty. Gavel
records steps instead of a run time, which must come from a throughput profile. Shockwave records a duration. Jobs are
numbered in the order of (arrival, job type, GPUs, steps). Command lines are not used.
Source: github.com/stanford-futuredata/gavel and github.com/uw-mad-dash/shockwave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.trace import NONE, Trace, trace_of
from brim.traces.lifecycle import at_least_a_second
from brim.traces.philly_csv import numbered
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import MAX_RUN_MS, Table, csv_table

NAME: Final = "gavel"
SHOCKWAVE: Final = "shockwave"
COLUMNS: Final = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor",
    "priority_weight", "SLO", "arrival_time",
)  # fmt: skip
SHOCKWAVE_COLUMNS: Final = (*COLUMNS[:7], "mode", "priority_weight", "SLO", "duration", "arrival_time")


def score(source: Source) -> float:
    """Return how much the content resembles Gavel's format, from 0 to 1."""
    return _score(source, COLUMNS)


def shockwave_score(source: Source) -> float:
    """Return how much the content resembles Shockwave's format, from 0 to 1."""
    return _score(source, SHOCKWAVE_COLUMNS)


def read(source: Source, report: ReadReport) -> Trace:
    """Read a Gavel trace.

    Raises:
        TraceError: a row has the wrong number of fields, or a value is corrupt.
    """
    table = csv_table(source, report, separator="\t", quoted=False, columns=COLUMNS)
    return _trace(source, NAME, table, np.full(len(table), NONE, dtype=np.int64))


def read_shockwave(source: Source, report: ReadReport) -> Trace:
    """Read a Shockwave trace.

    Raises:
        TraceError: a row has the wrong number of fields, or a value is corrupt.
    """
    table = csv_table(source, report, separator="\t", quoted=False, columns=SHOCKWAVE_COLUMNS)
    run_ms = at_least_a_second(table.seconds_ms("duration", high_ms=MAX_RUN_MS), report)
    return _trace(source, SHOCKWAVE, table, run_ms)


def _score(source: Source, columns: Sequence[str]) -> float:
    tabs = source.first_line.count("\t")
    if tabs < len(COLUMNS) - 3:
        return 0.0
    return 1.0 if tabs == len(columns) - 1 else 0.6


def _trace(source: Source, format_name: str, table: Table, run_ms: IntArray) -> Trace:
    submit_ms = table.seconds_ms("arrival_time")
    gpus = table.gpus("scale_factor")
    steps = table.number("total_steps", "a number of steps", low=0, high=1e15)
    profile, profiles = table.names("job_type")
    if (unnamed := profile < 0).any():
        raise table.unusable(unnamed, "job_type", "a job type")
    order = np.lexsort((run_ms, steps, gpus, profile, submit_ms))
    return trace_of(
        name=source.name, format=format_name, job_id=numbered(len(table)), submit_ms=submit_ms[order],
        gpus=gpus[order], run_ms=run_ms[order], profile=profile[order], profiles=profiles,
    )  # fmt: skip
