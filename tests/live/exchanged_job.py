"""Trains for a number of steps of a given time; says where it runs and, at its end, what it has made of its samples.

    python exchanged_job.py STEPS STEP_S [CURVE [WORKERS]]

A curve is an expression of ``k``, the steps done, and ``draw``, random numbers of that step; its value is reported as
the loss of the step. There is one logical worker, unless their number is given.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time

import torch

import brim.train as bt


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    steps, step_s, curve = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    workers = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    run = bt.start(logical_workers=workers, seed=1, checkpoint=os.environ.get("BRIM_CKPT_DIR"))
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    say(f"device {os.environ.get('BRIM_DEVICE')}, threads {torch.get_num_threads()}, visible {seen!r}")
    say(f"process {os.getpid()}")
    model = torch.nn.Linear(1, 1, bias=False)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    rows = [(torch.tensor([math.sin(n)]), torch.tensor([math.cos(n)])) for n in range(96)]  # each leaves its own mark
    loader = run.loader(rows, 8, workers=0)
    done = run.steps_done
    for _ in run.epochs(1_000_000, steps=steps):
        for x, y in run.steps(loader):
            time.sleep(step_s)
            run.backward(((model(x) - y) ** 2).mean())
            run.step()
            if run.steps_done > done:
                done = run.steps_done
                if curve:
                    values = {"k": done, "draw": random.Random(done), "math": math}
                    run.report(loss=float(eval(curve, values)))
    say(f"{run.samples} samples, sha256 {run.digest()}")


if __name__ == "__main__":
    main()
