"""Shanghai AI Lab Acme (2023): ``trace_seren.csv`` and ``trace_kalos.csv``.

Times carry an offset (Seren +08:00, Kalos +00:00), so time 0 is true Unix time. The published duration is end minus
start in Seren and end minus submission in the rows shown of Kalos, so the reader computes it from the times. The
workload type (Pretrain, SFT, Evaluation ...) becomes the group. Kalos records memory per pod, one pod per node.
Source: github.com/InternLM/AcmeTrace, README, "Job Trace".
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.trace import Trace, trace_of
from brim.traces.lifecycle import CPU_ONLY, SLURM_STATES, per_gpu, recorded_lifecycle
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import Table, csv_table, header_share

NAME: Final = "acme"
COLUMNS: Final = (
    "job_id", "user", "node_num", "gpu_num", "cpu_num", "type", "state", "submit_time", "start_time", "end_time",
)  # fmt: skip
MIB_PER_GB: Final = 1_024


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    return header_share(source.first_line, COLUMNS)


def read(source: Source, report: ReadReport) -> Trace:
    """Read the log of either cluster.

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
    group, groups = table.names("type")
    return trace_of(
        name=source.name, format=NAME, origin_ms=0, job_id=table.ids("job_id"), submit_ms=life.submit_ms, gpus=gpus,
        run_ms=life.run_ms, wait_ms=life.wait_ms,
        cpu_milli=per_gpu(table.number("cpu_num", "a number of cores", unit=1_000, high=1e9, missing=0), gpus),
        mem_mib=per_gpu(_mem_mib(table), gpus),
        status=table.statuses("state", SLURM_STATES, "a state of Slurm, such as COMPLETED"),
        user=user, users=users, group=group, groups=groups,
    )  # fmt: skip


def _mem_mib(table: Table) -> IntArray:
    if "mem_per_pod_GB" not in table:
        return np.zeros(len(table), dtype=np.int64)
    pods = table.number("node_num", "a whole number of nodes", low=1, high=1e6, whole=True)
    return pods * table.number("mem_per_pod_GB", "gigabytes", unit=MIB_PER_GB, high=1e6, missing=0)
