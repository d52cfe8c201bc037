"""What a round decides: an ordered tuple of actions, frees before takes.

Each kind of action is one class in this file, and ``ACTIONS`` lists them. Its ``Rule`` says which event books it, what
it frees and takes, and whether it begins an attempt; the phases it is legal in are those from which the lifecycle table
lets that event happen. The checks, the booking of plans, the journal and ``brim policy check`` read the rule; a driver
has one function for each kind that it can carry out, and refuses the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import BoolArray, IntArray
from brim.core.events import Kind
from brim.core.lifecycle import Phase, phases_of
from brim.core.setting import Rank, Setting
from brim.core.trace import NONE


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
    """Give a job that holds GPUs other GPUs: more, fewer, or the same number elsewhere.

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
    """Change the batch, loader workers, revocability or share of GPUs of a job whose ranks stay where they are.

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
_MADE_OF: Final[dict[int, type[Action]]] = {int(action.rule.books): action for action in ACTIONS}
_NOTHING: Final = Setting(())
_RANK_OF: Final = partial(tuple.__new__, Rank)
"""Rank of a tuple of its four values, a fifth of the time of ``Rank(*values)``."""


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
    first = np.cumsum([0, *(len(setting.ranks) for setting in given)])
    ranks = chain.from_iterable(chain.from_iterable(setting.ranks for setting in given))
    return Bookings(
        kind=np.fromiter(kinds, np.int64, count), job=np.fromiter(jobs, np.int64, count),
        batch=np.fromiter((setting.batch for setting in given), np.int64, count),
        revocable=np.fromiter((setting.revocable for setting in given), np.bool_, count), first=first,
        ranks=np.fromiter(ranks, np.int64, 4 * first.item(count)).reshape(-1, 4),
    )


def setting_in(action: Action) -> Setting | None:
    """The setting that an action gives its job, None for an action that gives none."""
    return action.setting if isinstance(action, WITH_SETTING) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """All changes of one round, in columns: what only frees comes first, what only takes comes last.

    Executors apply actions in this order and may overlap those that do not depend on each other. An action is made when
    it is read, and not kept: thousands of them that live as long as a plan bring on full garbage collections.

    Attributes:
        time_ms: Time of the round.
        bookings: What the actions do to the state.
        attempt: Number of the attempt of each (A,).
        sequence: Number of the setting of each; NONE for an action that gives none (A,).
        analyse: Whether to measure the job's step times first, of starts (A,).
    """

    time_ms: int
    bookings: Bookings
    attempt: IntArray
    sequence: IntArray
    analyse: BoolArray

    def __len__(self) -> int:
        return len(self.attempt)

    def __iter__(self) -> Iterator[Action]:
        booked = self.bookings
        ranks = map(_RANK_OF, zip(*booked.ranks.T.tolist(), strict=True))
        counts = np.diff(booked.first)
        columns = (
            booked.kind, booked.job, self.attempt, self.sequence, booked.batch, booked.revocable, counts, self.analyse,
        )
        for kind, job, attempt, sequence, batch, revocable, count, analyse in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            made = _MADE_OF[kind]
            if made is Preempt or made is Reject:
                yield made(job, attempt)
                continue
            setting = Setting(tuple(islice(ranks, count)), batch, revocable)
            if made is Start:
                yield Start(job, attempt, sequence, setting, analyse)
            elif made is Resize or made is Tune:
                yield made(job, attempt, sequence, setting)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (self.time_ms, self.actions) == (other.time_ms, other.actions)

    def __hash__(self) -> int:
        return hash((self.time_ms, self.actions))

    def __repr__(self) -> str:
        return f"plan_of({self.time_ms}, {self.actions})"

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, made anew."""
        return tuple(self)

    def in_order(self, order: IntArray) -> Plan:
        """The same actions in another order."""
        booked = self.bookings
        counts = np.diff(booked.first)[order]
        first = np.concatenate(([0], np.cumsum(counts)))
        rank = np.repeat(booked.first[order] - first[:-1], counts) + np.arange(first[-1])
        return Plan(
            time_ms=self.time_ms, attempt=self.attempt[order], sequence=self.sequence[order],
            analyse=self.analyse[order], bookings=Bookings(
                kind=booked.kind[order], job=booked.job[order], batch=booked.batch[order],
                revocable=booked.revocable[order], first=first, ranks=booked.ranks[rank],
            ),
        )


def plan_of(time_ms: int, actions: Sequence[Action] = ()) -> Plan:
    """The plan of these actions."""

    def column(name: str, kind: type[np.int64 | np.bool_], default: int) -> NDArray[Any]:
        return np.fromiter((getattr(action, name, default) for action in actions), kind, len(actions))

    return Plan(
        time_ms=time_ms, attempt=column("attempt", np.int64, NONE), sequence=column("sequence", np.int64, NONE),
        analyse=column("analyse", np.bool_, False), bookings=bookings_of(
            [action.rule.books for action in actions], [action.job for action in actions],
            [setting_in(action) for action in actions],
        ),
    )
