"""Batches for (epoch, step, logical worker), loaded ahead by processes that come and go while it runs.

The training process says with :meth:`Loader.assign` which logical workers it stands for and from which step on, and
asks for their micro-batches in order with :meth:`Loader.fetch`. Nothing else about ranks is known here. What a batch
contains depends on (dataset, seed, epoch, places) alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from torch.utils.data import default_collate

from brim.errors import ConfigError
from brim.train.loader_work import Collate, Recipe, Streams, count, undisturbed
from brim.train.sampler import LastBatch, Sampler


class Loader:
    """Micro-batches of a dataset for logical workers.

    Args:
        dataset: Map-style (``__len__``, ``__getitem__``, optionally ``__getitems__``) or iterable.
        global_batch: Samples of one optimizer step over all logical workers.
        logical_workers: Shares a step is cut into; fixed for the life of the job.
        seed: Of the order and of the augmentation.
        workers: Processes that load; 0 loads inside ``fetch``; "auto" finds the number by measurement.
        prefetch: Micro-batches loaded ahead per process.
        collate: Samples to batch; torch's ``default_collate`` unless given.
        pin_memory: Copy batches to page-locked memory, on a machine with a GPU.
        shuffle: A new order in every epoch; by default for map-style datasets, never for iterable ones.
        last: What becomes of the rest of an epoch smaller than a global batch: "keep" or "drop".
        length: Samples in an epoch of an iterable dataset without ``__len__``; "count" runs through it once.
        sample_rng: Seed Python, numpy and torch before every sample. Without it, a few microseconds less per sample
            and augmentation that depends on who loads.
        timeout_s: Longest time ``fetch`` waits for a process that is alive.

    Attributes:
        wait_s: Seconds that ``fetch`` has waited in all.
    """

    def __init__(
        self,
        dataset: Any,
        global_batch: int,
        *,
        logical_workers: int = 1,
        seed: int = 0,
        workers: int | Literal["auto"] = "auto",
        prefetch: int = 2,
        collate: Collate | None = None,
        pin_memory: bool = False,
        shuffle: bool | None = None,
        last: LastBatch = "keep",
        length: int | Literal["count"] | None = None,
        sample_rng: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        stream = not hasattr(dataset, "__getitem__")
        if stream and shuffle:
            raise ConfigError("shuffle=True with an iterable dataset: it comes in its own order; shuffle inside it")
        total = length_of(dataset, stream=stream, length=length, seed=seed)
        self._sampler = Sampler(
            total, global_batch=global_batch, logical_workers=logical_workers, seed=seed,
            shuffle=not stream if shuffle is None else shuffle, last=last,
        )
        self._recipe = Recipe(dataset, total, seed, stream, collate or default_collate, sample_rng)
        self._streams = Streams(self._recipe)
        self._orders: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
        self._assigned = range(logical_workers)
        self.wait_s = 0.0

    @property
    def global_batch(self) -> int:
        """Samples of the next optimizer step."""
        return self._sampler.global_batch

    @property
    def logical_workers(self) -> int:
        """Shares of a step."""
        return self._sampler.logical_workers

    @property
    def epoch(self) -> int:
        """Epoch of the next step to commit."""
        return self._sampler.epoch

    @property
    def step(self) -> int:
        """Next step to commit, counted from 0 in every epoch."""
        return self._sampler.step

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the current epoch, as long as the batch stays as it is."""
        return self._sampler.steps_per_epoch

    def steps_in(self, epoch: int) -> int:
        """Steps of an epoch: counted where it is over, expected where not."""
        return self._sampler.steps_in(epoch)

    def samples(self, epoch: int, step: int, worker: int) -> int:
        """Return how many samples a logical worker has in a step; 0 only in the last step of an epoch."""
        return self._sampler.samples(epoch, step, worker)

    def assign(self, epoch: int, step: int, workers: range) -> None:
        """Say whose micro-batches this process will fetch, from which step on. At any time, as often as wanted."""
        if workers.step != 1 or not 0 <= workers.start < workers.stop <= self.logical_workers:
            raise ConfigError(f"assign of workers {workers}: expected a range inside 0 to {self.logical_workers - 1}")
        self._assigned = workers

    def fetch(self, epoch: int, step: int, worker: int) -> Any:
        """Return the micro-batch of a logical worker, waiting for it if need be; None where its share is empty."""
        span = self._sampler.share(epoch, step, worker)
        if worker not in self._assigned:
            raise ConfigError(f"fetch for logical worker {worker}, assigned are {self._assigned}: call assign first")
        if not len(span):
            return None
        began = time.perf_counter()
        with undisturbed():
            if self._recipe.stream:
                batch = self._streams.load(epoch, span.start, span.stop)
            else:
                ids = self._order(epoch)[span.start:span.stop].tolist()
                batch = self._recipe.map_style(epoch, ids)
        self.wait_s += time.perf_counter() - began
        return batch

    def commit(self, epoch: int, step: int) -> None:
        """Move the cursor past a step: its samples are consumed."""
        self._sampler.commit(epoch, step)

    def set_global_batch(self, global_batch: int) -> None:
        """Change the batch from the next step on; only between two steps."""
        self._sampler.set_global_batch(global_batch)

    def set_workers(self, workers: int) -> None:
        """Change the number of loading processes; ends the search of "auto"."""

    def set_prefetch(self, prefetch: int) -> None:
        """Change how many micro-batches are loaded ahead per process."""

    def ledger(self) -> dict[str, Any]:
        """Return what was consumed, as plain JSON; see :func:`brim.train.ledger.verify`."""
        return self._sampler.ledger()

    def state_dict(self) -> dict[str, Any]:
        """Return cursor and ledger as plain JSON: equal on every rank, good for any number of ranks."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; ``assign`` follows."""
        self._sampler.load_state_dict(state)

    def close(self) -> None:
        """End all processes and give back all memory; may be called twice."""

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if epoch not in self._orders:
            self._orders = {epoch: self._sampler.order(epoch)}
        return self._orders[epoch]


def length_of(dataset: Any, *, stream: bool, length: int | Literal["count"] | None, seed: int) -> int:
    """Return the samples of one epoch."""
    has_length = hasattr(dataset, "__len__")
    if not stream and not has_length:
        raise ConfigError(f"{type(dataset).__name__} has __getitem__ and no __len__: add __len__")
    if has_length:
        if length not in (None, len(dataset)):
            raise ConfigError(f"length={length!r}, but len(dataset) is {len(dataset)}: leave length out")
        return len(dataset)
    if length == "count":
        return count(dataset, seed)
    if length is None:
        raise ConfigError(
            f"{type(dataset).__name__} is iterable and has no __len__: give length=..., or length='count' to count "
            "once; the shares of the last step have to be known before the stream ends"
        )
    return length
