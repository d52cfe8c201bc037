"""A controller with 10,000 waiting and 50 running jobs is killed with SIGKILL, and `brim up` is called at once.

    .venv/bin/python benchmarks/controller_restart.py

Real agent and processes: each running job ignores SIGTERM and writes a line whenever it is started. Times are from the
kill: until the newest jobs are listed and right; until a job that is submitted has its id; until the controller decides
(`brim up` returns); until the agent has told it all attempts and a command after that has been handled. The longest
answer is that of any listing until then. A run fails unless each of the 50 was started once and still lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from brim.agent.capture import write_capture
from brim.agent.folders import captures_folder
from brim.api.client import BusyError, Client, NoControllerError
from brim.live.requests import JobRequest

WAITING = 10_000
RUNNING = 50
REPEATS = 5
LOOK_S = 0.02
PATIENCE_S = 180.0
STUBBORN = "trap '' TERM; echo $$ >> starts-$BRIM_JOB_ID; while :; do sleep 5; done"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def until(holds: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            raise SystemExit(f"never: {what}")
        time.sleep(LOOK_S)


class Machine:
    """A cluster of its own, with a folder that each job writes its start to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.at = folder, Client(folder / "run" / "api.sock")
        self.env = {**os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run")}

    def brim(self, *words: str) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return subprocess.Popen([sys.executable, "-m", "brim.cli.main", *words], env=self.env, stdout=null, stderr=null)

    def request(self, **fields) -> JobRequest:
        captures = captures_folder(self.folder / "state" / "agent")
        name, digest = write_capture(captures, ["/bin/sh", "-c", STUBBORN], self.env, str(self.folder))
        return JobRequest(**{"name": "job", "capture": name, "digest": digest, "grace_s": 0.0} | fields)

    def pid(self) -> int:
        return int(re.findall(r"\d+", (self.folder / "state" / "controller" / "lock").read_text())[0])

    def starts(self) -> dict[str, list[int]]:
        return {path.name: [int(line) for line in path.read_text().split()] for path in self.folder.glob("starts-*")}

    def end(self) -> None:
        """End the controller, so that nothing else starts, then what runs, then the agent."""
        self.brim("down").wait()
        attempts = list(self.folder.glob("state/agent/attempts/*"))
        for pids in self.starts().values():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: all((attempt / "end.json").exists() for attempt in attempts), "all ended")
        os.kill(int((self.folder / "state" / "agent" / "lock").read_text()), signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self) -> None:
        if self.brim("up", "--devices", str(RUNNING)).wait():
            raise SystemExit("brim up failed")
        for _ in range(RUNNING):
            self.at.submit([self.request()])
        until(lambda: len(self.starts()) == RUNNING, "all running")
        until(lambda: sum(job.state == "running" for job in self.at.jobs().jobs) == RUNNING, "all known to run")
        waiting = [self.request(name="waits")] * 1_000
        for _ in range(WAITING // len(waiting)):
            self.at.submit(waiting)

    def lists(self, newest: int) -> bool:
        """Whether the newest jobs are listed, as they are."""
        try:
            found = self.at._once("GET", "/v1/jobs?limit=1", b"", {})["jobs"]
        except (NoControllerError, BusyError):
            return False
        return [job["id"] for job in found] == [newest]

    def knows_its_agent(self) -> bool:
        try:
            return bool(self.at._once("GET", "/v1/status", b"", {})["status"]["agents"])
        except (NoControllerError, BusyError):
            return False


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / CLOCK_TICKS


def memory_mib(pid: int) -> float:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def restart(machine: Machine, newest: int) -> dict[str, float]:
    killed = machine.pid()
    before = machine.starts()
    os.kill(killed, signal.SIGKILL)
    began_s = time.monotonic()
    up = machine.brim("up", "--devices", str(RUNNING))

    def since() -> float:
        return time.monotonic() - began_s

    found: dict[str, float] = {}
    until(lambda: machine.lists(newest), "listed")
    found["jobs listed, s"] = since()
    found["CPU time of the controller by then, s"] = cpu_s(machine.pid())
    new = machine.at.submit([machine.request(name="new", hold=True)])[0]
    found["a job accepted, s"] = since()
    longest_s = 0.0
    end_s = time.monotonic() + PATIENCE_S
    while up.poll() is None or not machine.knows_its_agent():
        asked_s = time.monotonic()
        if asked_s > end_s or not machine.lists(new):
            raise SystemExit("the list of jobs is wrong")
        longest_s = max(longest_s, time.monotonic() - asked_s)
        time.sleep(LOOK_S)
        if up.returncode == 0:
            found.setdefault("`brim up` has returned, s", since())
    until(lambda: machine.at.command("release", [new]).jobs[0].state == "pending", "a command handled")
    found["all attempts adopted, s"] = since()
    found["longest answer meanwhile, s"] = longest_s
    if machine.at.command("cancel", [new]).jobs[0].state != "cancelled":
        raise SystemExit("not cancelled")
    states = [job.state for job in machine.at.jobs().jobs]
    if machine.starts() != before or any(len(pids) != 1 for pids in before.values()):
        raise SystemExit("an attempt was started again")
    for (pid,) in before.values():
        os.kill(pid, 0)
    if (states.count("running"), states.count("pending")) != (RUNNING, WAITING):
        raise SystemExit(f"states: {[(state, states.count(state)) for state in set(states)]}")
    found["memory, highest, MiB"] = memory_mib(machine.pid())
    return found


def main() -> None:
    """Print every repeat, then the medians."""
    machine = Machine(Path(tempfile.mkdtemp(prefix="brim-")))
    try:
        machine.fill()
        print(f"{WAITING} wait, {RUNNING} run; memory, highest, MiB: {memory_mib(machine.pid()):.0f}", flush=True)
        runs = []
        for _ in range(REPEATS):
            newest = machine.at.jobs(limit=1).jobs[-1].id
            runs.append(restart(machine, newest))
            print(json.dumps({name: round(value, 2) for name, value in runs[-1].items()}), flush=True)
            time.sleep(2)
        for name in runs[0]:
            print(f"{name:42}{statistics.median(run[name] for run in runs):8.2f}")
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    finally:
        machine.end()


if __name__ == "__main__":
    main()
