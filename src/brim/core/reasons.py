"""Why a job waits or shares, as a code that parts write and ``engine.explain`` turns into a sentence."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Reason(IntEnum):
    """Reason why a job has no GPUs after a round; for one that has GPUs 0, or on what basis it shares them."""

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
    UNDONE = 10
    """The job shared GPUs on trial, and the slowdown that was observed is too large."""
    SHARES_BY_HISTORY = 11
    """The job shares its GPUs; how much such jobs slow each other down was observed of exactly this set."""
    SHARES_BY_PAIRS = 12
    """The job shares its GPUs; pairs of such jobs were observed."""
    SHARES_BY_DEMAND = 13
    """The job shares its GPUs; the slowdown was predicted from the utilisation of each."""

    NOTHING_KNOWN = 14
    """No GPUs are free for it alone, and too little is known, of it or of those that it would join, to share any."""


SHARES: Final = (Reason.SHARES_BY_HISTORY, Reason.SHARES_BY_PAIRS, Reason.SHARES_BY_DEMAND)
RUNNING: Final = (Reason.RUNS, *SHARES)
"""Reasons of jobs that have GPUs."""
