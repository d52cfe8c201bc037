"""The five sockets: what a part takes and gives. A part is a frozen dataclass of its constants with ``__call__``.

Parts are pure: equal snapshot and beliefs give an equal answer, and the order of the input rows does not matter.
How elastic sizes, shared GPUs, revocable grants and CPU ranks enter without changing them: docs/decisions/0007.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import BoolArray, IntArray, frozen
from brim.core.snapshot import Snapshot
from brim.core.tables import EMPTY, Grants
from brim.errors import ConfigError

NOBODY: Final = frozen(np.zeros(0, dtype=np.bool_))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What each job should have now (J). 0 GPUs: not now.

    Attributes:
        gpus: GPUs.
        global_batch: Global batch in samples, -1 for jobs that have none. Empty: what each job has, or its user asked.
        analyse: Jobs to be timed at several batch sizes before they train, when they start. Empty: none.
        reject: Waiting jobs to be turned away for good. Empty: none.
    """

    gpus: IntArray
    global_batch: IntArray = field(default_factory=lambda: EMPTY)
    analyse: BoolArray = field(default_factory=lambda: NOBODY)
    reject: BoolArray = field(default_factory=lambda: NOBODY)


class Order(Protocol):
    """Who is served first.

    A part may also have ``remember(snapshot) -> IntArray``: the new memo column (J,), one integer per job that it wants
    to find again in the next round. The state keeps it, the journal records it.
    """

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        """Return a permutation of the job rows, first served first, shape (J,)."""
        ...


class Size(Protocol):
    """How many GPUs each job should have. ``resizes_running`` says whether it may change jobs that run."""

    resizes_running: ClassVar[bool]

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray) -> Sizes:
        """Return the sizes of all jobs."""
        ...


class Place(Protocol):
    """Which GPUs, and which share of each. Walks the order, keeps running jobs where they are, puts each gang whole.

    A job is granted as many GPUs as its size says, or none. Where those cannot be had together it may be granted fewer:
    what it holds already, or any number that it can run on (from its ``gpus_min``). All GPUs of a job have one share.
    A part that may move jobs that run, whatever their sizes, has ``moves_running = True``.
    """

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, order: IntArray, sizes: Sizes) -> Grants:
        """Return the grants wanted after this round, and why each job left out waits."""
        ...


class Fill(Protocol):
    """What uses the rest: adds revocable grants for padding jobs, whatever their sizes; changes nothing placed."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> Grants:
        """Return the grants, with what fills the gaps added."""
        ...


class Feed(Protocol):
    """How many data-loading processes per rank, of jobs that were placed and of jobs that fill the gaps."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> IntArray:
        """Return loader workers per rank, shape (J,), 0 where the cluster's cores are not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Five parts, a period and a name.

    Attributes:
        name: What reports call it.
        order: Who first.
        size: How many GPUs.
        place: Which GPUs.
        feed: How many loader workers; asked last, so that jobs that fill gaps are fed too.
        fill: What uses the rest.
        period_ms: Longest time between rounds while a job waits, or runs and may be resized; 0 for rounds on events
            only.
        gap_ms: Shortest time between two rounds, where the policy wants more than the driver's.
        fixed_rounds: Rounds fall on whole multiples of ``period_ms`` only, as in a scheduler that wakes at fixed times.
        oracle: Needs true run times; the live mode refuses it.
        source: Paper or manual the policy comes from.
    """

    name: str
    order: Order
    size: Size
    place: Place
    feed: Feed
    fill: Fill
    period_ms: int = 0
    gap_ms: int = 0
    fixed_rounds: bool = False
    oracle: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if self.fixed_rounds and self.period_ms <= 0:
            raise ConfigError(f"policy {self.name!r}: fixed_rounds needs a period_ms above 0, found {self.period_ms}")
        if not hasattr(self.size, "resizes_running"):
            raise ConfigError(
                f"policy {self.name!r}: its size part {type(self.size).__name__} does not say whether it may change "
                "running jobs: add `resizes_running: ClassVar[bool] = False` (or True) to it"
            )

    @property
    def changes_running(self) -> bool:
        """Some part may resize, move or tune jobs that run; the others may only preempt them."""
        return bool(self.size.resizes_running or getattr(self.place, "moves_running", False))

    @property
    def asks_run_times(self) -> bool:
        """Some part reads estimates of run times; parts that do not declare it are not given any."""
        parts = (self.order, self.size, self.place, self.feed, self.fill)
        return any(getattr(part, "asks_run_times", False) for part in parts)

    @property
    def asks_exchange(self) -> bool:
        """The size part reads how long the cluster takes to exchange gradients, which is measured before it begins."""
        return bool(getattr(self.size, "asks_exchange", False))
