"""Replays without a simulator: tiny ones by hand, large ones from a seed (first come, first served, node by node)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brim.core.cluster import parse_cluster
from brim.core.replay import Replay, Runs
from brim.core.trace import Trace, trace_of


def runs_of(rows: Sequence[tuple[int, int, int, Sequence[int]]]) -> Runs:
    """Runs from (job, start_ms, end_ms, GPUs)."""
    sizes = [len(row[3]) for row in rows]
    return Runs(
        job=np.array([row[0] for row in rows], dtype=np.int64),
        start_ms=np.array([row[1] for row in rows], dtype=np.int64),
        end_ms=np.array([row[2] for row in rows], dtype=np.int64),
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
        "failed": zeros, "runs": runs, "end_ms": int(max(finish_ms, default=0)), "partial": False, "rounds": size,
        "round_s": np.full(4, 0.002), "wall_s": 0.5, "assumptions": ("Jobs are rigid.",),
    }
    return Replay(**(values | changes))


def drawn_trace(jobs: int, *, seed: int, load_gpus: int, users: int = 40, **names: Any) -> Trace:
    """Log-normal run times (median 15 min), powers of two of GPUs, Poisson arrivals at 90 % of ``load_gpus``."""
    rng = np.random.default_rng(seed)
    run = np.maximum(1_000, np.exp(rng.normal(np.log(900_000), 1.8, jobs))).astype(np.int64)
    run = np.minimum(run, 5 * 86_400_000)
    gpus = np.minimum(2 ** rng.choice(8, p=[0.5, 0.14, 0.12, 0.16, 0.05, 0.02, 0.008, 0.002], size=jobs), load_gpus)
    gap = (run * gpus).mean() / load_gpus / 0.9
    submit = np.cumsum(rng.exponential(gap, jobs)).astype(np.int64)
    user = np.minimum(rng.zipf(1.4, jobs) - 1, users - 1)
    return trace_of(
        name="drawn.csv", format="synthetic", synthetic=True, job_id=[f"job-{i}" for i in range(jobs)],
        submit_ms=submit, gpus=gpus, run_ms=run, user=user, group=user % 9,
        **({"users": [f"user{i:02d}" for i in range(users)], "groups": [f"team-{i}" for i in range(9)]} | names),
    )


def drawn_replay(trace: Trace, cluster: str, policy: str, *, seed: int = 0, **changes: Any) -> Replay:
    """Serve jobs as their GPUs become free, in an order that the policy's name picks; gangs whole, never preempted."""
    rng = np.random.default_rng([seed, *policy.encode()])
    num_gpus = parse_cluster(cluster).num_gpus
    free_ms = np.zeros(num_gpus, dtype=np.int64)
    wait_scale = rng.uniform(0.3, 3.0)
    rank = trace.submit_ms + (rng.random(len(trace)) * trace.run_ms * wait_scale).astype(np.int64)
    rows, finish = [], np.full(len(trace), -1, dtype=np.int64)
    for job in np.argsort(rank, kind="stable"):
        gang = int(trace.gpus[job])
        picked = np.argpartition(free_ms, gang - 1)[:gang] if gang < num_gpus else np.arange(num_gpus)
        start = max(int(free_ms[picked].max()), int(trace.submit_ms[job]))
        finish[job] = start + int(trace.run_ms[job])
        free_ms[picked] = finish[job]
        rows.append((int(job), start, int(finish[job]), np.sort(picked)))
    rows.sort(key=lambda row: (row[1], row[0]))
    values = {"finish_ms": finish.tolist(), "policy": policy, "seed": seed} | changes
    return replay_of(trace, cluster, runs_of(rows), **values)
