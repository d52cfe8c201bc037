"""The job of the resize benchmark: 100 MB of state; notes what a resize costs its survivors."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import brim.train as bt

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from train_core import Data  # noqa: E402

torch.set_num_threads(1)
run = bt.start(logical_workers=4)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
run.prepare(model, optimizer)
data = Data(16, 4, lambda n: torch.randn(n, 1024))
with (Path(sys.argv[1]) / f"{os.getpid()}.gaps").open("w") as out:
    size, ended, usual = 0, None, []
    for batch in run.steps(data):
        began = time.perf_counter()
        if ended is not None and size and run.world_size != size:
            megabytes = 2 * sum(p.nbytes for p in model.parameters()) / 1e6
            said = {"from": size, "to": run.world_size, "lost_s": began - ended, "megabytes": megabytes}
            out.write(json.dumps(said) + "\n")
            out.flush()
        size = run.world_size
        run.backward(model(batch).square().mean())
        ended = time.perf_counter() if run.step() else None
