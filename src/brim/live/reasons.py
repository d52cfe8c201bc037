"""Why a job that has not ended waits or runs, in a sentence: holds, who still has its devices, the last round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from brim.agent.protocol import FAILED
from brim.engine.explain import explain
from brim.engine.round import RoundResult
from brim.live.ends import EXCHANGED
from brim.live.holds import because
from brim.live.records import HOLDS_DEVICES, AttemptRecord, JobRecord
from brim.live.requests import NONE, ON_CPU
from brim.units import WHOLE_GPU, counted

_NOTICED: Final = 0.01
"""Part of a step below which a wait for data is not told; as ``train.data.autotune.NO_WAIT``."""
EARLIER_MAX: Final = 5
"""Lines about earlier attempts of a job, the newest; ours."""


def why(job: JobRecord, attempts: Iterable[AttemptRecord], last_round: RoundResult | None) -> str:
    """Explain a job.

    Args:
        job: The job, which has not ended.
        attempts: All attempts that have not ended.
        last_round: The last round of the engine, None before the first.
    """
    attempts = tuple(attempts)
    mine = next((one for one in attempts if one.job == job.id), None)
    if mine is not None and mine.stop_reason == EXCHANGED:
        return f"job {job.id} saves, and goes on at once on devices of another kind, which are kept for it."
    if mine is not None and mine.stop_reason:
        return f"job {job.id} was told to stop: {mine.stop_reason}."
    if mine is not None and mine.state == "waiting":
        leaving = sorted({
            one.job for one in attempts
            if one.state in HOLDS_DEVICES and one.job != job.id and one.own_devices & set(mine.devices)
            and (one.stop_reason or one.share_milli + mine.share_milli > WHOLE_GPU)
        })
        who = f"job {' and '.join(map(str, leaving))} to leave them" if leaving else f"the agent of {job.user}"
        if ON_CPU in mine.devices:
            who = f"cores that others leave, or the agent of {job.user}"
        return f"job {job.id} was given {mine.where} and waits for {who}."
    if mine is not None and mine.state == "starting" and mine.detail:
        return f"job {job.id} was given {mine.where} and does not start: {mine.detail}."
    if job.holds and mine is None:
        return f"job {job.id} is {because(job.holds)}."
    if last_round is None or job.id not in last_round.job.tolist():
        if mine is None:
            return f"job {job.id} waits for devices; the next round decides about it."
        return f"job {job.id} is {job.state} on {mine.where}, which it got before the controller was started."
    sentences = explain(last_round.snapshot, last_round, job.id) + _slowed(job, mine, attempts)
    return sentences + _waits_for_data(job, mine) + _noted(mine)


def _slowed(job: JobRecord, attempt: AttemptRecord | None, attempts: Iterable[AttemptRecord]) -> str:
    """Say beside whom a job runs, and what it costs it; nothing for a job that has its devices alone."""
    others = sorted(
        one.job for one in attempts if attempt is not None and one.job != job.id and one.state in HOLDS_DEVICES
        and one.own_devices & set(attempt.devices)
    )
    if not others or attempt is None or attempt.state == "waiting":
        return ""
    cost = "" if job.slowdown_ratio is None else f", and its steps take {job.slowdown_ratio:.2f} times as long as alone"
    return f" It shares devices with job {' and '.join(map(str, others))}{cost}."


def _waits_for_data(job: JobRecord, attempt: AttemptRecord | None) -> str:
    """Say how long a job waits for its loader; nothing where that is not known, or too short to be noticed."""
    if attempt is None or job.loader_wait_ratio is None or job.loader_wait_ratio < _NOTICED:
        return ""
    workers = attempt.loader_workers
    most = "" if workers == NONE else f"; the policy allows it {counted(workers, 'loader worker')} a rank"
    return f" It waits for data {job.loader_wait_ratio:.0%} of each step{most}."


def _noted(attempt: AttemptRecord | None) -> str:
    """Say what the agent of an attempt that runs notes of it, such as a rank that was lost and replaced."""
    return "" if attempt is None or not attempt.detail else f" Its agent notes: {attempt.detail}."


def earlier(job: JobRecord, attempts: Sequence[AttemptRecord]) -> list[str]:
    """Say how the attempts of a job ended before its newest one, a line for all alike: why it was started again."""
    past = [one for one in attempts if one.state == "ended" and (one.number < job.attempt or not job.has_ended)]
    lines = []
    for (how, detail), alike in groupby(past, _ended):
        first, *more = (one.number for one in alike)
        who, are = (f"attempts {first} to {more[-1]}", "were ") if more else (f"attempt {first}", "was ")
        lines.append(f"{who} {'' if how == FAILED else are}{how}" + (f": {detail}" if detail not in ("", how) else ""))
    return lines[-EARLIER_MAX:]


def _ended(attempt: AttemptRecord) -> tuple[str, str]:
    """How an attempt ended, in a word, and what its agent said about it."""
    return attempt.stop_reason or attempt.outcome, attempt.detail
