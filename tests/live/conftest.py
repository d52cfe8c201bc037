"""Real commands for the live tests, and an executor without processes under a clock without time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from brim.live.executor import AttemptReport, Command, ReportKind


def python(code: str, *args: str, reports: bool = False) -> Command:
    """A Python command without site-packages: starts in 20 ms."""
    return Command(argv=(sys.executable, "-I", "-S", "-c", code, *args), reports=reports)


SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
time.sleep(float(sys.argv[1]))
"""


def sleeper(seconds: float) -> Command:
    """A preemptible job that starts over when it was preempted."""
    return python(SLEEPER, str(seconds))


COUNTER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
for done in range(5):
    os.write(int(os.environ["BRIM_REPORT_FD"]), b"%d/4\\n" % done)
    time.sleep(float(sys.argv[1]) / 5)
"""


def counter(seconds: float) -> Command:
    """A sleeper that says five times how far it is."""
    return python(COUNTER, str(seconds), reports=True)


def alive_with(marker: str) -> list[int]:
    """Processes (zombies aside) that have this text in their command line, except our own."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if marker.encode() in Path(entry.path, "cmdline").read_bytes() and state != "Z":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class FakeExecutor:
    """Jobs that take a given time, in a time that passes only while the driver sleeps."""

    def __init__(self, run_ms: dict[int, int], *, load_ms: int = 100, save_ms: int = 50) -> None:
        self.now_ms = 0
        self.run_ms, self.load_ms, self.save_ms = run_ms, load_ms, save_ms
        self.outcome: dict[int, ReportKind] = {}
        self.coming: list[tuple[int, AttemptReport]] = []
        self.calls: list[tuple[str, int, int, int]] = []
        self.loader_workers: list[int] = []
        self.oversleep_ms = 0

    def clock(self) -> int:
        return self.now_ms

    def start(self, job: int, attempt: int, slots: tuple[int, ...], command: Command, loader_workers: int = 0) -> None:
        self.calls.append(("start", self.now_ms, job, attempt))
        self.loader_workers.append(loader_workers)
        ready_ms = self.now_ms + self.load_ms
        self.coming += [
            (self.now_ms, AttemptReport(job, attempt, ReportKind.LAUNCHED)),
            (ready_ms, AttemptReport(job, attempt, ReportKind.STARTED)),
            (ready_ms + self.run_ms[job], AttemptReport(job, attempt, self.outcome.get(job, ReportKind.FINISHED))),
        ]

    def stop(self, job: int, attempt: int) -> None:
        self.calls.append(("stop", self.now_ms, job, attempt))
        self.coming = [(when, r) for when, r in self.coming if (r.job, r.attempt) != (job, attempt)]
        self.coming.append((self.now_ms + self.save_ms, AttemptReport(job, attempt, ReportKind.STOPPED)))

    def wait(self, timeout_ms: int | None) -> list[AttemptReport]:
        times = [when for when, _ in self.coming]
        if timeout_ms is not None:
            times.append(self.now_ms + timeout_ms)
        self.now_ms = max(self.now_ms, min(times)) + self.oversleep_ms
        ready = sorted((item for item in self.coming if item[0] <= self.now_ms), key=lambda item: item[0])
        self.coming = [item for item in self.coming if item[0] > self.now_ms]
        return [report for _, report in ready]
