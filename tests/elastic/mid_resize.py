"""SIGKILL in the middle of a resize, at random moments: ``python -m tests.elastic.mid_resize [--cases 40] [--seed N]``.

A job with 50 MB of gradients and 100 MB of state is resized 2 -> 4, 4 -> 2, or moved from two devices to two others.
At a moment of that a rank that joins, leaves or stays, or the supervisor, is killed. The job must end with the bits of
an undisturbed run; where the supervisor was killed, after another start. No process may be left, nor may two ranks
train on one device once the gang has settled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from brim.gang.client import send_request
from brim.gang.launch_config import LaunchConfig
from brim.gang.messages import ResizeRequest, StatusRequest
from brim.gang.supervisor import Supervisor
from tests import zygotes
from tests.elastic.pace import allow
from tests.elastic.storm import JOB, living, step_of
from tests.gang.conftest import END_S, hunt, hunt_until_gone

MARK = "BRIM_MID_RESIZE"
OLD = ("cpu0", "cpu1")
CHANGES = {  # devices before and after
    "grow": (OLD, ("cpu0", "cpu1", "cpu2", "cpu3")), "shrink": (("cpu0", "cpu1", "cpu2", "cpu3"), OLD),
    "move": (OLD, ("cpu2", "cpu3")),
}  # fmt: skip
VICTIMS = {
    "grow": ("joins", "stays", "supervisor"), "shrink": ("leaves", "stays", "supervisor"),
    "move": ("joins", "leaves", "supervisor"),
}  # fmt: skip
BEGIN_STEP = 2
"""Step after which the resize is asked for."""
WAIT_S = 120


@dataclass(frozen=True)
class Case:
    """What is done to a job: a change, who is killed in it, and how long after the request."""

    change: str
    victim: str
    delay_s: float
    model: str = "heavy"
    workers: int = 4
    epochs: int = 3
    pause_s: float = 0.0
    must_be_found: bool = False


def run(folder: Path, case: Case, zygote: str | None) -> dict:
    """Go through a case; returns what the job has come to, and whether the kill found its victim.

    Raises:
        AssertionError: something that must hold does not.
    """
    answers = folder / "answers"
    answers.mkdir(parents=True)
    mark = f"{MARK}={folder}"
    allow(answers, BEGIN_STEP)  # no further until the victim is found, which takes long where the machine stalls
    before, after = CHANGES[case.change]
    pid = start(folder, case, before, zygote)
    try:
        until(pid, folder, lambda s: step_of(answers) >= BEGIN_STEP and len(living(s)) == len(before))
        old = {rank["id"] for rank in status(folder)["ranks"]}
        answer = send_request(str(folder / "s"), ResizeRequest(len(after), after))
        assert answer.ok, answer.detail
        if not case.must_be_found:
            allow(answers)
        time.sleep(case.delay_s)
        deadline_s = time.monotonic() + WAIT_S
        while not (victim := find(folder, case.victim, pid, old, after)) and case.must_be_found:
            assert time.monotonic() < deadline_s, f"no rank {case.victim}"
            time.sleep(0.01)
        if victim:
            os.kill(victim, signal.SIGKILL)
        allow(answers)
        code, deadline_s = None, time.monotonic() + WAIT_S
        while code is None:
            code = ended(pid)
            now = None if code is not None else status(folder)
            if now and now["settled"]:
                used = [rank["device"] for rank in now["ranks"] if rank["alive"] and rank["device"]]
                assert len(used) == len(set(used)), f"two ranks on a device: {used}"
            assert time.monotonic() < deadline_s, f"hangs: {json.dumps(now)}"
            time.sleep(0.05)
        pid = 0
        assert not (left := hunt_until_gone(mark, END_S)), f"left behind: {left}"
        if case.victim == "supervisor" and victim:
            assert code == -signal.SIGKILL
            for path in answers.glob("*.json"):
                path.unlink()
            (folder / "s").unlink(missing_ok=True)
            pid = start(folder, case, after, zygote)
            while (code := ended(pid)) is None:
                assert time.monotonic() < deadline_s, "hangs after another start"
                time.sleep(0.05)
            pid = 0
        said = [json.loads(path.read_text()) for path in answers.glob("*.json")]
        return {"code": code, "digests": {one["digest"] for one in said}, "killed": bool(victim)}
    finally:
        for left in {pid, *hunt(mark)} - {0}:
            try:
                os.kill(left, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if pid:
            os.waitpid(pid, 0)


def start(folder: Path, case: Case, devices: tuple[str, ...], zygote: str | None) -> int:
    """Start the supervisor of the job in a process of its own, as an agent does; return its id."""
    words = ["--model", case.model, "--epochs", str(case.epochs), "--workers", str(case.workers)]
    words += ["--pause", str(case.pause_s)]
    command = (sys.executable, str(JOB), str(folder / "answers"), *words, "--checkpoint", str(folder / "saved"))
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        result = Supervisor(LaunchConfig(
            command=command, nproc=len(devices), control=str(folder / "s"), cwd=str(folder), devices=devices,
            env={**os.environ, MARK: str(folder)}, zygote=zygote, log_folder=str(folder),
        )).run()  # fmt: skip
        os._exit(result.exit_code)
    finally:
        os._exit(70)


def status(folder: Path) -> dict | None:
    try:
        return send_request(str(folder / "s"), StatusRequest()).status
    except OSError:
        return None


def until(pid: int, folder: Path, holds) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not ((now := status(folder)) and holds(now)):
        assert ended(pid) is None, (folder / "stderr").read_text()
        assert time.monotonic() < deadline_s, f"never came true: {json.dumps(now)}"
        time.sleep(0.02)


def ended(pid: int) -> int | None:
    found, code = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(code) if found else None


def find(folder: Path, victim: str, supervisor: int, old: set[int], after: tuple[str, ...]) -> int:
    """The process that is to be killed; 0 if there is none such, by now or yet."""
    if victim == "supervisor":
        return supervisor if ended(supervisor) is None else 0
    for rank in (status(folder) or {"ranks": []})["ranks"]:
        kind = "joins" if rank["id"] not in old else "stays" if rank["device"] in after else "leaves"
        if rank["alive"] and rank["pid"] and kind == victim:
            return rank["pid"]
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=2.5, help="seconds from the request to the kill, at most")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mid-"))
    bad, found = 0, Counter()
    with zygotes.shared(folder) as zygote:
        undisturbed = folder / "undisturbed"
        undisturbed.mkdir()
        (undisturbed / "answers").mkdir()
        pid = start(undisturbed, Case("grow", "", 0.0), OLD, zygote)
        os.waitpid(pid, 0)
        expected = {json.loads(path.read_text())["digest"] for path in (undisturbed / "answers").glob("*.json")}
        assert len(expected) == 1, (undisturbed / "stderr").read_text()
        for seed in range(options.seed, options.seed + options.cases):
            dice = random.Random(seed)
            change = dice.choice(tuple(CHANGES))
            case = Case(change, dice.choice(VICTIMS[change]), round(dice.random() * options.longest, 3))
            place = folder / str(seed)
            try:
                said = run(place, case, zygote)
                right = said["code"] == 0 and said["digests"] == expected
                found[case.change, case.victim, said["killed"]] += 1
            except AssertionError as error:
                said, right = {"error": str(error)}, False
            bad += not right
            sys.stdout.write(f"{seed} {case.change} {case.victim} {case.delay_s}: {'ok' if right else said}\n")
            sys.stdout.flush()
            if right:
                shutil.rmtree(place)
    sys.stdout.write(f"{options.cases} cases, {bad} wrong; {dict(found)}; wrong ones are in {folder}\n")
    if not bad:
        shutil.rmtree(folder)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
