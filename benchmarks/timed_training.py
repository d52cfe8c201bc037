"""An elastic job whose devices are emulated: a micro-batch takes a given time, of which a step has four.

    python benchmarks/timed_training.py STEPS MICRO_S

On P ranks a step takes 4 / P times as long as a micro-batch. It trains a model of five parameters with ``brim.train``,
so that groups form, change and end as those of real jobs do.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch

import brim.train as bt


def main() -> None:
    """Train for the steps."""
    steps, micro_s = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    run = bt.start(logical_workers=4, seed=1, checkpoint=os.environ["BRIM_CKPT_DIR"])
    model = torch.nn.Linear(4, 1)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    rows = [(torch.full((4,), n / 64), torch.ones(1)) for n in range(64)]
    loader = run.loader(rows, 16, workers=0)
    taken_s, before_s, done = list[float](), time.monotonic(), run.steps_done
    for _ in run.epochs(100_000, steps=steps):
        for x, y in run.steps(loader):
            time.sleep(micro_s)
            run.backward(((model(x) - y) ** 2).mean())
            run.step()
            if run.steps_done > done:
                now_s, done = time.monotonic(), run.steps_done
                taken_s.append(now_s - before_s)
                before_s = now_s
    if run.rank == 0 and taken_s:
        print(f"{run.steps_done} steps, sha256 {run.digest()}")
        print(f"median of {1000 * statistics.median(taken_s):.2f} ms per step")


if __name__ == "__main__":
    main()
