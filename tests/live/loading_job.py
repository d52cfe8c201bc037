"""A training job whose samples take time to load, and which notes how many loader workers it may have.

Arguments: its folder, and after how many steps it ends; without that, a file ``end`` in the folder ends it. It writes
its result there.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

import brim.train as bt

torch.set_num_threads(1)
folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None


class Rows:
    """Rows that take 2 ms each to load, or no time where the number of steps is given."""

    def __len__(self):
        return 64

    def __getitem__(self, place):
        if steps is None:
            time.sleep(0.002)
        return torch.full((4,), place / 64) + torch.rand(4), torch.ones(1)


run = bt.start(logical_workers=2, seed=1, checkpoint=os.environ.get("BRIM_CKPT_DIR"))
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = run.loader(Rows(), 16, workers="auto" if steps is None else 0)
bounds, ended = [], False
for _ in run.epochs(100_000):
    for x, y in run.steps(loader):
        run.backward(((model(x) - y) ** 2).mean())
        run.step()
        if bounds[-1:] != [loader.workers_max]:
            bounds.append(loader.workers_max)
            (folder / f"bounds-{run.rank}").write_text(json.dumps(bounds))
    if run.broadcast((folder / "end").exists() or run.steps_done == steps if run.rank == 0 else None):
        break
run.finish()
if run.rank == 0:
    said = {"digest": run.digest(), "steps": run.steps_done, "samples": run.samples, "ledger": loader.ledger()}
    (folder / "result").write_text(json.dumps(said))
loader.close()
