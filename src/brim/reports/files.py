"""Result files: one row per job as Parquet or CSV, and the JSON summary. Equal replays give equal job files.

Only the JSON contains wall-clock times.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from brim.core.arrays import IntArray
from brim.core.energy import J_PER_KWH, energy_of
from brim.core.prices import TIERS, Prices, tiers
from brim.core.replay import Replay
from brim.core.trace import NONE, Status
from brim.errors import ConfigError
from brim.replacing import replacing
from brim.reports.metrics import finished, jct_ms, queue_ms, wait_ms
from brim.reports.replay_bill import cost_of_jobs
from brim.units import MS_PER_S, WHOLE_GPU

JOB_SCHEMA: Final = pl.Schema({
    "policy": pl.String, "seed": pl.Int64, "load": pl.Float64, "job_id": pl.String, "user": pl.String,
    "group": pl.String, "gpus": pl.Int64, "gpus_min": pl.Int64, "gpus_max": pl.Int64, "application": pl.String,
    "batch": pl.Int64, "share": pl.Float64, "submit_s": pl.Float64, "first_start_s": pl.Float64,
    "finish_s": pl.Float64, "jct_s": pl.Float64, "queue_s": pl.Float64, "wait_s": pl.Float64, "run_s": pl.Float64,
    "ideal_run_s": pl.Float64, "ideal_gpu_s": pl.Float64, "service_gpu_s": pl.Float64, "useful_gpu_s": pl.Float64,
    "lost_gpu_s": pl.Float64, "preemptions": pl.Int64, "restarts": pl.Int64, "resizes": pl.Int64, "status": pl.String,
    "recorded_wait_s": pl.Float64, "recorded_jct_s": pl.Float64, "recorded_status": pl.String, "tier": pl.String,
    "energy_kwh": pl.Float64, "cost": pl.Float64,
})
"""Columns of the job table; null: it did not happen or was not recorded. Times count from the first submission."""
_STATUS: Final = ("unfinished", "finished", "failed", "rejected")


class _Output:
    """A file for polars to write to, which keeps what went wrong."""

    def __init__(self, file: BinaryIO, errors: list[BaseException]) -> None:
        self._file, self._errors = file, errors

    def write(self, data: bytes) -> int:
        """Write to the file."""
        try:
            return self._file.write(data)
        except OSError as error:
            self._errors.append(error)
            raise

    def flush(self) -> None:
        """See ``write``."""
        self._file.flush()


def check_jobs_path(path: Path) -> None:
    """Refuse a job file whose name does not end in a known format.

    Raises:
        ConfigError: the name ends neither in .parquet nor in .csv.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"file of jobs {path}: the name must end in .parquet or .csv")


def packed_jobs(replay: Replay, prices: Prices | None = None) -> bytes:
    """Return the per-job table of one replay for ``write_jobs``: about 60 bytes per job, a fourth of the table."""
    packed = io.BytesIO()
    job_table(replay, prices).write_parquet(packed, compression="lz4")
    return packed.getvalue()


def write_jobs(packed: Iterable[bytes], path: Path) -> None:
    """Write the per-job tables of several replays to one file, Parquet or CSV by its ending.

    Args:
        packed: From ``packed_jobs``; one table at a time is unpacked.
        path: Target, which is replaced as a whole.

    Raises:
        ConfigError: the name ends neither in .parquet nor in .csv.
        BrimError: the file cannot be written.
    """
    check_jobs_path(path)
    errors: list[BaseException] = []

    def tables(*_: object) -> Iterator[pl.DataFrame]:
        try:
            yield from (pl.read_parquet(one) for one in packed)
        except (Exception, KeyboardInterrupt) as error:
            errors.append(error)
            raise

    rows = register_io_source(tables, schema=JOB_SCHEMA)
    with replacing(path) as part, part.open("wb") as file:
        output: Any = _Output(file, errors)
        try:
            if path.suffix == ".parquet":
                rows.sink_parquet(output, compression="zstd")
            else:
                rows.sink_csv(output)
        except Exception:
            if errors:  # polars tells of it as an error of its own, without the reason
                raise errors[0] from None
            raise


def dump_json(payload: dict[str, Any]) -> str:
    """Return JSON text with a newline at the end; raise ValueError for NaN and infinity."""
    return json.dumps(payload, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def job_table(replay: Replay, prices: Prices | None = None) -> pl.DataFrame:
    """Return the per-job table of one replay: J rows, columns of ``JOB_SCHEMA``."""
    trace, energy = replay.trace, energy_of(replay)
    jct = jct_ms(replay)
    wait = wait_ms(replay) if len(replay.runs.job) else np.full(len(trace), NONE)
    status = np.where(finished(replay), 1, np.where(replay.failed > 0, 2, np.where(replay.rejected > 0, 3, 0)))
    columns = {
        "policy": pl.repeat(replay.policy, len(trace), eager=True),
        "seed": np.full(len(trace), replay.seed),
        "load": np.full(len(trace), float(replay.load)),
        "job_id": trace.job_id,
        "user": _named(trace.user, trace.users),
        "group": _named(trace.group, trace.groups),
        "gpus": trace.gpus,
        "gpus_min": replay.gpus_min,
        "gpus_max": replay.gpus_max,
        "application": _named(trace.profile, trace.profiles),
        "batch": pl.Series(trace.batch).set(pl.Series(trace.batch < 0), None),
        "share": trace.share_milli / WHOLE_GPU,
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
        "preemptions": replay.preemptions,
        "restarts": replay.restarts,
        "resizes": replay.resizes,
        "status": _named(status, _STATUS),
        "recorded_wait_s": _seconds(trace.wait_ms),
        "recorded_jct_s": _seconds(trace.jct_ms),
        "recorded_status": _named(trace.status, tuple(status.name.lower() for status in Status)),
        "tier": np.array(TIERS)[tiers(replay)],
        "energy_kwh": None if energy is None else energy.job_j / J_PER_KWH,
        "cost": None if prices is None else cost_of_jobs(replay, prices, energy),
    }
    return pl.DataFrame(columns, schema=JOB_SCHEMA)


def _seconds(ms: IntArray) -> pl.Series:
    return pl.Series(np.where(ms < 0, np.nan, ms / MS_PER_S)).fill_nan(None)


def _named(code: IntArray, names: tuple[str, ...]) -> pl.Series:
    return pl.Series([*names, None], dtype=pl.String).gather(np.where(code < 0, len(names), code))
