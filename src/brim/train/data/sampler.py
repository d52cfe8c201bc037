"""Which samples a step takes: one order per epoch and one cursor, independent of the number of ranks.

The order of an epoch is a permutation drawn from (seed, epoch). A step takes the next ``global_batch`` positions of it,
split into contiguous shares, one per logical worker. The cursor moves only when a step is committed, so the remaining
ranks repeat an aborted step with the same samples. The state is a few numbers, equal on every rank: the copy of any
rank restores the job on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brim.errors import ConfigError, InvariantError
from brim.train.data.ledger import LEDGER_VERSION, Dropped, StepRange, order, read_version, verify
from brim.units import counted

__all__ = ["LastBatch", "Sampler", "Span", "check_batch", "order", "verify"]

LastBatch = Literal["keep", "drop"]
"""Whether the samples left at the end of an epoch, fewer than a global batch, are a smaller step or are left out."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions ``start`` to ``stop`` - 1 of the order of one epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def check_batch(length: int, global_batch: int, logical_workers: int) -> None:
    """Raise :class:`ConfigError` unless the workers divide the batch and the dataset has at least one batch."""
    if logical_workers < 1:
        raise ConfigError(f"logical_workers={logical_workers}: expected at least 1")
    if global_batch < 1 or global_batch % logical_workers:
        below = global_batch // logical_workers * logical_workers
        fits = f"{below} or {below + logical_workers}" if below > 0 else str(logical_workers)
        raise ConfigError(
            f"global_batch={global_batch} is not a multiple of {logical_workers} logical workers: use {fits}"
        )
    if length < global_batch:
        fits = str(length // logical_workers * logical_workers)
        most = f"use at most {counted(length, 'logical worker')}, and a global batch of at most {length}"
        change = f"use global_batch={fits} or less" if fits != "0" else most
        change = change if length else "is it the right one?"
        raise ConfigError(
            f"the dataset has {counted(length, 'sample')}, fewer than one global batch of {global_batch}: {change}"
        )


class Sampler:
    """The cursor over the epochs of a dataset of ``length`` samples.

    Attributes:
        epoch, step: The next step to be committed; ``step`` counts from 0 in every epoch.
        cursor: First position of that step in the order of the epoch.
    """

    def __init__(
        self,
        length: int,
        *,
        global_batch: int,
        logical_workers: int,
        seed: int = 0,
        shuffle: bool = True,
        last: LastBatch = "keep",
    ) -> None:
        check_batch(length, global_batch, logical_workers)
        if last not in ("keep", "drop"):
            raise ConfigError(f"last={last!r}: expected 'keep' or 'drop'")
        if seed < 0:
            raise ConfigError(f"seed={seed}: expected 0 or more")
        self.length, self.global_batch, self.logical_workers = length, global_batch, logical_workers
        self.seed, self.shuffle, self.last = seed, shuffle, last
        self.epoch, self.step, self.cursor = 0, 0, 0
        self._even_shares = logical_workers  # the global batch must be a multiple of this
        self._runs: list[StepRange] = []
        self._dropped: list[Dropped] = []

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in the current epoch if the global batch does not change."""
        return self.steps_in(self.epoch)

    def steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch: as recorded if it is over, otherwise with the current batch."""
        if epoch < self.epoch:
            return sum(run.steps for run in self._runs if run.epoch == epoch)
        step, cursor = (self.step, self.cursor) if epoch == self.epoch else (0, 0)
        left = self.length - cursor
        return step + (left // self.global_batch if self.last == "drop" else -(-left // self.global_batch))

    def span(self, epoch: int, step: int) -> Span:
        """Return the positions of a step: as recorded if it was committed, otherwise with the current batch."""
        if not 0 <= step < self.steps_in(epoch):
            raise ConfigError(f"epoch {epoch} has {counted(self.steps_in(epoch), 'step')}, asked for step {step}")
        if (epoch, step) < (self.epoch, self.step):
            return self._recorded(epoch, step)
        first, cursor = (self.step, self.cursor) if epoch == self.epoch else (0, 0)
        start = cursor + (step - first) * self.global_batch
        return Span(epoch, start, min(start + self.global_batch, self.length))

    def share(self, epoch: int, step: int, worker: int) -> Span:
        """Return the positions of one logical worker. Shares of a partial batch differ by at most one."""
        if not 0 <= worker < self.logical_workers:
            raise ConfigError(f"logical worker {worker}: expected 0 to {self.logical_workers - 1}")
        span, workers = self.span(epoch, step), self.logical_workers
        return Span(
            epoch, span.start + len(span) * worker // workers, span.start + len(span) * (worker + 1) // workers
        )

    def samples(self, epoch: int, step: int, worker: int) -> int:
        """Return how many samples a logical worker has in a step: its weight in the gradient."""
        return len(self.share(epoch, step, worker))

    def order(self, epoch: int, out: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the sample ids of an epoch in order; see :func:`order`."""
        return order(self.length, self.seed, epoch, shuffle=self.shuffle, out=out)

    def commit(self, epoch: int, step: int) -> None:
        """Mark a step as consumed and move the cursor past it.

        Raises:
            InvariantError: it is not the next step.
        """
        if (epoch, step) != (self.epoch, self.step):
            raise InvariantError(
                f"commit of epoch {epoch} step {step}, expected epoch {self.epoch} step {self.step}: "
                "steps commit once and in order"
            )
        span = self.span(epoch, step)
        self._record(span)
        self.step, self.cursor = step + 1, span.stop
        self._roll()

    def set_global_batch(self, global_batch: int) -> None:
        """Change the global batch from the next step on. With ``last="drop"`` this may end the epoch."""
        check_batch(self.length, global_batch, self._even_shares)
        self.global_batch = global_batch
        self._roll()

    def set_logical_workers(self, logical_workers: int) -> None:
        """Split steps into another number of shares. It need not divide the batch: shares then differ by one."""
        if logical_workers < 1:
            raise ConfigError(f"logical_workers={logical_workers}: expected at least 1")
        self.logical_workers, self._even_shares = logical_workers, 1

    def ledger(self) -> dict[str, Any]:
        """Return the record of consumed samples, across all resumes, as plain JSON; see :func:`verify`."""
        return {
            "version": LEDGER_VERSION, "length": self.length, "seed": self.seed, "shuffle": self.shuffle,
            "last": self.last, "runs": [asdict(run) for run in self._runs],
            "dropped": [asdict(dropped) for dropped in self._dropped],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a job on any number of ranks needs to resume, as plain JSON, equal on every rank."""
        return {
            "epoch": self.epoch, "step": self.step, "cursor": self.cursor, "global_batch": self.global_batch,
            "even_shares": self._even_shares, "ledger": self.ledger(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ConfigError: dataset length, seed, shuffle, ``last`` or, unless they may change, logical workers differ.
        """
        ledger = state["ledger"]
        read_version(ledger)
        ours = {"length": self.length, "seed": self.seed, "shuffle": self.shuffle, "last": self.last}
        theirs = {name: ledger[name] for name in ours}
        if 1 not in (self._even_shares, state["even_shares"]):
            ours["logical_workers"], theirs["logical_workers"] = self._even_shares, state["even_shares"]
        for name, here in ours.items():
            if theirs[name] != here:
                raise ConfigError(
                    f"the saved state (of a checkpoint or another rank) has {name}={theirs[name]!r}, this loader "
                    f"{name}={here!r}: make them equal; otherwise samples or sums would differ silently"
                )
        check_batch(self.length, state["global_batch"], self._even_shares)
        self.global_batch = state["global_batch"]
        self.epoch, self.step, self.cursor = state["epoch"], state["step"], state["cursor"]
        self._runs = [StepRange(**run) for run in ledger["runs"]]
        self._dropped = [Dropped(**dropped) for dropped in ledger["dropped"]]

    def _record(self, span: Span) -> None:
        run = self._runs[-1] if self._runs else None
        if run is not None and (run.epoch, run.stop, run.global_batch) == (span.epoch, span.start, self.global_batch):
            self._runs[-1] = StepRange(run.epoch, run.first_step, run.steps + 1, run.start, span.stop, run.global_batch)
        else:
            self._runs.append(StepRange(span.epoch, self.step, 1, span.start, span.stop, self.global_batch))

    def _recorded(self, epoch: int, step: int) -> Span:
        run = next(run for run in self._runs
                   if run.epoch == epoch and run.first_step <= step < run.first_step + run.steps)
        start = run.start + (step - run.first_step) * run.global_batch
        return Span(epoch, start, min(start + run.global_batch, run.stop))

    def _roll(self) -> None:
        """Begin the next epoch if no step is left in this one."""
        if self.step < self.steps_in(self.epoch):
            return
        if self.cursor < self.length:
            self._dropped.append(Dropped(self.epoch, self.length - self.cursor, self.global_batch))
        self.epoch, self.step, self.cursor = self.epoch + 1, 0, 0
