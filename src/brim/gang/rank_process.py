"""What a supervisor records about each rank, and the outcome of a job from the ends of its ranks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from brim.gang.control_server import Connection
from brim.gang.launch_config import Outcome
from brim.gang.messages import PREEMPTED, RESUMABLE, Finished, GroupBroken, Waiting

BY_OUR_SIGNAL: Final = frozenset({-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL})
"""Exit codes of a command without signal handlers that was terminated; the second pair comes from shells."""
NO_CONSEQUENCE: Final = frozenset({-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})
"""Exit codes of a rank that did not fail because another rank had failed, unless the supervisor sent the signal."""


@dataclass(slots=True)
class Rank:
    """One process of the gang, from the order to start it until all processes it has started are gone."""

    id: int
    slot: int
    asked: bool = False
    asked_s: float = 0.0
    zombie_s: float | None = None
    pid: int = 0
    handle: int = -1
    how: str = ""
    connection: Connection | None = None
    told: bool = False
    signalled: bool = False
    left: bool = False
    ended: bool = False
    code: int | None = None
    ended_s: float = 0.0
    is_cause: bool = False
    failed_s: float | None = None
    traceback: str = ""
    ladder: list[tuple[float, int]] = field(default_factory=list)
    sweep_s: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    waits_in: Waiting | None = None
    broke_in: GroupBroken | None = None
    finished: Finished | None = None

    @property
    def living(self) -> bool:
        """Whether its process may still be running."""
        return not self.ended

    def plan(self, now_s: float, term_after_s: float, kill_after_s: float) -> None:
        """Schedule SIGTERM and SIGKILL this long from now. A signal that is already due earlier stays so."""
        planned = {number: at_s for at_s, number in self.ladder}
        kill_s = min(now_s + kill_after_s, planned.get(signal.SIGKILL, float("inf")))
        term_s = min(now_s + term_after_s, planned.get(signal.SIGTERM, float("inf")), kill_s)
        terminated = signal.SIGKILL in planned and signal.SIGTERM not in planned
        self.ladder = [] if terminated else [(term_s, int(signal.SIGTERM))]
        self.ladder.append((kill_s, int(signal.SIGKILL)))

    @property
    def was_killed(self) -> bool:
        """Whether its process was ended by a signal that neither the supervisor nor another rank's failure explains."""
        return self.code in NO_CONSEQUENCE and not self.signalled

    def as_told(self) -> bool:
        """Whether it ended as expected of a rank that was asked to end."""
        return self.told and (self.code == 0 or self.code in RESUMABLE or self.code in BY_OUR_SIGNAL)

    def read_error(self, path: str) -> None:
        """Read the exception that ended it; only a forked rank writes it to a file."""
        try:
            with open(path, encoding="utf-8") as file:
                said = json.load(file)
            self.traceback, self.failed_s = str(said["traceback"]), float(said["at_ns"]) / 1e9
        except (OSError, ValueError, KeyError, TypeError):
            return


def causes(ranks: Iterable[Rank], *, failing: bool) -> list[Rank]:
    """Return the ranks that ended without having been asked to, in the order in which they failed.

    A rank that was killed comes first: the exceptions of other ranks follow from its end, which may be seen later.
    """
    found = (rank for rank in ranks if _is_cause(rank, failing))
    return sorted(found, key=lambda rank: (not rank.was_killed, rank.failed_s or rank.ended_s))


def _is_cause(rank: Rank, failing: bool) -> bool:
    if rank.failed_s is not None or rank.is_cause:
        return True
    expected = rank.code == 0 or rank.code in RESUMABLE or rank.code in BY_OUR_SIGNAL
    return not expected and rank.code is not None and (failing or rank.told)


def failure(first: Rank | None, why: str) -> Outcome:
    """Return the outcome of a failed gang: the exit code of the rank that failed first, or 1 if that says resumable."""
    detail = f"rank {first.id} failed first: {_how_it_failed(first)}" if first and first.pid else why
    code = 1 if first is None or first.code is None or first.failed_s is not None else first.code
    code = 1 if code in RESUMABLE else code
    return Outcome("failed", code if code > 0 else 128 - code, detail)


def _how_it_failed(rank: Rank) -> str:
    """Describe the failure; a signal that ended a rank while it handled its exception is not named."""
    if rank.failed_s is not None and rank.code in BY_OUR_SIGNAL:
        return "by an exception"
    return how(rank.code) + (", though it was not asked to stop" if rank.code in RESUMABLE else "")


def success(ranks: Iterable[Rank], *, announced: bool) -> Outcome:
    """Return the outcome of a gang that did not fail: after an announced stop, finished only if every rank was."""
    if announced and not all(rank.code == 0 and not rank.left for rank in ranks):
        return Outcome("preempted", PREEMPTED)
    return Outcome("finished", 0)


def how(code: int | None) -> str:
    """Describe an exit code."""
    if code is None:
        return "ended with an unknown exit code"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
