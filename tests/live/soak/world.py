"""A controller with its API, an agent and jobs, all of them real processes, under SIGKILL of the first two.

    python -m tests.live.soak.world [--seconds 45] [--kills 8] [--seed N]

Users submit and cancel meanwhile, as the command line does. Then the kills stop and every job ends. It must hold that

- no attempt of a job lived together with another, and no device had two jobs: the witness of each process, see there;
- every acknowledged submission is one job, and the same key gives the same id;
- no attempt with a process was lost: who was not stopped by the controller went on through all kills;
- a job has the end that it must have, and training jobs the bits of an undisturbed run;
- logs have every line that was written, once and in order, through all attempts;
- ``brim doctor`` finds nothing wrong with what is stored and with the processes; nothing of a job is left; no stranger
  was harmed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from brim.agent import __main__ as agent
from brim.agent.capture import write_capture
from brim.agent.folders import captures_folder, log_folder
from brim.api import serve
from brim.api.client import BusyError, Client, NoControllerError
from brim.cli import doctor
from brim.cli.compiling import compile_first, kernels
from brim.kernel_cache import is_ready
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import JobRequest
from brim.live.store.rows import ATTEMPT_COLUMNS, JOB_COLUMNS, read_attempt, read_job
from tests.gang.conftest import END_S, hunt, hunt_until_gone
from tests.live.soak.plain_job import LINES_PER_S
from tests.live.soak.witness import holders

HERE = Path(__file__).parent
DEVICES = 4
PATIENCE_S = 120
"""Longest wait for something that must happen; no run waits so long on a machine that works."""
DOWN_S = 1.5
"""Longest time for which a process that was killed stays away."""
SUBMIT_S = 1.5
"""Mean time between two submissions."""
CANCELLED = 0.1
"""Share of jobs that are cancelled soon after their submission."""
EPOCHS = 9
"""Of a training job, 5 steps each: about 14 s on one device, by its pauses."""
TRAINING = ("--epochs", str(EPOCHS), "--pause", "0.08")
GRACE_S = 2.0
MARK = "BRIM_SOAK_MARK"


class Process:
    """A process of brim that is killed and started again: forked from this one, which has imported all it needs."""

    def __init__(self, soak: Soak, name: str, main: Callable[[list[str]], int], words: list[str]) -> None:
        self.soak, self.name, self._main, self._words = soak, name, main, words
        self.pid, self.kills, self.back_s = 0, 0, 0.0

    def start(self) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(self.soak.folder / f"{self.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            for fd, to in ((null, 0), (log, 1), (log, 2)):
                os.dup2(fd, to)
            os.closerange(3, 1 << 12)
            os.environ.update(self.soak.env)
            sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            os._exit(self._main(self._words))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)

    def kill(self, rng: random.Random) -> None:
        """End it as nothing can prevent; it comes back after a while."""
        os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert code == -signal.SIGKILL, f"the {self.name} had ended by itself, with {code}: {self.log()}"
        self.pid, self.kills = 0, self.kills + 1
        self.back_s = time.monotonic() + rng.random() * DOWN_S

    def check(self) -> None:
        """It has not ended by itself."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG) != (0, 0):
            self.pid = 0
            raise AssertionError(f"the {self.name} has ended by itself: {self.log()}")

    def stop(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def log(self) -> str:
        path = self.soak.folder / f"{self.name}.log"
        return path.read_text()[-2_000:] if path.exists() else ""


class Soak:
    """One soak; see the head of this module."""

    def __init__(self, seconds: float, kills: int, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
        self.seconds, self.kills, self.rng = seconds, kills, random.Random(seed)
        self.env = {
            "BRIM_STATE": str(self.folder / "s"), "BRIM_RUNTIME": str(self.folder / "r"), MARK: str(self.folder),
        }
        for name in ("locks", "r"):
            (self.folder / name).mkdir(mode=0o700)
        policy = str(HERE.parent / "in_parts.py")
        self.controller = Process(self, "controller", serve.main, ["--devices", str(DEVICES), "--policy", policy])
        self.agent = Process(self, "agent", agent.main, ["--devices", str(DEVICES)])
        self.client = Client(self.folder / "r" / serve.SOCKET)
        self.kinds: dict[int, str] = {}
        self.seconds_of: dict[int, float] = {}
        self.keys: dict[str, tuple[JobRequest, int]] = {}
        self.cancelled: set[int] = set()

    # -- life ------------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, int]:
        """Go through all of it; returns how often what happened.

        Raises:
            AssertionError, InvariantError: something that must hold does not.
        """
        bystander = subprocess.Popen(["sleep", "100000"], start_new_session=True)
        undisturbed = subprocess.Popen(self._training("undisturbed"), stdout=subprocess.DEVNULL)
        try:
            self.agent.start()
            self.controller.start()
            self._ask(self.client.status)
            self._live()
            self._drain()
            assert undisturbed.wait(PATIENCE_S) == 0
            said = self._check()
            assert bystander.poll() is None, "a stranger was killed"
            self.agent.stop()
            self.controller.stop()
            left = hunt_until_gone(f"{MARK}={self.folder}", END_S)
            assert not left, f"left behind: {left}"
            assert not (held := holders(self.folder / "locks")), f"still held: {held}"
        finally:
            for process in (bystander, undisturbed):
                process.kill()
                process.wait()
            self.agent.stop()
            self.controller.stop()
            for pid in hunt(f"{MARK}={self.folder}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)
        return said

    def _live(self) -> None:
        """Submit and cancel while processes are killed at random moments and come back."""
        begin_s = time.monotonic()
        kills = sorted(begin_s + self.seconds * self.rng.random() for _ in range(self.kills))
        submits = list(self._arrivals(begin_s))
        cancels: list[tuple[float, int]] = []
        self._submit("trains")
        while (now_s := time.monotonic()) < begin_s + self.seconds or kills:  # a start may outlast the last of them
            self._bring_back(now_s)
            if kills and now_s >= kills[0] and self.agent.pid and self.controller.pid:
                kills.pop(0)
                for process in self.rng.choice(((self.agent,), (self.controller,), (self.agent, self.controller))):
                    process.kill(self.rng)
            elif submits and now_s >= submits[0] and self.controller.pid:
                submits.pop(0)
                job = self._submit(self._kind())
                if self.rng.random() < CANCELLED:
                    cancels.append((now_s + 2 * self.rng.random(), job))
            elif cancels and now_s >= cancels[0][0] and self.controller.pid:
                self._cancel(cancels.pop(0)[1])
            time.sleep(0.02)

    def _arrivals(self, begin_s: float) -> Iterator[float]:
        at_s = begin_s
        while (at_s := at_s + self.rng.expovariate(1 / SUBMIT_S)) < begin_s + 0.85 * self.seconds:
            yield at_s

    def _kind(self) -> str:
        """What to submit next; there is a training job most of the time."""
        trains = [job for job, kind in self.kinds.items() if kind == "trains"]
        if not self._job(trains[-1]).has_ended:
            return self.rng.choices(("counts", "stays", "fails", "ends"), (6, 2, 1, 2))[0]
        return "trains"

    def _bring_back(self, now_s: float) -> None:
        for process in (self.controller, self.agent):
            if not process.pid and now_s >= process.back_s:
                process.start()

    def _drain(self) -> None:
        """Bring everything back, and wait until every job has ended."""
        end_s = time.monotonic() + PATIENCE_S
        while left := [job for job in self._ask(self.client.jobs).jobs if not job.has_ended]:
            self._bring_back(time.monotonic() + DOWN_S)
            assert time.monotonic() < end_s, f"never ended: {left}"
            time.sleep(0.2)

    # -- users -----------------------------------------------------------------------------------------------------

    def _training(self, out: str) -> list[str]:
        (self.folder / out).mkdir()
        return [sys.executable, str(HERE.parents[1] / "elastic" / "job.py"), str(self.folder / out), *TRAINING]

    def _submit(self, kind: str) -> int:
        seconds = self.rng.choice((0.5, 2.0, 5.0))
        if kind == "trains":
            out = self.folder / f"trained-{len(self.kinds)}"
            out.mkdir()
            command = [sys.executable, str(HERE / "trainer.py"), str(self.folder), str(out), *TRAINING]
            command += ["--checkpoint", str(out / "saved")]
            fields = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "batch": 16, "time_limit_s": 600}
        else:
            command = [sys.executable, "-I", "-S", str(HERE / "plain_job.py"), kind, str(self.folder), str(seconds)]
            fields = {"gpus": self.rng.choice((1, 1, 1, 2)), "time_limit_s": round(60 * seconds), "attempts_max": 1}
        captures = captures_folder(self.folder / "s" / "agent")
        capture, digest = write_capture(captures, command, {**os.environ, **self.env}, str(self.folder))
        request = JobRequest(name=kind, capture=capture, digest=digest, grace_s=GRACE_S, **fields)
        key = f"key-{len(self.keys)}"
        (job,) = self._ask(lambda: self.client.submit([request], key))
        assert job not in self.kinds, f"job {job} was acknowledged twice"
        self.keys[key], self.kinds[job], self.seconds_of[job] = (request, job), kind, seconds
        return int(job)

    def _cancel(self, job: int) -> None:
        if self._ask(lambda: self.client.command("cancel", [job])).jobs:  # else it has ended
            self.cancelled.add(job)

    def _job(self, job: int) -> JobRecord:
        return self._ask(lambda: self.client.job(job))

    def _ask(self, question: Callable[[], object]):
        """Ask until a controller answers, as users do."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return question()
            except (NoControllerError, BusyError):
                if time.monotonic() > end_s:
                    raise
            self._bring_back(time.monotonic())
            self.controller.check()
            time.sleep(0.02)

    # -- what must hold --------------------------------------------------------------------------------------------

    def _check(self) -> dict[str, int]:
        violations = self.folder / "locks" / "violations"
        assert not violations.exists(), violations.read_text()
        for key, (request, job) in self.keys.items():
            assert self._ask(lambda r=request, k=key: self.client.submit([r], k)) == [job]
        jobs, attempts = self._stored()
        assert sorted(jobs) == sorted(self.kinds), "jobs that nobody submitted, or not all that were"
        os.environ.update(self.env)
        assert not (wrong := [said for said in (*doctor._stored(), *doctor._left()) if said.level == "wrong"]), wrong
        for attempt in attempts:
            if attempt.outcome == "lost":  # its agent was killed between its fence and its first process
                logs = log_folder(self.folder / "s" / "agent", attempt.job, attempt.number)
                assert not list(logs.glob("rank-*")), attempt
            moved = attempt.ranks and attempt.sequence > 1  # a gang cannot leave all of its devices at once
            assert attempt.stop_reason in ("", "preempted", "cancelled", *(["requeued"] if moved else [])), attempt
            if attempt.outcome in ("failed", "unusable"):
                assert self.kinds[attempt.job] == "fails" or attempt.stop_reason, attempt
        for job in jobs.values():
            ends = {"failed" if self.kinds[job.id] == "fails" else "finished"}
            assert job.state in ends | ({"cancelled"} if job.id in self.cancelled else set()), job
        lines = self._check_logs(jobs, attempts)
        bits = self._check_bits(jobs)
        return self._summary(jobs, attempts, lines, bits)

    def _stored(self) -> tuple[dict[int, JobRecord], list[AttemptRecord]]:
        with contextlib.closing(sqlite3.connect(self.folder / "s" / "controller" / "brim.db")) as database:
            jobs = list(map(read_job, database.execute(f"SELECT {JOB_COLUMNS} FROM jobs")))
            return {job.id: job for job in jobs}, list(
                map(read_attempt, database.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts"))
            )

    def _check_logs(self, jobs: dict[int, JobRecord], attempts: list[AttemptRecord]) -> int:
        """Compare what jobs have noted with their logs; returns the number of lines."""
        total = 0
        for job in (job for job in jobs.values() if self.kinds[job.id] == "counts"):
            shown = b""
            for attempt in sorted(one.number for one in attempts if one.job == job.id):
                noted = self.folder / f"lines-{job.id}-{attempt}"
                if noted.exists():  # else it was stopped before it had written
                    log = (log_folder(self.folder / "s" / "agent", job.id, attempt) / "rank-0.log").read_bytes()
                    assert log.startswith(noted.read_bytes()), f"the log of attempt {attempt} of job {job.id}: {log!r}"
                    assert log.count(b"\n") - noted.read_bytes().count(b"\n") in (0, 1)  # killed before it was noted
                    shown += log
            numbers = [int(line.split()[-1]) for line in shown.splitlines()]
            assert all(now - before in (0, 1) for before, now in itertools.pairwise(numbers)), numbers
            if job.state == "finished":
                assert sorted(set(numbers)) == list(range(round(self.seconds_of[job.id] * LINES_PER_S)))
            total += len(numbers)
        return total

    def _check_bits(self, jobs: dict[int, JobRecord]) -> int:
        """Compare what training jobs have come to with an undisturbed run; returns how many there were."""
        (expected,) = (json.loads(path.read_text()) for path in (self.folder / "undisturbed").glob("*.json"))
        trained = 0
        for job in (job for job in jobs.values() if self.kinds[job.id] == "trains" and job.state == "finished"):
            answers = list(self.folder.glob(f"trained-{job.id - 1}/*.json"))
            assert answers, job
            trained += 1
            for answer in map(json.loads, (path.read_text() for path in answers)):
                for what in ("digest", "samples", "steps", "ledger"):
                    assert answer[what] == expected[what], f"{what} of job {job.id}"
        assert trained
        return trained

    def _summary(
        self, jobs: dict[int, JobRecord], attempts: list[AttemptRecord], lines: int, trained: int
    ) -> dict[str, int]:
        kinds = Counter(self.kinds.values())
        return {
            "kills of the controller": self.controller.kills, "kills of the agent": self.agent.kills,
            "jobs": len(jobs), **{f"of kind {kind}": kinds[kind] for kind in sorted(kinds)}, "attempts": len(attempts),
            "preemptions": sum(job.preemptions for job in jobs.values()),
            "jobs that came back": sum(job.attempt > 1 for job in jobs.values()),
            "gangs resized": sum(attempt.ranks > 0 and attempt.sequence > attempt.number for attempt in attempts),
            "jobs cancelled": sum(job.state == "cancelled" for job in jobs.values()),
            "lines of logs": lines, "trainings with equal bits": trained,
        }


def soak(seconds: float, kills: int, seed: int) -> dict[str, int]:
    """Run one soak; see the head of this module."""
    for step in kernels():
        if is_ready(step.key):
            step.run()  # once, for all controllers that are forked
    return Soak(seconds, kills, seed).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    compile_first(kernels())  # as `make test` does: a controller that compiles is killed before it has decided anything
    happened = soak(options.seconds, options.kills, options.seed)
    sys.stdout.write(", ".join(f"{what}: {count}" for what, count in happened.items()) + "\n")


if __name__ == "__main__":
    main()
