"""Time rounds of ``aiturbo`` with 1,000 jobs with parameter servers: the size part alone, and whole; thread CPU.

    python benchmarks/exchange_round.py [--jobs N] [--gpus N] [--rounds N]

All jobs are submitted at nearly the same time, so that those that do not run wait. The first five rounds, in which the
cluster fills, are printed apart.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.snapshot import Snapshot
from brim.engine.scheduler import Scheduler
from brim.policies.presets import PRESETS
from brim.policies.size.exchange import UnitExchange
from brim.policies.sockets import Sizes
from brim.sim.reproduce.aiturbo import SweepPoint, workload
from brim.sim.twin import replay

FILLING = 5


@dataclass(frozen=True)
class Timed:
    """The size part, which notes how long it takes."""

    resizes_running: ClassVar[bool] = True
    taken_ms: list[float] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """See ``Size``."""
        began_s = time.thread_time()
        sizes = UnitExchange()(snapshot, beliefs, order)
        self.taken_ms.append((time.thread_time() - began_s) * 1e3)
        return sizes


def main() -> None:
    """Print percentiles of both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    rounds, decide = [], Scheduler.decide

    def timed(*args, **how):  # type: ignore[no-untyped-def]
        began_s = time.thread_time()
        result = decide(*args, **how)
        rounds.append((time.thread_time() - began_s) * 1e3)
        return result

    Scheduler.decide = timed  # type: ignore[method-assign]
    size = Timed()
    policy = replace(PRESETS["aiturbo"], size=size)
    few = workload(SweepPoint(jobs=5))
    replay(few.trace, few.cluster, policy, truth=few.truth)  # compiles
    gc.collect()
    gc.freeze()  # as the service does when it has started
    rounds.clear()
    size.taken_ms.clear()
    many = workload(SweepPoint(jobs=options.jobs, cluster=f"{options.gpus // 2}x2xK80:cpus=32", load=1e6))
    replay(many.trace, many.cluster, policy, truth=many.truth, on_progress=lambda *_: len(rounds) < options.rounds)
    for what, taken in (("size part", size.taken_ms), ("whole round", rounds)):
        filling, later = np.array(taken[:FILLING]), np.array(taken[FILLING:])
        p50, p99 = np.percentile(later, [50, 99])
        print(f"{what:12} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   slowest of the first {FILLING}: {filling.max():.1f}")


if __name__ == "__main__":
    main()
