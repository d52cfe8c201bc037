"""Result files: one row per job as Parquet or CSV, and the JSON summary. Equal replays give equal job files.

Only the JSON contains wall-clock times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from brim.core.arrays import IntArray
from brim.core.replay import Replay
from brim.core.trace import NONE, Status
from brim.errors import ConfigError
from brim.replacing import replacing
from brim.reports.metrics import finished, jct_ms, queue_ms, wait_ms
from brim.units import MS_PER_S, WHOLE_GPU

_NAME: Final = pa.dictionary(pa.int32(), pa.string())
JOB_SCHEMA: Final = pa.schema([
    ("policy", _NAME), ("seed", pa.int64()), ("load", pa.float64()), ("job_id", pa.string()), ("user", _NAME),
    ("group", _NAME), ("gpus", pa.int64()), ("gpus_min", pa.int64()), ("gpus_max", pa.int64()), ("application", _NAME),
    ("batch", pa.int64()), ("share", pa.float64()), ("submit_s", pa.float64()), ("first_start_s", pa.float64()),
    ("finish_s", pa.float64()), ("jct_s", pa.float64()), ("queue_s", pa.float64()), ("wait_s", pa.float64()),
    ("run_s", pa.float64()), ("ideal_run_s", pa.float64()), ("ideal_gpu_s", pa.float64()),
    ("service_gpu_s", pa.float64()), ("useful_gpu_s", pa.float64()), ("lost_gpu_s", pa.float64()),
    ("preemptions", pa.int64()), ("restarts", pa.int64()), ("resizes", pa.int64()), ("status", _NAME),
    ("recorded_wait_s", pa.float64()), ("recorded_jct_s", pa.float64()), ("recorded_status", _NAME),
])
"""Columns of the job table; null: it did not happen or was not recorded. Times count from the first submission."""
_STATUS: Final = ("unfinished", "finished", "failed", "rejected")


def check_jobs_path(path: Path) -> None:
    """Refuse a job file whose name does not end in a known format.

    Raises:
        ConfigError: the name ends neither in .parquet nor in .csv.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"file of jobs {path}: the name must end in .parquet or .csv")


def write_jobs(replays: Replay | Iterable[Replay], path: Path) -> None:
    """Write the per-job table of one or several replays to one file, Parquet or CSV by its ending.

    Args:
        replays: May be a generator; only one replay at a time is held.
        path: Target, which is replaced as a whole.

    Raises:
        ConfigError: the name ends neither in .parquet nor in .csv.
        BrimError: the file cannot be written.
    """
    check_jobs_path(path)
    many = (replays,) if isinstance(replays, Replay) else replays
    if path.suffix == ".parquet":
        with replacing(path) as part, pq.ParquetWriter(part, JOB_SCHEMA, compression="zstd") as writer:
            for replay in many:
                writer.write_table(job_table(replay))
    else:
        plain = pa.schema([(field.name, pa.string() if field.type == _NAME else field.type) for field in JOB_SCHEMA])
        with replacing(path) as part, pacsv.CSVWriter(part, plain) as csv:
            for replay in many:
                csv.write_table(job_table(replay).cast(plain))


def dump_json(payload: dict[str, Any]) -> str:
    """Return JSON text with a newline at the end; raise ValueError for NaN and infinity."""
    return json.dumps(payload, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def job_table(replay: Replay) -> pa.Table:
    """Return the per-job table of one replay: J rows, columns of ``JOB_SCHEMA``."""
    trace = replay.trace
    jct = jct_ms(replay)
    wait = wait_ms(replay) if len(replay.runs.job) else np.full(len(trace), NONE)
    status = np.where(finished(replay), 1, np.where(replay.failed > 0, 2, np.where(replay.rejected > 0, 3, 0)))
    columns = {
        "policy": _constant(replay.policy, len(trace)),
        "seed": pa.array(np.full(len(trace), replay.seed)),
        "load": pa.array(np.full(len(trace), float(replay.load))),
        "job_id": pa.array(trace.job_id, pa.string()),
        "user": _named(trace.user, trace.users),
        "group": _named(trace.group, trace.groups),
        "gpus": pa.array(trace.gpus),
        "gpus_min": pa.array(replay.gpus_min),
        "gpus_max": pa.array(replay.gpus_max),
        "application": _named(trace.profile, trace.profiles),
        "batch": pa.array(trace.batch, mask=trace.batch < 0),
        "share": pa.array(trace.share_milli / WHOLE_GPU),
        "submit_s": _seconds(trace.submit_ms),
        "first_start_s": _seconds(replay.first_start_ms),
        "finish_s": _seconds(replay.finish_ms),
        "jct_s": _seconds(jct),
        "queue_s": _seconds(queue_ms(replay)),
        "wait_s": _seconds(wait),
        "run_s": _seconds(replay.run_ms),
        "ideal_run_s": _seconds(replay.ideal_run_ms),
        "ideal_gpu_s": _seconds(replay.ideal_gpu_ms),
        "service_gpu_s": _seconds(replay.service_gpu_ms),
        "useful_gpu_s": _seconds(replay.useful_gpu_ms),
        "lost_gpu_s": _seconds(replay.lost_gpu_ms),
        "preemptions": pa.array(replay.preemptions),
        "restarts": pa.array(replay.restarts),
        "resizes": pa.array(replay.resizes),
        "status": _named(status, _STATUS),
        "recorded_wait_s": _seconds(trace.wait_ms),
        "recorded_jct_s": _seconds(trace.jct_ms),
        "recorded_status": _named(trace.status, tuple(status.name.lower() for status in Status)),
    }
    return pa.table(columns, schema=JOB_SCHEMA)


def _seconds(ms: IntArray) -> pa.Array:
    return pa.array(ms / MS_PER_S, mask=ms < 0)


def _named(code: IntArray, names: tuple[str, ...]) -> pa.Array:
    indices = pa.array(code.astype(np.int32), mask=code < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


def _constant(name: str, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, dtype=np.int32)), pa.array([name], pa.string()))
