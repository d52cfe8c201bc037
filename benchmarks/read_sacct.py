"""Measure how long reading a Slurm export of a million records takes, including trace construction.

Run: ``python benchmarks/read_sacct.py [--jobs N] [--seed S]``. Prints the median of five and rows per second.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from brim import traces

HEADER = (
    "JobIDRaw|User|Account|Partition|QOS|Submit|Eligible|Start|End|Timelimit|State|ExitCode|ReqTRES|AllocTRES|"
    "NodeList|Restarts|Suspended|Reason|ConsumedEnergyRaw"
)
GPUS = np.array([0, 1, 2, 4, 8, 16, 32])
STATES = np.array(["COMPLETED", "FAILED", "CANCELLED by 1000", "TIMEOUT"])
REPEATS = 5


def sacct_rows(jobs: int, seed: int) -> pl.DataFrame:
    """Records as ``sacct`` prints them: 20 % CPU-only, 1 % requeued, bursts of one submission second."""
    rng = np.random.default_rng(seed)
    submit_s = np.sort(rng.integers(0, 180 * 86_400, jobs) // 10 * 10) + 1_777_593_600
    start_s = submit_s + rng.exponential(600, jobs).astype(np.int64)
    end_s = start_s + rng.lognormal(6, 2, jobs).astype(np.int64).clip(1, 2_000_000)
    gpus = rng.choice(GPUS, jobs, p=[0.2, 0.5, 0.1, 0.08, 0.08, 0.03, 0.01])
    ids = np.arange(1, jobs + 1)
    requeued = rng.random(jobs) < 0.01
    ids[1:] = np.where(requeued[1:], ids[:-1], ids[1:])
    frame = pl.DataFrame(
        {
            "id": ids, "user": rng.zipf(1.5, jobs) % 400, "account": rng.integers(0, 20, jobs), "submit": submit_s,
            "start": start_s, "end": end_s, "hours": rng.choice([1, 4, 12, 24], jobs), "gpus": gpus,
            "cpu": np.maximum(gpus, 1) * rng.choice([4, 8, 16], jobs), "node": rng.integers(1, 65, jobs),
            "state": rng.choice(STATES, jobs, p=[0.7, 0.15, 0.1, 0.05]),
        }
    )  # fmt: skip
    clock = {
        name: pl.from_epoch(pl.col(name), "s").dt.strftime("%Y-%m-%dT%H:%M:%S") for name in ("submit", "start", "end")
    }
    tres = pl.format(
        "billing={},cpu={},{}mem={}G,node=1", "cpu", "cpu",
        pl.when(pl.col("gpus") > 0).then(pl.format("gres/gpu:h100={},gres/gpu={},", "gpus", "gpus"))
        .otherwise(pl.lit("")),
        pl.col("cpu") * 6,
    )  # fmt: skip
    line = pl.format(
        "{}|user{}|acct{}|gpu|normal|{}|{}|{}|{}|{}:00:00|{}|0:0|{}|{}|node{}|0|00:00:00|None|0",
        "id", "user", "account", clock["submit"], clock["submit"], clock["start"], clock["end"],
        pl.col("hours").cast(pl.String).str.zfill(2), "state", tres, tres, pl.col("node").cast(pl.String).str.zfill(3),
    )  # fmt: skip
    return frame.select(line.alias(HEADER))


def main() -> None:
    """Write a file, read it five times, and print the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sacct.txt"
        sacct_rows(options.jobs, options.seed).write_csv(path, quote_style="never")
        seconds = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            trace, report = traces.read(path)
            seconds.append(time.perf_counter() - begin)
        median = statistics.median(seconds)
        print(f"file {path.stat().st_size / 1e6:.0f} MB, {report.rows} rows, {len(trace)} jobs, {report.dropped}")
        every = ", ".join(f"{each:.2f}" for each in sorted(seconds))
        print(f"median of {REPEATS}: {median:.2f} s, {report.rows / median:,.0f} rows/s (all: {every} s)")


if __name__ == "__main__":
    main()
