"""A world for live sessions in virtual time: processes are numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

from brim.live.executor import AttemptReport, Command, ReportKind

LATENCY_MS = 1
"""Time until an order reaches a process. The driver handles a millisecond when it is over, so it orders 1 ms later than
it decided; what a process does in that millisecond is not kept."""


@dataclass(slots=True)
class _Process:
    """An attempt: its slots are its own from ``begin_ms`` on, and it makes progress from ``from_ms`` on.

    ``order`` numbers the last order it was given: what happens at one time is reported in this order.
    """

    job: int
    attempt: int
    slots: tuple[int, ...]
    begin_ms: int
    from_ms: int
    end_ms: int
    order: int
    end: ReportKind = ReportKind.FINISHED
    launched: bool = False
    started: bool = False


class VirtualWorld:
    """A world in which jobs take given times. Implements ``brim.live.world.World``, and the executor of its processes.

    Args:
        run_ms: Run time of each job without overheads, by job id.
        start_ms: Time from a job's first process to its first step.
        restart_ms: The same for later attempts.
        save_ms: Time from the order to stop until the slots are free.
    """

    def __init__(
        self, run_ms: Mapping[int, int], *, start_ms: int = 0, restart_ms: int = 0, save_ms: int = 0
    ) -> None:
        self.processes = self
        self.disk = io.StringIO()
        self._left_ms = dict(run_ms)
        self._start_ms, self._restart_ms, self._save_ms = start_ms, restart_ms, save_ms
        self._now_ms = 0
        self._orders = 0
        self._alive: list[_Process] = []
        self._free_ms: dict[int, int] = {}  # slot -> when its last process ended
        self._begun: set[int] = set()

    # -- the world -------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """See ``World``."""
        return self._now_ms

    # -- the executor ----------------------------------------------------------------------------------------------

    def start(self, job: int, attempt: int, slots: tuple[int, ...], command: Command, loader_workers: int = 0) -> None:
        """See ``Executor``; the attempt begins once the processes on its slots have ended."""
        ends = [process.end_ms for process in self._alive if set(process.slots) & set(slots)]
        ends += [self._free_ms.get(slot, 0) for slot in slots]
        begin_ms = max(self._now_ms, max(ends, default=0) + LATENCY_MS)
        from_ms = begin_ms + (self._restart_ms if job in self._begun else self._start_ms)
        self._begun.add(job)
        self._orders += 1
        end_ms = from_ms + self._left_ms[job]
        self._alive.append(_Process(job, attempt, slots, begin_ms, from_ms, end_ms, self._orders))

    def stop(self, job: int, attempt: int) -> None:
        """See ``Executor``."""
        for process in self._alive:
            if (process.job, process.attempt) == (job, attempt) and process.end is ReportKind.FINISHED:
                self._orders += 1
                process.order, decided_ms = self._orders, self._now_ms - LATENCY_MS
                worked_ms = max(0, decided_ms - process.from_ms)
                self._left_ms[job] -= worked_ms
                process.end, process.end_ms = ReportKind.STOPPED, self._now_ms + (self._save_ms if worked_ms else 0)

    def wait(self, timeout_ms: int | None) -> list[AttemptReport]:
        """See ``Executor``; time passes here, and nowhere else."""
        times = [time_ms for process in self._alive for time_ms, _ in _coming(process)]
        if timeout_ms is not None:
            times.append(self._now_ms + timeout_ms)
        self._now_ms = max(self._now_ms, min(times))
        reports: list[tuple[int, int, AttemptReport]] = []
        for process in list(self._alive):
            for time_ms, kind in _coming(process):
                if time_ms > self._now_ms:
                    continue
                reports.append((time_ms, process.order, AttemptReport(process.job, process.attempt, kind)))
                process.launched |= kind is ReportKind.LAUNCHED
                process.started |= kind is ReportKind.STARTED
                if kind is process.end:
                    self._alive.remove(process)
                    self._free_ms |= dict.fromkeys(process.slots, time_ms)
        return [report for *_, report in sorted(reports, key=lambda item: item[:2])]


def _coming(process: _Process) -> list[tuple[int, ReportKind]]:
    """What a process will report, in order; a process that is stopped before its first step does not begin."""
    coming = []
    if not process.launched and process.begin_ms <= process.end_ms:
        coming.append((process.begin_ms, ReportKind.LAUNCHED))
    if not process.started and process.from_ms <= process.end_ms and process.end is ReportKind.FINISHED:
        coming.append((process.from_ms, ReportKind.STARTED))
    return [*coming, (process.end_ms, process.end)]
