"""The job of resize.py, kill_recovery.py and preempt.py: 50 MB of gradients, 100 MB of state.

It notes when each of its steps began and ended.

resize_job.py NOTES [--checkpoint DIR]           under brim
resize_job.py NOTES --torchrun SNAPSHOT          under torchrun, which restarts it at every change of membership
resize_job.py NOTES --torchft LIGHTHOUSE         one replica of torchft, which finds the others at the lighthouse
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

torch.set_num_threads(1)
MEGABYTES = 2 * 12 * (1024 * 1024 + 1024) * 4 / 1e6
BATCH = 16
SNAPSHOT_EVERY = 20


def build():
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
    return model, torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)


def note(size, began, ended):
    NOTES.write(f"{size} {began!r} {ended!r}\n")
    NOTES.flush()


def under_brim(checkpoint):
    import brim.train as bt
    from train_core import Data

    run = bt.start(logical_workers=4, checkpoint=checkpoint)
    model, optimizer = build()
    run.prepare(model, optimizer)
    for batch in run.steps(Data(BATCH, 4, lambda n: torch.randn(n, 1024))):
        began = time.monotonic()
        run.backward(model(batch).square().mean())
        if run.step():
            note(run.world_size, began, time.monotonic())


def under_torchrun(snapshot):
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model, optimizer = build()
    if os.path.exists(snapshot):
        saved = torch.load(snapshot, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    wrapped, size = DistributedDataParallel(model), dist.get_world_size()
    batch = torch.randn(BATCH // size, 1024)
    for step in range(1_000_000):
        began = time.monotonic()
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()
        note(size, began, time.monotonic())
        if step % SNAPSHOT_EVERY == 0 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, snapshot + ".new")
            os.replace(snapshot + ".new", snapshot)


def under_torchft(lighthouse):
    from datetime import timedelta

    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    timeout = timedelta(seconds=30)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, plain = build()

    def load(state):
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout), load_state_dict=load, min_replica_size=1, timeout=timeout, rank=0,
        world_size=1, store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse, hostname="127.0.0.1",
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
    )  # fmt: skip
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, plain)
    while True:
        began, done = time.monotonic(), manager.current_step()
        optimizer.zero_grad()
        size = max(manager.num_participants(), 1)
        wrapped(torch.randn(BATCH // size, 1024)).square().mean().backward()
        optimizer.step()
        if manager.current_step() > done:
            note(manager.num_participants(), began, time.monotonic())


NOTES = (Path(sys.argv[1]) / f"{os.getpid()}.steps").open("w")
if "--torchrun" in sys.argv:
    under_torchrun(sys.argv[3])
elif "--torchft" in sys.argv:
    under_torchft(sys.argv[3])
else:
    under_brim(sys.argv[3] if "--checkpoint" in sys.argv else None)
