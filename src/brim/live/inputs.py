"""What the controller is told: commands of users and observations of agents, one frozen value each.

Commands are durable before the controller sees them: ``inbox`` is their number in the store, in the order in which they
were accepted, and the controller says in ``records.Changes.inbox_done`` when one need not be given again after a
restart. Observations are not stored: an agent repeats what it knows after every connection. ``at_ms`` is cluster time,
when the store accepted the command or the controller's process heard the observation. It takes a while until what is
accepted is on disk, so that a command may come after a round of a later time; it then counts from that time on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from brim.agent.protocol import AgentHello, AttemptProgress, AttemptSeen, DeviceSeen
from brim.live.records import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A new job, which the store has written as ``job``: pending, or held by its user."""

    inbox: int
    at_ms: int
    job: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a job; ``user`` is who asked."""

    inbox: int
    at_ms: int
    job: int
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Do not start a job until it is released; one that runs goes on."""

    inbox: int
    at_ms: int
    job: int
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Take a user's hold, or that of the crash guard, off a job."""

    inbox: int
    at_ms: int
    job: int
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Stop a running job and put it back into the queue."""

    inbox: int
    at_ms: int
    job: int
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJoined:
    """The agent of a user connected; what it knows of attempts and devices follows, then ``AgentSynced``."""

    at_ms: int
    uid: int
    hello: AgentHello


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSynced:
    """All that the agent knew when it connected has been told."""

    at_ms: int
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLost:
    """The connection to the agent of a user ended; its attempts may go on."""

    at_ms: int
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReported:
    """The agent of a user told of an attempt; the controller's process was suspended for ``unread_ms`` since then."""

    at_ms: int
    uid: int
    seen: AttemptSeen
    unread_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The agent of a user told what an attempt measured."""

    at_ms: int
    uid: int
    progress: AttemptProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The agent of a user told of the state of a device."""

    at_ms: int
    uid: int
    device: DeviceSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacated:
    """The machine shows that nothing of an attempt is left, whose agent is away; see ``vacancy.py``."""

    at_ms: int
    job: int
    attempt: int


JobInput: TypeAlias = Submit | Cancel | Hold | Release | Requeue
"""Inputs that are in the inbox of the store."""
Input: TypeAlias = JobInput | AgentJoined | AgentSynced | AgentLost | AttemptReported | Progress | Device | Vacated
VERBS: Final[dict[str, type[Cancel | Hold | Release | Requeue]]] = {
    "cancel": Cancel, "hold": Hold, "release": Release, "requeue": Requeue,
}
"""What a user can ask of a job, by the word at the command line and in the API."""
