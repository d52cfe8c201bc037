"""Energy, completion times and slowdowns of `brim` by objective beside its peers, on jobs of six real clusters.

    python benchmarks/objectives.py DATA [--jobs N] [--skip N] [--draw SEED] [--elastic-share P] [--policies NAMES]

DATA is a folder with ``traces/philly`` and ``traces/itp``. Jobs are the first N that fit, Philly's from October 2017
on, after those that are skipped. The records do not say how busy jobs keep their GPUs: utilisation (10 to 90 %) and
memory (1 to 8 GB) are drawn evenly, and jobs that share a GPU slow each other as the published demand rule says. Nodes
have eight V100, sleep after five minutes without a job, and draw what the built-in curve says. Elastic jobs are drawn,
with step times of ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from brim import traces
from brim.core.arrays import frozen
from brim.core.trace import Trace
from brim.traces import own
from brim.units import MS_PER_H

TRACES = {
    "philly": ("traces/philly/philly_2017-09_2017-10.csv.gz", "2017-10-01"),
    "itp01": ("traces/itp/cluster01.csv.gz", None),
    "itp03": ("traces/itp/cluster03.csv.gz", None),
    "itp04": ("traces/itp/cluster04.csv.gz", None),
    "itp05": ("traces/itp/cluster05.csv.gz", None),
    "itp06": ("traces/itp/cluster06.csv.gz", None),
}
"""File of each trace, and the day from which on jobs are taken."""
GPUS_MAX, RUN_H_MAX = 16, 24
"""Larger and longer jobs are left out: a few of them would decide the means of some hundred."""
LOAD = 0.8
"""GPU time that jobs ask for over what the cluster has until the last one comes: it sets the number of nodes."""
UTIL_MILLI, MEM_MIB = (100, 900), (1_000, 8_000)


def jobs_of(path: Path, day: str | None, skip: int, count: int, draw: int) -> Trace:
    """Some jobs that fit, with drawn use of their GPUs."""
    whole, _ = traces.read(str(path), None)
    rows = np.flatnonzero((whole.gpus > 0) & (whole.gpus <= GPUS_MAX) & (whole.run_ms <= RUN_H_MAX * MS_PER_H))
    began = 0
    if day is not None:
        assert whole.origin_ms is not None
        began_ms = int(np.datetime64(day, "ms").astype(np.int64)) - whole.origin_ms
        began = int(np.searchsorted(whole.submit_ms[rows], began_ms))
    began += skip
    found, rng = whole.take(rows[began : began + count]), np.random.default_rng(draw)
    return replace(found, gpu_util_milli=frozen(rng.integers(*UTIL_MILLI, len(found))),
                   gpu_mem_mib=frozen(rng.integers(*MEM_MIB, len(found))))


def main() -> None:
    """Print a table for each trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--elastic-share", type=float, default=0.0)
    parser.add_argument("--policies", default="fifo,eaco,brim-energy")
    options = parser.parse_args()
    for name, (file, day) in TRACES.items():
        if not (options.data / file).exists():
            print(f"{name}: skipped, no {options.data / file}")
            continue
        jobs = jobs_of(options.data / file, day, options.skip, options.jobs, options.draw)
        span_ms = int(jobs.submit_ms[-1] - jobs.submit_ms[0])
        nodes = max(int(np.ceil((jobs.gpus * jobs.run_ms).sum() / (LOAD * span_ms * 8))), -(-int(jobs.gpus.max()) // 8))
        with tempfile.TemporaryDirectory() as folder:
            own.write(jobs, Path(folder) / "jobs.csv")
            said = subprocess.run(
                [Path(sys.executable).with_name("brim"), "sim", "compare", f"{folder}/jobs.csv",
                 "-p", options.policies, "-c", f"{nodes}x8xV100", "--sharing", "demand", "--power", "builtin",
                 "--suspend-time", "5m", "--truth", "parametric" if options.elastic_share else "rigid",
                 *(["--elastic-share", str(options.elastic_share)] if options.elastic_share else []), "--json"],
                check=True, capture_output=True, text=True,
            ).stdout
        print(f"{name}: {len(jobs)} jobs on {nodes} nodes")
        print("policy              kWh  mean JCT  mean run finished   against the first: kWh, JCT, run")
        rows = json.loads(said)["results"]
        found = [(row["energy_kwh"], row["jct_mean_s"], row["jct_mean_s"] - row["wait_mean_s"]) for row in rows]
        for row, (kwh, jct_s, run_s) in zip(rows, found, strict=True):
            beside = "  ".join(f"{a / b - 1:+.1%}" for a, b in zip((kwh, jct_s, run_s), found[0], strict=True))
            print(f"{row['policy']:14} {kwh:8.1f} {jct_s:8.0f}s {run_s:8.0f}s {row['finished']:8}   {beside}")


if __name__ == "__main__":
    main()
