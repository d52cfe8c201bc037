"""A training job as a user would write it; it says at the end what it has come to."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2]))

import brim.train as bt  # noqa: E402
from tests.elastic.pace import wait_until_allowed  # noqa: E402
from tests.train.models import JOBS, Rows, loss_of  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--model", default="mlp")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=78)
parser.add_argument("--pause", type=float, default=0.0, help="seconds in every micro-batch")
parser.add_argument("--pause-last", type=float, default=0.0, help="the same in the last step of an epoch")
parser.add_argument("--anneal", action="store_true", help="divide the learning rate at the end of every epoch")
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--fast", action="store_true")
parser.add_argument("--checkpoint")
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--fail-at", type=int)
parser.add_argument("--stream", action="store_true", help="an iterable dataset, in another order in every epoch")
parser.add_argument("--rate", choices=["begins", "idiom"], help="set it by hand, behind begins_step or as nanoGPT does")
parser.add_argument("--evaluate", action="store_true", help="on rank 0, every 5 steps; the best value so far is kept")
options = parser.parse_args()


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows, self.epoch = rows, 0

    def __len__(self):
        return len(self.rows)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (self.rows[(place + 5 * self.epoch) % len(self.rows)] for place in range(len(self.rows)))


run = bt.start(
    logical_workers=None if options.fast else options.workers, seed=5, checkpoint=options.checkpoint, noise_every=3
)
model, optimizer, kind, max_norm = JOBS[options.model]()
model, optimizer = run.prepare(model, optimizer)
run.clip(max_norm)
run.schedule(lambda samples: 1 / (1 + samples / 500))
dataset = Rows(kind, options.samples)
if options.stream:
    dataset = Stream(dataset)
loader = run.loader(dataset, 16, workers=options.loader_workers)
first, losses, begun = None, {}, True
best = run.carry("best", {"loss": float("inf")})


def loss_on_rank_0():
    """Of the whole dataset, as all ranks know it then."""
    found = None
    if run.rank == 0:
        model.eval()
        with torch.no_grad():
            x, y = torch.utils.data.default_collate([*Rows(kind)])
            found = float(loss_of(model(x), y))
        model.train()
    return run.broadcast(found)


steps = os.open(options.out / "step", os.O_CREAT | os.O_WRONLY)  # for who decides what happens when
for _ in run.epochs(options.epochs):
    for x, y in run.steps(loader):
        first = run.steps_done if first is None else first
        if options.pause:
            time.sleep(options.pause)
        if options.pause_last and loader.step == loader.steps_per_epoch - 1:
            time.sleep(options.pause_last)
        wait_until_allowed(options.out, run.steps_done)
        if options.fail_at == run.steps_done and run.rank == 1:
            raise RuntimeError("the user's own mistake")
        if options.rate and (run.begins_step if options.rate == "begins" else begun):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + run.steps_done / 20)
        if options.evaluate and run.begins_step and run.steps_done % 5 == 0:
            best["loss"] = min(best["loss"], run.evaluate(loss_on_rank_0))
        run.backward(loss_of(model(x), y))
        begun = run.step()
        if begun:
            losses[run.steps_done] = run.loss
            os.pwrite(steps, b"%8d" % run.steps_done, 0)
    if options.anneal:
        for group in optimizer.param_groups:
            group["lr"] /= 1.5
said = {
    "digest": run.digest(), "samples": run.samples, "steps": run.steps_done, "rank": run.rank, "first": first,
    "losses": losses, "ledger": loader.ledger(), "noise": run.noise.state_dict(), "size": run.world_size,
    "rate": optimizer.param_groups[0]["lr"], "best": best["loss"],
    "loader_workers": loader.workers,
}  # fmt: skip
(options.out / f"{os.environ.get('BRIM_ID', 'alone')}-{os.getpid()}.json").write_text(json.dumps(said))
loader.close()
