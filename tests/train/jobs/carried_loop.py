"""A loop that changes carried objects behind ``begins_step``: a counter, an average of weights, a replay buffer.

``carried_loop.py PAUSE_S``: the pause is behind these changes, so a kill meets steps that have changed them.
"""

import random
import sys
import time

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import brim.train as bt


class Replay:
    """Experiences of an agent; what it keeps is changed in place."""

    def __init__(self):
        self.items, self.epsilon = [], 1.0

    def act(self, policy):
        generator = torch.Generator().manual_seed(len(self.items))
        state = torch.randn(4, generator=generator)
        explores = float(torch.rand(1, generator=generator)) < self.epsilon
        self.items.append((state, 0.5 if explores else float(policy(state).detach().sum())))
        self.epsilon *= 0.95

    def state_dict(self):
        return {"items": self.items, "epsilon": self.epsilon}

    def load_state_dict(self, state):
        self.items, self.epsilon = state["items"], state["epsilon"]


pause_s = float(sys.argv[1])
run = bt.start(logical_workers=4, seed=3)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
model, optimizer = run.prepare(model, optimizer)
teacher = run.carry("teacher", AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True))
policy = nn.Sequential(nn.Linear(4, 2))
count = run.carry("count", {"steps": 0, "each": []})
replay = run.carry("replay", Replay())
late = run.carry("late", {"steps": 0})
loader = run.loader(range(16 * 40), global_batch=16, workers=0)
for _ in run.epochs(9, steps=40):
    for numbers in run.steps(loader):
        if run.begins_step:
            teacher.update_parameters(model)
            replay.act(policy)
            count["steps"] += 1
            count["each"].append(run.steps_done)
            time.sleep(pause_s)
        picked = [random.choice(replay.items) for _ in numbers]
        states, wanted = torch.stack([state for state, _ in picked]), torch.tensor([value for _, value in picked])
        with torch.no_grad():
            wanted = wanted + 0.9 * teacher.eval()(states).sum(1)
        run.backward((model(states).sum(1) - wanted).pow(2).mean())
        if run.step():
            late["steps"] += 1
assert count == {"steps": 40, "each": list(range(40))}, count
assert late == {"steps": 40}, late
