"""The seam between what decides and the nodes that obey: orders out, reports back.

A node agent, an actor of Ray or a step of Slurm stands behind the same protocol; ``brim.testing.check_executor`` tries
one. Every order carries the job's attempt, may be repeated, and changes nothing then; what an executor reports are the
messages of ``agent/protocol.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from brim.agent.protocol import AgentOrder, AgentReport, ResizeAttempt, StartAttempt, StopAttempt, TuneAttempt


@dataclass(frozen=True, slots=True)
class Dispatch:
    """An order, and the user whose agent is to obey it."""

    uid: int
    order: AgentOrder


class NodeExecutor(Protocol):
    """Runs attempts on the devices of one node, for one user.

    None of these waits for the work to be done: ``observe`` tells what came of it.
    """

    def start(self, order: StartAttempt) -> None:
        """Start an attempt on these devices, unless the job has had this number or a higher one."""
        ...

    def resize(self, order: ResizeAttempt) -> None:
        """Give an attempt other devices; its processes on devices that stay go on."""
        ...

    def tune(self, order: TuneAttempt) -> None:
        """Change batch and loader workers of an attempt whose devices stay."""
        ...

    def preempt(self, order: StopAttempt) -> None:
        """End an attempt that is to be resumed: ask, and kill everything of it after the grace."""
        ...

    def stop(self, order: StopAttempt) -> None:
        """End an attempt for good, in the same way."""
        ...

    def adopt(self) -> None:
        """Take over what an earlier controller left: ``observe`` tells of every attempt that is still known."""
        ...

    def forget(self, job: int, attempt: int) -> None:
        """The end of an attempt is known: it need not be told again."""
        ...

    def observe(self, timeout_s: float) -> Sequence[AgentReport]:
        """Wait until there is news, at most this long, and return it in order."""
        ...
