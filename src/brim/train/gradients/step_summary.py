"""The numbers that are summed with the last gradients: buffers, loss, noise, and a few numbers of each rank.

Every logical worker starts a step from the same buffers (batch-norm's running statistics) and changes its own copy.
The changes are summed in the tree, each weighted by the worker's share of the samples: the new value is the old one
plus the weighted mean of the changes. A buffer that no worker changes keeps its bits, infinities included. A run with
one logical worker has nothing to merge: its buffers are those of that worker, bit for bit.

That mean is right for running statistics. For other buffers (a queue, an extreme value, an index) it is right only
where all workers make the same change: whole numbers that differ are an error, floats that differ are reported. It is
wrong where the change is no number of float32, as that from infinity to a first minimum is not: an error, too.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from brim.errors import UserError
from brim.train.gradients.buckets import FLOATS, SUMMARY_DTYPE
from brim.train.gradients.per_worker import PerWorker

SHARED_ELEMENTS_MAX = 65_536
"""A larger buffer is taken to be a constant (a causal mask, say), unless it is batch-norm's; if it changes, the job
ends with an error. Our choice."""

WATCHED_STEPS = 20
"""Number of steps in which changes of buffers are compared between workers. Our choice: on a GPU, each comparison waits
for the step."""

DIFFERENCE_RATIO = 1e-3
"""Relative difference between a worker's change and the mean that is more than rounding. Our choice: float32 rounds to
1e-7."""

NUMBERS_PER_RANK = 5
"""How many numbers each rank has in the summary; see `StepSummary`."""

FLOAT32_STEPS = 1 << 24
"""Beside a number, float32 loses another that is so many times smaller; whole numbers are exact up to here."""

HUGE = 1e9
"""A change from a number as large as this to one that is lost beside it is the first value of a minimum or a maximum.
Of smaller numbers, an error of a part in ten million counts as rounding. Our choice."""

EXACT = FLOAT32_STEPS // 4
"""Whole numbers change by less than this in a micro-batch: a mean of such changes is exact. Our choice of the margin,
since the shares of the workers round, too."""

WAY = 1 << 12
"""A checksum of changes is below this; two of them are sent as one number."""

DIFFERS = WAY - 1
"""Stands for a checksum if the micro-batches of one rank differ."""

Changes = list[tuple[int, int]]
"""See `SummaryVector.changes`."""

_cuda: Any = torch.cuda

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The numbers of all ranks at the end of a step; lists have one number for each rank.

    Attributes:
        loss: Mean over the samples of the step, shape ``()``.
        leaf_sq: Mean of the workers' squared gradient norms, shape ``()``; 0 if they were not needed.
        newest_commands: Number of the newest command that has arrived.
        leave: Whether a rank was asked to leave.
        settings: Checksum of the settings of optimizers; see `brim.train.gradients.consistency`.
        state: Checksum of a part of parameters and buffers; 0: not compared in this step.
        changes: How often running statistics were changed in place in a micro-batch; see `same_changes`.
    """

    loss: Tensor
    leaf_sq: Tensor
    newest_commands: list[int]
    leave: bool
    settings: list[int]
    state: list[int]
    changes: list[int]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module keeps a buffer, since it may replace the tensor."""

    name: str
    owner: dict[str, Tensor]
    key: str
    dtype: torch.dtype
    shape: torch.Size
    is_norm: bool

    def tensor(self) -> Tensor:
        found = self.owner[self.key]
        if found is None or (found.dtype, found.shape) != (self.dtype, self.shape):
            now = "None" if found is None else f"{found.dtype} {list(found.shape)}"
            raise UserError(
                f"buffer {self.name!r} was {self.dtype} {list(self.shape)} in run.prepare and is {now} now: "
                "type and shape must stay the same"
            )
        return found.detach()


class SummaryVector:
    """The numbers at the end of the last bucket.

    Args:
        modules: Modules whose buffers are merged over all workers.
        ranks: Largest possible number of ranks.
        per_worker: Values of logical workers; they come last.

    Attributes:
        changes: One row per micro-batch of this rank in this step: for each running statistic of batch-norm, how often
            PyTorch counted a change in place, and the same less the layer's own count of batches.
    """

    def __init__(self, modules: Sequence[nn.Module], ranks: int, per_worker: Sequence[PerWorker] = ()) -> None:
        self._ranks, self._per_worker = ranks, per_worker
        shared, self._fixed = _sort_buffers(modules)
        self._kinds: dict[torch.dtype, list[_Place]] = {}
        for place in shared:
            self._kinds.setdefault(place.dtype, []).append(place)
        self._start: dict[torch.dtype, Tensor] = {}
        self._views: dict[torch.dtype, list[Tensor]] = {}
        self._versions: list[int] = []
        self._statistics = _sort_statistics(modules)
        self._statistics_before: list[tuple[int, int]] = []
        self.changes: list[Changes] = []
        self._buffers = sum(place.shape.numel() for place in shared)
        self._watched = WATCHED_STEPS if ranks > 1 and any(not place.is_norm for place in shared) else 0
        self._own: Tensor | None = None
        self._reported: set[str] = set()
        device = shared[0].tensor().device if shared else None
        self._device = device or next((p.device for m in modules for p in m.parameters()), torch.device("cpu"))
        self._late: tuple[Tensor, Any] | None = None
        self.size = self._buffers + 2 + NUMBERS_PER_RANK * ranks + sum(each.size for each in per_worker)

    def begin_step(self) -> None:
        """Copy the buffers: every worker of the step starts from them, and so does a repeated step."""
        for dtype, places in self._kinds.items():
            buffers = [place.tensor() for place in places]
            start = torch.cat([buffer.reshape(-1) for buffer in buffers])
            self._start[dtype] = start
            self._views[dtype] = [
                part.view(buffer.shape)
                for part, buffer in zip(torch.split(start, [b.numel() for b in buffers]), buffers, strict=True)
            ]
        self._fixed = [(place, place.owner[place.key]) for place, _ in self._fixed]
        self._versions = [tensor._version for _, tensor in self._fixed]
        self._statistics_before, self.changes = self._statistics_now(), []

    def _statistics_now(self) -> list[tuple[int, int]]:
        """Return the number of changes in place of each running statistic and of its layer's count of batches."""
        return [
            (owner[key]._version, owner["num_batches_tracked"]._version) for _, owner, key in self._statistics
        ]

    def _count_changes(self) -> None:
        now, before = self._statistics_now(), self._statistics_before
        self.changes.append(
            [(a - b, a - b - (batches - batches_b)) for (a, batches), (b, batches_b) in zip(now, before, strict=True)]
        )

    def unequal_changes(self, rows: Sequence[Changes]) -> str:
        """Return the message for changes that differ between micro-batches."""
        name = "of batch-norm"
        for number, (statistic, _, _) in enumerate(self._statistics):
            column = [row[number] for row in rows]
            if all(len({each[way] for each in column}) > 1 for way in (0, 1)):
                name = repr(statistic)
                break
        return (
            f"buffer {name} was changed by the script in some micro-batches of one step and not in others, so the "
            "change would count in part: change it in every micro-batch on every rank, or on every rank between two "
            "epochs"
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the buffers of the start of the step."""
        for dtype, places in self._kinds.items():
            if dtype in self._views:
                torch._foreach_copy_([place.tensor() for place in places], self._views[dtype])
        self._statistics_before = self._statistics_now()

    def check_fixed(self) -> None:
        """Raise if a buffer that is not shared has changed in this step."""
        for (place, tensor), version in zip(self._fixed, self._versions, strict=True):
            if place.owner[place.key] is not tensor or tensor._version != version:
                raise UserError(
                    f"buffer {place.name!r} ({place.dtype}, {place.shape.numel()} elements) changed in training; ranks "
                    f"share numeric buffers of up to {SHARED_ELEMENTS_MAX} elements and the statistics of batch-norm. "
                    "Keep what it holds outside of the model, pass it to run.carry, and change it once per step from "
                    "the values of run.gather"
                )

    @torch.no_grad()
    def leaf(
        self, share: float, loss: Tensor, leaf_sq: Tensor | None, numbers: tuple[int, Sequence[int | Tensor]] | None
    ) -> Tensor:
        """Return one worker's contribution.

        Args:
            share: Fraction of the step's samples that are in this micro-batch.
            loss: Mean over the micro-batch.
            leaf_sq: Squared norm of the gradient, if it is needed.
            numbers: This rank and its numbers (see `StepSummary`), for one micro-batch of each rank; None for all
                others.

        Returns:
            Shape ``(size,)``.
        """
        out = torch.zeros(self.size, dtype=SUMMARY_DTYPE, device=self._device)
        at = 0
        for dtype, places in self._kinds.items():
            new = torch.cat([place.tensor().reshape(-1) for place in places])
            start = self._start[dtype]
            if self._watched:
                _require_representable(places, start, new)
            change = torch.where(new == start, torch.zeros((), dtype=dtype, device=new.device), new - start)
            out[at : at + len(new)] = change.to(SUMMARY_DTYPE) * share
            at += len(new)
        self._own = out[:at] / share if self._watched and share else None
        if share:
            self._count_changes()
        out[at] = loss.detach().to(SUMMARY_DTYPE) * share
        if leaf_sq is not None:
            out[at + 1] = leaf_sq
        if numbers is not None:
            rank, values = numbers
            for number, word in enumerate([*values, _changes_checksum(self.changes)]):
                out[at + 2 + number * self._ranks + rank] = word
        for each, place in self._places():
            each.put(out[place])
        return out

    def _places(self) -> Iterator[tuple[PerWorker, slice]]:
        at = self._buffers + 2 + NUMBERS_PER_RANK * self._ranks
        for each in self._per_worker:
            yield each, slice(at, at + each.size)
            at += each.size

    @torch.no_grad()
    def apply(self, total: Tensor) -> None:
        """Set buffers and the values of logical workers from ``total``, the sum of all contributions.

        Raises:
            UserError: workers have changed whole numbers in different ways, or a buffer that is not shared.
        """
        if self._ranks > 1:
            self.check_fixed()
            self._merge(total)
        for each, place in self._places():
            each.apply(total[place])

    def _merge(self, total: Tensor) -> None:
        """Set buffers from the changes of all logical workers. Those of a single one are what it made of them."""
        if self._watched and self._own is not None:
            self._watched -= 1
            self._compare(total[: self._buffers], self._own)
        at = 0
        for dtype, places in self._kinds.items():
            start = self._start[dtype]
            change = total[at : at + len(start)]
            start += change.to(dtype) if dtype in FLOATS else change.round().to(dtype)
            torch._foreach_copy_([place.tensor() for place in places], self._views[dtype])
            at += len(start)

    def _compare(self, mean: Tensor, own: Tensor) -> None:
        """Find buffers that the last worker of this rank has changed in another way than the mean of all workers."""
        differs = (mean - own).abs() > DIFFERENCE_RATIO * torch.maximum(mean.abs(), own.abs())
        if not bool(differs.any()):
            return
        at = 0
        for dtype, places in self._kinds.items():
            for place in places:
                here = differs[at : at + place.shape.numel()]
                at += place.shape.numel()
                if not place.is_norm and place.name not in self._reported and bool(here.any()):
                    self._reported.add(place.name)
                    _report(place.name, dtype)

    def read(self, total: Tensor, ranks: int, *, late: bool = False) -> StepSummary:
        """Return the numbers of all ranks.

        Args:
            total: The sum over all ranks.
            ranks: Number of ranks.
            late: Return the numbers of the step before, so that no rank waits for its GPU.
        """
        at = self._buffers
        now = total[at + 2 : at + 2 + NUMBERS_PER_RANK * self._ranks]
        values = self._previous_numbers(now) if late else now.tolist()
        starts = range(0, NUMBERS_PER_RANK * self._ranks, self._ranks)
        rows = [[round(n) for n in values[at : at + ranks]] for at in starts]
        return StepSummary(
            loss=total[at].clone(), leaf_sq=total[at + 1].clone(), newest_commands=rows[0], leave=any(rows[1]),
            settings=rows[2], state=rows[3], changes=rows[4],
        )  # fmt: skip

    def _previous_numbers(self, now: Tensor) -> list[float]:
        """Return the numbers of the step before, and begin to copy the present ones."""
        before = self._late
        copy = now.to("cpu", non_blocking=True)
        copied: Any = _cuda.Event()
        copied.record()
        self._late = copy, copied
        if before is None:
            return [0.0] * (NUMBERS_PER_RANK * self._ranks)
        before[1].synchronize()  # waits for the copy, not for the step that is being computed
        values: list[float] = before[0].tolist()
        return values


def _require_representable(places: Sequence[_Place], start: Tensor, new: Tensor) -> None:
    """Raise if a change would be lost on its way through float32.

    Args:
        places: Buffers of one type.
        start: Their values at the start of the step, one after the other.
        new: Their values after a micro-batch.
    """
    if start.dtype in FLOATS:
        from_huge = (start.abs() >= HUGE) & (new.abs() * FLOAT32_STEPS <= start.abs()) & (new != 0)
        lost = (new != start) & ~new.isnan() & (start.isinf() | from_huge)
    else:
        lost = (new.to(torch.float64) - start.to(torch.float64)).abs() >= EXACT
    if not bool(lost.any()):
        return
    at = 0
    for place in places:
        here = slice(at, at + place.shape.numel())
        at = here.stop
        if not place.is_norm and bool(lost[here].any()):
            number = int(lost[here].nonzero()[0])
            raise UserError(
                f"buffer {place.name!r} ({place.dtype}) went from {start[here][number].item()} to "
                f"{new[here][number].item()} in one micro-batch: brim merges the changes of logical workers in "
                "float32, which cannot hold this one. Start from a number of the size that it will have, use one "
                "logical worker, or keep what it holds outside of the model and pass it to run.carry"
            )


def _report(name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOATS:
        raise UserError(
            f"buffer {name!r} ({dtype}) is changed in different ways by different micro-batches of one step, and brim "
            "cannot merge whole numbers: change it equally in all of them, or keep what it holds outside of the model "
            "and pass it to run.carry"
        )
    sys.stderr.write(
        f"brim: buffer {name!r} is changed in different ways by different micro-batches of one step, and gets the "
        "mean of the changes. That is right for a running mean, and wrong for a queue, a minimum or a maximum: keep "
        "such a thing outside of the model, pass it to run.carry, and change it once per step by run.gather\n"
    )


def same_changes(values: Sequence[int]) -> bool:
    """Return whether micro-batches have changed the running statistics of batch-norm equally often.

    PyTorch does not count the change by a layer's forward pass, unless the layer is compiled; then it counts as many
    as batches. A model may skip layers, so changes are the same if one of the two ways to count finds no difference.
    """
    ways = ({word // WAY for word in values}, {word % WAY for word in values})
    return any(len(way) <= 1 and DIFFERS not in way for way in ways)


def _changes_checksum(rows: Sequence[Changes]) -> int:
    """Return two checksums of the changes in the micro-batches of a rank, one for each way to count."""
    seen, unseen = (_checksum([[each[way] for each in row] for row in rows]) for way in (0, 1))
    return seen * WAY + unseen


def _checksum(rows: list[list[int]]) -> int:
    if any(row != rows[0] for row in rows):
        return DIFFERS
    return zlib.crc32(repr(rows[:1]).encode()) % DIFFERS


def _sort_statistics(modules: Sequence[nn.Module]) -> list[tuple[str, dict[str, Tensor], str]]:
    """Return name, owner and key of the running statistics of batch-norm."""
    return [
        (f"{path}.{key}".lstrip("."), cast("dict[str, Tensor]", part._buffers), key)
        for module in modules
        for path, part in module.named_modules()
        if isinstance(part, _NormBase) and part._buffers.get("num_batches_tracked") is not None
        for key in ("running_mean", "running_var")
        if part._buffers.get(key) is not None
    ]


def _sort_buffers(modules: Sequence[nn.Module]) -> tuple[list[_Place], list[tuple[_Place, Tensor]]]:
    """Return the buffers that are shared, and those that must not change."""
    shared: list[_Place] = []
    fixed: list[tuple[_Place, Tensor]] = []
    seen: set[int] = set()
    for module in modules:
        for path, part in module.named_modules():
            for key, buffer in part.named_buffers(recurse=False):
                if id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                is_norm, owner = isinstance(part, _NormBase), cast("dict[str, Tensor]", part._buffers)
                place = _Place(f"{path}.{key}".lstrip("."), owner, key, buffer.dtype, buffer.shape, is_norm)
                if (is_norm or buffer.numel() <= SHARED_ELEMENTS_MAX) and buffer.dtype in (*FLOATS, *INTEGERS):
                    shared.append(place)
                else:
                    fixed.append((place, buffer))
    return shared, fixed
