"""The result of a gang, decided from the ends of its ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from brim.gang.launch_config import FAILURE_REPORT_S
from brim.gang.messages import PREEMPTED, RESUME_CODES, Saved
from brim.gang.rank_process import TERMINATED_CODES, RankProcess


@dataclass(frozen=True, slots=True)
class GangResult:
    """How a gang ended. ``status`` is ``finished``, ``preempted`` or ``failed``; the code is the launcher's.

    ``cause_code`` is the exit code, as of ``Popen.returncode``, of the rank that failed first, or of the only rank.
    ``is_unseen``: how that rank ended was not seen, because the zygote that had started it was killed.
    """

    status: str
    exit_code: int
    detail: str = ""
    cause_code: int | None = None
    is_unseen: bool = False


def failed_ranks(ranks: Iterable[RankProcess], *, failing: bool) -> list[RankProcess]:
    """Return the ranks that ended without having been asked to, in the order in which they failed.

    A rank that was killed comes first: the exceptions of other ranks follow from its end, which may be seen a little
    later. One that ends much later may have crashed because of those exceptions.
    """
    failed = [rank for rank in ranks if _has_failed(rank, failing)]
    causes_s = [_failed_s(rank) for rank in failed if rank.is_cause or rank.failed_s is not None]
    latest_s = min(causes_s, default=float("inf")) + FAILURE_REPORT_S
    return sorted(failed, key=lambda rank: (not (rank.was_killed and rank.exited_s <= latest_s), _failed_s(rank)))


def _failed_s(rank: RankProcess) -> float:
    return rank.failed_s or rank.exited_s


def _has_failed(rank: RankProcess, failing: bool) -> bool:
    if rank.failed_s is not None or rank.is_cause:
        return True
    return not rank.exit_is_expected() and rank.exit_code is not None and (failing or rank.stop_requested)


def failure(first: RankProcess | None, reason: str) -> GangResult:
    """Return the result of a failed gang: the exit code of the rank that failed first, or 1 if that says resumable."""
    detail = f"rank {first.id} failed first: {_describe_failure(first)}" if first and first.pid else reason
    code = 1 if first is None or first.exit_code is None or first.failed_s is not None else first.exit_code
    code = 1 if code in RESUME_CODES else code
    unseen = first is not None and first.pid != 0 and first.exit_code is None and first.failed_s is None
    cause = None if first is None else first.exit_code
    return GangResult("failed", code if code > 0 else 128 - code, detail, cause, unseen)


def success(ranks: Iterable[RankProcess], *, announced: bool, saved: Saved | None) -> GangResult:
    """Return the result of a gang that did not fail: after an announced stop, finished only if every rank was.

    Args:
        ranks: The last ranks.
        announced: Whether they were asked to save and leave.
        saved: Their newest checkpoint.
    """
    ranks = list(ranks)
    code = ranks[0].exit_code if len(ranks) == 1 else None
    if announced and not all(rank.exit_code == 0 and not rank.sent_leaving for rank in ranks):
        if saved is None or not saved.command:  # 0: a periodic one, from before they were asked
            return GangResult("preempted", PREEMPTED, "preempted", code)
        where = f"preempted at step {saved.step}, saved to {saved.path}"
        return GangResult("preempted", PREEMPTED, f"{where}; start the same command again to resume", code)
    return GangResult("finished", 0, cause_code=code)


def _describe_failure(rank: RankProcess) -> str:
    """Describe the failure; a signal that ended a rank while it handled its exception is not named."""
    if rank.failed_s is not None and rank.exit_code in TERMINATED_CODES:
        return "by an exception"
    unasked = ", though it was not asked to stop" if rank.exit_code in RESUME_CODES else ""
    return describe_exit(rank.exit_code) + unasked


def describe_exit(code: int | None) -> str:
    """Describe an exit code as of ``Popen.returncode``."""
    if code is None:
        return "ended with an unknown exit code"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
