"""Which shares of a step each rank computes."""

from __future__ import annotations

from typing import Any

from brim.errors import ConfigError


def assign(loader: Any, rank: int, ranks: int, *, logical_workers: int | None, micro_batch: int | None) -> None:
    """Announce to the loader the shares of this rank, from its next step on.

    Args:
        loader: The loader of the training data.
        rank: This rank.
        ranks: Number of ranks.
        logical_workers: V in exact mode; None: fast mode, in which the number of shares follows the ranks.
        micro_batch: In fast mode, the largest number of samples of one share; None: one share per rank.

    Raises:
        ConfigError: the loader was made for another number of logical workers.
    """
    if logical_workers is None:
        per_rank = 1 if micro_batch is None else -(-loader.global_batch // (ranks * micro_batch))
        if loader.logical_workers != ranks * per_rank:
            loader.set_logical_workers(ranks * per_rank)
    elif loader.logical_workers != logical_workers:
        raise ConfigError(
            f"the loader has {loader.logical_workers} logical workers, the run {logical_workers}: use run.loader(...)"
        )
    each = loader.logical_workers // ranks
    loader.assign(loader.epoch, loader.step, range(rank * each, (rank + 1) * each))
