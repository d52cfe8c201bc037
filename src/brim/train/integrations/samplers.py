"""The order of an epoch from samplers of the user: drawn again when a job resumes, or a word that it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

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
