"""Loads one micro-batch; the result is bit-identical in a worker process and in the training process.

The generators of Python, numpy and torch are seeded for every sample from (seed, epoch, sample), so augmentation
depends neither on the process nor on what it loaded before. Torch uses one thread, because sums over several differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import seed as seed_python
from typing import Any

import numpy as np
import torch
from numpy.random import seed as seed_numpy
from torch.utils.data import default_collate

from brim.errors import ConfigError
from brim.units import counted

Collate = Callable[[list[Any]], Any]

MIX_A, MIX_B, MIX_C = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of splitmix64 (Steele, Lea, Flood 2014), which gives neighbouring numbers unrelated seeds."""

START_OF_STREAM = -1
"""The sample number under which ``iter(dataset)`` itself is seeded."""


def mixed(*numbers: int) -> int:
    """Hash whole numbers to 64 bits."""
    state = 0
    for number in numbers:
        state = (state + MIX_A + number) % 2**64
        state = ((state ^ (state >> 30)) * MIX_B) % 2**64
        state = ((state ^ (state >> 27)) * MIX_C) % 2**64
        state ^= state >> 31
    return state


def reseed(value: int) -> None:
    """Seed the global generators of Python, numpy and torch (CPU)."""
    seed_python(value)
    seed_numpy(value % 2**32)
    torch.default_generator.manual_seed(value % 2**63)


@dataclass(frozen=True, slots=True)
class Generators:
    """A snapshot of the global generators of Python, numpy and torch (CPU)."""

    python: Any
    numpy: Any
    torch: torch.Tensor

    @classmethod
    def now(cls) -> Generators:
        """Return the current state."""
        return cls(random.getstate(), np.random.get_state(), torch.default_generator.get_state())

    def untouched(self) -> bool:
        """Return whether nothing was drawn since this snapshot."""
        numpy: Any = np.random.get_state()
        return (
            self.python == random.getstate() and self.numpy[2:] == numpy[2:]
            and np.array_equal(self.numpy[1], numpy[1])
            and torch.equal(self.torch, torch.default_generator.get_state())
        )

    def restore(self) -> None:
        """Set the generators back to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.default_generator.set_state(self.torch)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Load as a worker process does, then restore the caller's generators and number of threads."""
    before, threads = Generators.now(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        before.restore()


@dataclass(frozen=True)
class Recipe:
    """How samples become a batch; equal in every process.

    Attributes:
        dataset: The dataset.
        length: Samples in an epoch.
        seed: Seed of the augmentation.
        stream: Whether the dataset is iterable, so that samples have the order of the stream.
        collate: Function from a list of samples to a batch.
        sample_rng: Whether to seed before every sample; otherwise augmentation is not reproducible.
    """

    dataset: Any
    length: int
    seed: int
    stream: bool
    collate: Collate = default_collate
    sample_rng: bool = True

    def seed_for(self, base: int, sample: int) -> None:
        """Seed the generators for a sample."""
        if self.sample_rng:
            reseed(mixed(base, sample))


class Samples:
    """Loads samples of a map-style dataset by id.

    Seeding takes 20 us, more than loading a row of a table. So as long as a dataset draws no random numbers, a batch is
    loaded without seeding every sample, and the generators are compared afterwards. If they have changed, this batch is
    loaded again with a seed for every sample, and so are all later ones.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._draws = False

    def load(self, epoch: int, ids: list[int]) -> Any:
        """Return the batch of these samples; ``__getitems__`` is called for all at once, seeded by the first."""
        base = mixed(self._recipe.seed, epoch)
        if self._recipe.sample_rng and not self._draws:
            self._recipe.seed_for(base, ids[0])
            before = Generators.now()
            try:
                batch = self._together(ids)
            except Exception:
                if before.untouched():
                    raise
            else:
                if before.untouched():
                    return batch
            self._draws = True
        return self._one_by_one(base, ids) if self._recipe.sample_rng else self._together(ids)

    def _together(self, ids: list[int]) -> Any:
        recipe = self._recipe
        several = getattr(recipe.dataset, "__getitems__", None)
        return recipe.collate([recipe.dataset[sample] for sample in ids] if several is None else several(ids))

    def _one_by_one(self, base: int, ids: list[int]) -> Any:
        recipe = self._recipe
        several = getattr(recipe.dataset, "__getitems__", None)
        recipe.seed_for(base, ids[0])
        if several is not None:
            samples = several(ids)
        else:
            samples = []
            for sample in ids:
                recipe.seed_for(base, sample)
                samples.append(recipe.dataset[sample])
        recipe.seed_for(base, ids[0])
        return recipe.collate(samples)


class Streams:
    """Loads spans of an iterable dataset: continues the epoch's stream, skips ahead in it, or restarts it."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._epoch, self._place = -1, 0
        self._iterator: Iterator[Any] = iter(())

    def load(self, epoch: int, start: int, stop: int) -> Any:
        """Return the batch of samples ``start`` to ``stop`` - 1 of the epoch's stream.

        Raises:
            ConfigError: the stream does not have as many samples as the loader expects.
        """
        recipe = self._recipe
        if epoch != self._epoch or start < self._place:
            self._restart(epoch, start)
        base = mixed(recipe.seed, epoch)
        try:
            while self._place < start:
                self._next(base)
            samples = [self._next(base) for _ in range(start, stop)]
            if stop == recipe.length:
                self._expect_end(base)
            recipe.seed_for(base, start)
            return recipe.collate(samples)
        except BaseException:
            self._epoch = -1
            raise

    def _restart(self, epoch: int, start: int) -> None:
        recipe = self._recipe
        if hasattr(recipe.dataset, "set_epoch"):
            recipe.dataset.set_epoch(epoch)
        recipe.seed_for(mixed(recipe.seed, epoch), START_OF_STREAM)
        if hasattr(recipe.dataset, "iterate_from"):
            self._iterator, self._place = iter(recipe.dataset.iterate_from(start)), start
        else:
            self._iterator, self._place = iter(recipe.dataset), 0
        self._epoch = epoch

    def _next(self, base: int) -> Any:
        self._recipe.seed_for(base, self._place)
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise ConfigError(
                f"the stream of epoch {self._epoch} ended after {counted(self._place, 'sample')}, expected "
                f"{self._recipe.length}: an iterable dataset must yield as many in every epoch; correct its length, or "
                "repeat or cut it"
            ) from None
        self._place += 1
        return sample

    def _expect_end(self, base: int) -> None:
        self._recipe.seed_for(base, self._place)
        try:
            next(self._iterator)
        except StopIteration:
            return
        raise ConfigError(
            f"the stream of epoch {self._epoch} continues after {self._recipe.length} samples: "
            "an iterable dataset must yield as many in every epoch; correct its length, or repeat or cut it"
        )


def count(dataset: Any, seed: int) -> int:
    """Return the number of samples of an iterable dataset, by iterating over it once as in epoch 0."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(0)
    base = mixed(seed, 0)
    with undisturbed():
        reseed(mixed(base, START_OF_STREAM))
        total = 0
        for _ in dataset:
            total += 1
            reseed(mixed(base, total))
    return total
