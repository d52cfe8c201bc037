"""Time rounds of the general loop: a Philly-shaped trace on 73 nodes with 8 GPUs, load 0.9, in thread CPU.

The order part is a subclass of the preset's own, so that no compiled loop takes the replay. To compare two commits, run
it in turns with ``PYTHONPATH`` naming the ``src`` of each.

    python benchmarks/general_loop.py [--policy srtf] [--jobs 1500]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from brim.core.cluster import parse_cluster
from brim.engine.scheduler import Scheduler
from brim.policies.presets import PRESETS
from brim.sim.twin import ReplaySettings, replay
from brim.traces import synthesize


def timed(name: str, taken_us: list[float]) -> None:
    """Add the CPU time of every call of a method of ``Scheduler`` to a list."""
    call: Callable[..., Any] = getattr(Scheduler, name)

    def measured(*args: Any, **kwargs: Any) -> Any:
        began_ns = time.thread_time_ns()
        try:
            return call(*args, **kwargs)
        finally:
            taken_us.append((time.thread_time_ns() - began_ns) / 1e3)

    setattr(Scheduler, name, measured)


def main() -> None:
    """Print CPU time per job, per round with its commit, and per commit, in microseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="srtf")
    parser.add_argument("--jobs", type=int, default=1_500)
    options = parser.parse_args()
    preset = PRESETS[options.policy]
    own = type("Own", (type(preset.order),), {"__slots__": ()})
    policy = replace(preset, order=own(**{name: getattr(preset.order, name) for name in preset.order.__match_args__}))
    cluster = parse_cluster("73x8xV100")
    settings = ReplaySettings(gap_ms=0)
    replay(synthesize("philly", jobs=60, seed=1, cluster=cluster, load=0.9), cluster, policy, settings)  # compiles
    rounds_us: list[float] = []
    commits_us: list[float] = []
    timed("decide", rounds_us)
    timed("commit", commits_us)
    trace = synthesize("philly", jobs=options.jobs, seed=1, cluster=cluster, load=0.9)
    began_ns = time.thread_time_ns()
    done = replay(trace, cluster, policy, settings)
    each_us = (time.thread_time_ns() - began_ns) / 1e3 / len(trace)
    assert len(rounds_us) == done.rounds
    print(
        f"{options.policy}, {len(trace):,} jobs, {done.rounds:,} rounds, sum of finish times {done.finish_ms.sum()}: "
        f"{each_us:.0f} us per job; a round with its commit {statistics.mean(rounds_us):.0f} us, median "
        f"{statistics.median(rounds_us):.0f} us; commit {statistics.mean(commits_us):.0f} us"
    )


if __name__ == "__main__":
    main()
