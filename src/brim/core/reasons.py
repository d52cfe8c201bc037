"""Why a job waits, as a code that parts write and ``engine.explain`` puts into words."""

from __future__ import annotations

from enum import IntEnum


class Why(IntEnum):
    """Reason code of a job that has no GPUs after a round; 0 for one that has."""

    RUNS = 0
    HELD = 1
    """Waits for another job to end."""
    STOPPING = 2
    """Was preempted and is on its way out."""
    TOO_FEW_FREE = 3
    """Fewer GPUs are free than the gang needs."""
    SHAPE = 4
    """Enough GPUs are free, but not with the cores, memory or shares asked, or not of one type."""
    BEHIND = 5
    """The order is strict and a job ahead does not fit."""
    RESERVED = 6
    """It would fit now, and would delay the job that has the reservation."""
    NOT_NOW = 7
    """The size part gave it no GPUs in this round."""
    PREEMPTED = 8
    """Jobs ahead of it need its GPUs."""
