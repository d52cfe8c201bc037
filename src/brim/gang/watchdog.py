"""Finds who keeps others waiting: ranks that hang or do other steps than the rest, and a zygote without an answer.

A rank that hangs may send no message, so the test is indirect: a rank hangs if it is not waiting while all others have
been waiting for longer than any step takes. A rank waits while it reports so, or while it is in no group and has
received no command. The caller supplies the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from brim.gang.launch_config import PRELOAD_TIMEOUT_S
from brim.gang.messages import Waiting
from brim.gang.rank_process import RankProcess

FRESH_S: Final = 5.0
"""A ``waiting`` message older than this is ignored. Our choice: ranks send it about every second."""
MISMATCH_S: Final = 10.0
"""How long all ranks wait in different places before that is an error. Our choice: messages under way arrive sooner."""
EXIT_REPORT_S: Final = 5.0
"""How long a zygote may take to report that a process has exited. Our choice: it needs milliseconds."""
START_S: Final = 60.0
"""How long a zygote that is ready may take to start a process. Our choice: it may read the script from a slow disk."""
_SAME_STEPS: Final = (
    "every rank must do the same steps; to end early, use run.epochs(..., steps=N) or leave the loop after the same "
    "step on all ranks"
)


class HangDetector:
    """Watches the members of one gang.

    Args:
        timeout_s: How long all others must have waited before a rank counts as hung.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waiting: dict[int, tuple[float, float]] = {}  # by rank: since when, reported when

    def waiting(self, rank: int, for_s: float, now_s: float) -> None:
        """The rank reports that it waits for others."""
        self._waiting[rank] = (now_s - max(0.0, for_s), now_s)

    def ungrouped(self, rank: int, now_s: float) -> None:
        """The rank waits for the next group, until it receives a command or sends another message."""
        self._waiting[rank] = (now_s, float("inf"))

    def active(self, rank: int) -> None:
        """The rank does not wait, or has exited."""
        self._waiting.pop(rank, None)

    def hung_ranks(self, members: Iterable[int], now_s: float) -> tuple[list[int], float]:
        """Return the ranks that hang, and how long the others have waited; no rank unless all others wait."""
        everyone = list(members)
        since_s = {}
        for rank in everyone:
            start_s, reported_s = self._waiting.get(rank, (now_s, 0.0))
            if reported_s > now_s - FRESH_S:
                since_s[rank] = start_s
        silent = [rank for rank in everyone if rank not in since_s]
        if not silent or not since_s:
            return [], 0.0
        waited_s = now_s - max(since_s.values())
        return (silent, waited_s) if waited_s >= self._timeout_s else ([], 0.0)


def describe_early_exit(ranks: Collection[RankProcess], members: Collection[int], generation: int) -> str:
    """Return an error if the script has ended on one rank while another needs it for more steps; else an empty text.

    A rank that exits without a message (``os._exit(0)``) has left early if a collective of its group fails.
    """
    for rank in ranks:
        finished = rank.finished
        if rank.sent_leaving or rank.exit_code != 0 or (finished is not None and finished.together):
            continue
        for other in ranks:
            if not other.alive or other.broken is None:
                continue
            if finished is not None:
                is_early, step = other.broken.step >= finished.step, f" after step {finished.step}"
            else:
                is_early, step = other.broken.generation == generation and rank.id in members, ""
            if is_early:
                left = f"rank {rank.id} left the training loop{step} and ended"
                return f"{left}, while rank {other.id} continues: {_SAME_STEPS}"
    return ""


def describe_mismatch(members: Sequence[RankProcess], generation: int) -> str:
    """Return an error if all ranks wait in different places, and so for ever; else an empty text."""
    waits = [rank.waiting for rank in members if rank.alive and rank.waiting is not None]
    if len(waits) < len(members) or any(wait.generation != generation for wait in waits):
        return ""
    if len({(wait.step, wait.what) for wait in waits}) < 2 or min(wait.for_s for wait in waits) < MISMATCH_S:
        return ""
    places = [f"rank {rank.id} in {_describe_place(wait)}" for rank, wait in zip(members, waits, strict=True)]
    return f"the ranks wait for one another in different places ({', '.join(places)}): {_SAME_STEPS}"


def _describe_place(wait: Waiting) -> str:
    return f"step {wait.step + 1}" if wait.what == "step" else f"{wait.what} after step {wait.step}"


def zygote_is_overdue(rank: RankProcess, ready_s: float | None, now_s: float, *, ending: bool) -> bool:
    """Whether the zygote should have reported by now that the rank has started or exited.

    Args:
        rank: The rank.
        ready_s: When the zygote was ready; None: it is not.
        now_s: The present time.
        ending: Whether the gang has been asked to end, or fails.
    """
    if not rank.alive or not rank.requested:
        return False
    if rank.pid:
        return rank.exit_seen_s is not None and now_s - rank.exit_seen_s > EXIT_REPORT_S
    if ending and rank.signals and now_s >= rank.signals[-1][0]:
        return True
    return now_s - max(rank.requested_s, ready_s or 0.0) > (PRELOAD_TIMEOUT_S if ready_s is None else START_S)
