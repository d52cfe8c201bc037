"""The lifecycle of a job as one table: which event or action moves it from which phase to which.

::

         <---held----
    HELD --eligible--> PENDING --start--> STARTING --started--> RUNNING --finished--> (gone)
                          ^                   |  preempt           | preempt
                          |                   v                    v
                          +----stopped---- STOPPING <--------------+
                          +----evicted, failed-- from any phase that holds GPUs

A resize takes a running job back to STARTING, on other GPUs; its attempt goes on. A job that ends (finished, given up,
rejected, cancelled) leaves the tables; the event remains as its record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, cast

from brim.core.events import Kind
from brim.errors import InvariantError


class Phase(IntEnum):
    """Phase of a job. The order matters: a job in STARTING or a later phase has, or had, GPUs."""

    HELD = 0
    PENDING = 1
    STARTING = 2
    RUNNING = 3
    STOPPING = 4


GONE = None
_ACTIVE = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)

TRANSITIONS: dict[tuple[Phase, Kind], Phase | None] = {
    (Phase.HELD, Kind.ELIGIBLE): Phase.PENDING,
    (Phase.PENDING, Kind.HELD): Phase.HELD,
    (Phase.PENDING, Kind.START): Phase.STARTING,
    (Phase.STARTING, Kind.STARTED): Phase.RUNNING,
    (Phase.STARTING, Kind.PREEMPT): Phase.STOPPING,
    (Phase.RUNNING, Kind.PREEMPT): Phase.STOPPING,
    (Phase.STARTING, Kind.RESIZE): Phase.STARTING,
    (Phase.RUNNING, Kind.RESIZE): Phase.STARTING,
    **{(phase, kind): phase for phase in (Phase.STARTING, Phase.RUNNING) for kind in (Kind.TUNE, Kind.REPORTED)},
    (Phase.STOPPING, Kind.REPORTED): Phase.STOPPING,
    **{(phase, Kind.REJECT): GONE for phase in (Phase.HELD, Phase.PENDING)},
    (Phase.STOPPING, Kind.STARTED): Phase.STOPPING,  # STARTED was on its way when the stop was decided
    (Phase.STOPPING, Kind.STOPPED): Phase.PENDING,
    **{(phase, Kind.FINISHED): GONE for phase in _ACTIVE},
    **{(phase, Kind.FAILED): Phase.PENDING for phase in _ACTIVE},
    **{(phase, Kind.EVICTED): Phase.PENDING for phase in _ACTIVE},
    **{(phase, Kind.GAVE_UP): GONE for phase in _ACTIVE},
    **{(phase, Kind.CANCELLED): GONE for phase in Phase},
}


_IMPOSSIBLE: Final = cast(Phase, object())
_AFTER: Final = tuple(
    tuple(TRANSITIONS.get((phase, kind), _IMPOSSIBLE) for kind in Kind) for phase in Phase
)
"""``TRANSITIONS`` by phase, then kind: looking members of an Enum up in a dict is slow before Python 3.12."""


_PHASES_OF: Final = tuple(tuple(phase for phase in Phase if (phase, kind) in TRANSITIONS) for kind in Kind)


def phases_of(kind: Kind) -> tuple[Phase, ...]:
    """The phases in which an event of this kind can happen to a job."""
    return _PHASES_OF[kind]


def next_phase(phase: Phase, kind: Kind, job: int) -> Phase | None:
    """Return the phase after the event, or None when the job has ended.

    Raises:
        InvariantError: the table has no such transition.
    """
    after = _AFTER[phase][kind]
    if after is _IMPOSSIBLE:
        raise InvariantError(f"job {job} cannot go through {kind.name} while {Phase(phase).name}")
    return after
