"""Pollux workloads (OSDI 2021): jobs that name a profiled application; the run time comes from its profile.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/workloads.
"""

from __future__ import annotations

from typing import Final

from brim.core.trace import Trace, trace_of
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import csv_table, header_share

NAME: Final = "pollux"
COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    return header_share(source.first_line, COLUMNS)


def read(source: Source, report: ReadReport) -> Trace:
    """Read a workload.

    Raises:
        TraceError: a column is missing, or a value is corrupt.
    """
    table = csv_table(source, report)
    table.require(*COLUMNS)
    profile, profiles = table.names("application")
    if (unnamed := profile < 0).any():
        raise table.unusable(unnamed, "application", "the name of an application")
    return trace_of(
        name=source.name, format=NAME, job_id=table.ids("name"), submit_ms=table.seconds_ms("time"),
        gpus=table.gpus("num_replicas"), profile=profile, profiles=profiles,
        batch=table.number("batch_size", "samples, 1 or more", low=1, whole=True),
    )  # fmt: skip
