"""Storms: a job under a supervisor, and a script of what happens to it at which step."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from brim.gang.client import send_request
from brim.gang.messages import KillRequest, PreemptRequest, ResizeRequest, StatusRequest, StopRequest, TuneSettings
from tests.elastic.pace import allow

JOB = Path(__file__).parent / "job.py"
LOOK_S = 0.01
PREEMPTED = 75


@dataclass(frozen=True)
class Event:
    """From ``step`` on, do ``what``: resize (to number), kill (a living member by place), crash, preempt, stop, tune.

    Crash kills the supervisor: its ranks go with it, and the job is started again. Await does nothing, once all ranks
    that the gang is to have are in the group.
    """

    step: int
    what: str
    number: int = 0


@dataclass
class Weather:
    """What came of a storm."""

    code: int
    answers: list[dict]
    done: list[Event] = field(default_factory=list)
    refused: int = 0
    generations: int = 0
    starts: int = 1
    seconds: float = 0.0
    stderr: str = ""

    @property
    def digests(self):
        return {answer["digest"] for answer in self.answers}


class Gang:
    """One supervisor and its ranks."""

    def __init__(self, folder, ranks, *words, zygote=None, job=JOB, replace=0):
        self.control = str(folder / "s")
        self.folder = folder
        self.errors = (folder / "stderr").open("a")
        options = ["--control", self.control, "--nproc", str(ranks), "--replace", str(replace)]
        options += ["--zygote", zygote] if zygote else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brim.train.launch", *options, str(job), *map(str, words)],
            stdout=self.errors, stderr=self.errors, stdin=subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip

    def ask(self, message):
        return send_request(self.control, message)

    def status(self):
        with contextlib.suppress(OSError):
            return self.ask(StatusRequest()).status
        return None

    def until(self, holds, timeout_s=60):
        """The first status that holds; None if the gang has ended before."""
        deadline_s = time.monotonic() + timeout_s
        status = None
        while self.process.poll() is None:
            status = self.status()
            if status is not None and holds(status):
                return status
            assert time.monotonic() < deadline_s, f"never came true: {json.dumps(status)}\n{self.stderr()}"
            time.sleep(LOOK_S)
        return None

    def stderr(self):
        return (self.folder / "stderr").read_text()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                self.process.kill()
                self.process.wait()
        self.errors.close()


def step_of(answers):
    """The step that a rank has last committed."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((answers / "step").read_text())
    return 0


def living(status):
    """Members that live and are in the group."""
    there = {rank["id"]: rank for rank in status["ranks"]}
    return [m for m in status["members"] if m in there and there[m]["alive"] and there[m]["state"] == "joined"]


def needed(event, status):
    """Ranks that are in the group before an event: a kill leaves another one, unless the gang is to have one rank."""
    return {"kill": min(2, status["target"]), "await": status["target"]}.get(event.what, 1)


def is_due(event, answers, status):
    """Whether an event may happen now; if not, a group that is incomplete gets further steps, to form anew."""
    if len(living(status)) < len(status["members"]):
        allow(answers, max(event.step, step_of(answers)))
    return step_of(answers) >= event.step and len(living(status)) >= needed(event, status)


def storm(folder, events, *words, ranks=2, zygote=None, timeout_s=60, replace=0, job=JOB):
    """Run the job to its end through the events, for which it waits; a preempted one starts again with as many ranks.

    Args:
        folder: Empty; for sockets, output and answers.
        events: In order of their steps. One that cannot happen any more (nobody to kill) is counted as refused.
        words: Of the job's command line, after the folder of answers.
    """
    began_s, deadline_s = time.monotonic(), time.monotonic() + timeout_s
    answers = folder / "answers"
    answers.mkdir(exist_ok=True)
    weather, left, base = Weather(code=-1, answers=[]), list(events), 0
    while True:
        allow(answers, left[0].step if left else None)
        gang = Gang(folder, ranks, answers, *words, zygote=zygote, job=job, replace=replace)
        try:
            while left:
                event = left[0]
                while step_of(answers) < event.step and gang.process.poll() is None and time.monotonic() < deadline_s:
                    time.sleep(LOOK_S)  # to ask the gang each time would cost as much as its steps
                status = gang.until(lambda s, e=event: is_due(e, answers, s), deadline_s - time.monotonic())
                if status is None:
                    break
                left.pop(0)
                weather.generations = max(weather.generations, base + status["generation"])
                happened, ends = _do(gang, event, status, left), event.what in ("preempt", "stop", "crash")
                allow(answers, left[0].step if left and not (happened and ends) else None)
                if not happened:
                    weather.refused += 1
                    continue
                weather.done.append(event)
                if ends:
                    break
            weather.code = gang.process.wait(max(deadline_s - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs: {json.dumps(gang.status())}\n{gang.stderr()}") from None
        finally:
            gang.close()
        base = weather.generations
        if weather.code not in (PREEMPTED, -signal.SIGKILL):
            break
        weather.starts += 1
    weather.answers = [json.loads(path.read_text()) for path in sorted(answers.glob("*.json"))]
    weather.seconds = time.monotonic() - began_s
    weather.stderr = gang.stderr()
    return weather


def _do(gang, event, status, left):
    """Make it happen; False if it cannot."""
    members = living(status)
    if event.what == "kill" and len(members) < 2:
        return False
    message = {
        "resize": lambda: ResizeRequest(event.number),
        "crash": StatusRequest,
        "await": StatusRequest,
        "kill": lambda: KillRequest(members[event.number % len(members)]),
        "preempt": PreemptRequest,
        "stop": StopRequest,
        "tune": lambda: TuneSettings(global_batch=event.number),
        "loader": lambda: TuneSettings(loader_workers=event.number),
    }[event.what]()
    del left
    if event.what == "crash":
        gang.process.kill()
        return True
    try:
        return gang.ask(message).ok
    except OSError:
        return False


def random_events(seed, steps, number, sizes=(1, 2, 4), kinds=("resize", "resize", "kill", "preempt", "loader")):
    """A script of ``number`` events over ``steps`` steps."""
    dice = random.Random(seed)
    at = sorted(dice.randrange(1, steps) for _ in range(number))
    return [
        Event(step, what, dice.choice(sizes) if what == "resize" else dice.randrange(4))
        for step in at
        for what in [dice.choice(kinds)]
    ]
