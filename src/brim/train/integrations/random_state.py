"""Saves and restores the global random generators of Python, NumPy and PyTorch, on the CPU and the GPUs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

_legacy: Any = np.random  # the generators that datasets and models of today draw from


def taken() -> dict[str, Any]:
    """Return the state of all generators, in types that ``torch.load(weights_only=True)`` reads."""
    return {**taken_on_cpu(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def taken_on_cpu() -> dict[str, Any]:
    """Return the state of the generators that are not of a GPU, in such types."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = _legacy.get_state()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(name), torch.from_numpy(keys.astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }


def put_back(state: dict[str, Any]) -> None:
    """Restore a state; those of the GPUs only if their number is the same."""
    put_back_on_cpu(state)
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def put_back_on_cpu(state: dict[str, Any]) -> None:
    """Restore the state of the generators that are not of a GPU."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    _legacy.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
