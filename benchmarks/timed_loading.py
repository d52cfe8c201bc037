"""A training job whose device is emulated and whose loader is real: its samples take CPU time.

    python benchmarks/timed_loading.py FOLDER STEP_S CORES

A step waits for STEP_S, as a device would work, and has 16 samples. Each sample takes as much CPU time as makes the
loader want CORES cores for steps that never wait for data. It appends the time of each step to FOLDER/times.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import torch

import brim.train as bt

BATCH: Final = 16


class Rows:
    """Rows that take CPU time to load, also if the core is shared."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> Any:
        until_s = time.thread_time() + self._cpu_s
        while time.thread_time() < until_s:
            pass
        return torch.full((4,), place / 64), torch.ones(1)


def main() -> None:
    """Train until it is stopped."""
    folder, step_s, cores = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    run = bt.start(logical_workers=1, seed=1)
    model = torch.nn.Linear(4, 1)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = run.loader(Rows(cores * step_s / BATCH), BATCH)
    with (folder / "times").open("w", buffering=1) as file:
        for _ in run.epochs(100_000):
            for x, y in run.steps(loader):
                time.sleep(step_s)
                run.backward(((model(x) - y) ** 2).mean())
                run.step()
                if loader.workers != loader.workers_max:  # what the plan says, without a search of its own
                    loader.set_workers(loader.workers_max)
                print(time.monotonic(), loader.workers, loader.workers_max, file=file)


if __name__ == "__main__":
    main()
