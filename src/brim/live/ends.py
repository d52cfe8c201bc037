"""What the end of an attempt means for its job: blame before a retry.

A job has finished if and only if its exit code 0 was collected. Once it was told to stop, any other end is that stop: a
job is not blamed for how it dies when it is told to. What a node, a neighbour or nobody's sight took from it does not
count against it either, unless nobody saw the ends of several attempts in a row although their agent was there: a job
that kills its supervisor would run for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brim.agent.protocol import BLAME_JOB, BLAME_NEIGHBOUR, BLAME_NODE, FAILED, FINISHED, LOST, STOPPED, UNUSABLE
from brim.core.events import Kind
from brim.gang.messages import RESUME_CODES
from brim.live.records import AttemptRecord, JobRecord, JobStatus
from brim.live.requests import NONE, ON_CPU
from brim.units import MS_PER_S

CRASH_MS: Final = 10 * MS_PER_S
"""A job of an array that fails sooner than this after its start holds the rest of the array. Ours."""
UNSEEN_MAX: Final = 3
"""Attempts in a row whose ends nobody saw that do not count. Ours: as many as a job has by its own fault."""
CANCELLED: Final = "cancelled"
TIME_LIMIT: Final = "time limit"
REQUEUED: Final = "requeued"
PREEMPTED: Final = "preempted"
EXCHANGED: Final = "exchanged"
"""It goes on at once on devices of another kind, which are kept for it meanwhile."""
EVICTED_BY_NEIGHBOUR: Final = "evicted by neighbour"
_FINAL_STOPS: Final[dict[str, tuple[Kind, JobStatus, str]]] = {
    CANCELLED: (Kind.CANCELLED, "cancelled", "cancelled"),
    TIME_LIMIT: (Kind.GAVE_UP, "timeout", "its time limit was reached"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptVerdict:
    """What the end of an attempt means.

    Attributes:
        kind: Event to book.
        state: State in which the job ends, None if it goes back to the queue.
        reason: Sentence for users.
        counts: Whether it counts against the job's attempts.
    """

    kind: Kind
    state: JobStatus | None = None
    reason: str = ""
    counts: bool = False


def ending(job: JobRecord, attempt: AttemptRecord, unseen: int = 0) -> AttemptVerdict:
    """Return what the end of its attempt means for a job.

    Args:
        job: The job.
        attempt: The attempt, ended, with outcome, exit code and blame.
        unseen: How many attempts in a row, with this one, have ended unseen though their agent was there.
    """
    code = attempt.exit_code
    if attempt.outcome == FINISHED and code == 0:
        return AttemptVerdict(kind=Kind.FINISHED, state="finished", reason="finished")
    if attempt.stop_reason in _FINAL_STOPS:
        kind, state, reason = _FINAL_STOPS[attempt.stop_reason]
        return AttemptVerdict(kind=kind, state=state, reason=reason)
    if attempt.stop_reason:
        return AttemptVerdict(kind=Kind.STOPPED, reason=f"{attempt.stop_reason}, and waits to continue")
    said = f": {attempt.detail}" if attempt.detail else ""
    if attempt.outcome == UNUSABLE:
        return AttemptVerdict(kind=Kind.GAVE_UP, state="failed", reason=f"could not be started{said}", counts=True)
    if attempt.outcome == FAILED and attempt.blame == BLAME_NEIGHBOUR and code not in RESUME_CODES:
        why = f"attempt {attempt.number} was {EVICTED_BY_NEIGHBOUR}, which does not count{said}"
        return _again(job, Kind.EVICTED, why, "failed")
    if attempt.outcome == FAILED and (code in RESUME_CODES or attempt.blame == BLAME_NODE):
        why = f"asked to be started again with exit code {code}" if code in RESUME_CODES else (
            f"attempt {attempt.number} failed because of its node, which does not count{said}"
        )
        return _again(job, Kind.FAILED, why, "failed")
    if attempt.outcome == FAILED:
        how = f"failed with exit code {code}{said}"
        if attempt.detail == f"exited with {code}":  # all that is known of a plain command
            how = attempt.detail
        return _counted(job, f"attempt {attempt.number} {how}")
    if attempt.outcome == STOPPED:
        return _again(job, Kind.FAILED, f"was stopped, but not by the controller{said}", "failed")
    why = f"attempt {attempt.number} was lost{said}"
    if unseen > UNSEEN_MAX:
        return _counted(job, f"{why}; {unseen} attempts in a row ended so, which counts as a failure of the job")
    return _again(job, Kind.EVICTED, why, "lost")


def _counted(job: JobRecord, why: str) -> AttemptVerdict:
    """A failure of the job itself: back to the queue, or the end after the last of its attempts."""
    if not job.request.requeue or job.failures + 1 >= job.request.attempts_max:
        return AttemptVerdict(kind=Kind.GAVE_UP, state="failed", reason=why, counts=True)
    return AttemptVerdict(kind=Kind.FAILED, reason=why, counts=True)


def _again(job: JobRecord, kind: Kind, why: str, state: JobStatus) -> AttemptVerdict:
    """Back to the queue, or the end for a job that must not be started again."""
    if job.request.requeue:
        return AttemptVerdict(kind=kind, reason=why)
    return AttemptVerdict(kind=Kind.GAVE_UP, state=state, reason=f"{why}; it is not to be started again")


def starts_over(attempt: AttemptRecord) -> bool:
    """Whether its job does all of an ended attempt again, as far as can be seen from outside.

    It reported no progress, and no exit code said that it had saved. What else it left, as in ``BRIM_CKPT_DIR``, nobody
    but the job can judge.
    """
    reported = attempt.samples_first_ms != NONE
    return attempt.begin_ms != NONE and not reported and attempt.exit_code not in (0, *RESUME_CODES)


def repeated_gpu_s(attempt: AttemptRecord) -> float:
    """GPU seconds, from when it was under way, of an ended attempt whose job starts over; 0.0 if it does not."""
    if not starts_over(attempt):
        return 0.0
    from_ms = attempt.start_ms if attempt.start_ms != NONE else attempt.begin_ms
    return max(attempt.end_ms - from_ms, 0) / MS_PER_S * len(set(attempt.devices) - {ON_CPU})


def is_crash(attempt: AttemptRecord) -> bool:
    """Whether an attempt died by its own doing so soon that its like would, too."""
    if attempt.stop_reason or attempt.outcome not in (FAILED, UNUSABLE):
        return False
    if attempt.exit_code in RESUME_CODES or attempt.blame in (BLAME_NODE, BLAME_NEIGHBOUR):
        return False
    return attempt.begin_ms == NONE or attempt.end_ms - attempt.begin_ms < CRASH_MS


OUTCOMES: Final = (FINISHED, STOPPED, FAILED, UNUSABLE, LOST)
"""What an agent may say of an ended attempt; anything else counts as lost."""
BLAMES: Final = (BLAME_JOB, BLAME_NODE, BLAME_NEIGHBOUR)
"""Whom an agent may blame."""
