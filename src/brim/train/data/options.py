"""Options of torch's DataLoader that ``run.loader`` does not take, and what to use instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, Final

from brim.errors import ConfigError

_ORDER: Final = (
    "brim draws the order itself, so that it can be resumed on any number of ranks. Leave it out for a new order in "
    "every epoch, or use shuffle=False; for a part of the dataset use torch.utils.data.Subset(dataset, indices); for "
    "weights or an order of your own give a dataset whose __getitem__(index) returns dataset[chosen[index]]"
)

INSTEAD: Final = {
    "batch_sampler": _ORDER,
    "batch_size": "use global_batch, the samples of one optimizer step over all ranks",
    "collate_fn": "use collate",
    "drop_last": "use last='drop'",
    "generator": "use seed",
    "in_order": "samples are always in order",
    "multiprocessing_context": "brim forks the worker processes itself",
    "num_workers": "use workers (a number, or 'auto')",
    "persistent_workers": "worker processes always persist",
    "pin_memory_device": "use pin_memory",
    "prefetch_factor": "use prefetch",
    "sampler": _ORDER,
    "timeout": "use timeout_s",
    "worker_init_fn": "random generators are seeded for every sample; open files in the first call of __getitem__",
}


def check_options(names: Collection[str], loader: Callable[..., Any]) -> None:
    """Check the names of the options given to ``run.loader``.

    Raises:
        ConfigError: the loader does not take an option; the message names the alternative.
    """
    known = set(inspect.signature(loader).parameters) - {"dataset", "global_batch", "logical_workers"}
    for name in names:
        if name in INSTEAD:
            raise ConfigError(f"run.loader does not take {name}: {INSTEAD[name]}")
        if name not in known:
            raise ConfigError(f"run.loader does not take {name}: expected {', '.join(sorted(known | {'micro_batch'}))}")
