"""A loop whose epochs end in a step of one sample, and which changes its state itself once per step.

``short_loop.py PAUSE_S``: the pause is behind the changes before a step, so a kill meets steps that have changed them.
"""

import sys
import time

import torch
from torch import nn

import brim.train as bt

EPOCHS = 8

pause_s = float(sys.argv[1])
run = bt.start(logical_workers=4, seed=3)
model = nn.Linear(4, 2)
model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), 1e-2))
before = run.carry("before", {"steps": []})
after = run.carry("after", {"steps": []})
loader = run.loader([torch.full((4,), float(n)) for n in range(17)], global_batch=8, workers=0)
for _ in run.epochs(EPOCHS):
    for x in run.steps(loader):
        if run.begins_step:
            before["steps"].append(run.steps_done)
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + run.steps_done)
            time.sleep(pause_s)
        run.backward(model(x).pow(2).mean())
        if run.step():
            after["steps"].append(run.steps_done)
            with torch.no_grad():
                model.weight.mul_(0.99)
steps = list(range(3 * EPOCHS))
assert before["steps"] == steps, before
assert after["steps"] == [step + 1 for step in steps], after
