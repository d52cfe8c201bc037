"""Where jobs would run if they were submitted now, or behind whom they would wait: a round decides, nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brim.core.events import Event, Kind
from brim.errors import ConfigError
from brim.foresight.answers import DryRun
from brim.foresight.blockers import blockers, listed
from brim.foresight.trials import decided, preempted, starts
from brim.live import holds
from brim.live.records import JobRecord, JobStatus
from brim.live.requests import NONE, ON_CPU, JobRequest
from brim.live.situation import Situation
from brim.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who would submit, and when by the wall clock in Unix seconds."""

    uid: int
    user: str
    wall_s: float


def dry_run(
    situation: Situation, sender: Sender, requests: Sequence[JobRequest], ends: Mapping[int, JobStatus | None]
) -> DryRun:
    """Decide the next round as if jobs had been submitted.

    Args:
        situation: The situation; it is not changed.
        sender: Who would submit.
        requests: What would be submitted.
        ends: How the jobs that they wait for have ended, None for one that has not; without those that do not exist.

    Raises:
        ConfigError: a job could not run if the cluster were empty.
    """
    state = situation.scheduler.state
    for request in requests:
        reason = holds.why_impossible(request, state.cluster, situation.scheduler.policy)
        if reason:
            raise ConfigError(f"job {request.name} could never run: {reason}")
    first = state.last_id + 1
    jobs = [
        _record(situation, sender, number, request, ends) for number, request in enumerate(requests, first)
    ]
    jobs = _within_quota(situation, [_within_limit(job, place) for place, job in enumerate(jobs)])
    state = state.copy()
    code = state.user_code(sender.user)
    events = [
        Event(situation.now_ms, Kind.SUBMITTED, job.id, held=bool(job.holds), user=job.user,
              spec=holds.spec_of(job, state.cluster, code, situation.now_ms, situation.user_gpus))
        for job in jobs
    ]  # fmt: skip
    result = decided(situation, events)
    given = starts(result)
    devices = tuple(given.get(job.id, ()) for job in jobs)
    preempts = tuple(sorted(preempted(result) - preempted(decided(situation))))
    after = replace(situation, jobs={**situation.jobs, **{job.id: job for job in jobs}})
    lines = _starting(devices)
    waiting = next((job for job, got in zip(jobs, devices, strict=True) if not got), None)
    if preempts:
        lines.append(f"this would preempt {'job' if len(preempts) == 1 else 'jobs'} {listed(preempts)}")
    if waiting is not None:
        lines.append("it would wait:" if len(jobs) == 1 else f"{_waiting(devices)} would wait, the first of them:")
        lines += [f"  {blocker.text}" for blocker in blockers(after, waiting, result)]
    return DryRun(devices=devices, preempts=preempts, text="\n".join(lines))


def _record(
    situation: Situation, sender: Sender, number: int, request: JobRequest, ends: Mapping[int, JobStatus | None]
) -> JobRecord:
    """The job as the controller would take it; its user's agent is started by every submission."""
    job = JobRecord(
        id=number, uid=sender.uid, user=sender.user, key="", request=request, submitted_s=sender.wall_s,
        submit_ms=situation.now_ms, state="pending", array=NONE,
    )
    held = holds.first_holds(
        job, situation.scheduler.state.cluster, ends.__getitem__, begins=request.begin_s > sender.wall_s, absent=False,
        policy=situation.scheduler.policy,
    )
    return replace(job, holds=held)


def _within_limit(job: JobRecord, place: int) -> JobRecord:
    """The job at a place of its array, which may run if it is one of the first."""
    holds_it = place >= job.request.array_limit
    return job if holds_it else replace(job, holds=tuple(each for each in job.holds if each != holds.ARRAY_LIMIT))


def _within_quota(situation: Situation, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """The jobs, of which those that the quota of their user leaves no room for are held."""
    if situation.user_gpus == NONE:
        return list(jobs)
    left, found = situation.left_gpus(jobs[0]), []
    for job in jobs:
        gpus = holds.sizes_within(job.request, situation.user_gpus)[1]
        fits = bool(job.holds) or gpus <= left
        left -= gpus * (fits and not job.holds)
        found.append(job if fits else replace(job, holds=(holds.QUOTA,)))
    return found


def _starting(devices: Sequence[tuple[int, ...]]) -> list[str]:
    count = sum(map(bool, devices))
    if not count:
        return []
    taken = tuple(sorted({device for got in devices for device in got}))
    on = f"on device{'' if len(taken) == 1 else 's'} {listed(taken)}"
    if ON_CPU in taken:
        on = "on CPU" if len(taken) == 1 else f"on CPU and on devices {listed(taken[1:])}"
    return [f"it would start now, {on}" if len(devices) == 1 else f"{counted(count, 'job')} would start now, {on}"]


def _waiting(devices: Sequence[tuple[int, ...]]) -> str:
    return counted(sum(not got for got in devices), "job")
