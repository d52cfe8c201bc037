"""A training job whose micro-batches take a given time, so that ranks do not contend for processors.

Arguments: the file that tells it to end, seconds of a micro-batch, of which a step has four, on how many ranks it can
run: on 1, 2 and 4 by default, and where it saves: in $BRIM_CKPT_DIR by default, nowhere if empty.
"""

import os
import sys
import time
from pathlib import Path

import torch

import brim.train as bt

torch.set_num_threads(1)
end, micro_s = Path(sys.argv[1]), float(sys.argv[2])
folder = sys.argv[4] if sys.argv[4:] else os.environ["BRIM_CKPT_DIR"]
run = bt.start(logical_workers=int(sys.argv[3]) if sys.argv[3:] else 4, seed=1, checkpoint=folder or None)
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
rows = [(torch.full((4,), n / 64), torch.ones(1)) for n in range(64)]
loader = run.loader(rows, 16, workers=0)
for _ in run.epochs(100_000):
    for x, y in run.steps(loader):
        time.sleep(micro_s)
        run.backward(((model(x) - y) ** 2).mean())
        run.step()
    if run.broadcast(end.exists() if run.rank == 0 else None):
        break
