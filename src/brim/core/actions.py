"""What a round decides: an ordered tuple of actions, frees before takes.

Each kind of action is one class in this file, and ``ACTIONS`` lists them. Its ``Rule`` says which event books it, what
it frees and takes, and whether it begins an attempt; the phases it is legal in are those from which the lifecycle table
lets that event happen. The checks, the booking of plans, the journal and ``brim policy check`` read the rule; a driver
has one function for each kind that it can carry out, and refuses the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from brim.core.events import Event, Kind
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
_STAGES: Final = {(True, False): 0, (False, False): 1, (True, True): 2, (False, True): 3}


def stage_of(action: Action, before: Setting | None) -> int:
    """Place of an action in a plan: what only frees comes first, what only takes comes last.

    Args:
        action: The action.
        before: What the job has now; None for a job that has nothing, or for an action that does not change a setting.
    """
    frees, takes = action.rule.frees, action.rule.takes
    after = setting_in(action)
    if before is not None and after is not None:
        frees = before.needs_beyond(after)
        takes = after.needs_beyond(before) or after.batch != before.batch  # a batch takes memory of the GPUs
    return _STAGES[frees, takes]


def setting_in(action: Action) -> Setting | None:
    """The setting that an action gives its job, None for an action that gives none."""
    return action.setting if isinstance(action, WITH_SETTING) else None


def event_of(action: Action, now_ms: int) -> Event:
    """Return the event that applies an action to the state."""
    return Event(now_ms, action.rule.books, action.job, setting=setting_in(action))


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of one round, in the order of ``stage_of``.

    Executors apply actions in this order and may overlap those that do not depend on each other.
    """

    time_ms: int
    actions: tuple[Action, ...] = ()
