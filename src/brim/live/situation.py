"""How the cluster stands at one moment, as an independent copy: what trials and forecasts begin from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from brim.engine.scheduler import Scheduler
from brim.live.controller import Controller
from brim.live.holds import sizes_within
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The cluster at ``now_ms``.

    Attributes:
        now_ms: Cluster time, not before the last event or round.
        scheduler: State, policy, beliefs and trigger of the engine, without a journal.
        jobs: Every job that has not ended, by id.
        attempts: Every attempt that has not ended, by job.
        user_gpus: Most GPUs that the jobs of a user may have at the same time; NONE for no quota.
    """

    now_ms: int
    scheduler: Scheduler
    jobs: Mapping[int, JobRecord]
    attempts: Mapping[int, AttemptRecord]
    user_gpus: int = NONE

    def left_gpus(self, job: JobRecord, ended: Collection[int] = ()) -> int:
        """GPUs that the quota of a job's user leaves for it, beside the jobs that have or wait for devices.

        Args:
            job: The job; it may be one that was not submitted.
            ended: Jobs that do not count.
        """
        others = (
            one for one in self.jobs.values()
            if one.uid == job.uid and one.id not in (job.id, *ended) and (one.id in self.attempts or not one.holds)
        )
        return self.user_gpus - sum(sizes_within(one.request, self.user_gpus)[1] for one in others)


def situation_of(controller: Controller, now_ms: int) -> Situation:
    """Copy what a controller knows; its own thread has to call this.

    Args:
        controller: The controller, which is not changed.
        now_ms: Cluster time.
    """
    scheduler = controller.scheduler.copy()
    return Situation(
        now_ms=max(now_ms, scheduler.horizon_ms), scheduler=scheduler, jobs=dict(controller.jobs),
        attempts={attempt.job: attempt for attempt in controller.ledger},
        user_gpus=controller.user_gpus,
    )
