"""Replay speed against a straightforward SimPy model, and cost per job as the trace grows.

    python benchmarks/replay_speed.py            # ratio to SimPy: 50,000 Philly-shaped jobs, 584 GPUs, FIFO
    python benchmarks/replay_speed.py --growth   # 10k, 100k, 1M jobs at constant load
    python benchmarks/replay_speed.py --large    # 1M jobs on 10,000 GPUs, time and memory, FIFO

Both simulators start from the same plain columns in memory and end with finish times and (brim) the record of who held
which GPU when. The finish times are compared before anything is timed. Quote the medians.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import numpy as np

from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.sim.twin import Settings, replay
from brim.traces import synthesize
from simpy_fifo import simulate

REPEATS = 5


def against_simpy() -> None:
    cluster = parse_cluster("73x8xV100")
    trace = synthesize("philly", jobs=50_000, seed=1, cluster=cluster, load=0.9)
    columns = [column.tolist() for column in (trace.submit_ms, trace.gpus, trace.run_ms)]
    settings = Settings(gap_ms=0)
    ours = replay(trace, cluster, PRESETS["fifo"], settings)
    theirs = simulate(*columns, 73, 8)
    if not np.array_equal(ours.finish_ms, theirs):
        raise SystemExit("the two simulators disagree; nothing to compare")
    ours_s, theirs_s = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        simulate(*columns, 73, 8)
        theirs_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        replay(trace, cluster, PRESETS["fifo"], settings)
        ours_s.append(time.perf_counter() - start)
    a, b = statistics.median(ours_s), statistics.median(theirs_s)
    print(f"brim  {len(trace) / a:12,.0f} jobs/s   median of {REPEATS}: {a:.3f} s, finish times equal to SimPy's")
    print(f"SimPy {len(trace) / b:12,.0f} jobs/s   median of {REPEATS}: {b:.3f} s")
    print(f"ratio {b / a:.1f}x")


def growth() -> None:
    cluster = parse_cluster("73x8xV100")
    warm = synthesize("philly", jobs=1_000, seed=1, cluster=cluster, load=0.9)
    replay(warm, cluster, PRESETS["fifo"])
    first = None
    for jobs in (10_000, 100_000, 1_000_000):
        trace = synthesize("philly", jobs=jobs, seed=1, cluster=cluster, load=0.9)
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            replay(trace, cluster, PRESETS["fifo"])
            times.append((time.perf_counter() - start) / jobs * 1e6)
        cost = statistics.median(times)
        first = first or cost
        print(f"fifo {jobs:9,} jobs: {cost:6.2f} us per job, {cost / first:.2f}x the cost at 10,000")
    first = None
    for jobs in (10_000, 100_000):
        trace = synthesize("philly", jobs=jobs, seed=1, cluster=cluster, load=0.9)
        start = time.perf_counter()
        replay(trace, cluster, PRESETS["srtf"])
        cost = (time.perf_counter() - start) / jobs * 1e6
        first = first or cost
        print(f"srtf {jobs:9,} jobs: {cost:6.0f} us per job, {cost / first:.2f}x the cost at 10,000 (once)")


def large() -> None:
    cluster = parse_cluster("1250x8xA100")
    trace = synthesize("philly", jobs=1_000_000, seed=1, cluster=cluster, load=0.9)
    start = time.perf_counter()
    replay(trace, cluster, PRESETS["fifo"])
    wall = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"fifo 1,000,000 jobs on 10,000 GPUs: {wall:.1f} s, peak memory of the whole process {peak:.2f} GiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    growth() if args.growth else large() if args.large else against_simpy()
