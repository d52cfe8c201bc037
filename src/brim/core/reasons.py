"""Why a job waits, as a code that parts write and ``engine.explain`` turns into a sentence."""

from __future__ import annotations

from enum import IntEnum


class Why(IntEnum):
    """Reason why a job has no GPUs after a round; 0 for a job that has GPUs."""

    RUNS = 0
    HELD = 1
    """The job is held: it waits for another job to end, or for whoever holds it."""
    STOPPING = 2
    """The job was preempted and is still stopping."""
    TOO_FEW_FREE = 3
    """Fewer GPUs are free than the gang needs."""
    SHAPE = 4
    """Enough GPUs are free, but not with the cores, memory or shares the job asks for, or not of one type."""
    BEHIND = 5
    """The order is strict, and a job ahead of this one does not fit."""
    RESERVED = 6
    """The job would fit now, but it would delay the job that has the reservation."""
    NOT_NOW = 7
    """The size part gave the job no GPUs in this round."""
    PREEMPTED = 8
    """Jobs ahead of this one need its GPUs."""
    SHORT_GAPS = 9
    """A padding job: GPUs are free, but regular jobs are expected to take them before joining would pay."""
