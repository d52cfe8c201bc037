"""Invariants of the controller, as functions: I3 to I6, I22 and I28 of docs/invariants.md.

Each raises InvariantError that names the job or device. Tests call them after every step, ``brim doctor`` on what the
store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from brim.core.checks import check_snapshot
from brim.core.lifecycle import Phase
from brim.errors import InvariantError
from brim.live.records import HOLDS_DEVICES, AttemptRecord, JobRecord
from brim.live.requests import NONE

if TYPE_CHECKING:
    from brim.live.controller import Controller


def check_conservation(accepted: Iterable[int], jobs: Mapping[int, JobRecord]) -> None:
    """I1, I3: every accepted job is stored, in one state; a job that waits for nothing is not held."""
    missing = sorted(set(accepted) - jobs.keys())
    if missing:
        raise InvariantError(f"job {missing[0]} was accepted and is not stored")
    for job in jobs.values():
        if job.has_ended != (job.ended_ms >= 0):
            raise InvariantError(f"job {job.id} is {job.state} with an end at {job.ended_ms} ms")
        if job.has_ended and (job.holds or job.devices):
            raise InvariantError(f"job {job.id} has ended with holds {job.holds} and devices {job.devices}")


def check_terminal(before: Mapping[int, JobRecord], after: Mapping[int, JobRecord]) -> None:
    """I3, I28: what is stored of a job that has ended never changes."""
    for job, record in before.items():
        if record.has_ended and after.get(job) != record:
            raise InvariantError(f"job {job} had ended as {record.state}, and was changed to {after.get(job)}")


def check_fences(attempts: Iterable[AttemptRecord]) -> None:
    """I4: of the attempts of a job, only the newest has not ended."""
    newest: dict[int, AttemptRecord] = {}
    for attempt in sorted(attempts, key=lambda one: (one.job, one.number)):
        last = newest.get(attempt.job)
        if last is not None and last.state != "ended":
            raise InvariantError(f"job {attempt.job} has attempt {attempt.number}, and {last.number} has not ended")
        newest[attempt.job] = attempt


def check_devices(attempts: Iterable[AttemptRecord]) -> None:
    """I6: no device is given to two attempts."""
    owner: dict[int, int] = {}
    for attempt in attempts:
        if attempt.state in HOLDS_DEVICES:
            for device in attempt.devices:
                if device in owner:
                    raise InvariantError(f"device {device} is given to jobs {owner[device]} and {attempt.job}")
                owner[device] = attempt.job


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


def broken_in_store(
    accepted: Iterable[int], jobs: Sequence[JobRecord], attempts: Sequence[AttemptRecord]
) -> Iterator[str]:
    """Say of each invariant that can be read from the store alone how it is broken: nothing, if all hold."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_conservation(accepted, {job.id: job for job in jobs}), lambda: check_phases(jobs, attempts),
        lambda: check_fences(attempts), lambda: check_devices(attempts), lambda: check_truth(jobs, attempts),
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
        if bool(attempt.stop_reason) != (phase is Phase.STOPPING):
            raise InvariantError(f"attempt {attempt.number} of job {job.id} is stopped, and {phase.name} in the engine")
