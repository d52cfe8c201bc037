"""Measure what samples of very different length cost: 1 in 50 takes 20 times as long as the others.

The supply with such samples is compared with what the workers could do in any order (their number over the mean time
of a sample), and with a dataset whose samples all take that mean. Loading is a wait, so that cores do not matter.

    python benchmarks/heavy_samples.py [--workers 4] [--seconds 3]
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import Dataset

from brim.train.data.loader import Loader

SHORT_S, HEAVY, EVERY = 0.01, 20, 50
MEAN_S = SHORT_S * (EVERY - 1 + HEAVY) / EVERY
BATCHES = (1, 2, 4, 8, 16)


class Waits(Dataset):
    """Samples that take a fixed time, or one of two."""

    def __init__(self, *, heavy: bool) -> None:
        self.heavy = heavy

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        is_heavy = index % EVERY == 0
        time.sleep(MEAN_S if not self.heavy else SHORT_S * (HEAVY if is_heavy else 1))
        return torch.full((16,), index)


def supply(dataset: Dataset, batch: int, workers: int, seconds: float) -> float:
    """Samples per second if they are taken as fast as they come."""
    with Loader(dataset, batch, workers=workers) as loader:
        loader.assign(0, 0, range(1))

        def fetch() -> None:
            loader.fetch(loader.epoch, loader.step, 0)
            loader.commit(loader.epoch, loader.step)

        until = time.perf_counter() + seconds / 3
        while time.perf_counter() < until:
            fetch()
        began, samples = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            fetch()
            samples += batch
        return samples / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    most = options.workers / MEAN_S
    print(f"{options.workers} workers could load {most:,.0f} samples/s in any order")
    print("batch  alike  heavy-tailed  heavy-tailed / alike")
    for batch in BATCHES:
        alike, tailed = (supply(Waits(heavy=heavy), batch, options.workers, options.seconds) for heavy in (False, True))
        print(f"{batch:5}  {alike / most:5.2f}  {tailed / most:12.2f}  {tailed / alike:20.2f}")


if __name__ == "__main__":
    main()
