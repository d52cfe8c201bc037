"""Replay speed against two models of the same queue, in plain Python and in SimPy, and cost per job as the trace grows.

    python benchmarks/replay_speed.py            # ratios to both: 50,000 Philly-shaped jobs, 584 GPUs, FIFO; then SRTF
    python benchmarks/replay_speed.py --growth   # 10k, 100k, 1M jobs at constant load
    python benchmarks/replay_speed.py --large    # 1M jobs on 10,000 GPUs, time and memory, FIFO and backfill

All simulators start from the same plain columns in memory and end with finish times and (brim) the record of who held
which GPU when. The finish times are compared before anything is timed. Times are CPU seconds. Quote the medians.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import python_fifo
import simpy_fifo
from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.sim.twin import ReplaySettings, replay
from brim.traces import synthesize

REPEATS = 5
PEERS = {"plain Python": python_fifo.simulate, "SimPy": simpy_fifo.simulate}


def against_peers() -> None:
    cluster = parse_cluster("73x8xV100")
    trace = synthesize("philly", jobs=50_000, seed=1, cluster=cluster, load=0.9)
    columns = [column.tolist() for column in (trace.submit_ms, trace.gpus, trace.run_ms)]
    settings = ReplaySettings(gap_ms=0)
    ours = replay(trace, cluster, PRESETS["fifo"], settings)
    for name, simulate in PEERS.items():
        if not np.array_equal(ours.finish_ms, simulate(*columns, 73, 8)):
            raise SystemExit(f"brim and {name} disagree on finish times; nothing to compare")
    runs = {name: partial(simulate, *columns, 73, 8) for name, simulate in PEERS.items()}
    runs["brim"] = partial(replay, trace, cluster, PRESETS["fifo"], settings)
    took_s = medians_s(runs)
    for name, cpu_s in took_s.items():
        print(f"{name:12} {len(trace) / cpu_s:12,.0f} jobs per CPU second   median of {REPEATS}: {cpu_s:.3f} s of CPU")
    for name in PEERS:
        print(f"{name} takes {took_s[name] / took_s['brim']:.1f} times the CPU time of brim; finish times equal")
    rounds = partial(replay, trace, cluster, PRESETS["srtf"])
    rounds()  # compiles
    cost_us = medians_s({"srtf": rounds})["srtf"] / len(trace) * 1e6
    print(f"srtf, which has no such peer: {cost_us:.1f} us of CPU per job, median of {REPEATS}")


def medians_s(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median CPU seconds of each, taking turns."""
    took_s: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            took_s[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in took_s.items()}


def growth() -> None:
    cluster = parse_cluster("73x8xV100")
    warm = synthesize("philly", jobs=1_000, seed=1, cluster=cluster, load=0.9)
    replay(warm, cluster, PRESETS["fifo"])
    first = None
    for jobs in (10_000, 100_000, 1_000_000):
        trace = synthesize("philly", jobs=jobs, seed=1, cluster=cluster, load=0.9)
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            replay(trace, cluster, PRESETS["fifo"])
            times.append((time.process_time() - start) / jobs * 1e6)
        cost = statistics.median(times)
        first = first or cost
        print(f"fifo {jobs:9,} jobs: {cost:6.2f} us of CPU per job, {cost / first:.2f}x the cost at 10,000")
    first = None
    for jobs in (10_000, 100_000):
        trace = synthesize("philly", jobs=jobs, seed=1, cluster=cluster, load=0.9)
        start = time.process_time()
        replay(trace, cluster, PRESETS["srtf"])
        cost = (time.process_time() - start) / jobs * 1e6
        first = first or cost
        print(f"srtf {jobs:9,} jobs: {cost:6.0f} us of CPU per job, {cost / first:.2f}x the cost at 10,000 (once)")


def large() -> None:
    cluster = parse_cluster("1250x8xA100")
    trace = synthesize("philly", jobs=1_000_000, seed=1, cluster=cluster, load=0.9)
    for name in ("fifo", "backfill"):
        start = time.process_time()
        replay(trace, cluster, PRESETS[name])
        cpu_s = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name} 1,000,000 jobs on 10,000 GPUs: {cpu_s:.1f} s of CPU, peak memory of the process {peak:.2f} GiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    growth() if args.growth else large() if args.large else against_peers()
