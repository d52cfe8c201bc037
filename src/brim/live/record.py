"""The record of a live session: its attempts, and the trace and overheads made from them for the twin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from brim.core.arrays import IntArray
from brim.core.events import JobSpec, Kind
from brim.core.trace import Trace, trace_of


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a job on its slots; times in ms of the driver's clock, None for what did not happen.

    Attributes:
        job: Job id.
        number: Number of the attempt, from 1.
        slots: Slots that it was granted.
        begin_ms: When its process existed and all other jobs had left its slots.
        from_ms: When it began to make progress.
        preempt_ms: Time of the round that preempted it.
        end_ms: When all its processes had ended.
        kind: Event with which it ended.
        first_done: Work done at its first report of progress, in the job's own unit.
        first_ms: Time of that report.
    """

    job: int
    number: int
    slots: tuple[int, ...]
    begin_ms: int | None = None
    from_ms: int | None = None
    preempt_ms: int | None = None
    end_ms: int | None = None
    kind: Kind | None = None
    first_done: int | None = None
    first_ms: int | None = None

    @property
    def productive_ms(self) -> int:
        """Time whose work was kept: from the first step to the end, or to the decision to stop the job.

        Time between that decision and the checkpoint counts as saving, as in the twin.
        """
        until_ms = None
        if self.kind is Kind.FINISHED:
            until_ms = self.end_ms
        elif self.kind is Kind.STOPPED:
            until_ms = self.preempt_ms
        return 0 if self.from_ms is None or until_ms is None else max(0, until_ms - self.from_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """Costs of changes in a session: medians in ms, 0 for a change that did not happen.

    Attributes:
        start_ms: Time from a job's first process to its first step.
        restart_ms: The same time for later attempts.
        save_ms: Time from the decision to preempt a job that made progress until its slots were free.
    """

    start_ms: int
    restart_ms: int
    save_ms: int


def measured(attempts: Iterable[Attempt]) -> MeasuredCosts:
    """Compute the overheads of a session."""
    starts: list[int] = []
    restarts: list[int] = []
    saves: list[int] = []
    for attempt in attempts:
        if attempt.begin_ms is not None and attempt.from_ms is not None:
            (starts if attempt.number == 1 else restarts).append(attempt.from_ms - attempt.begin_ms)
        if attempt.kind is Kind.STOPPED and attempt.productive_ms and attempt.end_ms and attempt.preempt_ms:
            saves.append(attempt.end_ms - attempt.preempt_ms)
    return MeasuredCosts(start_ms=_median(starts), restart_ms=_median(restarts), save_ms=_median(saves))


def productive_ms(attempts: Iterable[Attempt], num_jobs: int) -> IntArray:
    """Run time of each job without overheads, shape (J,)."""
    total = np.zeros(num_jobs, dtype=np.int64)
    for attempt in attempts:
        total[attempt.job] += attempt.productive_ms
    return total


def recorded_trace(
    name: str, submissions: Sequence[JobSpec], users: tuple[str, ...], attempts: Iterable[Attempt]
) -> Trace:
    """Return a session as a trace: its submissions, and the run time of each job without overheads."""
    return trace_of(
        name=name, format="live", job_id=[str(spec.id) for spec in submissions], users=users,
        submit_ms=[spec.submit_ms for spec in submissions], gpus=[spec.gpus for spec in submissions],
        user=[spec.user for spec in submissions], time_limit_ms=[spec.time_limit_ms for spec in submissions],
        run_ms=productive_ms(attempts, len(submissions)),
    )


def preemptions(attempts: Iterable[Attempt], num_jobs: int) -> IntArray:
    """Times the scheduler preempted each job, shape (J,)."""
    total = np.zeros(num_jobs, dtype=np.int64)
    for attempt in attempts:
        total[attempt.job] += attempt.preempt_ms is not None
    return total


def _median(values: Sequence[int]) -> int:
    return round(median(values)) if values else 0
