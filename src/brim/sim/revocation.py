"""What it costs padding jobs in the twin that their GPUs are taken from them, or that they get others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from brim.beliefs.checkpoints import young_ms
from brim.sim.attempts import RunningJob
from brim.sim.overheads import Overheads
from brim.units import MS_PER_S

_PRIOR_MS: Final = 600 * MS_PER_S
"""Before anything is known, a job expects to lose its GPUs after 10 minutes. Ours."""


class Departure(NamedTuple):
    """How a job leaves its GPUs.

    Attributes:
        leave_ms: Until they are free.
        kept_ms: Up to when its work is kept; work from then on is lost.
    """

    leave_ms: int
    kept_ms: int


@dataclass(slots=True)
class Revocation:
    """Says how padding jobs leave GPUs, and when they go on; remembers how often each has lost work."""

    overheads: Overheads
    _losses: dict[int, int] = field(default_factory=dict)
    _first_ms: dict[int, int] = field(default_factory=dict)

    def preempted(self, job: int, attempt: RunningJob, now_ms: int) -> Departure:
        """A job that keeps no GPU saves within its grace, or is killed and goes back to its last checkpoint."""
        save_ms, costs = self.overheads.save_ms, self.overheads.padding
        if costs.in_place and save_ms <= costs.grace_ms:
            return Departure(save_ms, now_ms)
        return Departure(min(save_ms, costs.grace_ms), self._last_checkpoint_ms(job, attempt, now_ms))

    def resized(self, job: int, attempt: RunningJob, now_ms: int) -> Departure:
        """A job that keeps some GPUs leaves the others after a step, or all of them if it cannot change in place."""
        costs = self.overheads.padding
        if costs.in_place:
            return Departure(min(costs.change_ms, costs.grace_ms), now_ms)
        return Departure(0, self._last_checkpoint_ms(job, attempt, now_ms))

    def start_ms(self, before: RunningJob, gpus: tuple[int, ...], per_ms: float, now_ms: int) -> int:
        """Time from the GPUs of a resized job being free until it goes on.

        While processes join, the others go on at the speed that the job had: it is as if it stood still for the part of
        that time which its new speed would have saved.

        Args:
            before: What the job had.
            gpus: What it has now.
            per_ms: Its speed now.
            now_ms: When this was decided.
        """
        costs = self.overheads.padding
        if not costs.in_place:
            return self.overheads.restart_ms
        unfinished_ms = max(0, before.from_ms - now_ms)
        if set(gpus) <= set(before.gpus) or unfinished_ms:
            return unfinished_ms
        return round(costs.join_ms * max(0.0, 1.0 - before.pace.per_ms / per_ms))

    def _last_checkpoint_ms(self, job: int, attempt: RunningJob, now_ms: int) -> int:
        """When the job last saved: it chooses how often from what a checkpoint costs and how often it lost work."""
        first_ms = self._first_ms.setdefault(job, attempt.from_ms)
        losses = self._losses[job] = self._losses.get(job, 0) + 1
        between_ms = (_PRIOR_MS + max(now_ms - first_ms, 0)) / losses
        interval_ms = max(round(young_ms(self.overheads.padding.blocking_ms, between_ms)), 1)
        return now_ms - max(now_ms - attempt.from_ms, 0) % interval_ms
