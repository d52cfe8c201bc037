"""The process group of ranks whose number is fixed, as ``torchrun`` starts them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from brim.train.membership.process_group import ProcessGroup

_c10d: Any = dist
_made = 0
_meeting: tuple[Any, int, int] | None = None


def static_group(device: torch.device, timeout_s: float) -> ProcessGroup | None:
    """Return the group of the ranks that ``torchrun`` started; None if it did not start several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_ADDR" not in os.environ:
        return None
    global _made, _meeting  # noqa: PLW0603  (one store for the whole life of the process)
    if _meeting is None:
        _meeting = next(_c10d.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    store, rank, size = _meeting
    _made += 1
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) * 1000 + _made
    group = ProcessGroup(rank, size, generation=generation, device=device, timeout_s=timeout_s)
    group.hosts_store = rank == 0
    group.connect(lambda: store)
    return group
