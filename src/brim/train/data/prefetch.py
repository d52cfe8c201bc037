"""Prefetching: which micro-batches of the assigned logical workers are loaded before they are fetched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from brim.errors import ConfigError
from brim.train.data.pool import LoadTask, Pool
from brim.train.data.sampler import Sampler, Span
from brim.train.data.worker import sample_ids, shared_array

AHEAD_MAX = 256
"""Most prefetched micro-batches; each needs an open file, and the limit of a process is often 1,024. Our choice."""

AHEAD_BYTES = 256 << 20
"""Most memory of micro-batches that are prefetched beyond ``depth``. Our choice: little beside a training process."""


class EpochOrders:
    """The sample orders of the current and the next epoch, in memory shared with the worker processes.

    The order of an epoch is overwritten by that of the epoch after the next; by then all its steps are committed.

    Attributes:
        rows: The two orders, shape (2, samples); None if samples come in the order of the dataset.

    Raises:
        ConfigError: there is not enough memory for them.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.rows = _rows(sampler.length) if sampler.shuffle else None
        self._epochs = [-1, -1]

    def ids(self, span: Span) -> list[int]:
        """Return the sample ids of a span of a map-style dataset."""
        self.prepare(span.epoch)
        return sample_ids(self.rows, span.epoch, span.start, span.stop)

    def prepare(self, epoch: int) -> None:
        """Write the order of this epoch to its row, unless it is there already."""
        if self.rows is not None and self._epochs[epoch % 2] != epoch:
            self._sampler.order(epoch, out=self.rows[epoch % 2])
            self._epochs[epoch % 2] = epoch


def _rows(samples: int) -> NDArray[np.int64]:
    try:
        return shared_array(2 * samples).reshape(2, samples)
    except (OSError, OverflowError, MemoryError) as error:
        raise ConfigError(
            f"the shuffled orders of {samples} samples need {16 * samples} bytes of memory, which cannot be had "
            f"({error}): use shuffle=False with a dataset that is in random order, or an iterable dataset"
        ) from None


class Prefetcher:
    """Tasks that were submitted to the pool and not fetched yet.

    If one micro-batch takes much longer than the others, the workers load all others ahead and then have nothing to do
    until it is fetched. So there are more tasks from then on, as many as keep them busy, within ``AHEAD_MAX`` and
    ``AHEAD_BYTES``.

    Attributes:
        depth: How many such tasks there should be at least.
        deepest: How many there may be, since workers had nothing to do.
    """

    def __init__(self, sampler: Sampler, orders: EpochOrders, pool: Pool) -> None:
        self._sampler, self._orders, self._pool = sampler, orders, pool
        self.depth = self.deepest = 0
        self._bytes = 0  # largest micro-batch loaded so far
        self._workers = range(0)
        self._tasks: dict[Span, LoadTask] = {}
        self._next: tuple[int, int, int] | None = None

    def done(self) -> list[LoadTask]:
        """Return the tasks that are loaded and were not fetched yet."""
        return [task for task in self._tasks.values() if task.done]

    def restart(self, epoch: int, step: int, worker: int, workers: range) -> None:
        """Prefetch from another position on: tasks that are still needed are kept, the others cancelled."""
        self.deepest, self._bytes = self.depth, 0
        self._workers, self._next = workers, (epoch, step, worker)
        given_out, self._tasks = self._tasks, {}
        wanted: dict[Span, None] = {}
        while len(wanted) < self.depth and (span := self._advance()) is not None:
            wanted[span] = None
        self._pool.cancel([task for span, task in given_out.items() if span not in wanted])
        for span in wanted:
            self._tasks[span] = given_out.get(span) or self._submit(span)

    def clear(self) -> None:
        """Cancel all tasks."""
        self._pool.cancel(list(self._tasks.values()))
        self._tasks.clear()
        self._next = None

    def take(self, span: Span) -> LoadTask | None:
        """Remove and return the task of a span; None if it was not submitted."""
        return self._tasks.pop(span, None)

    def top_up(self) -> None:
        """Submit tasks until there are as many as there should be."""
        while self._next is not None and len(self._tasks) < max(self.depth, self.deepest):
            span = self._advance()
            if span is None:
                return
            if span not in self._tasks:
                self._tasks[span] = self._submit(span)

    def stretch(self) -> bool:
        """Submit more tasks if workers have nothing to do while one is waited for; return whether there were any."""
        before = len(self._tasks)
        self._bytes = max(self._bytes, *(task.size for task in self._tasks.values() if task.done), 0)
        while self._pool.idle:
            count = len(self._tasks)
            if count >= AHEAD_MAX or (count + 1) * self._bytes > AHEAD_BYTES:
                break
            self.deepest = max(self.deepest, count + 1)
            self.top_up()
            if len(self._tasks) == count:  # the order of the next epoch is not known yet
                break
        return len(self._tasks) > before

    def _submit(self, span: Span) -> LoadTask:
        self._orders.prepare(span.epoch)
        return self._pool.submit(span)

    def _advance(self) -> Span | None:
        """Return the next span that is not empty; None if there is no row yet for the order of its epoch."""
        while self._next is not None:
            epoch, step, worker = self._next
            if epoch > self._sampler.epoch + 1:
                return None
            if step >= self._sampler.steps_in(epoch):
                self._next = (epoch + 1, 0, self._workers.start)
                continue
            last = worker + 1 == self._workers.stop
            self._next = (epoch, step + 1, self._workers.start) if last else (epoch, step, worker + 1)
            span = self._sampler.share(epoch, step, worker)
            if len(span):
                return span
        return None
