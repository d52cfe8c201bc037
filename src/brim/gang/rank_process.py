"""What is known about each rank's process, and which signals it is to get."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from brim.gang.messages import RESUME_CODES, Finished, GroupBroken, Waiting

TERMINATED_CODES: Final = frozenset({-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL})
"""Exit codes of a command without signal handlers that was terminated; the second pair comes from shells."""
KILLED_CODES: Final = frozenset({-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})
"""Exit codes of a rank that did not fail because another rank had failed, unless the supervisor sent the signal."""


@dataclass(slots=True)
class RankProcess:
    """One rank, from the decision to start it until all processes it has started are gone.

    Attributes:
        id: Its ``$BRIM_ID``, never used twice in a gang.
        slot: Its ``$LOCAL_RANK`` when it started, then the place of its device; -1 if it is to leave that.
        device: Name of its device; empty if none is named.
        requested: Whether the present zygote was asked to start it, at ``requested_s``.
        pid, pidfd: Its process; 0 and -1 until it has started, and the descriptor again when it has exited.
        start_method: "fork" or "spawn".
        peer_pid: Process that is connected to the control socket as this rank; None: not connected.
        stop_requested: Whether it has been asked, by message or signal, to exit.
        sent_leaving: Whether it has sent `Leaving`.
        exited, exit_code, exited_s: Its end; the code is like ``Popen.returncode``, None if it is unknown.
        exit_seen_s: When its process had ended, although the zygote has not reported that.
        is_cause: Whether the gang fails because of it.
        failed_s, traceback: Its exception.
        signals: Times and numbers of the signals that it is to get, the next first.
        signalled: Whether one of them was sent.
        cleanup_since_s: Since when the processes that it has left behind are being killed; None: none is left.
        report: The newest values that it has reported, by name.
        waiting, broken, finished: The message that still describes it.
    """

    id: int
    slot: int
    device: str = ""
    requested: bool = False
    requested_s: float = 0.0
    pid: int = 0
    pidfd: int = -1
    start_method: str = ""
    peer_pid: int | None = None
    stop_requested: bool = False
    sent_leaving: bool = False
    exited: bool = False
    exit_code: int | None = None
    exited_s: float = 0.0
    exit_seen_s: float | None = None
    is_cause: bool = False
    failed_s: float | None = None
    traceback: str = ""
    signals: list[tuple[float, int]] = field(default_factory=list)
    signalled: bool = False
    cleanup_since_s: float | None = None
    report: dict[str, Any] = field(default_factory=dict)
    waiting: Waiting | None = None
    broken: GroupBroken | None = None
    finished: Finished | None = None

    @property
    def alive(self) -> bool:
        """Whether its process may still be running."""
        return not self.exited

    @property
    def connected(self) -> bool:
        """Whether it is connected to the control socket."""
        return self.peer_pid is not None

    def schedule_signals(self, now_s: float, term_after_s: float, kill_after_s: float) -> None:
        """Schedule SIGTERM and SIGKILL this long from now. A signal that is already due earlier stays so."""
        scheduled = {number: at_s for at_s, number in self.signals}
        kill_s = min(now_s + kill_after_s, scheduled.get(signal.SIGKILL, float("inf")))
        term_s = min(now_s + term_after_s, scheduled.get(signal.SIGTERM, float("inf")), kill_s)
        terminated = signal.SIGKILL in scheduled and signal.SIGTERM not in scheduled
        self.signals = [] if terminated else [(term_s, int(signal.SIGTERM))]
        self.signals.append((kill_s, int(signal.SIGKILL)))

    def take_due_signal(self, now_s: float) -> int | None:
        """Return the next signal, to be sent now, if its time has come and the process has started."""
        if self.alive and self.pid and self.signals and now_s >= self.signals[0][0]:
            self.signalled = True
            return self.signals.pop(0)[1]
        return None

    def next_signal_in_s(self, now_s: float) -> float:
        """Return the time until the next signal is due; infinite if there is none, or no process to send it to."""
        return max(0.0, self.signals[0][0] - now_s) if self.signals and self.pid else float("inf")

    @property
    def was_killed(self) -> bool:
        """Whether its process was ended by a signal that neither the supervisor nor another rank's failure explains."""
        return self.exit_code in KILLED_CODES and not self.signalled

    def exited_as_requested(self) -> bool:
        """Whether it exited as expected of a rank that was asked to."""
        return self.stop_requested and self.exit_is_expected()

    def exit_is_expected(self) -> bool:
        """Whether its exit code is one of those of a rank that was asked to exit."""
        return self.exit_code == 0 or self.exit_code in RESUME_CODES or self.exit_code in TERMINATED_CODES


def free_slot(ranks: Iterable[RankProcess], leaving: Collection[int], size: int) -> int:
    """Return the lowest free slot.

    Slots are GPUs. Before a slot beyond the wanted ``size`` is used, the slot of a rank that is leaving, or whose
    remaining processes are being killed, is reused.
    """
    held: dict[int, int] = {}
    for rank in ranks:
        is_leaving = rank.stop_requested or rank.id in leaving
        stage = (2 if is_leaving else 3) if rank.alive else 1 if rank.cleanup_since_s is not None else 0
        held[rank.slot] = max(held.get(rank.slot, 0), stage)
    slot = min(range(size), key=lambda slot: (held.get(slot, 0), slot))
    return slot if held.get(slot, 0) < 3 else next(n for n in itertools.count() if not held.get(n))
