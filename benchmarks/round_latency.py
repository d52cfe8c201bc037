"""Time one round with 10,000 queued jobs on 1,000 GPUs under each preset: p50 and p99 of 200 rounds, thread CPU.

Presets that resize running jobs get elastic jobs: each has a range of GPUs and of batches drawn by
``brim.sim.truths.categories``, is measured when it starts where the policy asks for that, and reports its step times at
every size. The other presets get the same jobs with a fixed size. Between rounds a few jobs end and as many arrive, so
that every round has a decision to make; jobs preempted or resized by one round leave and go on before the next. A start
takes 30 s, or what ``--start-s`` says: where it takes 1 ms, changes cost nothing, and a policy that weighs their cost
may exchange ten times as many jobs. The time includes the snapshot, the fits of new reports, and one pass over the
plan's actions, but not the journal. The first rounds, which fill the empty cluster and fit the reports of every job on
it, are printed beside the others and are not part of them.

    python benchmarks/round_latency.py [PRESET ...] [--rounds N] [--start-s SECONDS] [--jobs N] [--gpus N] [--full]

``--jobs 2000 --gpus 2000 --full`` is the full round of ``brim``: 2,000 jobs in all, queued or running. Every job then
uses 10 to 90 % of its GPUs and up to half of their memory, nodes have 64 cores, and one job in ten is a padding job, so
that sharing, feeding and filling have something to decide.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from brim.beliefs.analyser import analyse, measure_exchange
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import TrueRunTimes
from brim.beliefs.work import TrueWork
from brim.core.actions import Plan, Preempt, Resize, Start, Tune
from brim.core.cluster import parse_cluster
from brim.core.events import Event, Kind
from brim.core.trace import JobClass, trace_of
from brim.engine.scheduler import Scheduler
from brim.policies.presets import PRESETS
from brim.policies.sockets import Policy
from brim.sim.specs import specs_of, user_names
from brim.sim.truths.categories import drawn_jobs
from brim.sim.truths.rigid import Rigid
from brim.units import MS_PER_S

QUEUED, GPUS, ROUNDS, FIRST, ENDING, USERS = 10_000, 1_000, 200, 10, 5, 200
WIDTH = 8
PADDING_SHARE = 0.1
STEP_MS = 60_000
START_S = 30.0
"""What the twin takes for a restart, and the beliefs until they know better (``beliefs/overheads.py``)."""


class Load:
    """A scheduler with a full queue, and the jobs that it runs.

    Args:
        policy: What decides.
        start_s: How long a start takes, in seconds.
        jobs: Jobs in the queue; with ``full``, jobs that run counted too.
        gpus: GPUs of the cluster.
        full: Whether there is something to decide for sharing, feeding and filling.
    """

    def __init__(
        self, policy: Policy, start_s: float = START_S, jobs: int = QUEUED, gpus: int = GPUS, full: bool = False
    ) -> None:
        self.start_ms, self.jobs, self.full = round(start_s * MS_PER_S), jobs, full
        self.rng = rng = np.random.default_rng(0)
        cluster = parse_cluster(f"{gpus // WIDTH}x{WIDTH}xA100{':cpus=64,mem=512GB' if full else ''}")
        total = jobs * 2
        run_ms = (rng.lognormal(6, 2, total) * 1000).astype(np.int64) + 1000
        trace = trace_of(
            name="made up", format="benchmark", job_id=[str(job) for job in range(total)],
            users=[f"u{user}" for user in range(USERS)], user=rng.integers(USERS, size=total),
            submit_ms=np.zeros(total, dtype=np.int64), run_ms=run_ms,
            gpus=rng.choice([1, 2, 4, 8, 16, 32], size=total, p=[0.6, 0.12, 0.12, 0.12, 0.03, 0.01]),
            time_limit_ms=(run_ms * rng.uniform(1, 4, total)).astype(np.int64),
        )
        if full:
            trace = replace(
                trace, gpu_util_milli=rng.integers(100, 900, total), gpu_mem_mib=rng.integers(1_000, 40_000, total),
                job_class=np.where(rng.random(total) < PADDING_SHARE, int(JobClass.PADDING), trace.job_class),
            )
        self.elastic = policy.resizes_running
        self.truth = drawn_jobs(trace, cluster, share=1.0) if self.elastic else Rigid(trace)
        self.specs = specs_of(trace, cluster, self.truth)
        beliefs = Beliefs(run_times=TrueRunTimes(self.truth.run_ms)) if policy.oracle else Beliefs()
        if policy.oracle:
            beliefs = replace(beliefs, work=TrueWork(self.truth.total_samples()))
        if policy.asks_exchange:
            beliefs = replace(beliefs, exchange=measure_exchange(
                self.truth.exchange, num_nodes=cluster.num_nodes, gpus_per_node=int(cluster.gpus_N.max()),
            ))
        self.scheduler = Scheduler(cluster, policy, beliefs, users=user_names(trace))
        self.running: set[int] = set()
        self.pace: dict[int, tuple[int, float, float]] = {}  # job -> (since, done by then, work per ms)
        self.actions: Counter[str] = Counter()
        self.submitted = 0

    def submit(self, now_ms: int) -> None:
        """Fill the queue up."""
        there = self.scheduler.state.num_waiting + (len(self.running) if self.full else 0)
        for _ in range(self.jobs - there):
            spec = replace(self.specs[self.submitted], submit_ms=now_ms)
            self.scheduler.observe(Event(now_ms, Kind.SUBMITTED, spec.id, spec=spec))
            self.submitted += 1

    def end_some(self, now_ms: int) -> None:
        for job in self.rng.choice(sorted(self.running), ENDING, replace=False).tolist():
            self.scheduler.observe(Event(now_ms, Kind.FINISHED, job))
            self.running.discard(job)

    def settle(self, plan: Plan, now_ms: int) -> None:
        """Let preempted jobs leave, others run once their starts are over, and elastic ones report."""
        begin: list[Start | Resize] = []
        for action in plan:
            self.actions[type(action).__name__.lower()] += 1
            match action:
                case Preempt():
                    self.scheduler.observe(Event(now_ms, Kind.STOPPED, action.job))
                    self.running.discard(action.job)
                    self._done(action.job, now_ms)
                case Start() | Resize():
                    self._done(action.job, now_ms)
                    begin.append(action)
                case Tune():
                    self._report(action, now_ms)
        for action in begin:
            self.scheduler.observe(Event(now_ms + self.start_ms, Kind.STARTED, action.job))
            self.running.add(action.job)
            if self.elastic:
                self._report(action, now_ms + self.start_ms)

    def _report(self, action: Start | Resize | Tune, now_ms: int) -> None:
        job, spec, done = action.job, self.specs[action.job], self._done(action.job, now_ms)
        nodes = tuple(Counter(node for node, _ in action.setting.gpus).values())
        pace = self.truth.pace(job, done, nodes, action.setting.batch)
        self.pace[job] = now_ms, done, pace.per_ms
        report = pace.report
        if isinstance(action, Start) and action.analyse:
            measured = analyse(
                self.truth.steps(job), batch_min=spec.batch_min, gpus_max=spec.gpus_max,
                local_batch_max=spec.local_batch_max, local_batch_min=max(spec.local_batch_min, 1),
            )
            report = replace(report, seen=measured.samples + report.seen)
        self.scheduler.observe(Event(now_ms, Kind.REPORTED, job, report=report))

    def _done(self, job: int, now_ms: int) -> float:
        """The work a job has done by now; it goes on only when it is given GPUs again."""
        since_ms, done, per_ms = self.pace.get(job, (now_ms, 0.0, 0.0))
        done += (now_ms - since_ms) * per_ms
        self.pace[job] = now_ms, done, 0.0
        return done


def rounds_ms(name: str, rounds: int = ROUNDS, **load_of: Any) -> tuple[np.ndarray, np.ndarray, Load]:
    """CPU milliseconds of the first rounds and of those after them, and what the policy did in the latter."""
    load, taken = Load(PRESETS[name], **load_of), []
    load.submit(0)
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as the service does when it has started
    for step in range(FIRST + rounds):
        now_ms = step * STEP_MS + 1
        if step:
            load.end_some(now_ms)
            load.submit(now_ms)
        if step == FIRST:
            load.actions.clear()
        start = time.thread_time()
        result = load.scheduler.decide(now_ms)
        for _ in result.plan:
            pass
        taken.append((time.thread_time() - start) * 1e3)
        load.settle(result.plan, now_ms)
    return np.array(taken[:FIRST]), np.array(taken[FIRST:]), load


def main() -> None:
    """Print one line per preset."""
    parser = argparse.ArgumentParser()
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--start-s", type=float, default=START_S, help="how long a start takes, less than a minute")
    parser.add_argument("--jobs", type=int, default=QUEUED)
    parser.add_argument("--gpus", type=int, default=GPUS, help=f"a multiple of {WIDTH}")
    parser.add_argument("--full", action="store_true", help="with something to share, to feed and to fill")
    options = parser.parse_args()
    if not 0 <= options.start_s < STEP_MS / MS_PER_S:
        parser.error(f"--start-s: found {options.start_s:g}, expected 0 to less than {STEP_MS // MS_PER_S}")
    names = options.presets or list(PRESETS)
    how = {"start_s": options.start_s, "jobs": options.jobs, "gpus": options.gpus, "full": options.full}
    for elastic in {PRESETS[name].resizes_running for name in names}:
        rounds_ms("elastic" if elastic else "fifo", 3)  # compiles
    for name in names:
        rounds_ms(name, 1, **how)  # what this preset compiles besides
        first, taken, load = rounds_ms(name, options.rounds, **how)
        done = ", ".join(f"{count / len(taken):.1f} {what}" for what, count in sorted(load.actions.items()))
        print(
            f"{name:15} {'elastic' if load.elastic else 'rigid':7} jobs   p50 {np.percentile(taken, 50):7.2f} ms   "
            f"p99 {np.percentile(taken, 99):7.2f} ms   slowest of the first {FIRST} rounds {first.max():8.1f} ms   "
            f"a round: {done}; {len(load.running)} jobs run", flush=True,
        )


if __name__ == "__main__":
    main()
