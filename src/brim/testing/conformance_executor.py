"""``check_executor`` tries an executor with real commands: what every node must do before jobs are given to it.

Each check states a rule of ``brim.live.nodes.NodeExecutor``; the first that is broken raises ``ExecutorViolation`` with
the rule and what was seen instead. The commands need a Python interpreter and a folder that the node can write to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from brim.agent.protocol import (
    ENDED,
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    UNUSABLE,
    AgentReport,
    AttemptSeen,
    StartAttempt,
    StopAttempt,
    Synced,
)
from brim.errors import BrimError
from brim.live.nodes import NodeExecutor

Sign = Callable[[Sequence[str]], tuple[str, str]]
"""Makes a capture of a command for the node's user, and returns its name and digest."""
WAIT_S: Final = 60.0
"""Longest wait for something that a node must report. Ours: far beyond what any of it takes."""
SLACK_S: Final = 10.0
"""Time beyond the grace until a process that ignores everything must be gone. Ours: a machine may be busy."""
_STARTS = """
import os, pathlib, signal, sys, time
folder, on_stop = pathlib.Path(sys.argv[1]), sys.argv[2]
if on_stop == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
with open(folder / "starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
while not (folder / "end").exists():
    time.sleep(0.01)
sys.exit(int((folder / "end").read_text() or 0))
"""


class ExecutorViolation(BrimError):  # noqa: N818 - a broken rule, as PolicyViolation
    """An executor broke a rule."""


class _Trial:
    """An executor under trial: what it has reported, and jobs to give it."""

    def __init__(self, make: Callable[[], NodeExecutor], sign: Sign, folder: Path) -> None:
        self.make, self.sign, self.folder = make, sign, folder
        self.executor = make()
        self.seen: list[AgentReport] = []
        self.jobs = 0
        self.take_over()

    def take_over(self) -> None:
        """Let the executor tell all that it knows."""
        self.executor.adopt()
        self.until("after adopt, an executor tells all it knows and then Synced", lambda: any(
            isinstance(report, Synced) for report in self.seen
        ))

    def job(self, *, on_stop: str = "exit") -> StartAttempt:
        """A start of a new job on device 0, which runs until ``end``."""
        self.jobs += 1
        where = self.folder / str(self.jobs)
        where.mkdir()
        capture, digest = self.sign([sys.executable, "-I", "-S", "-c", _STARTS, str(where), on_stop])
        return StartAttempt(
            job=self.jobs, attempt=1, sequence=1, capture=capture, digest=digest, devices=(0,), grace_s=1.0,
            name=f"trial-{self.jobs}",
        )

    def end(self, job: int, code: int = 0) -> None:
        """Let a job end by itself."""
        (self.folder / str(job) / "end.new").write_text(str(code))
        (self.folder / str(job) / "end.new").rename(self.folder / str(job) / "end")

    def starts(self, job: int) -> int:
        """How often a job's command was started."""
        path = self.folder / str(job) / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def until(self, rule: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                said = ", ".join(f"{type(one).__name__} {getattr(one, 'state', '')}" for one in self.seen[-5:])
                raise ExecutorViolation(f"{rule}: found {said or 'no reports'}")
            self.seen.extend(self.executor.observe(0.1))

    def last(self, order: StartAttempt) -> AttemptSeen | None:
        """What was last said of an attempt."""
        mine = [one for one in self.seen if isinstance(one, AttemptSeen)
                and (one.job, one.attempt) == (order.job, order.attempt)]  # fmt: skip
        return mine[-1] if mine else None

    def reaches(self, rule: str, order: StartAttempt, state: str) -> AttemptSeen:
        """Wait until an attempt is in a state, and return what was said of it."""

        def there() -> bool:
            last = self.last(order)
            return last is not None and last.state == state

        self.until(rule, there)
        last = self.last(order)
        assert last is not None
        return last

    def runs(self, order: StartAttempt) -> None:
        """Start an attempt and wait until its command runs."""
        self.executor.start(order)
        self.reaches("a started attempt is reported as running", order, RUNNING)
        self.until("a running attempt's command runs", lambda: self.starts(order.job) > 0)

    def ended(self, order: StartAttempt, outcome: str, code: int | None, rule: str) -> None:
        """Wait for the end of an attempt, and demand how it ended; then it may be forgotten."""
        end = self.reaches(rule, order, ENDED)
        if end.outcome != outcome or (code is not None and end.exit_code != code):
            raise ExecutorViolation(f"{rule}: found {end.outcome} with exit code {end.exit_code}")
        self.executor.forget(order.job, order.attempt)


def check_executor(make: Callable[[], NodeExecutor], sign: Sign, folder: Path) -> None:
    """Try an executor of one node with at least two devices.

    Args:
        make: Returns an executor for the node; called again to play a controller that was restarted.
        sign: Makes a capture of a command.
        folder: An empty folder in which the commands write.

    Raises:
        ExecutorViolation: a rule is broken.
    """
    trial = _Trial(make, sign, folder)
    for check in (_ends, _fences, _stops, _stops_early, _refuses, _adopts):
        check(trial)


def _ends(trial: _Trial) -> None:
    one, other = trial.job(), trial.job()
    trial.runs(one)
    trial.runs(_on(other, 1))
    trial.end(one.job)
    trial.ended(one, FINISHED, 0, "a command that exits with 0 has finished")
    trial.end(other.job, 3)
    trial.ended(other, FAILED, 3, "a command that exits with 3 has failed with this code")


def _fences(trial: _Trial) -> None:
    order = trial.job()
    trial.runs(order)
    trial.executor.start(order)
    trial.executor.preempt(_stop(order, "preempted"))
    trial.ended(order, STOPPED, None, "a preempted attempt has stopped")
    again = StartAttempt(**{name: getattr(order, name) for name in order.__slots__} | {"attempt": 2, "sequence": 2})
    trial.executor.start(again)
    trial.reaches("the next attempt of a preempted job runs", again, RUNNING)
    trial.until("its command is started again", lambda: trial.starts(order.job) == 2)
    trial.end(order.job)
    trial.ended(again, FINISHED, 0, "a resumed attempt can finish")
    if trial.starts(order.job) != 2:
        found = trial.starts(order.job)
        raise ExecutorViolation(f"a repeated start changes nothing: found {found} starts of 2 attempts")


def _stops(trial: _Trial) -> None:
    order = trial.job(on_stop="ignore")
    trial.runs(order)
    begun = time.monotonic()
    trial.executor.stop(_stop(order, "cancelled"))
    trial.ended(order, STOPPED, None, "an attempt that ignores SIGTERM is killed after its grace")
    if time.monotonic() - begun > order.grace_s + SLACK_S:
        raise ExecutorViolation(f"an attempt is gone {SLACK_S:g} s after its grace: found "
                                f"{time.monotonic() - begun - order.grace_s:.1f} s")  # fmt: skip


def _stops_early(trial: _Trial) -> None:
    order = trial.job()
    trial.executor.stop(_stop(order, "cancelled"))
    trial.reaches("a stop of an attempt that was never started ends it", order, ENDED)
    trial.executor.start(order)
    trial.executor.forget(order.job, order.attempt)
    witness = trial.job()
    trial.runs(witness)  # orders are obeyed in turn, so the start before has been refused by now
    trial.end(witness.job)
    trial.ended(witness, FINISHED, 0, "a command that exits with 0 has finished")
    if trial.starts(order.job):
        raise ExecutorViolation("an attempt that was stopped before its start is never started: found a start")


def _refuses(trial: _Trial) -> None:
    order = trial.job()
    forged = StartAttempt(**{name: getattr(order, name) for name in order.__slots__} | {"digest": "0" * 64})
    trial.executor.start(forged)
    trial.ended(forged, UNUSABLE, None, "a capture with another digest is not run")
    if trial.starts(order.job):
        raise ExecutorViolation("a capture with another digest is not run: found a start")


def _adopts(trial: _Trial) -> None:
    lives, ends = trial.job(), trial.job()
    trial.runs(lives)
    trial.runs(_on(ends, 1))
    trial.end(ends.job)
    trial.reaches("a command that exits with 0 has finished", ends, ENDED)
    trial.executor, trial.seen = trial.make(), []
    trial.take_over()
    rule = "after adopt, an executor tells of living attempts, and of ends that were not forgotten"
    states = {order.job: seen.state for order in (lives, ends) if (seen := trial.last(order)) is not None}
    if states != {lives.job: RUNNING, ends.job: ENDED}:
        raise ExecutorViolation(f"{rule}: found {states}")
    trial.executor.forget(ends.job, ends.attempt)
    trial.end(lives.job)
    trial.ended(lives, FINISHED, 0, "an adopted attempt can finish")
    if trial.starts(lives.job) != 1:
        raise ExecutorViolation(f"an adopted attempt goes on: found {trial.starts(lives.job)} starts")


def _on(order: StartAttempt, device: int) -> StartAttempt:
    return StartAttempt(**{name: getattr(order, name) for name in order.__slots__} | {"devices": (device,)})


def _stop(order: StartAttempt, reason: str) -> StopAttempt:
    return StopAttempt(job=order.job, attempt=order.attempt, grace_s=order.grace_s, reason=reason)
