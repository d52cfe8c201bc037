"""Datasets for tests of the loader: what a sample contains says which it is, and what was drawn for it."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset


class Drawn:
    """Every sample draws from all three generators."""

    def __init__(self, length: int = 103) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "id": index, "torch": torch.rand(3), "numpy": np.random.rand(2).astype(np.float32),
            "python": random.random(), "name": f"sample {index}",
        }


class Plain:
    """Nothing is drawn."""

    def __init__(self, length: int = 103, width: int = 4) -> None:
        self.length, self.width = length, width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((self.width,), float(index))


class Sometimes(Plain):
    """Draws for few samples, so that some batches pass before the first draw."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.rand(4) if index % 23 == 0 else torch.zeros(4)


class Together(Plain):
    """Samples of a batch are fetched at once, as Hugging Face datasets do."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(index, torch.rand(2)) for index in indices]


class Stream(IterableDataset):
    """A deterministic stream, drawn from, with a length."""

    def __init__(self, length: int = 103, declared: int | None = None) -> None:
        self.length, self.declared = length, length if declared is None else declared
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.declared

    def __iter__(self) -> Iterator[Any]:
        return ((self.epoch, index, torch.rand(1)) for index in range(self.length))


class Unsized(IterableDataset):
    """A stream that does not say its length."""

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Jumping(Unsized):
    """A stream that can begin anywhere."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it was not asked to jump")

    def iterate_from(self, start: int) -> Iterator[int]:
        return iter(range(start, self.length))


class Raising(Plain):
    """One sample cannot be read."""

    def __init__(self, bad: int, error: Exception) -> None:
        super().__init__()
        self.bad, self.error = bad, error

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self.bad:
            raise self.error
        return super().__getitem__(index)


class AwkwardError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("awkward")


class Deadly(Plain):
    """One sample kills the process that loads it, as often as the file does not say otherwise."""

    def __init__(self, bad: int, times: int, folder: Path) -> None:
        super().__init__()
        self.bad, self.times, self.folder, self.home = bad, times, folder, os.getpid()

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self.bad and os.getpid() != self.home:
            deaths = len(list(self.folder.iterdir()))
            if deaths < self.times:
                (self.folder / str(deaths)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Traced(Plain):
    """The first sample of a worker asks for a tracer, and stops the worker with a signal until its parent answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_by = os.getpid()

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if self.asked_by != os.getpid():
            self.asked_by = os.getpid()
            ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
            os.kill(os.getpid(), signal.SIGWINCH)
        return super().__getitem__(index)


class Slow(Plain):
    """Every sample takes a while."""

    def __init__(self, seconds: float, length: int = 103) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        time.sleep(self.seconds)
        return super().__getitem__(index)
