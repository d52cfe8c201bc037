"""Measure loading on three pipelines: "auto" against each fixed number of workers, and both against torch's DataLoader.

The work is synthetic and real: *decode* inflates compressed images, crops, flips and normalises them; *tokens* cuts
windows out of a file of token ids; *rows* picks rows of a table. Each is measured with nothing else to do (how fast can
it supply?) and under a training step that leaves the CPU free, as a GPU does (does training wait?). Candidates take
turns, so that other load on the machine disturbs all of them alike; ratios are medians of the ratios of each turn.
Other load disturbs the processor time per batch least.

    python benchmarks/loader.py [--turns 15] [--seconds 0.3] [--only decode]
"""

from __future__ import annotations

import argparse
import glob
import os
import random
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from brim.train.data.loader import Loader
from brim.train.data.pool import children

FIXED = (0, 1, 2, 3)
SIDE = 128


class Decode(Dataset):
    """Images as PNG stores them: rows of bytes, deflated."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        smooth = np.cumsum(rng.integers(-3, 4, (64, SIDE, SIDE, 3)), axis=2).astype(np.uint8)
        self.images = [zlib.compress(image.tobytes(), 6) for image in smooth]

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raw = zlib.decompress(self.images[index % 64])
        image = np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3)
        top, left = random.randrange(SIDE - 112), random.randrange(SIDE - 112)
        image = image[top:top + 112, left:left + 112]
        if random.random() < 0.5:
            image = image[:, ::-1]
        return (torch.from_numpy(image.copy()).permute(2, 0, 1).float() - 127.5) / 64.0, index % 10


class Tokens(Dataset):
    """Windows of a memory-mapped file of token ids."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokens.bin"
        np.random.default_rng(0).integers(0, 50_000, 20_000_000, dtype=np.uint16).tofile(path)
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * 49 % (len(self.tokens) - 1025)
        window = torch.from_numpy(self.tokens[start:start + 1025].astype(np.int64))
        return window[:-1], window[1:]


class Rows(Dataset):
    """Rows of a table in memory."""

    def __init__(self) -> None:
        self.features = torch.randn(200_000, 64)
        self.labels = torch.randint(0, 2, (200_000,))

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index], self.labels[index]


@dataclass(frozen=True)
class Pipeline:
    dataset: Dataset
    batch: int
    step_s: float


def endless(loader: Loader) -> Iterator[Any]:
    loader.assign(loader.epoch, loader.step, range(1))
    while True:
        epoch, step = loader.epoch, loader.step
        yield loader.fetch(epoch, step, 0)
        loader.commit(epoch, step)


def endless_torch(loader: DataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def processor_s() -> float:
    """Return the processor time of this process and its descendants; only one candidate works at a time."""
    total, processes = 0, [os.getpid()]
    while processes:
        process = processes.pop()
        for path in glob.glob(f"/proc/{process}/task/*/schedstat"):
            try:
                total += int(Path(path).read_text().split()[0])
            except FileNotFoundError:
                continue
        processes += children(process)
    return total / 1e9


@dataclass
class Candidate:
    """An open loader that takes turns with others; between turns its workers fill the queue of batches loaded ahead."""

    batches: Iterator[Any]
    ahead: int
    rates: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    fetches: int = 0

    def turn(self, batch: int, step_s: float, seconds: float) -> None:
        for _ in range(self.ahead + 2):
            next(self.batches)
            time.sleep(step_s)
        began, used_s, count = time.perf_counter(), processor_s(), 0
        while time.perf_counter() - began < seconds:
            next(self.batches)
            if step_s:
                time.sleep(step_s)
            count += 1
        self.rates.append(count * batch / (time.perf_counter() - began))
        self.cpu_s += processor_s() - used_s
        self.fetches += count


def settle(loader: Loader, batches: Iterator[Any], step_s: float) -> float:
    """Let "auto" find its number; return how long that took."""
    began = time.perf_counter()
    while not loader.supply.settled and time.perf_counter() - began < 60:
        next(batches)
        if step_s:
            time.sleep(step_s)
    return time.perf_counter() - began


def ratio(one: Candidate, other: Candidate) -> float:
    """Return the median over turns of one candidate's rate over another's in the same turn."""
    return statistics.median(a / b for a, b in zip(one.rates, other.rates, strict=True))


def compare(name: str, pipeline: Pipeline, step_s: float, turns: int, seconds: float) -> None:
    data, batch = pipeline.dataset, pipeline.batch
    with ExitStack() as stack:
        auto = stack.enter_context(Loader(data, batch, workers="auto"))
        batches = endless(auto)
        took_s = settle(auto, batches, step_s)
        found = auto.workers
        open_now: dict[tuple[str, int], Candidate] = {("auto", -1): Candidate(batches, 2 * found)}
        for workers in FIXED:
            loader = stack.enter_context(Loader(data, batch, workers=workers))
            open_now["brim", workers] = Candidate(endless(loader), 2 * workers)
            torch_loader = DataLoader(data, batch, shuffle=True, num_workers=workers)
            open_now["torch", workers] = Candidate(endless_torch(torch_loader), 2 * workers)
        for turn in range(turns):
            names = list(open_now)
            random.Random(turn).shuffle(names)
            for key in names:
                open_now[key].turn(batch, step_s, seconds)
        load = f"step of {step_s * 1e3:g} ms" if step_s else "no step"
        print(f"\n{name}, batch {batch}, {load}: samples/s, median of {turns} turns")
        print("| workers | " + " | ".join(map(str, FIXED)) + " |")
        for kind in ("brim", "torch"):
            row = [statistics.median(open_now[kind, workers].rates) for workers in FIXED]
            print(f"| {kind} | " + " | ".join(f"{rate:,.0f}" for rate in row) + " |")
        row = [ratio(open_now["brim", workers], open_now["torch", workers]) for workers in FIXED]
        print("| brim / torch | " + " | ".join(f"{value:.2f}" for value in row) + " |")
        for kind in ("brim", "torch"):
            used = [open_now[kind, workers].cpu_s / open_now[kind, workers].fetches for workers in FIXED]
            print(f"| {kind}, CPU ms per batch | " + " | ".join(f"{1e3 * value:.2f}" for value in used) + " |")
        best = max(FIXED, key=lambda workers: statistics.median(open_now["brim", workers].rates))
        share = ratio(open_now["auto", -1], open_now["brim", best])
        print(f"auto: {share:.3f} of the best fixed number ({best}); found {found} after {took_s:.1f} s", flush=True)


def latencies(data: Dataset, batch: int, turns: int) -> None:
    """Measure the start up to the first batch, and changes of the number of workers, both beside torch."""
    first: dict[str, list[float]] = {"brim": [], "torch": [], "brim change": [], "torch change": []}
    for _ in range(turns):
        began = time.perf_counter()
        with Loader(data, batch, workers=2) as loader:
            batches = endless(loader)
            next(batches)
            first["brim"].append(time.perf_counter() - began)
            for _ in range(20):
                next(batches)
            began = time.perf_counter()
            loader.set_workers(3)
            next(batches)
            first["brim change"].append(time.perf_counter() - began)
        for key, workers in (("torch", 2), ("torch change", 3)):
            began = time.perf_counter()
            iterator = iter(DataLoader(data, batch, shuffle=True, num_workers=workers))
            next(iterator)
            first[key].append(time.perf_counter() - began)
            del iterator
    print("\nmilliseconds, median: " + ", ".join(f"{k} {statistics.median(v) * 1e3:.1f}" for k, v in first.items()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in loading processes, so that loading in this process can be compared
    warnings.filterwarnings("ignore", "This DataLoader will create")
    with tempfile.TemporaryDirectory() as folder:
        pipelines = {
            "decode": Pipeline(Decode(), 32, 0.02),
            "tokens": Pipeline(Tokens(Path(folder)), 64, 0.005),
            "rows": Pipeline(Rows(), 256, 0.005),
        }
        for name, pipeline in pipelines.items():
            if options.only in ("", name):
                for step_s in (0.0, pipeline.step_s):
                    compare(name, pipeline, step_s, options.turns, options.seconds)
        latencies(pipelines["decode"].dataset, 32, options.turns)


if __name__ == "__main__":
    main()
