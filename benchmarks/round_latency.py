"""Time one round with 10,000 queued jobs on 1,000 GPUs, for each classic policy: p50 and p99 of 200 rounds.

Between rounds a few jobs end and as many arrive, so that every round has a decision to make. The time includes the
snapshot but not the journal.

    python benchmarks/round_latency.py
"""

from __future__ import annotations

import time

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import TrueRunTimes
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.engine.scheduler import Scheduler
from brim.policies.presets import PRESETS

QUEUED, ROUNDS, ENDING, USERS = 10_000, 200, 5, 200


def rounds_ms(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    cluster = parse_cluster("125x8xA100")
    total = QUEUED * 2
    gpus = rng.choice([1, 2, 4, 8, 16, 32], size=total, p=[0.6, 0.12, 0.12, 0.12, 0.03, 0.01])
    run_ms = (rng.lognormal(6, 2, total) * 1000).astype(np.int64) + 1000
    policy = PRESETS[name]
    beliefs = Beliefs(run_times=TrueRunTimes(run_ms)) if policy.oracle else Beliefs()
    scheduler = Scheduler(cluster, policy, beliefs, users=tuple(f"u{i}" for i in range(USERS)))
    submitted = 0

    def submit(count: int, now_ms: int) -> None:
        nonlocal submitted
        for _ in range(count):
            spec = JobSpec(
                id=submitted, user=int(rng.integers(USERS)), submit_ms=now_ms, gpus=int(gpus[submitted]),
                time_limit_ms=int(run_ms[submitted] * rng.uniform(1, 4)),
            )
            scheduler.observe(Event(now_ms, Kind.SUBMITTED, submitted, spec=spec))
            submitted += 1

    def settle(plan, now_ms: int) -> None:
        """Let preempted jobs leave and started jobs run."""
        for action in plan.actions:
            kind = Kind.STOPPED if type(action).__name__ == "Preempt" else Kind.STARTED
            scheduler.observe(Event(now_ms, kind, action.job))
            (running.discard if kind is Kind.STOPPED else running.add)(action.job)

    running: set[int] = set()
    submit(QUEUED, 0)
    settle(scheduler.decide(0).plan, 1)
    submit(QUEUED - scheduler.state.num_waiting, 1)
    taken = []
    for step in range(1, ROUNDS + 1):
        now_ms = step * 60_000
        for job in rng.choice(sorted(running), ENDING, replace=False).tolist():
            scheduler.observe(Event(now_ms, Kind.FINISHED, job))
            running.discard(job)
        submit(QUEUED - scheduler.state.num_waiting, now_ms)
        start = time.perf_counter()
        result = scheduler.decide(now_ms)
        taken.append((time.perf_counter() - start) * 1e3)
        settle(result.plan, now_ms + 1)
    return np.array(taken)


if __name__ == "__main__":
    for name in PRESETS:
        rounds_ms(name) if name == "fifo" else None  # compile once
        taken = rounds_ms(name)
        print(f"{name:12} p50 {np.percentile(taken, 50):6.2f} ms   p99 {np.percentile(taken, 99):6.2f} ms")
