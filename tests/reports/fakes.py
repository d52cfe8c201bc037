"""Replays without a simulator: tiny ones by hand, large ones from a seed."""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from brim.core.cluster import parse_cluster
from brim.core.replay import Replay, Runs
from brim.core.trace import Trace, trace_of


def runs_of(rows: Sequence[tuple[int, int, int, Sequence[int]]], share_milli: int = 1000) -> Runs:
    """Runs from (job, start_ms, end_ms, GPUs)."""
    sizes = [len(row[3]) for row in rows]
    return Runs(
        job=np.array([row[0] for row in rows], dtype=np.int64),
        start_ms=np.array([row[1] for row in rows], dtype=np.int64),
        end_ms=np.array([row[2] for row in rows], dtype=np.int64),
        share_milli=np.full(len(rows), share_milli),
        first_gpu=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        gpu=np.array([gpu for row in rows for gpu in row[3]], dtype=np.int64),
    )


def replay_of(trace: Trace, cluster: str, runs: Runs, finish_ms: Sequence[int] | Any, **changes: Any) -> Replay:
    """A replay in which all held time was useful, unless ``changes`` say otherwise."""
    size = len(trace)
    gpus = np.diff(runs.first_gpu)
    held = np.bincount(runs.job, weights=(runs.end_ms - runs.start_ms) * gpus, minlength=size).astype(np.int64)
    held = held * trace.share_milli // 1000
    first = np.full(size, -1, dtype=np.int64)
    first[runs.job[::-1]] = runs.start_ms[::-1]
    zeros = np.zeros(size, dtype=np.int64)
    values: dict[str, Any] = {
        "trace": trace, "cluster": parse_cluster(cluster), "policy": "fifo", "oracle": False, "estimates": "none",
        "seed": 0, "load": 1.0, "first_start_ms": first, "finish_ms": np.asarray(finish_ms, dtype=np.int64),
        "service_gpu_ms": held, "useful_gpu_ms": held, "lost_gpu_ms": zeros, "preemptions": zeros, "restarts": zeros,
        "run_ms": trace.run_ms, "ideal_run_ms": trace.run_ms, "ideal_gpu_ms": trace.gpu_ms, "gpus_min": trace.gpus,
        "gpus_max": trace.gpus, "resizes": zeros, "unmeasured": zeros, "rejected_ms": zeros - 1,
        "failed": zeros, "rejected": zeros, "runs": runs, "end_ms": int(max(finish_ms, default=0)), "partial": False,
        "rounds": size,
        "round_s": np.full(4, 0.002), "wall_s": 0.5, "assumptions": ("Jobs are rigid.",),
    }
    return Replay(**(values | changes))


def drawn_trace(jobs: int, *, seed: int, load_gpus: int, num_users: int = 40, **names: Any) -> Trace:
    """Log-normal run times (median 15 min), powers of two of GPUs, Poisson arrivals at 90 % of ``load_gpus``."""
    rng = np.random.default_rng(seed)
    run = np.maximum(1_000, np.exp(rng.normal(np.log(900_000), 1.8, jobs))).astype(np.int64)
    run = np.minimum(run, 5 * 86_400_000)
    gpus = np.minimum(2 ** rng.choice(8, p=[0.5, 0.14, 0.12, 0.16, 0.05, 0.02, 0.008, 0.002], size=jobs), load_gpus)
    gap = (run * gpus).mean() / load_gpus / 0.9
    submit = np.cumsum(rng.exponential(gap, jobs)).astype(np.int64)
    user = np.minimum(rng.zipf(1.4, jobs) - 1, num_users - 1)
    return trace_of(
        name="drawn.csv", format="synthetic", synthetic=True, job_id=[f"job-{i}" for i in range(jobs)],
        submit_ms=submit, gpus=gpus, run_ms=run, user=user, group=user % 9,
        **({"users": [f"user{i:02d}" for i in range(num_users)], "groups": [f"team-{i}" for i in range(9)]} | names),
    )


def drawn_replay(trace: Trace, cluster: str, policy: str, *, seed: int = 0, **changes: Any) -> Replay:
    """Serve gangs whole, to the end, in an order that the policy's name picks; fifo stops at a misfit, others skip."""
    rng = np.random.default_rng([seed, *policy.encode()])
    noise = rng.lognormal(0, rng.uniform(0.2, 1.5), len(trace))
    key = trace.submit_ms.astype(float) if policy == "fifo" else trace.run_ms * noise
    free = list(range(parse_cluster(cluster).num_gpus))
    heads: dict[int, list[tuple[float, int]]] = {int(size): [] for size in np.unique(trace.gpus)}
    running: list[tuple[int, int, list[int]]] = []
    rows, finish, submitted = [], np.full(len(trace), -1, dtype=np.int64), 0
    while submitted < len(trace) or running:
        arrives = int(trace.submit_ms[submitted]) if submitted < len(trace) else 1 << 60
        now = min(arrives, running[0][0] if running else 1 << 60)
        while submitted < len(trace) and trace.submit_ms[submitted] <= now:
            heappush(heads[int(trace.gpus[submitted])], (key[submitted], submitted))
            submitted += 1
        while running and running[0][0] <= now:
            for gpu in heappop(running)[2]:
                insort(free, gpu)
        while True:
            waiting = [(heap[0], size) for size, heap in heads.items() if heap]
            waiting = [min(waiting)] if policy == "fifo" and waiting else waiting
            fits = [pair for pair in waiting if pair[1] <= len(free)]
            if not fits:
                break
            (_, job), gang = min(fits)
            heappop(heads[gang])
            picked, free = free[:gang], free[gang:]
            finish[job] = now + int(trace.run_ms[job])
            heappush(running, (int(finish[job]), job, picked))
            rows.append((job, now, int(finish[job]), picked))
    values = {"finish_ms": finish.tolist(), "policy": policy, "seed": seed} | changes
    return replay_of(trace, cluster, runs_of(rows), **values)


def with_record(replay: Replay, rows: slice = slice(None)) -> Trace:
    """The replay's trace as if the replay had been recorded, for some of its jobs."""
    trace = replay.trace
    seen = np.zeros(len(trace), dtype=np.bool_)
    seen[rows] = True
    return dataclasses.replace(
        trace, wait_ms=np.where(seen, replay.first_start_ms - trace.submit_ms, -1),
        jct_ms=np.where(seen, replay.finish_ms - trace.submit_ms, -1),
    )
