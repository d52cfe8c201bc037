"""SenseTime Helios (2020): ``cluster_log.csv`` of one cluster.

CPU-only jobs and jobs that never started are dropped. Times are the cluster's wall clock.
Source: github.com/S-Lab-System-Group/HeliosData, README, "cluster_log.csv".
"""

from __future__ import annotations

from typing import Final

from brim.core.trace import Trace, trace_of
from brim.traces.lifecycle import cluster_log
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import header_share

NAME: Final = "helios"
COLUMNS: Final = (
    "job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "start_time", "end_time",
)  # fmt: skip


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    return header_share(source.first_line, COLUMNS)


def read(source: Source, report: ReadReport) -> Trace:
    """Read the log.

    Raises:
        TraceError: a column is missing, or a value is corrupt.
    """
    _, columns = cluster_log(source, report, COLUMNS, group="vc")
    return trace_of(name=source.name, format=NAME, origin_ms=0, **columns)
