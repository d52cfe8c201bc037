"""Alibaba openb (2023): pods of a cluster in which GPUs are shared.

A pod with one GPU may ask for thousandths of it. Its run time is from scheduling to deletion. If a pod allows several
GPU types (``V100M16|V100M32``), only the first is used, so that it never runs on a type it does not allow. Times are
seconds since an unknown start. Pods without a GPU, never scheduled or never deleted are dropped.
Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2023, README.
"""

from __future__ import annotations

from typing import Final

from brim.core.trace import Status, Trace, trace_of
from brim.traces.lifecycle import (
    CPU_ONLY,
    NEVER_STARTED,
    STILL_RUNNING,
    at_least_a_second,
    check_run,
    no_negative_wait,
    per_gpu,
)
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import coded, csv_table, header_share
from brim.units import WHOLE_GPU

NAME: Final = "openb"
COLUMNS: Final = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time",
    "deletion_time", "scheduled_time",
)  # fmt: skip
_STATES: Final = {
    "Succeeded": Status.COMPLETED, "Failed": Status.FAILED, "Running": Status.UNKNOWN, "Pending": Status.UNKNOWN,
    "Unknown": Status.UNKNOWN, "": Status.UNKNOWN,
}  # fmt: skip


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    return header_share(source.first_line, COLUMNS)


def read(source: Source, report: ReadReport) -> Trace:
    """Read a pod list.

    Raises:
        TraceError: a column is missing, or a value is corrupt.
    """
    table = csv_table(source, report)
    table.require(*COLUMNS)
    table.ids("name")
    table = table.drop(table.gpus("num_gpu", low=0) == 0, CPU_ONLY)
    table = table.drop(table.blank("scheduled_time"), NEVER_STARTED)
    table = table.drop(table.blank("deletion_time"), STILL_RUNNING)
    gpus = table.gpus("num_gpu")
    share = table.number("gpu_milli", "thousandths of a GPU, 1 to 1000", low=1, high=WHOLE_GPU, whole=True)
    if (odd := (share < WHOLE_GPU) & (gpus > 1)).any():
        raise table.unusable(odd, "gpu_milli", "1000 for a pod with several GPUs")
    submit_ms, start_ms, end_ms = (table.seconds_ms(f"{event}_time") for event in ("creation", "scheduled", "deletion"))
    check_run(table, end_ms - start_ms, "deletion_time")
    spec = table.text("gpu_spec")
    report.repair("several GPU types allowed: only the first is used", int(spec.str.contains("|", literal=True).sum()))
    gpu_type, gpu_types = coded(spec.str.split("|").list.first())
    return trace_of(
        name=source.name, format=NAME, job_id=table.ids("name"), submit_ms=submit_ms, gpus=gpus, share_milli=share,
        run_ms=at_least_a_second(end_ms - start_ms, report), wait_ms=no_negative_wait(start_ms - submit_ms, report),
        cpu_milli=per_gpu(table.number("cpu_milli", "milli-cores", missing=0), gpus),
        mem_mib=per_gpu(table.number("memory_mib", "MiB", missing=0), gpus),
        status=table.statuses("pod_phase", _STATES, "Succeeded, Failed, Running or Pending"),
        gpu_type=gpu_type, gpu_types=gpu_types,
    )  # fmt: skip
