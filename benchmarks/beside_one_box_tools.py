"""Eight tasks of a shared box, done with brim, gflow and jobd: done, by hand or not possible, and how long it takes.

    python benchmarks/beside_one_box_tools.py [--gflow FOLDER] [--jobd FOLDER] [--repeats 5]

The folders have the programs of PyPI's ``runqd`` and ``jobd[worker]``. All see the two GPUs of the stand-in for
NVIDIA's library that brim's tests use, built by gcc. As root, since one task needs a second user, and jobd a systemd
user instance. Every repeat has a system of its own, just started. Every line says what was seen, not what a document
promises.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from one_box_tools import PATIENCE_S, Brim, Gflow, Jobd, System, until

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    os.execv("/bin/sleep", ["sleep", "{mark}"])
print("ready", flush=True)
time.sleep(1000)
"""
RESUMES = 'trap "exit 75" TERM\necho start\nfor i in $(seq 60); do sleep 0.05; done\necho end\n'
ROOM_S = 20.0
"""So long the short job waits for room before someone makes it by hand."""
SHORT = 100

Times = dict[str, float]
Task = Callable[[System], tuple[str, Times]]
"""What was seen, and what took how long, in seconds."""


def living(mark: str) -> list[int]:
    """Processes that have a text in their command line."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in Path(entry.path, "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def cpu_s() -> float:
    """CPU time of all commands so far, in seconds: on a busy machine it says more than how long they took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_and_follow(system: System) -> tuple[str, Times]:
    begin, before_s = time.monotonic(), cpu_s()
    job = system.submit("echo", "now")
    submitted, worked = time.monotonic() - begin, cpu_s() - before_s
    came = until(lambda: "now" in system.lines(job))
    output = time.monotonic() - begin
    ended = system.ended(job)
    seen = "done" if came and ended and system.state(job) == "finished" else f"not done: {system.state(job)}"
    return seen, {
        "command": submitted, "command, CPU": worked, "first output": output, "end seen": time.monotonic() - begin,
    }


def sees_queue(system: System) -> tuple[str, Times]:
    job = system.submit("sleep", "2")
    seen = until(lambda: str(job) in system.queue().replace("gjob-", "").split(), 10)
    return "done" if seen else "not done", {}


def one_device(system: System) -> tuple[str, Times]:
    jobs = [system.submit("sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]; sleep 1") for _ in range(2)]
    system.ended(*jobs)
    seen = [re.findall(r"^\[(.*)\]$", "\n".join(system.lines(job)), re.M) for job in jobs]
    good = all(len(texts) == 1 and re.fullmatch(r"[\w-]+", texts[0]) for texts in seen) and seen[0] != seen[1]
    return f"{'done' if good else 'by hand'}: two jobs saw {seen}", {}


def preempted(system: System) -> tuple[str, Times]:
    script = system.folder / "work" / "resume.sh"
    script.write_text(RESUMES)
    long = system.submit("bash", str(script), gpus=2)
    assert until(lambda: "start" in system.lines(long))
    begin = time.monotonic()
    short = system.submit("sleep", "0.2", gpus=2, short=True)
    until(lambda: system.has_ended(short) or system.has_ended(long), every_s=0.05)
    made_room = system.has_ended(short) and not system.has_ended(long)
    waited = time.monotonic() - begin
    came = system.ended(short, long)
    if made_room and came and system.state(long) == "finished" and system.lines(long).count("start") == 2:
        return "done", {"short job ended": waited, "long job ended": time.monotonic() - begin}
    return by_hand(system), {}


def by_hand(system: System) -> str:
    """The same with a job that goes on for ever, and someone who looks after it."""
    long = system.submit("bash", "-c", "echo start; sleep 1000", gpus=2)
    assert until(lambda: "start" in system.lines(long))
    short = system.submit("sleep", "0.2", gpus=2, short=True)
    if system.ended(short, timeout_s=ROOM_S):
        return "unclear: room was made for a job that goes on for ever"
    words = system.make_room(long)
    if not system.ended(short, timeout_s=PATIENCE_S + system.cancel_s):
        return f"not possible: no room after {words}"
    again = system.again(long)
    back = until(lambda: "start" in system.lines(again))
    system.cancel(again)
    return f"by hand: {words}" if back else f"not possible: did not come back by {words}"


def stubborn(system: System) -> tuple[str, Times]:
    mark = f"31337.{os.getpid()}"
    script = system.folder / "work" / "stubborn.py"
    script.write_text(STUBBORN.format(mark=mark))
    job = system.submit(sys.executable, str(script))
    assert until(lambda: "ready" in system.lines(job))
    begin = time.monotonic()
    system.cancel(job)
    gone = until(lambda: not living(mark) and not living(str(script)), system.cancel_s + 20)
    seconds = time.monotonic() - begin
    for pid in living(mark) + living(str(script)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not gone:
        return f"not done: processes alive after {system.cancel_s + 20:.0f} s", {}
    return "done", {"last descendant dead": seconds}


def killed(system: System, daemon: str) -> tuple[str, Times]:
    job = system.submit("sh", "-c", "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done; exit 3")
    assert until(lambda: "line 2" in system.lines(job))
    system.kill(daemon)
    time.sleep(3)
    begin = time.monotonic()
    system.start()
    system.ended(job, timeout_s=2 * PATIENCE_S)
    seconds = time.monotonic() - begin
    time.sleep(0.5)
    lines = sum(f"line {number}" in system.lines(job) for number in range(1, 7))
    state, code = system.state(job), system.exit_code(job)
    seen = "done" if (state, code, lines) == ("failed", 3, 6) else "not done"
    return f"{seen}: {state}, exit code {code}, {lines} of 6 lines", {"end seen": seconds}


def short_jobs(system: System) -> tuple[str, Times]:
    begin = time.monotonic()
    jobs = [system.submit("true") for _ in range(SHORT)]
    submitted = time.monotonic() - begin
    system.ended(*jobs, timeout_s=15 * PATIENCE_S)
    seconds = time.monotonic() - begin
    states = Counter(system.state(job) for job in jobs)
    return f"{'done' if states['finished'] == SHORT else 'not done'}: {dict(states)}", {
        "100 commands": submitted, "all ended": seconds,
    }


def second_user(system: System) -> tuple[str, Times]:
    job = system.submit("sleep", "300")
    assert until(lambda: system.state(job) == "running")
    said = system.cancel_as_other(job)
    until(lambda: system.state(job) != "running", 3 + system.cancel_s / 10)
    state = system.state(job)
    system.cancel(job)
    return f"{'done, refused' if state == 'running' else f'not done, the job is {state}'}: {said}", {}


TASKS: dict[str, Task] = {
    "run and follow": run_and_follow, "see the queue": sees_queue, "one device": one_device,
    "preempt and come back": preempted, "cancel what ignores SIGTERM": stubborn, "100 short jobs": short_jobs,
    "a second user cancels": second_user,
}


def stand_in(folder: Path) -> dict[str, str]:
    """Build the stand-in library; the variables with which programs find it."""
    from tests import nvml

    nvml.build(folder)
    nvml.Rack(folder / "gpus")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "STAND_IN_NVML": str(folder / "gpus")}


def repeat(make: Callable[[Path], System], name: str, task: Task, repeats: int, folder: Path) -> None:
    """Do a task so often, each time with a system just started, and print what was seen how often and the times."""
    seen: Counter[str] = Counter()
    times: dict[str, list[float]] = {}
    for number in range(repeats):
        system = make(folder / str(number))
        try:
            system.start()
            said, took = task(system)
        except AssertionError as error:
            said, took = f"not done: it did not get so far {error}", {}
        finally:
            system.stop()
            shutil.rmtree(system.folder, ignore_errors=True)
        seen[said] += 1
        for what, seconds in took.items():
            times.setdefault(what, []).append(seconds)
    says = "; ".join(f"{count} of {repeats} {said}" for said, count in seen.most_common())
    took = "".join(
        f"\n    {what}: min {min(all_s):.2f} s, median {statistics.median(all_s):.2f} s, max {max(all_s):.2f} s"
        for what, all_s in times.items()
    )
    print(f"{name} (load {os.getloadavg()[0]:.0f}): {says}{took}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gflow", type=Path, help="folder of gflow's programs")
    parser.add_argument("--jobd", type=Path, help="folder of jobd's programs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="tasks whose names begin so")
    parser.add_argument("--systems", nargs="+", default=[""], help="systems whose names begin so")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="beside-", dir="/tmp"))
    folder.chmod(0o755)
    env = stand_in(folder)
    makes: list[Callable[[Path], System]] = [lambda place: Brim(place, env)]
    if options.gflow:
        makes.append(lambda place: Gflow(place, env, options.gflow, "process"))
        makes.append(lambda place: Gflow(place, env, options.gflow, "tmux"))
    if options.jobd:
        makes.append(lambda place: Jobd(place, env, options.jobd))
    try:
        for make in makes:
            named = make(folder / "name")
            shutil.rmtree(named.folder)
            if not named.name.startswith(tuple(options.systems)):
                continue
            print(f"## {named.name}", flush=True)
            deaths: dict[str, Task] = {
                f"kill -9 of the {daemon}": lambda system, daemon=daemon: killed(system, daemon)
                for daemon in named.daemons
            }
            for name, task in (TASKS | deaths).items():
                if name.startswith(tuple(options.only)):
                    repeat(make, name, task, options.repeats, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
