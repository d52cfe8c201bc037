"""What step times of a training job mean: its speed alone, or its slowdown beside jobs with which it shares devices.

A step time beside neighbours is compared with that alone which the engine knows, on as many devices at the same batch,
of the job or another of its model: it comes from the journal, and survives a restart of the controller. Nothing is
said while the co-location is new: reported times are means, of which a part was spent in the one before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

from brim.core.events import Report, Sample
from brim.core.state import ClusterState
from brim.core.trace import NONE
from brim.gang.messages import MEASURED_EVERY_S
from brim.live.ledger import Ledger
from brim.live.records import AttemptRecord
from brim.units import MS_PER_S

LATE_S: Final = 5.0
"""Time that a measurement needs from a rank to the controller, at most. Ours: agents look every second."""


class _Colocation(NamedTuple):
    """The attempts with which one shares devices, and since when."""

    others: frozenset[tuple[int, int]]
    since_ms: float


def settled_ms(step_s: float) -> float:
    """Time in the same co-location after which a step time that is reported is of it alone.

    The mean in which it began covers at most the time between two and one step; it is told until the next one is.
    """
    return (2 * (MEASURED_EVERY_S + step_s) + LATE_S) * MS_PER_S


class StepSlowdowns:
    """Who is beside whom, and since when. A restart of the controller forgets it: every co-location is new then.

    Args:
        ledger: The attempts.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._colocation: dict[int, _Colocation] = {}
        self._told: dict[int, tuple[Sample, ...]] = {}  # the step times that the engine was told last

    def judged(self, report: Report, attempt: AttemptRecord, state: ClusterState, now_ms: int) -> Report:
        """Return a report with the slowdown that its steps show, and with step times only if they are of the job alone.

        The slowdown is at least 1; NaN while the job is alone or its step time alone is not known. Nothing is told of
        the same measurement alone twice.

        Args:
            report: The report; without step times nothing is known.
            attempt: The job's attempt.
            state: The state of the engine.
            now_ms: Cluster time.
        """
        others = frozenset(
            (other, found.number) for device in attempt.own_devices
            for other in self._ledger.jobs_on(device) - {attempt.job}
            if (found := self._ledger.of(other)) is not None
        )
        colocation = self._colocation.get(attempt.job)
        if colocation is None or colocation.others != others:
            always_alone = not others and colocation is None and attempt.samples_first_ms == NONE
            since_ms = -math.inf if always_alone else now_ms
            colocation = self._colocation[attempt.job] = _Colocation(others, since_ms)
        if not report.seen:
            return report
        [steps] = report.seen
        is_settled = now_ms - colocation.since_ms >= settled_ms(steps.step_s)
        if is_settled and not others:
            told, self._told[attempt.job] = self._told.get(attempt.job), report.seen
            return replace(report, seen=(), batch=NONE) if report.seen == told else report
        if not is_settled:
            return replace(report, seen=())
        ratio = steps.step_s / state.step_s_alone(attempt.job, steps.gpus, steps.local_batch)
        return replace(report, seen=(), slowdown_ratio=max(ratio, 1.0))  # NaN stays NaN

    def forget(self, job: int) -> None:
        """An attempt of a job has ended."""
        self._colocation.pop(job, None)
        self._told.pop(job, None)
