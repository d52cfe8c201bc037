"""A training job that uses its device for a part of each step, and waits while another job uses it.

Its device is a lock, which stands for one that is used in turn: what jobs wait for each other does not depend on how
busy the machine is. Arguments: its folder, seconds of a step on the device and beside it, seconds between two reports.
A file ``end`` in the folder ends it; it notes there when it has begun to train.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

import torch

import brim.train as bt
from brim.train import step

torch.set_num_threads(1)
folder, busy_s, else_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
step.MEASURED_EVERY_S = float(sys.argv[4])
run = bt.start(logical_workers=1, seed=1, checkpoint=os.environ["BRIM_CKPT_DIR"])
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
rows = [(torch.full((4,), n / 64), torch.ones(1)) for n in range(64)]
loader = run.loader(rows, 16, workers=0)
with open(folder.parent / os.environ["BRIM_DEVICES"], "w") as device:
    for _ in run.epochs(100_000):
        for x, y in run.steps(loader):
            fcntl.flock(device, fcntl.LOCK_EX)
            time.sleep(busy_s)
            run.backward(((model(x) - y) ** 2).mean())
            fcntl.flock(device, fcntl.LOCK_UN)
            time.sleep(else_s)
            run.step()
            (folder / "trains").touch()
        if (folder / "end").exists():
            break
run.finish()
