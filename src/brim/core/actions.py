"""What a round decides: an ordered tuple of actions, frees before takes.

Each kind of action is one class in this file, and ``ACTIONS`` lists them. Its ``Rule`` says which event books it, what
it frees and takes, and whether it begins an attempt; the phases it is legal in are those from which the lifecycle table
lets that event happen. The checks, the booking of plans, the journal and ``brim policy check`` read the rule; a driver
has one function for each kind that it can carry out, and refuses the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from brim.core.arrays import BoolArray, IntArray
from brim.core.events import Kind
from brim.core.lifecycle import Phase, phases_of
from brim.core.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What holds for one kind of action.

    Attributes:
        verb: Verb for messages.
        books: The event by which the action enters the state.
        frees: Whether it may free what the job has.
        takes: Whether it may take what the job does not have.
        begins_attempt: Whether it begins a new attempt. Only a start does: no process of the last attempt lives then.
    """

    verb: str
    books: Kind
    frees: bool = False
    takes: bool = False
    begins_attempt: bool = False

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases in which the action is legal."""
        return phases_of(self.books)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop an attempt and free what it has; the job goes back to the queue."""

    rule: ClassVar = Rule(verb="preempts", books=Kind.PREEMPT, frees=True)
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject a waiting job for good: there is no room for it, and the policy does not queue jobs."""

    rule: ClassVar = Rule(verb="rejects", books=Kind.REJECT)
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a job that holds GPUs other GPUs or shares: more, fewer, or the same number elsewhere.

    The attempt goes on: ranks that stay keep their process.

    Attributes:
        job: Job id.
        attempt: The present attempt's number.
        sequence: Number of the new setting; one above the last.
        setting: What the job has from now on.
    """

    rule: ClassVar = Rule(verb="resizes", books=Kind.RESIZE, frees=True, takes=True)
    job: int
    attempt: int
    sequence: int
    setting: Setting


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job, once the jobs that are leaving its GPUs have ended.

    Attributes:
        job: Job id.
        attempt: The new attempt's number; one above the last.
        sequence: Number of the new setting; one above the last.
        setting: What the job has from now on.
        analyse: Measure the job's step times at several batch sizes before it trains.
    """

    rule: ClassVar = Rule(verb="starts", books=Kind.START, takes=True, begins_attempt=True)
    job: int
    attempt: int
    sequence: int
    setting: Setting
    analyse: bool = False


@dataclass(frozen=True, slots=True)
class Tune:
    """Change the batch, the loader workers or the revocability of a job whose ranks stay where they are.

    The job continues without a stop. Attributes: see ``Resize``.
    """

    rule: ClassVar = Rule(verb="tunes", books=Kind.TUNE, frees=True, takes=True)
    job: int
    attempt: int
    sequence: int
    setting: Setting


Action: TypeAlias = Preempt | Reject | Resize | Start | Tune
ACTIONS: Final[tuple[type[Action], ...]] = (Preempt, Reject, Resize, Start, Tune)
WITH_SETTING: Final = (Resize, Start, Tune)
"""The actions that give a job a setting."""
_NOTHING: Final = Setting(())


class Bookings(NamedTuple):
    """What A actions do to the state, in columns, with the K ranks that they grant.

    Attributes:
        kind: Code of the event that books each action (A,).
        job: Job id (A,).
        batch: Global batch from now on; NONE for an action that gives no setting (A,).
        revocable: Whether what the job has is revocable from now on (A,).
        first: Where the ranks of each action begin, and the number of ranks (A + 1,).
        ranks: Node, gpu, share and loader workers of each rank, action by action (K, 4).
    """

    kind: IntArray
    job: IntArray
    batch: IntArray
    revocable: BoolArray
    first: IntArray
    ranks: IntArray


def bookings_of(kinds: Sequence[Kind], jobs: Sequence[int], settings: Sequence[Setting | None]) -> Bookings:
    """Bookings of actions that are booked by these kinds of event, and that give these settings, None for none."""
    given, count = [_NOTHING if setting is None else setting for setting in settings], len(jobs)
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum([len(setting.ranks) for setting in given], out=first[1:])
    ranks = chain.from_iterable(chain.from_iterable([setting.ranks for setting in given]))
    return Bookings(
        kind=np.fromiter(kinds, np.int64, count), job=np.fromiter(jobs, np.int64, count),
        batch=np.fromiter([setting.batch for setting in given], np.int64, count),
        revocable=np.fromiter([setting.revocable for setting in given], np.bool_, count), first=first,
        ranks=np.fromiter(ranks, np.int64, 4 * first.item(count)).reshape(-1, 4),
    )


def setting_in(action: Action) -> Setting | None:
    """The setting that an action gives its job, None for an action that gives none."""
    return action.setting if isinstance(action, WITH_SETTING) else None


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of one round: what only frees comes first, what only takes comes last.

    Executors apply actions in this order and may overlap those that do not depend on each other.

    Attributes:
        time_ms: Time of the round.
        actions: The changes.
        bookings: The same in columns: checks and the state work on all actions together.
    """

    time_ms: int
    actions: tuple[Action, ...] = ()
    bookings: Bookings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bookings", bookings_of(
            [action.rule.books for action in self.actions], [action.job for action in self.actions],
            [setting_in(action) for action in self.actions],
        ))
