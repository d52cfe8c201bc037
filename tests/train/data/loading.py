"""What tests of the loader do with one: take everything, compare bit by bit, look for what was left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brim.train.data.loader import Loader
from brim.train.data.pool import children


def copied(batch: Any) -> Any:
    """A copy that holds no shared memory."""
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, dict):
        return {key: copied(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [copied(value) for value in batch]
    return batch


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, strides included."""
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.stride()) == (other.dtype, other.stride()) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def take_step(loader: Loader) -> list[Any]:
    """Fetch and commit the next step."""
    epoch, step = loader.epoch, loader.step
    batches = [copied(loader.fetch(epoch, step, worker)) for worker in range(loader.logical_workers)]
    loader.commit(epoch, step)
    return batches


def take(loader: Loader, epochs: int = 1) -> list[Any]:
    """Everything of some epochs."""
    batches = []
    while loader.epoch < epochs:
        batches += take_step(loader)
    return batches


def living(processes: list[int]) -> list[int]:
    """Those that still run; zombies do not."""
    def runs(process: int) -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):  # the latter while it ends
            return False

    return [process for process in processes if runs(process)]


def wait_until(condition, seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


def descendants(process: int) -> list[int]:
    found = []
    for child in children(process):
        found += [child, *descendants(child)]
    return found


def open_files() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return links


def named_memory(processes: list[int]) -> set[str]:
    """Names in ``/dev/shm`` that these processes have mapped: other tests have some there, too."""
    maps = [Path(f"/proc/{process}/maps").read_text().splitlines() for process in processes]
    places = {line[line.index("/dev/shm/"):] for lines in maps for line in lines if "/dev/shm/" in line}
    return {place for place in places if not place.endswith("(deleted)")}


def shared_maps() -> int:
    return Path("/proc/self/maps").read_text().count("brim-batch")
