"""Measure how long training waits for a checkpoint: in the background, in the foreground, and with the usual functions.

Run: ``python benchmarks/checkpoint.py [--mb 100 400] [--repeats 5] [--device cuda] [--folder DIR]``. All ways take
turns in one run. It prints medians, and the wait as a fraction of each synchronous way. "lost" is the time that a loop
of matrix products loses when a checkpoint begins in it: the wait, and the time that the writing thread takes away.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from brim.train.checkpoint.checkpointer import Checkpointer

TENSORS = 99
"""As many as a model of 33 parameters and its Adam state."""


def make_state(size_mb: int, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    count = size_mb * 1_000_000 // 4 // TENSORS
    return {f"state.{index}": torch.randn(count, generator=generator, device=device) for index in range(TENSORS)}


def timed(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s


def synced(path: Path, act: Callable[[], object]) -> None:
    act()
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def compute(device: str, steps: int) -> float:
    weight = torch.randn(1024, 1024, device=device)

    def loop() -> None:
        for _ in range(steps):
            torch.tanh_(weight @ weight / 32)
        if device == "cuda":
            torch.cuda.synchronize()

    return timed(loop)


def measure(size_mb: int, repeats: int, device: str, folder: Path) -> None:
    state = make_state(size_mb, device)
    if device == "cuda":
        torch.cuda.synchronize()
    checkpointer = Checkpointer(folder / "brim", keep=1)
    first_s = timed(lambda: checkpointer.reserve(state))
    raw, safe = folder / "raw.pt", folder / "state.safetensors"
    probe_s = compute(device, 20) / 20
    steps = max(20, round(max(3.0, size_mb / 40) / probe_s))
    ways: dict[str, Callable[[], object]] = {
        "torch.save": lambda: torch.save(state, raw),
        "torch.save, fsync": lambda: synced(raw, lambda: torch.save(state, raw)),
        "safetensors.save_file": lambda: save_file(state, safe),
        "safetensors.save_file, fsync": lambda: synced(safe, lambda: save_file(state, safe)),
        "brim, wait=True": lambda: checkpointer.save(0, state, {}, wait=True),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    stalls, totals, alone, beside = [], [], [], []
    for _ in range(repeats):
        for name, act in ways.items():
            took[name].append(timed(act))
        saving = checkpointer.save(0, state, {})
        saving.wait()
        stalls.append(saving.stall_s)
        totals.append(saving.total_s)
        alone.append(compute(device, steps))
        began_s = time.perf_counter()
        saving = checkpointer.save(0, state, {})
        compute(device, steps)
        beside.append(time.perf_counter() - began_s)
        saving.wait()
    loads = {
        "torch.load": timed(lambda: torch.load(raw, weights_only=True)),
        "safetensors.load_file, all bytes read": timed(lambda: [t.clone() for t in load_file(safe).values()]),
        "brim restore, sums checked": timed(checkpointer.restore),
    }
    report(size_mb, took, statistics.median(stalls), statistics.median(totals))
    lost_s = statistics.median([b - a for a, b in zip(alone, beside, strict=True)])
    print(f"  a loop of {statistics.median(alone):.1f} s loses {lost_s:.2f} s when a checkpoint begins in it")
    print(f"  memory for the copy, once: {first_s:.2f} s;  " + ";  ".join(f"{k} {v:.2f} s" for k, v in loads.items()))


def report(size_mb: int, took: dict[str, list[float]], stall_s: float, total_s: float) -> None:
    print(f"{size_mb} MB in {TENSORS} tensors")
    print(f"  {'':30s} {'training waits':>14s} {'complete after':>14s} {'brim waits, of it':>18s}")
    for name, times in took.items():
        median_s = statistics.median(times)
        print(f"  {name:30s} {median_s:12.3f} s {median_s:12.3f} s {stall_s / median_s:17.1%}")
    print(f"  {'brim':30s} {stall_s:12.3f} s {total_s:12.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if not given")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPUs"
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {name}")
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for size_mb in options.mb:
            measure(size_mb, options.repeats, options.device, folder)
            shutil.rmtree(folder / "brim")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
