"""Invariants of the controller, as functions: I1, I3 to I6, I19, I22, I26 and I28 of docs/invariants.md.

Each raises InvariantError that names the job or device. Tests call them after every step, ``brim doctor`` on what the
store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brim.core.checks import check_snapshot
from brim.core.lifecycle import Phase
from brim.errors import InvariantError
from brim.live.ends import EXCHANGED
from brim.live.ledger import cores_held
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import NONE
from brim.units import MS_PER_S, WHOLE_GPU

if TYPE_CHECKING:
    from brim.live.controller import Controller

CLOCK_SLACK_MS: Final = MS_PER_S
"""Steps of the controller are at least a millisecond apart, so a burst of them is ahead of the clock. Ours."""


def check_conservation(accepted: Iterable[int], jobs: Mapping[int, JobRecord]) -> None:
    """I1, I3, I26: every accepted job is stored, in one state, and no other; a job that has ended holds nothing."""
    accepted = set(accepted)
    missing = sorted(accepted - jobs.keys())
    if missing:
        raise InvariantError(f"job {missing[0]} was accepted and is not stored")
    foreign = sorted(jobs.keys() - accepted)
    if foreign:
        raise InvariantError(f"job {foreign[0]} is stored, and nobody has submitted it")
    for job in jobs.values():
        if job.has_ended != (job.ended_ms >= 0):
            raise InvariantError(f"job {job.id} is {job.state} with an end at {job.ended_ms} ms")
        if job.has_ended and (job.holds or job.devices):
            raise InvariantError(f"job {job.id} has ended with holds {job.holds} and devices {job.devices}")


def check_fences(attempts: Iterable[AttemptRecord]) -> None:
    """I4: of the attempts of a job, only the newest has not ended."""
    newest: dict[int, AttemptRecord] = {}
    for attempt in sorted(attempts, key=lambda one: (one.job, one.number)):
        last = newest.get(attempt.job)
        if last is not None and last.state != "ended":
            raise InvariantError(f"job {attempt.job} has attempt {attempt.number}, and {last.number} has not ended")
        newest[attempt.job] = attempt


def check_devices(attempts: Iterable[AttemptRecord]) -> None:
    """I6: no device is given to attempts whose shares sum to more than it."""
    on: dict[int, list[AttemptRecord]] = {}
    for attempt in attempts:
        for device in attempt.own_devices:
            there = on.setdefault(device, [])
            there.append(attempt)
            if sum(one.share_milli for one in there) > WHOLE_GPU:
                jobs = " and ".join(str(one.job) for one in there)
                raise InvariantError(f"device {device} is given to jobs {jobs}")


def check_cores(attempts: Iterable[AttemptRecord], total_milli: int) -> None:
    """I6: attempts that may have processes take no more cores than their node has."""
    taken_milli = sum(map(cores_held, attempts))
    if taken_milli > total_milli:
        raise InvariantError(f"{taken_milli / 1000:g} cores are given, and the node has {total_milli / 1000:g}")


def check_truth(jobs: Iterable[JobRecord], attempts: Iterable[AttemptRecord]) -> None:
    """I28: a job has finished if and only if an attempt of it ended with a collected exit code 0."""
    succeeded = {one.job for one in attempts if one.outcome == "finished" and one.exit_code == 0}
    for job in jobs:
        if (job.state == "finished") != (job.id in succeeded):
            seen = "seen" if job.id in succeeded else "not seen"
            raise InvariantError(f"job {job.id} is {job.state}, and an exit code 0 was {seen}")


def check_phases(jobs: Iterable[JobRecord], attempts: Iterable[AttemptRecord]) -> None:
    """I3, I4, I22: a job has a living attempt, its newest, if and only if its phase has one; a held one has holds."""
    newest: dict[int, AttemptRecord] = {}
    for attempt in attempts:
        if attempt.number > (newest[attempt.job].number if attempt.job in newest else 0):
            newest[attempt.job] = attempt
    for job in jobs:
        last = newest.get(job.id)
        if job.attempt != (0 if last is None else last.number):
            found = "none" if last is None else last.number
            raise InvariantError(f"job {job.id} says that its newest attempt is {job.attempt}, and it is {found}")
        lives = last is not None and last.state != "ended"
        if lives != (job.state in ("starting", "running", "stopping")):
            raise InvariantError(f"job {job.id} is {job.state}, and has {'a' if lives else 'no'} living attempt")
        if job.state in ("held", "pending") and bool(job.holds) != (job.state == "held"):
            raise InvariantError(f"job {job.id} is {job.state} with holds {job.holds}")


def check_times(jobs: Iterable[JobRecord], attempts: Iterable[AttemptRecord], now_ms: int) -> None:
    """I19: nothing that is stored happened before what led to it, or has not happened yet."""
    for job in jobs:
        _check_order(f"job {job.id}", (("submitted", job.submit_ms), ("first started", job.first_start_ms)), now_ms)
        _check_order(f"job {job.id}", (("submitted", job.submit_ms), ("ended", job.ended_ms)), now_ms)
    for one in attempts:
        for what, at_ms in (("begun", one.begin_ms), ("started", one.start_ms), ("stopped", one.stop_ms)):
            order = (("decided", one.decided_ms), (what, at_ms), ("ended", one.end_ms))
            _check_order(f"attempt {one.number} of job {one.job}", order, now_ms)


def _check_order(whose: str, times: Sequence[tuple[str, int]], now_ms: int) -> None:
    known = [(what, at_ms) for what, at_ms in times if at_ms != NONE]
    for (before, first_ms), (after, then_ms) in pairwise((*known, ("seen", now_ms))):
        if then_ms + CLOCK_SLACK_MS < first_ms:
            raise InvariantError(f"{whose} was {before} at {first_ms} ms and {after} at {then_ms} ms")


def broken_in_store(
    accepted: Iterable[int], jobs: Sequence[JobRecord], attempts: Sequence[AttemptRecord], now_ms: int
) -> Iterator[str]:
    """Say of each invariant that can be read from the records alone how it is broken: nothing, if all hold.

    Args:
        accepted: The jobs that somebody has submitted.
        jobs: All jobs.
        attempts: All attempts.
        now_ms: Cluster time.
    """
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_conservation(accepted, {job.id: job for job in jobs}), lambda: check_phases(jobs, attempts),
        lambda: check_fences(attempts), lambda: check_devices(attempts), lambda: check_truth(jobs, attempts),
        lambda: check_times(jobs, attempts, now_ms),
    )  # fmt: skip
    for check in checks:
        try:
            check()
        except InvariantError as error:
            yield str(error)


def check_array_limits(controller: Controller) -> None:
    """No array has more jobs with an attempt than it may have."""
    for jobs in controller.books.arrays.values():
        begun = [job for job in jobs if job in controller.ledger]
        for job in begun:
            limit = controller.jobs[job].request.array_limit
            if len(begun) > limit != NONE:
                raise InvariantError(f"{len(begun)} jobs of the array of job {job} have an attempt, and {limit} may")


def check_controller(controller: Controller) -> None:
    """I3 to I6, I22: what the controller has in memory agrees with its engine, and every job has a way on."""
    state = controller.scheduler.state
    check_snapshot(state.freeze(state.now_ms))
    if len(state) != len(controller.jobs):
        raise InvariantError(f"the engine has {len(state)} jobs, the controller {len(controller.jobs)}")
    check_devices(controller.ledger)
    check_cores(controller.ledger, int(state.cluster.cpu_milli_N[0]))
    check_array_limits(controller)
    for job in controller.jobs.values():
        phase, attempt = state.phase(job.id), controller.ledger.of(job.id)
        if job.state != phase.name.lower():
            raise InvariantError(f"job {job.id} is {job.state}, and {phase.name} in the engine")
        if (phase is Phase.HELD) != bool(job.holds) and phase in (Phase.HELD, Phase.PENDING):
            raise InvariantError(f"job {job.id} is {phase.name} with holds {job.holds}")
        if (phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)) != (attempt is not None):
            raise InvariantError(f"job {job.id} is {phase.name}, and its attempt is {attempt}")
        if attempt is None:
            continue
        if attempt.number != state.attempt(job.id) or attempt.number != job.attempt:
            raise InvariantError(
                f"job {job.id} has attempt {attempt.number}, and {state.attempt(job.id)} in the engine"
            )
        if (attempt.stop_reason not in ("", EXCHANGED)) != (phase is Phase.STOPPING):
            raise InvariantError(f"attempt {attempt.number} of job {job.id} is stopped, and {phase.name} in the engine")
