"""Submission, start and end of recorded jobs, as the readers of several formats derive them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.trace import NONE, Status
from brim.errors import TraceError
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import MAX_GPU_MS, MAX_RUN_MS, Table, csv_table
from brim.units import MS_PER_S

CPU_ONLY: Final = "asks for no GPU"
NEVER_STARTED: Final = "never started"
WAITS_AGAIN: Final = "requeued, and waiting again when the record ends"
STILL_RUNNING: Final = "still running when the record ends"

SLURM_STATES: Final = {
    "COMPLETED": Status.COMPLETED, "FAILED": Status.FAILED, "CANCELLED": Status.CANCELLED,
    "TIMEOUT": Status.FAILED, "NODE_FAIL": Status.FAILED, "OUT_OF_MEMORY": Status.FAILED,
    "BOOT_FAIL": Status.FAILED, "DEADLINE": Status.FAILED, "LAUNCH_FAILED": Status.FAILED,
    "RECONFIG_FAIL": Status.FAILED, "PREEMPTED": Status.CANCELLED, "REVOKED": Status.CANCELLED,
    "STOPPED": Status.CANCELLED, "REQUEUED": Status.UNKNOWN, "SUSPENDED": Status.UNKNOWN,
    "RESIZING": Status.UNKNOWN, "PENDING": Status.UNKNOWN, "RUNNING": Status.UNKNOWN,
    "COMPLETING": Status.UNKNOWN, "CONFIGURING": Status.UNKNOWN, "REQUEUE_HOLD": Status.UNKNOWN,
    "REQUEUE_FED": Status.UNKNOWN, "RESV_DEL_HOLD": Status.UNKNOWN, "SIGNALING": Status.UNKNOWN,
    "SPECIAL_EXIT": Status.UNKNOWN, "STAGE_OUT": Status.UNKNOWN,
}  # fmt: skip
"""Job states of Slurm (squeue manual, JOB STATE CODES), also used by Helios and Acme."""


def cluster_log(
    source: Source, report: ReadReport, names: Sequence[str], *, group: str
) -> tuple[Table, dict[str, Any]]:
    """Read what Helios and Acme record alike: jobs with GPUs, their times, cores, states and owners.

    Args:
        source: The file.
        report: Where drops and repairs are counted.
        names: Columns that must exist.
        group: Column with the job's group.

    Returns:
        The rows of the jobs that started and ended, and their columns of ``Trace``.

    Raises:
        TraceError: a column is missing, a value is corrupt, or a job ends before it starts.
    """
    table = csv_table(source, report)
    table.require(*names)
    table.ids("job_id")
    table = table.drop(table.gpus("gpu_num", low=0) == 0, CPU_ONLY)
    table = table.drop(table.clock_ms("start_time", missing=True) == NONE, NEVER_STARTED)
    table = table.drop(table.clock_ms("end_time", missing=True) == NONE, STILL_RUNNING)
    columns: dict[str, Any] = _recorded_times(table)
    columns["job_id"], columns["gpus"] = table.ids("job_id"), table.gpus("gpu_num")
    cores = table.number("cpu_num", "a number of cores", unit=1_000, high=1e9, missing=0)
    columns["cpu_milli"] = per_gpu(cores, columns["gpus"])
    columns["status"] = table.statuses("state", SLURM_STATES, "a state of Slurm, such as COMPLETED")
    columns["user"], columns["users"] = table.names("user")
    columns["group"], columns["groups"] = table.names(group)
    return table, columns


def _recorded_times(table: Table) -> dict[str, IntArray]:
    """Read submit_time, start_time and end_time; the run time is the end minus the start.

    The published duration of some clusters contains the queue (Kalos); it is checked and not used.
    """
    submit_ms, start_ms, end_ms = (table.clock_ms(f"{event}_time") for event in ("submit", "start", "end"))
    run_ms = end_ms - start_ms
    check_run(table, run_ms, "end_time")
    if "duration" in table:
        stated_ms = table.seconds_ms("duration", high_ms=MAX_RUN_MS, missing=NONE)
        differs = (stated_ms != NONE) & (stated_ms != run_ms)
        with_queue = differs & (stated_ms == end_ms - submit_ms)
        table.report.repair("duration contains the queue: end minus start is used", int(with_queue.sum()))
        table.report.repair("duration differs from end minus start, which is used", int((differs & ~with_queue).sum()))
    return {
        "submit_ms": submit_ms, "run_ms": at_least_a_second(run_ms, table.report),
        "wait_ms": no_negative_wait(start_ms - submit_ms, table.report),
    }  # fmt: skip


def check_run(table: Table, run_ms: IntArray, column: str) -> None:
    """Refuse run times below zero or above ten years.

    Raises:
        TraceError: at least one job is outside these limits.
    """
    bad = (run_ms < 0) | (run_ms > MAX_RUN_MS)
    if bad.any():
        raise table.unusable(
            bad, column, "a run time from 0 to ten years", lambda row: f"a run time of {run_ms[row] / MS_PER_S:g} s"
        )


def at_least_a_second(run_ms: IntArray, report: ReadReport) -> IntArray:
    """Raise run times of zero to one second, the resolution of the published clocks."""
    zero = run_ms == 0
    report.repair("run time 0 s counted as 1 s", int(zero.sum()))
    return np.where(zero, MS_PER_S, run_ms)


def no_negative_wait(wait_ms: IntArray, report: ReadReport) -> IntArray:
    """Raise waits below zero to zero: the start was logged before the submission."""
    negative = wait_ms < 0
    report.repair("start logged before the submission: wait counted as 0", int(negative.sum()))
    return np.maximum(wait_ms, 0)


def recorded_jct(end_ms: IntArray, submit_ms: IntArray, wait_ms: IntArray, run_ms: IntArray) -> IntArray:
    """Return the time from submission to the last end, at least the sum of wait and run time."""
    jct_ms: IntArray = np.maximum(end_ms - submit_ms, wait_ms + run_ms)
    return jct_ms


def per_gpu(amount: IntArray, gpus: IntArray) -> IntArray:
    """Divide what each job asks for by its number of GPUs, rounded up."""
    return -(-amount // np.maximum(gpus, 1))


def check_gpu_time(file: str, gpus: IntArray, run_ms: IntArray) -> None:
    """Refuse jobs whose GPU time does not fit into 64 bits.

    Raises:
        TraceError: at least one job is outside these limits.
    """
    bad = gpus > MAX_GPU_MS // np.maximum(run_ms, 1)
    if bad.any():
        index = int(bad.argmax())
        found = f"{gpus[index]} GPUs for {run_ms[index] / MS_PER_S:g} s"
        raise TraceError(file, found=found, expected=f"at most {MAX_GPU_MS / 3.6e6:.2g} GPU-hours per job")
