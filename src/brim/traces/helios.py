"""SenseTime Helios (2020): ``cluster_log.csv`` of one cluster.

CPU-only jobs and jobs that never started are dropped. Times are the cluster's wall clock.
Source: github.com/S-Lab-System-Group/HeliosData, README, "cluster_log.csv".
"""

from __future__ import annotations

from typing import Final

from brim.core.trace import Trace, trace_of
from brim.traces.lifecycle import CPU_ONLY, SLURM_STATES, per_gpu, recorded_lifecycle
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import csv_table, header_share

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
    table = csv_table(source, report)
    table.require(*COLUMNS)
    table.ids("job_id")
    table = table.drop(table.gpus("gpu_num", low=0) == 0, CPU_ONLY)
    life = recorded_lifecycle(table)
    table = life.table
    gpus = table.gpus("gpu_num")
    user, users = table.names("user")
    group, groups = table.names("vc")
    return trace_of(
        name=source.name, format=NAME, origin_ms=0, job_id=table.ids("job_id"), submit_ms=life.submit_ms, gpus=gpus,
        run_ms=life.run_ms, wait_ms=life.wait_ms,
        cpu_milli=per_gpu(table.number("cpu_num", "a number of cores", unit=1_000, high=1e9, missing=0), gpus),
        status=table.statuses("state", SLURM_STATES, "a state of Slurm, such as COMPLETED"),
        user=user, users=users, group=group, groups=groups,
    )  # fmt: skip
