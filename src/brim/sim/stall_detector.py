"""When a replay is given up, because no job makes lasting progress any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from brim.core.trace import NONE, Trace
from brim.errors import ConfigError, PlanError
from brim.sim.faults import Faults
from brim.sim.overheads import Overheads
from brim.units import MS_PER_DAY, MS_PER_S, show_duration

STUCK_EVENTS: Final = 10 * 1024
"""Events and rounds without lasting progress after which a replay may be given up. Ours."""
FUTILE_ROUNDS: Final = 4 * 1024
"""Rounds that took GPUs from jobs before these made any progress, without lasting progress of any job between them,
after which a replay is given up although little virtual time has passed. Ours."""


class Starts(Protocol):
    """What has happened to the jobs so far, as far as the message asks."""

    def first_waiting(self) -> int:
        """Return the first job, in order of submission, that has not ended."""
        ...

    def starts(self, job: int) -> int:
        """Return how often a job has got GPUs."""
        ...


class StallDetector:
    """Watches whether jobs make lasting progress: work that is kept, ends, arrivals, or a checkpoint."""

    def __init__(self, trace: Trace, policy: str, overheads: Overheads, faults: Faults, record: Starts) -> None:
        self._trace, self._policy, self._record = trace, policy, record
        self._overheads, self._faults = overheads, faults
        self._progressed = False  # since the last check
        self._arrived = 0  # at the last check
        self._lively = (0, 0)  # events and virtual time of the last lasting progress
        self._futile = 0  # rounds since then that took GPUs from a job before it made progress
        self._futile_ms = NONE  # time of the last of them
        self._limit_ms = _limit_ms(trace, overheads, faults)

    def progress(self) -> None:
        """Note that a job has made lasting progress."""
        self._progressed = True

    def futile(self, now_ms: int, rounds: int = 1) -> None:
        """Note that a round, or several of which this was the last, took GPUs from a job before it made progress."""
        if now_ms > self._futile_ms:
            self._futile, self._futile_ms = self._futile + rounds, now_ms

    def check(self, events: int, arrived: int, now_ms: int, from_ms: Iterable[int]) -> None:
        """Give up a replay in which no job makes lasting progress any more.

        Args:
            events: Events and rounds so far.
            arrived: Jobs that have been submitted so far.
            now_ms: The present time.
            from_ms: When each job on GPUs began to make progress.

        Raises:
            ConfigError: faults are too frequent for any job to make progress.
            PlanError: the policy lets no job make progress.
        """
        lasting_ms = self._overheads.checkpoint_ms
        if self._progressed or arrived != self._arrived or any(now_ms - begin_ms >= lasting_ms for begin_ms in from_ms):
            self._progressed, self._arrived, self._lively, self._futile = False, arrived, (events, now_ms), 0
            return
        since_events, since_ms = self._lively
        futile = self._futile >= FUTILE_ROUNDS and now_ms - since_ms >= self._overheads.change_ms
        if events - since_events < STUCK_EVENTS or (now_ms - since_ms < self._limit_ms and not futile):
            return
        job = self._record.first_waiting()
        spent = show_duration((now_ms - max(since_ms, int(self._trace.submit_ms[job]))) / MS_PER_S)
        said = (
            f"job {self._trace.job_id[job]} has made no lasting progress for {spent}, and neither has any other job "
            f"({events - since_events:,} events and rounds; starts of this job: {self._record.starts(job)})"
        )
        if not futile and (self._faults.node_mtbf_ms or self._faults.job_mtbf_ms):
            rate = min(filter(None, (self._faults.node_mtbf_ms, self._faults.job_mtbf_ms))) / MS_PER_S
            raise ConfigError(
                f"{said}: failures every {show_duration(rate)} on average leave no time for its next checkpoint, "
                f"{show_duration(lasting_ms / MS_PER_S)} after each start; expected rarer failures"
            )
        raise PlanError(f"policy {self._policy!r}: {said}")


def _limit_ms(trace: Trace, overheads: Overheads, faults: Faults) -> int:
    """Virtual time without lasting progress after which a replay is given up: longer than any legitimate pause."""
    repair_ms = faults.repair_ms if faults.node_mtbf_ms else 0
    drain_ms = sum(drain.end_ms - drain.start_ms for drain in faults.drains)
    return MS_PER_DAY + 10 * (overheads.change_ms + repair_ms) + drain_ms + int(trace.after_ms.max(initial=0))
