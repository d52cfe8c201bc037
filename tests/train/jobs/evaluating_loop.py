"""Evaluates with worker processes of PyTorch's loader, to all of which, or to one, another process sends a signal.

``evaluating_loop.py FOLDER METHOD SIGNAL PERSISTENT``: the workers come from ``fork`` or ``spawn``. TERM comes to them
first and then to this process, KILL to one of them alone. The loader lives as long as this process.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import brim.train as bt

ITEMS = 60


class Slow(Dataset):
    """Loads for longer than a signal takes. A program that it starts ends by SIGTERM, though the worker does not."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        if index == ITEMS - 1:
            program = subprocess.Popen(["sleep", "60"])
            program.terminate()
            assert program.wait(10) == -signal.SIGTERM
        time.sleep(0.01)
        return torch.ones(4)


def main(folder, batches, name):
    run = bt.start(checkpoint=folder / "saved")
    model = nn.Linear(4, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def evaluate():
        rest = iter(batches)
        if batches.multiprocessing_context.get_start_method() == "fork":
            next(rest)  # a spawned worker has not begun when the signal comes
        workers = [str(worker.pid) for worker in rest._workers]
        (folder / "workers").write_text(" ".join(workers))
        for pids in [workers, [str(os.getpid())]] if name == "TERM" else [workers[:1]]:
            subprocess.run(["kill", f"-{name}", *pids], check=True)  # PyTorch's workers know their parent's signals
            time.sleep(0.1)
        sys.stdout.write(f"{sum(1 for _ in rest)} batches\n")

    rows = run.loader(torch.ones(16, 4), global_batch=8, workers=0)
    for _ in run.epochs(2):
        for x in run.steps(rows):
            run.backward(model(x).pow(2).mean())
            run.step()
        run.evaluate(evaluate)


if __name__ == "__main__":
    _, out, method, number, persistent = sys.argv
    loader = DataLoader(
        Slow(), 4, num_workers=1 if method == "spawn" else 2, multiprocessing_context=method,
        persistent_workers=persistent == "persistent",
    )  # fmt: skip
    main(Path(out), loader, number)
