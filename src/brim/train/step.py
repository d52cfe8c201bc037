"""The plan of a step, its micro-batches, and the measurement of step times."""

from __future__ import annotations

import time
from typing import Any, Final

MEASURED_EVERY_S: Final = 10.0
"""Time between two reports of measured times. Our choice."""


class Micro:
    """The current micro-batch."""

    __slots__ = ("begins", "done", "first", "last", "noise", "share", "stepped")

    def __init__(self, first: bool, last: bool, share: float, noise: bool) -> None:
        self.first, self.last, self.share, self.noise = first, last, share, noise
        self.begins = self.done = self.stepped = False


class Plan:
    """The plan of one step: the shares that this rank computes."""

    __slots__ = ("epoch", "mine", "noise", "samples", "shares", "state", "step", "total")

    def __init__(
        self, epoch: int, step: int, samples: list[int], total: int, mine: range, noise: bool, shares: int
    ) -> None:
        self.epoch, self.step, self.samples, self.total = epoch, step, samples, total
        self.mine, self.noise, self.shares = mine, noise, shares
        self.state: Any = 0  # checksum of this rank's parameters and buffers; see `brim.train.gradients.consistency`

    def idle(self, ranks: int) -> list[int]:
        """Return the ranks that have no sample in this step, and so no iteration of ``run.steps``."""
        each = self.shares // ranks
        return [rank for rank in range(ranks) if not any(self.samples[rank * each : (rank + 1) * each])]


class Meter:
    """Measures step times between two reports."""

    def __init__(self) -> None:
        self._said_s = time.perf_counter()
        self._began_s = 0.0
        self.sync_s = self._step_s = self._wait_s = self._waited_s = 0.0
        self._steps = self._batch = 0

    def begin(self) -> None:
        """Record that a step begins."""
        self._began_s = time.perf_counter()

    def end(self, local_batch: int, wait_s: float) -> None:
        """Record that the step was committed; ``wait_s`` is the total of all waits for the loader so far."""
        self._step_s += time.perf_counter() - self._began_s
        self._wait_s += wait_s - self._waited_s
        self._waited_s = wait_s
        self._steps += 1
        self._batch = local_batch

    def due(self) -> dict[str, Any] | None:
        """Return the means since the last report, or None if no report is due."""
        now = time.perf_counter()
        if now - self._said_s < MEASURED_EVERY_S or not self._steps:
            return None
        n = self._steps
        found = {
            "local_batch": self._batch, "step_s": self._step_s / n, "sync_s": self.sync_s / n,
            "loader_wait_s": self._wait_s / n,
        }  # fmt: skip
        self._said_s, self._steps = now, 0
        self.sync_s = self._step_s = self._wait_s = 0.0
        return found
