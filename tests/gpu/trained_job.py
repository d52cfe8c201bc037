"""Trains on the device that it was given.

    python trained_job.py STEPS STEP_S [FOLDER]

A step computes for a while and waits for the rest of STEP_S. It reports losses that fall, prints the device, and at its
end what it has made of its samples. FOLDER/trains says that it trains.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import torch

import brim.train as bt


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)
steps, step_s, folder = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None
run = bt.start(logical_workers=1, seed=1, checkpoint=os.environ.get("BRIM_CKPT_DIR"))
say(f"device {run.device.type}, asked for {os.environ.get('BRIM_DEVICE')}")
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
rows = [(torch.full((64,), math.sin(n)), torch.tensor([math.cos(n)])) for n in range(96)]
loader = run.loader(rows, 8, workers=0)
for _ in run.epochs(1_000_000, steps=steps):
    for x, y in run.steps(loader):
        begin_s = time.monotonic()
        run.backward(((model(x) - y) ** 2).mean())
        if run.device.type == "cuda":
            torch.cuda.synchronize()
        time.sleep(max(0.0, step_s - (time.monotonic() - begin_s)))
        run.step()
        run.report(loss=0.2 + 1 / (1 + 0.2 * run.steps_done))
        if folder is not None:
            (folder / "trains").touch()
say(f"{run.samples} samples, sha256 {run.digest()}")
