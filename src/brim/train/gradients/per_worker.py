"""Values of logical workers: what a loop keeps from step to step beside parameters, such as a hidden state.

Each logical worker has its own value, and every rank has the values of all workers after every step. New values are
sent in the summary of the gradients, so they are committed with the step, or dropped with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from brim.errors import UserError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types that the summary, which is float32, can hold without a change of bits."""

Value = Tensor | tuple[Tensor, ...]
"""One tensor or several, such as the hidden state and cell state of an LSTM."""


class PerWorker:
    """A value for each logical worker, created by ``run.per_worker``."""

    def __init__(self, name: str, first: Tensor | Sequence[Tensor], workers: int, device: torch.device) -> None:
        self._name, self._single = name, isinstance(first, Tensor)
        parts = _parts(name, first)
        self._like = [(part.shape, part.dtype) for part in parts]
        ends = [0]
        for shape, _ in self._like:
            ends.append(ends[-1] + prod(shape))
        self._places = [slice(start, stop) for start, stop in pairwise(ends)]
        self._all = _flat(parts).to(device).repeat(workers, 1)
        self._worker: int | None = None
        self._new: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of elements of all workers' values."""
        return self._all.numel()

    @property
    def value(self) -> Value:
        """Value of the current logical worker after the last step; usable between ``run.steps`` and ``run.backward``.

        Raises:
            UserError: it is used elsewhere, or set to tensors of other shapes or types.
        """
        row = self._all[self._at_hand()]
        found = tuple(
            row[place].view(shape).to(dtype, copy=True)
            for place, (shape, dtype) in zip(self._places, self._like, strict=True)
        )
        return found[0] if self._single else found

    @value.setter
    def value(self, new: Tensor | Sequence[Tensor]) -> None:
        self._at_hand()
        parts = _parts(self._name, new)
        like = [(part.shape, part.dtype) for part in parts]
        if like != self._like:
            raise UserError(f"the value of {self._name!r} was {_words(self._like)} first and is {_words(like)} now")
        self._new = _flat(parts)

    def _at_hand(self) -> int:
        if self._worker is None:
            raise UserError(
                f"the value of {self._name!r} was used outside of run.steps, or after run.backward: each logical "
                "worker has its own value, which is sent with the gradients of its micro-batch"
            )
        return self._worker

    def begin_micro(self, worker: int) -> None:
        """Make this logical worker the current one, for its micro-batch."""
        self._worker, self._new = worker, None

    def put(self, out: Tensor) -> None:
        """Write this worker's value, the new one if it was set, to its place in ``out``, which is zero elsewhere."""
        assert self._worker is not None
        width = self._all.shape[1]
        new = self._all[self._worker] if self._new is None else self._new
        out[self._worker * width : (self._worker + 1) * width] = new
        self._worker = None

    def apply(self, total: Tensor) -> None:
        """Set the values of all workers from ``total``, the sum of all that `put` wrote."""
        self._all.copy_(total.view_as(self._all))

    def state_dict(self) -> dict[str, Any]:
        """Return all values."""
        return {"all": self._all}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all values."""
        if state["all"].shape != self._all.shape:
            theirs, ours = list(state["all"].shape), list(self._all.shape)
            raise UserError(
                f"the state has values of shape {theirs} (workers, elements) for {self._name!r}, this script {ours}"
            )
        self._all.copy_(state["all"])


def _parts(name: str, value: Any) -> list[Tensor]:
    parts = [value] if isinstance(value, Tensor) else list(value)
    for part in parts:
        if not isinstance(part, Tensor) or part.dtype not in DTYPES:
            kind = str(part.dtype) if isinstance(part, Tensor) else type(part).__name__
            raise UserError(f"run.per_worker {name!r} got {kind}, expected tensors of float32, bfloat16 or float16")
    return parts


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach().float().reshape(-1) for part in parts])


def _words(like: list[tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in like)
