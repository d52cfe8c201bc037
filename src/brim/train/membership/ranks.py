"""The ranks of a run, whether brim's supervisor, ``torchrun`` or nobody has started them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from brim.gang.messages import Message
from brim.train.membership.evaluation import Evaluation
from brim.train.membership.process_group import ProcessGroup
from brim.train.membership.rendezvous import Rendezvous
from brim.train.membership.static_group import static_group
from brim.train.membership.supervisor_client import SupervisorClient


class Ranks:
    """This rank's place among the others, and their group.

    Args:
        device: The device of this rank.
        timeout_s: Longest time in one collective.
        steps_done: Returns the number of committed steps, for what the supervisor is told of waits.

    Attributes:
        client: The connection to the supervisor; None if no supervisor has started this process.
        rendezvous: The group that the supervisor forms; None without a supervisor.
        evaluation: The exchange of values between ranks.
    """

    def __init__(self, device: torch.device, timeout_s: float, steps_done: Callable[[], int]) -> None:
        self._steps_done = steps_done
        self.evaluation = Evaluation(device, timeout_s)
        self.client = SupervisorClient.from_environment()
        self.rendezvous: Rendezvous | None = None
        self._static: ProcessGroup | None = None
        if self.client is not None:
            self.rendezvous = Rendezvous(self.client, device, timeout_s)
        else:
            self._static = static_group(device, timeout_s)

    @property
    def group(self) -> ProcessGroup | None:
        """The process group; None while there is none, and for a single rank."""
        return self.rendezvous.group if self.rendezvous is not None else self._static

    @property
    def rank(self) -> int:
        """Place among the ranks, from 0; in an evaluation, among those that take part in it."""
        if (place := self.evaluation.place) is not None:
            return place[0]
        if self.rendezvous is not None:
            return self.rendezvous.rank
        return self._static.rank if self._static is not None else 0

    @property
    def size(self) -> int:
        """Number of ranks; in an evaluation, of those that take part in it."""
        if (place := self.evaluation.place) is not None:
            return place[1]
        if self.rendezvous is not None:
            return self.rendezvous.size
        return self._static.size if self._static is not None else 1

    @property
    def place(self) -> tuple[int, int]:
        """Rank and number of ranks; before the first group is formed, those with which the gang was started."""
        if self.rendezvous is not None and self.rendezvous.generation == 0 and self.evaluation.place is None:
            return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        return self.rank, self.size

    def send(self, message: Message) -> None:
        """Send a message to the supervisor, if there is one."""
        if self.client is not None:
            self.client.send(message)

    @contextlib.contextmanager
    def in_collective(self, what: str = "step") -> Iterator[None]:
        """Let the supervisor know that this rank waits for the others; ``what`` names the wait."""
        if self.client is not None and self.rendezvous is not None:
            self.client.waiting(self.rendezvous.generation, self._steps_done(), what)
        try:
            yield
        finally:
            if self.client is not None:
                self.client.not_waiting()

    def compared(self, value: Any, what: str = "step") -> list[Any]:
        """Return the values of all ranks."""
        with self.in_collective(what):
            return self.evaluation.gather(value)

    def abort(self) -> None:
        """End the group at once, so that no rank waits in it."""
        if (group := self.group) is not None:
            group.abort()

    def close(self) -> None:
        """Leave the group, and the supervisor."""
        if self.rendezvous is not None:
            self.rendezvous.close()
        if self._static is not None:
            self._static.close()
            self._static = None
        if self.client is not None:
            self.client.close()
