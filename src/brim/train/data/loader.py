"""Micro-batches for (epoch, step, logical worker), prefetched by worker processes whose number can change at any time.

The training process sets with :meth:`Loader.assign` which logical workers it computes, and from which step on;
:meth:`Loader.fetch` returns their micro-batches. The loader knows nothing else about ranks. The contents of a batch
depend only on the dataset, the seed, the epoch and the positions of its samples in the epoch's order.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.pin_memory import pin_memory as page_locked

from brim.errors import ConfigError, UserError
from brim.gang.messages import LOADER_WORKERS_VARIABLE
from brim.train.arguments import bounds, function, positive, whole
from brim.train.data.autotune import WorkerTuner
from brim.train.data.fetch import Collate, Recipe, Samples, Streams, count, undisturbed
from brim.train.data.pool import LoaderError, LoadTask, Pool
from brim.train.data.prefetch import AHEAD_MAX, EpochOrders, Prefetcher
from brim.train.data.sampler import LastBatch, Sampler, Span
from brim.train.data.worker import SLOTS

WORKERS_PER_CORE = 4
"""The largest number that "auto" tries, per core: more than one, because workers may wait for a disk or a network."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Measurements of a loader.

    Attributes:
        workers: Target number of worker processes; 0: ``fetch`` loads in the calling process.
        prefetch: Micro-batches prefetched per worker process.
        fetches, samples: Number of micro-batches and samples returned so far.
        wait_s: Total seconds spent in ``fetch``.
        supply_sps: Recent estimate of the samples per second that these workers load if they are never idle.
        settled: True unless "auto" is still searching for the number of workers.
    """

    workers: int
    prefetch: int
    fetches: int
    samples: int
    wait_s: float
    supply_sps: float
    settled: bool


class Loader:
    """Micro-batches of a dataset for logical workers.

    The class is long because users, a run and the scheduler each have methods here; what they do is in other modules.

    Args:
        dataset: Map-style (``__len__``, ``__getitem__``, optionally ``__getitems__``) or iterable.
        global_batch: Samples of one optimizer step over all logical workers.
        logical_workers: Number of micro-batches into which a step is split; fixed for the life of a job whose results
            must be bit-identical on any number of ranks.
        seed: Seed of the order and of the augmentation, >= 0.
        workers: Number of worker processes; 0 loads inside ``fetch``; "auto" finds the number by measurement, up to
            ``BRIM_LOADER_WORKERS`` where a scheduler has set that.
        prefetch: Micro-batches prefetched per worker process; 256 in all at most. If workers run out of work while one
            micro-batch takes long, there may be more of them, of 256 MiB in all.
        collate: Function from a list of samples to a batch; torch's ``default_collate`` by default.
        pin_memory: Copy batches to page-locked memory, on a machine with a GPU.
        shuffle: Draw a new order in every epoch, for which 16 bytes of memory per sample are used; the default for
            map-style datasets, not possible for iterable ones.
        last: Whether to "keep" or "drop" the end of an epoch that is smaller than a global batch.
        length: Samples in an epoch of an iterable dataset without ``__len__``; "count" iterates over it once.
        sample_rng: Seed Python, numpy and torch for every sample: 20 us for datasets that draw random numbers. Without
            it, augmentation depends on which process loads a sample.
        timeout_s: Longest time that ``fetch`` waits while worker processes are alive; None: no limit.
        batch_range: Smallest and largest global batch that, for example, a scheduler may set; None: any for which the
            dataset has enough samples.

    Attributes:
        wait_s: Total seconds that ``fetch`` has waited.

    Raises:
        ConfigError: an argument is out of range, or the dataset and the arguments contradict each other.
        LoaderError: the process that forks the workers could not be started.
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
        batch_range: tuple[int, int] | None = None,
    ) -> None:
        stream = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
        if stream and shuffle:
            raise ConfigError("shuffle=True with an iterable dataset: it comes in its own order; shuffle inside it")
        seed, global_batch = whole(seed, "seed", 0), whole(global_batch, "global_batch", 1)
        if collate is not None:
            function(collate, "collate", "a function from a list of samples to a batch, or None")
        if timeout_s is not None:
            timeout_s = positive(timeout_s, "timeout_s", unit=" seconds", other=", or None")
        self._timeout_s = timeout_s
        self._batch_range = None if batch_range is None else bounds(batch_range, "batch_range")
        total = length_of(dataset, stream=stream, length=length, seed=seed)
        self._check_range(global_batch)
        self._sampler = Sampler(
            total, global_batch=global_batch, logical_workers=logical_workers, seed=seed,
            shuffle=not stream if shuffle is None else shuffle, last=last,
        )
        self._recipe = Recipe(dataset, total, seed, stream, collate or default_collate, sample_rng)
        self._streams, self._maps = Streams(self._recipe), Samples(self._recipe)
        self._orders = EpochOrders(self._sampler)
        self._pinner = ThreadPoolExecutor(1, "brim-pin") if pin_memory and torch.cuda.is_available() else None
        self._ahead: Prefetcher | None = None
        self._pool: Pool | None = None
        self._tuner: WorkerTuner | None = None
        self._closed = False
        self._assigned = range(logical_workers)
        self._workers, self._prefetch = 0, whole(prefetch, "prefetch", 1, 10_000)
        self._fetches, self._samples = 0, 0
        self.wait_s = 0.0
        self._workers_max = granted_workers()
        self.set_workers(workers)

    def __iter__(self) -> NoReturn:
        """Refuse to be iterated over: the run iterates.

        Raises:
            UserError: always.
        """
        raise UserError("a loop over the loader itself, expected one over run.steps(loader)")

    @property
    def global_batch(self) -> int:
        """Samples of the next optimizer step."""
        return self._sampler.global_batch

    @property
    def logical_workers(self) -> int:
        """Number of micro-batches into which a step is split."""
        return self._sampler.logical_workers

    @property
    def epoch(self) -> int:
        """Epoch of the next step to be committed, counted from 0."""
        return self._sampler.epoch

    @property
    def step(self) -> int:
        """The next step to be committed, counted from 0 in every epoch."""
        return self._sampler.step

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in the current epoch if the global batch does not change."""
        return self._sampler.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Samples of an epoch if the global batch does not change."""
        length, batch = self._sampler.length, self._sampler.global_batch
        return length // batch * batch if self._sampler.last == "drop" else length

    def steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch: as recorded if it is over, otherwise with the current batch."""
        return self._sampler.steps_in(epoch)

    def samples(self, epoch: int, step: int, worker: int) -> int:
        """Return how many samples a logical worker has in a step; 0 only in the last step of an epoch."""
        return self._sampler.samples(epoch, step, worker)

    @property
    def workers(self) -> int:
        """Target number of worker processes."""
        return self._workers

    @property
    def workers_max(self) -> int:
        """Most worker processes that "auto" may use."""
        return self._workers_max

    @property
    def supply(self) -> Supply:
        """Return measurements of this loader."""
        pool_sps = self._pool.supply_sps if self._pool is not None and self._workers else 0.0
        here_sps = self._samples / self.wait_s if self.wait_s and not self._workers else 0.0
        return Supply(
            self._workers, self._prefetch, self._fetches, self._samples, self.wait_s, pool_sps or here_sps,
            self._tuner is None or self._tuner.settled,
        )

    def assign(self, epoch: int, step: int, workers: range) -> None:
        """Set the logical workers whose micro-batches this process fetches from a step on. May be called at any time.

        Raises:
            ConfigError: the workers are not a range within ``logical_workers``, or the step cannot be loaded.
        """
        if workers.step != 1 or not 0 <= workers.start < workers.stop <= self.logical_workers:
            raise ConfigError(f"assign: workers={workers}, expected a range within 0 to {self.logical_workers - 1}")
        self._check(epoch, step)
        self._assigned = workers
        self._restart(epoch, step, workers.start)

    def fetch(self, epoch: int, step: int, worker: int) -> Any:
        """Wait for the micro-batch of a logical worker and return it; None if it has no samples.

        Micro-batches are prefetched in the order of steps and workers; calls in another order, and repeated calls,
        work too. An exception of the dataset is raised here, with the traceback of the worker process as a note; the
        next call tries again.

        Raises:
            ConfigError: the worker is not assigned, or the step cannot be loaded.
            LoaderError: several worker processes died while loading it, or none finished within ``timeout_s``.
        """
        self._check(epoch, step)
        if worker not in self._assigned:
            raise ConfigError(f"fetch: logical worker {worker} is not in {self._assigned}; call assign first")
        span = self._sampler.share(epoch, step, worker)
        if not len(span):
            return None
        began = time.perf_counter()
        batch = self._obtain(span, step, worker)
        now = time.perf_counter()
        self._count(span, now - began, now)
        return batch

    def commit(self, epoch: int, step: int) -> None:
        """Mark the samples of a step as consumed and move on to the next step."""
        self._sampler.commit(epoch, step)

    def set_global_batch(self, global_batch: int) -> None:
        """Change the global batch, starting with the next step to be committed; call it only between two steps."""
        global_batch = whole(global_batch, "global_batch", 1)
        self._check_range(global_batch)
        self._sampler.set_global_batch(global_batch)
        self._restart(self.epoch, self.step, self._assigned.start)

    def set_logical_workers(self, logical_workers: int) -> None:
        """Change the number of micro-batches in a step, which may change results; call ``assign`` afterwards."""
        self._sampler.set_logical_workers(logical_workers)
        self._assigned = range(logical_workers)
        if self._ahead is not None:
            self._ahead.clear()

    def set_workers(self, workers: int | Literal["auto"]) -> None:
        """Change the number of worker processes; a number ends the search of "auto"."""
        if workers == "auto":
            self._tuner = WorkerTuner(self._workers_max)
            workers = self._tuner.workers
        else:
            workers = whole(workers, "workers", 0, SLOTS - 1, other=", or 'auto'")
            self._tuner = None
        self._resize(workers)

    def set_workers_max(self, most: int) -> None:
        """Change the largest number that "auto" may use; its search goes on. Other numbers stay as they are."""
        self._workers_max = most = min(whole(most, "most", 0), SLOTS - 1)
        if self._tuner is not None:
            self._tuner.limit(most, ahead=self._ahead.depth if self._ahead is not None else 0)
            self._resize(self._tuner.workers)

    def set_prefetch(self, prefetch: int) -> None:
        """Change how many micro-batches are prefetched per process; those already being loaded are kept."""
        self._prefetch = whole(prefetch, "prefetch", 1, 10_000)
        self._resize(self._workers)

    def ledger(self) -> dict[str, Any]:
        """Return the record of consumed samples, as plain JSON; see :func:`brim.train.data.ledger.verify`."""
        return self._sampler.ledger()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data and the ledger as plain JSON, equal on all ranks, for any number of them."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; call ``assign`` afterwards."""
        self._check_range(state["global_batch"])
        if self._ahead is not None:
            self._ahead.clear()
        self._sampler.load_state_dict(state)

    def close(self) -> None:
        """End all worker processes and free all memory except that of batches still in use. May be called twice."""
        self._closed = True
        if self._pinner is not None:
            self._pinner.shutdown(cancel_futures=True)
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_range(self, global_batch: int) -> None:
        if self._batch_range is not None and not self._batch_range[0] <= global_batch <= self._batch_range[1]:
            least, most = self._batch_range
            raise ConfigError(f"global_batch={global_batch}: expected {least} to {most} (batch_range)")

    def _check(self, epoch: int, step: int) -> None:
        """Raise if a step cannot be loaded."""
        if self._closed:
            raise LoaderError("the loader is closed: by loader.close(), or by run.close() of the run that made it")
        sampler = self._sampler
        if not (sampler.epoch, sampler.step) <= (epoch, step) or epoch > sampler.epoch + 1:
            raise ConfigError(
                f"epoch {epoch} step {step}: expected epoch {sampler.epoch} from step {sampler.step} on (the next to "
                f"be committed), or epoch {sampler.epoch + 1}"
            )
        check_length(self._recipe)

    def _obtain(self, span: Span, step: int, worker: int) -> Any:
        ahead, pool = self._ahead, self._pool
        if ahead is None or pool is None:
            return self._load_here(span)
        task = ahead.take(span)
        if task is None and self._workers:
            ahead.restart(span.epoch, step, worker, self._assigned)
            task = ahead.take(span)
        ahead.top_up()
        if task is None:
            return self._load_here(span)
        try:
            done = pool.wait(task, self._timeout_s, ahead.stretch)
        except BaseException:
            pool.cancel([task])
            raise
        if not done:
            pool.cancel([task])
            return self._load_here(span)
        pool.trim(max(ahead.depth, ahead.deepest))
        return pool.take(task) if self._pinner is None else self._take_pinned(task, pool, ahead, self._pinner)

    @staticmethod
    def _take_pinned(task: LoadTask, pool: Pool, ahead: Prefetcher, pinner: ThreadPoolExecutor) -> Any:
        """Return a batch in page-locked memory, and start copying there the other batches that are loaded."""
        for each in (task, *ahead.done()):
            if each.pinned is None and (each is task or not each.failed):
                each.pinned = pinner.submit(page_locked, pool.take(each))
        assert task.pinned is not None
        return task.pinned.result()

    def _load_here(self, span: Span) -> Any:
        with undisturbed():
            if self._recipe.stream:
                return self._streams.load(span.epoch, span.start, span.stop)
            return self._maps.load(span.epoch, self._orders.ids(span))

    def _count(self, span: Span, wait_s: float, now_s: float) -> None:
        self.wait_s += wait_s
        self._fetches += 1
        self._samples += len(span)
        tuner = self._tuner
        if tuner is not None:
            depth = self._ahead.depth if self._ahead is not None else 0
            if tuner.observe(now_s=now_s, wait_s=wait_s, samples=len(span), ahead=depth):
                self._resize(tuner.workers)

    def _resize(self, workers: int) -> None:
        if workers and self._pool is None:
            self._pool = Pool(self._recipe, self._orders.rows)
            self._ahead = Prefetcher(self._sampler, self._orders, self._pool)
            weakref.finalize(self, Pool.close, self._pool)
        self._workers = workers
        if self._pool is not None and self._ahead is not None:
            self._ahead.depth = self._ahead.deepest = min(workers * self._prefetch, AHEAD_MAX)
            self._pool.resize(workers)

    def _restart(self, epoch: int, step: int, worker: int) -> None:
        if self._ahead is not None:
            self._ahead.restart(epoch, step, worker, self._assigned)


def granted_workers() -> int:
    """Return the most worker processes that "auto" may use: as the scheduler has said, else by the number of cores."""
    said = os.environ.get(LOADER_WORKERS_VARIABLE)
    if said is None:
        return WORKERS_PER_CORE * len(os.sched_getaffinity(0))
    if not (said.isascii() and said.isdigit()):
        raise ConfigError(f"{LOADER_WORKERS_VARIABLE}={said!r}: expected a whole number")
    return min(int(said), SLOTS - 1)  # a limit, which may be above what a loader can have


def check_length(recipe: Recipe) -> None:
    """Raise if the length of the dataset has changed."""
    if hasattr(recipe.dataset, "__len__") and len(recipe.dataset) != recipe.length:
        raise ConfigError(
            f"the dataset had {recipe.length} samples when the loader was made and has {len(recipe.dataset)} now: keep "
            "its length fixed while training, or make a new loader for the changed dataset"
        )


def length_of(dataset: Any, *, stream: bool, length: int | Literal["count"] | None, seed: int) -> int:
    """Return the number of samples in one epoch."""
    has_length = hasattr(dataset, "__len__")
    if not stream and not has_length:
        raise ConfigError(f"{type(dataset).__name__} has __getitem__ but no __len__: add __len__")
    if has_length:
        if length not in (None, len(dataset)):
            raise ConfigError(f"length={length!r}, but len(dataset) is {len(dataset)}: leave length out")
        return len(dataset)
    if length == "count":
        return count(dataset, seed)
    if length is None:
        raise ConfigError(
            f"{type(dataset).__name__} is iterable and has no __len__: give length=..., or length='count' to iterate "
            "over it once; the size of the last step must be known before the stream ends"
        )
    return whole(length, "length", 1, other=", or 'count'")
