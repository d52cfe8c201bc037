"""The numbers that travel with the last gradients: buffers, loss, noise, and what each rank has heard.

Every logical worker starts a step from the same buffers (batch-norm's running statistics) and changes its own copy.
What travels is the change, weighted by the worker's share of the samples: the new value is the old one plus the
weighted mean of the changes over the tree. A buffer that nobody changes keeps its bits, infinities included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from brim.errors import UserError
from brim.train.buckets import FLOATS, TAIL_DTYPE
from brim.train.per_worker import PerWorker

CARRIED_ELEMENTS_MAX = 65_536
"""A buffer of a module other than batch-norm is taken to be a constant if it is larger (a causal mask, say), and that
is checked. Ours."""

_cuda: Any = torch.cuda

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class Summary:
    """What everybody knows at the end of a step."""

    loss: Tensor
    leaf_sq: Tensor
    heard: list[int]
    leave: bool


class Tail:
    """Numbers at the end of the last bucket.

    Args:
        modules: Whose buffers are carried.
        ranks: Ranks there can be at most.
        per_worker: Values of logical workers; they come behind all else.
    """

    def __init__(self, modules: Sequence[nn.Module], ranks: int, per_worker: Sequence[PerWorker] = ()) -> None:
        self._ranks, self._per_worker = ranks, per_worker
        carried, self._fixed = _sort_buffers(modules)
        self._kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in carried:
            self._kinds.setdefault(buffer.dtype, []).append(buffer)
        self._start: dict[torch.dtype, Tensor] = {}
        self._views: dict[torch.dtype, list[Tensor]] = {}
        self._versions: list[int] = []
        self._buffers = sum(buffer.numel() for buffer in carried)
        device = carried[0].device if carried else None
        self._device = device or next((p.device for m in modules for p in m.parameters()), torch.device("cpu"))
        self._late: tuple[Tensor, Any] | None = None
        self.size = self._buffers + 2 + 2 * ranks + sum(each.size for each in per_worker)

    def begin_step(self) -> None:
        """Remember the buffers: every worker of the step starts from them, and so does a step that is done again."""
        for dtype, buffers in self._kinds.items():
            start = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
            self._start[dtype] = start
            self._views[dtype] = [
                part.view(buffer.shape)
                for part, buffer in zip(torch.split(start, [b.numel() for b in buffers]), buffers, strict=True)
            ]
        self._versions = [buffer._version for _, buffer in self._fixed]

    @torch.no_grad()
    def restore(self) -> None:
        """Back to the start of the step."""
        for dtype, buffers in self._kinds.items():
            if dtype in self._views:
                torch._foreach_copy_(buffers, self._views[dtype])

    def check_fixed(self) -> None:
        """Raise if a buffer that is too large to be carried has changed."""
        for (name, buffer), version in zip(self._fixed, self._versions, strict=True):
            if buffer._version != version:
                raise UserError(
                    f"buffer {name!r} changed in training; brim carries buffers of up to {CARRIED_ELEMENTS_MAX} "
                    f"elements (this one has {buffer.numel()}) and those of batch-norm. Make it a parameter with "
                    "requires_grad=False that no forward changes, or split it"
                )

    @torch.no_grad()
    def leaf(self, share: float, loss: Tensor, leaf_sq: Tensor | None, said: tuple[int, int, bool] | None) -> Tensor:
        """One worker's part.

        Args:
            share: Of the step's samples.
            loss: Mean over the micro-batch.
            leaf_sq: Squared norm of the gradient, where it is asked for.
            said: Own rank, newest command heard, whether to leave: from one micro-batch of each rank.
        """
        out = torch.zeros(self.size, dtype=TAIL_DTYPE, device=self._device)
        at = 0
        for dtype, buffers in self._kinds.items():
            new = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
            start = self._start[dtype]
            change = torch.where(new == start, torch.zeros((), dtype=dtype, device=new.device), new - start)
            out[at : at + len(new)] = change.to(TAIL_DTYPE) * share
            at += len(new)
        out[at] = loss.detach().to(TAIL_DTYPE) * share
        if leaf_sq is not None:
            out[at + 1] = leaf_sq
        if said is not None:
            rank, heard, leave = said
            out[at + 2 + rank] = heard
            out[at + 2 + self._ranks + rank] = leave
        for each, place in self._places():
            each.put(out[place])
        return out

    def _places(self) -> Iterator[tuple[PerWorker, slice]]:
        at = self._buffers + 2 + 2 * self._ranks
        for each in self._per_worker:
            yield each, slice(at, at + each.size)
            at += each.size

    @torch.no_grad()
    def apply(self, total: Tensor) -> None:
        """Give the buffers and the logical workers their new values."""
        at = 0
        for dtype, buffers in self._kinds.items():
            start = self._start[dtype]
            change = total[at : at + len(start)]
            start += change.to(dtype) if dtype in FLOATS else change.round().to(dtype)
            torch._foreach_copy_(buffers, self._views[dtype])
            at += len(start)
        for each, place in self._places():
            each.apply(total[place])

    def read(self, total: Tensor, ranks: int, *, late: bool = False) -> Summary:
        """What everybody has said.

        Args:
            total: The sum over all ranks.
            ranks: Their number.
            late: Take what was said one step ago, so that nobody waits for a GPU.
        """
        at = self._buffers
        now = total[at + 2 : at + 2 + 2 * self._ranks]
        words = self._said_before(now) if late else now.tolist()
        return Summary(
            loss=total[at].clone(), leaf_sq=total[at + 1].clone(), heard=[round(n) for n in words[:ranks]],
            leave=any(words[self._ranks : self._ranks + ranks]),
        )  # fmt: skip

    def _said_before(self, now: Tensor) -> list[float]:
        """What was said one step ago; begins to fetch what is said now."""
        before = self._late
        copy = now.to("cpu", non_blocking=True)
        copied: Any = _cuda.Event()
        copied.record()
        self._late = copy, copied
        if before is None:
            return [0.0] * (2 * self._ranks)
        before[1].synchronize()  # the copy, not the step that is being computed
        words: list[float] = before[0].tolist()
        return words


def _sort_buffers(modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
    """Buffers that are carried, and those that must not change."""
    carried: list[Tensor] = []
    fixed: list[tuple[str, Tensor]] = []
    seen: set[int] = set()
    for module in modules:
        for path, part in module.named_modules():
            for name, buffer in part.named_buffers(recurse=False):
                if id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                small = buffer.numel() <= CARRIED_ELEMENTS_MAX or isinstance(part, _NormBase)
                if small and buffer.dtype in (*FLOATS, *INTEGERS):
                    carried.append(buffer)
                else:
                    fixed.append((f"{path}.{name}".lstrip("."), buffer))
    return carried, fixed
