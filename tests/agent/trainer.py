"""An elastic training job: it trains until it is told by a file to end, and checkpoints into $BRIM_CKPT_DIR."""

import os
import sys
import time
from pathlib import Path

import torch

import brim.train as bt

torch.set_num_threads(1)
run = bt.start(logical_workers=4, seed=1, checkpoint=os.environ["BRIM_CKPT_DIR"])
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
rows = [(torch.full((4,), n / 64), torch.ones(1)) for n in range(64)]
loader = run.loader(rows, 16, workers=0)
end = Path(sys.argv[1])
sys.stdout.reconfigure(line_buffering=True)
sys.stdout.write(f"begins on {os.environ['CUDA_VISIBLE_DEVICES']}|{os.environ['BRIM_DEVICES']}\n")
for _ in run.epochs(100_000):
    for x, y in run.steps(loader):
        time.sleep(0.005)  # a step takes less, and who tests waits for what ranks say
        run.backward(((model(x) - y) ** 2).mean())
        if run.step() and run.steps_done % 10 == 0:
            sys.stdout.write(f"size {run.world_size} batch {loader.global_batch} step {run.steps_done}\n")
    if run.broadcast(end.exists() if run.rank == 0 else None):
        break
