"""The order of an epoch from samplers of the user: drawn again when a job resumes, or a word that it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, SequentialSampler

from brim.train.environment import seed_everything
from brim.train.integrations import random_state

_AT_ONCE: Final = 16
"""Places or batches drawn in a row: exchanging the states of the generators takes about 1 ms."""


class SeededSampler:
    """Draws from another sampler while the global random generators have states of its own, which it seeds.

    Args:
        sampler: A sampler of any kind, which may draw when an epoch begins or whenever it is asked.
        seed: Returns what the generators are seeded from when an epoch begins.
    """

    def __init__(self, sampler: Any, seed: Callable[[], tuple[int, ...]]) -> None:
        self._sampler, self._seed = sampler, seed

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        before = random_state.taken()
        try:
            seed_everything("sampler", *self._seed())
            drawn = iter(self._sampler)
            mine = random_state.taken_on_cpu()
        finally:
            random_state.put_back(before)
        some = [None] * _AT_ONCE
        while len(some) == _AT_ONCE:
            before = random_state.taken_on_cpu()
            try:
                random_state.put_back_on_cpu(mine)
                some = list(islice(drawn, _AT_ONCE))
                mine = random_state.taken_on_cpu()
            finally:
                random_state.put_back_on_cpu(before)
            yield from some


def generator_of_wrapped(loader: Any) -> torch.Generator | None:
    """Return the generator of the user's sampler if Lightning has wrapped this for several ranks; else None.

    All ranks must draw the same list from it, of which each takes its part. So it keeps the seed that the user gave it,
    which is equal on all ranks, and is not seeded from numbers that each rank has drawn.
    """
    for found in (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)):
        wrapped = getattr(getattr(found, "dataset", None), "_sampler", None)  # DistributedSamplerWrapper of Lightning
        generator = getattr(wrapped, "generator", None)
        if isinstance(found, DistributedSampler) and isinstance(generator, torch.Generator):
            return generator
    return None


def set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of the samplers of a loader, those that Accelerate has wrapped, too.

    Args:
        loader: A loader that Accelerate has prepared, for one rank or several, or one of another library.
        epoch: Number of the epoch that is about to be drawn.
    """
    for outer in ("sampler", "batch_sampler"):
        found = getattr(loader, outer, None)
        while found is not None:
            if hasattr(found, "set_epoch"):
                found.set_epoch(epoch)
            found = getattr(found, "batch_sampler", getattr(found, "sampler", None))


def why_not_resumable(loader: Any) -> str | None:
    """Return why the order of an epoch may not be restored; None if the order depends on the number of the epoch only.

    Args:
        loader: A loader that Accelerate has prepared, for one rank or several, or one of another library.
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    found: Any = getattr(loader, "sampler", None)
    if not isinstance(found, BatchSampler):
        found = getattr(loader, "batch_sampler", None)
    while hasattr(found, "batch_sampler"):  # Accelerate's own
        found = found.batch_sampler
    if type(found) is BatchSampler:
        found = found.sampler
    if found is None or isinstance(found, SequentialSampler) or hasattr(found, "set_epoch"):
        return None
    return (
        f"{type(found).__name__} has no set_epoch(): if it draws random numbers, a job that resumes within an epoch "
        "repeats samples and leaves others out; draw them from a generator that set_epoch(epoch) seeds"
    )
