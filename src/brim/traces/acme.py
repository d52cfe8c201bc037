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
from brim.traces.lifecycle import cluster_log, per_gpu
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import Table, header_share

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
    table, columns = cluster_log(source, report, COLUMNS, group="type")
    mem_mib = per_gpu(_mem_mib(table), columns["gpus"])
    return trace_of(name=source.name, format=NAME, origin_ms=0, mem_mib=mem_mib, **columns)


def _mem_mib(table: Table) -> IntArray:
    if "mem_per_pod_GB" not in table:
        return np.zeros(len(table), dtype=np.int64)
    pods = table.number("node_num", "a whole number of nodes", low=1, high=1e6, whole=True)
    return pods * table.number("mem_per_pod_GB", "gigabytes", unit=MIB_PER_GB, high=1e6, missing=0)
