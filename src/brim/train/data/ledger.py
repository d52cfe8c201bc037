"""The samples that a job consumed, as plain JSON, and the proof that every epoch used every sample exactly once.

Every checkpoint contains the ledger. Its entries are runs of consecutive committed steps with the same global batch,
so it stays a few lines long. Steps that were aborted or rolled back are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import ConfigError, InvariantError

LEDGER_VERSION = 1


@dataclass(frozen=True, slots=True)
class StepRange:
    """Consecutive committed steps with the same global batch, from place ``start`` of an epoch to before ``stop``."""

    epoch: int
    first_step: int
    steps: int
    start: int
    stop: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Samples left over at the end of an epoch, fewer than the global batch at that time."""

    epoch: int
    samples: int
    global_batch: int


def order(
    length: int, seed: int, epoch: int, *, shuffle: bool = True, out: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the sample ids in the order of one epoch, shape ``(length,)``; written to ``out`` if given.

    ``RandomState`` shuffles them, since NumPy never changes its streams: a seed gives the same order in every version.
    """
    out = np.empty(length, np.int64) if out is None else out
    out[:] = np.arange(length)
    if shuffle:
        np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, epoch]))).shuffle(out)
    return out


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` has proved: ``complete`` epochs used every sample once, and ``open_epoch`` ``open_samples`` so far.

    The rule for the last batch has left out ``dropped`` samples of complete epochs.
    """

    complete: tuple[int, ...]
    open_epoch: int
    open_samples: int
    dropped: int


def read_version(ledger: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the ledger has another version."""
    if ledger.get("version") != LEDGER_VERSION:
        raise ConfigError(f"ledger of version {ledger.get('version')!r}, this brim reads version {LEDGER_VERSION}")


def verify(ledger: Mapping[str, Any], length: int) -> Verified:
    """Prove from a ledger that every epoch used every sample exactly once, up to the rule for the last batch.

    The order of each epoch is computed again, and every sample is counted.

    Raises:
        ConfigError: the ledger has another version, or is of a dataset of another length.
        InvariantError: a sample was repeated, left out or invented; the message names the epoch and the places.
    """
    read_version(ledger)
    if ledger["length"] != length:
        raise ConfigError(f"the ledger is of a dataset of {ledger['length']} samples, this one has {length}")
    runs = [StepRange(**run) for run in ledger["runs"]]
    dropped = {entry["epoch"]: Dropped(**entry) for entry in ledger["dropped"]}
    complete, open_epoch, open_samples = [], 0, 0
    for epoch, of_epoch in _by_epoch(runs):
        if epoch != open_epoch:
            raise InvariantError(f"epoch {open_epoch} is not complete in the ledger, but epoch {epoch} has begun")
        stop = _tiled(epoch, of_epoch, length)
        left_out = dropped.pop(epoch, None)
        if left_out is not None:
            _check_dropped(left_out, stop, length, ledger["last"])
        _count(ledger, epoch, of_epoch, length)
        if stop == length or left_out is not None:
            complete.append(epoch)
            open_epoch, open_samples = epoch + 1, 0
        else:
            open_samples = stop
    if dropped:
        raise InvariantError(f"samples dropped in epochs {sorted(dropped)}, of which nothing was consumed")
    return Verified(tuple(complete), open_epoch, open_samples, sum(entry["samples"] for entry in ledger["dropped"]))


def consumed(ledger: Mapping[str, Any], epoch: int) -> NDArray[np.int64]:
    """Return the sample ids that were consumed in an epoch, in order, shape ``(samples,)``."""
    ids = order(ledger["length"], ledger["seed"], epoch, shuffle=ledger["shuffle"])
    parts = [ids[run["start"]:run["stop"]] for run in ledger["runs"] if run["epoch"] == epoch]
    return np.concatenate(parts) if parts else ids[:0]


def _by_epoch(runs: list[StepRange]) -> Iterator[tuple[int, list[StepRange]]]:
    of_epoch: list[StepRange] = []
    for run in runs:
        if of_epoch and run.epoch != of_epoch[0].epoch:
            yield of_epoch[0].epoch, of_epoch
            of_epoch = []
        of_epoch.append(run)
    if of_epoch:
        yield of_epoch[0].epoch, of_epoch


def _tiled(epoch: int, runs: list[StepRange], length: int) -> int:
    """Check that runs follow each other without gap or overlap; return where they end."""
    stop, step = 0, 0
    for run in runs:
        if run.start != stop:
            wrong = "are in no step" if run.start > stop else "were consumed twice"
            low, high = min(run.start, stop), max(run.start, stop)
            raise InvariantError(f"epoch {epoch}: places {low} to {high - 1} {wrong}")
        if run.first_step != step:
            raise InvariantError(f"epoch {epoch}: step {run.first_step} follows step {step - 1}")
        if run.stop > length:
            raise InvariantError(f"epoch {epoch}: places up to {run.stop - 1} of a dataset of {length}")
        full, rest = divmod(run.stop - run.start, run.global_batch)
        if run.steps != full + bool(rest) or (rest and run.stop != length) or run.steps < 1:
            raise InvariantError(
                f"epoch {epoch}: {run.steps} steps of {run.global_batch} cannot take {run.stop - run.start} places"
            )
        stop, step = run.stop, step + run.steps
    return stop


def _check_dropped(dropped: Dropped, stop: int, length: int, last: str) -> None:
    if last != "drop" or dropped.samples != length - stop or not 0 < dropped.samples < dropped.global_batch:
        raise InvariantError(
            f"epoch {dropped.epoch}: {dropped.samples} samples dropped after place {stop - 1} of {length} at a batch "
            f"of {dropped.global_batch} with the rule {last!r}"
        )


def _count(ledger: Mapping[str, Any], epoch: int, runs: list[StepRange], length: int) -> None:
    taken = np.bincount(consumed(ledger, epoch), minlength=length)
    if taken.max() > 1 or taken.sum() != sum(run.stop - run.start for run in runs):
        raise InvariantError(f"epoch {epoch}: sample {int(taken.argmax())} was consumed {int(taken.max())} times")
