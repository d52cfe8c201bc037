"""Eight tasks of a shared box, done with brim and with gflow: what is done, what is not, and how long it takes.

    python benchmarks/beside_gflow.py --gflow FOLDER [--repeats 5]

FOLDER has the programs of PyPI's ``runqd``. All see the two GPUs of a stand-in for NVIDIA's library, which gcc builds
from the one of brim's tests. As root, since one task needs a second user. Every line says what was seen, not what a
document promises; timed tasks are repeated, and minimum and median are shown.
"""

from __future__ import annotations

import argparse
import contextlib
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

from brim.api.client import Client
from brim.errors import BrimError

ROOT = Path(__file__).parents[1]
OTHER = 4_001
PATIENCE_S = 60.0
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    os.execv("/bin/sleep", ["sleep", "{mark}"])
print("ready", flush=True)
time.sleep(1000)
"""


def until(holds: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
    """Whether it holds in time."""
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def living(mark: str) -> list[int]:
    """Processes that have a text in their command line."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in Path(entry.path, "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


class System:
    """A scheduler with its state in a folder of its own."""

    name: str

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        folder.mkdir()
        (folder / "work").mkdir()

    def call(self, *words: object, check: bool = True) -> str:
        done = subprocess.run(list(map(str, words)), env=self.env, cwd=self.folder / "work", capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        if check and done.returncode:
            raise SystemExit(f"{words}: {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout + done.stderr


class Brim(System):
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        super().__init__(folder, env | {"BRIM_STATE": str(folder / "s"), "BRIM_RUNTIME": str(folder / "r")})
        self.name, self.client = f"brim {self.call(*self.brim, '--version').split()[-1]}", Client(folder / "r/api.sock")

    brim = (sys.executable, "-m", "brim.cli.main")

    def start(self) -> None:
        self.call(*self.brim, "up", "--policy", "srtf", "--allow", OTHER)

    def submit(self, *words: str, gpus: int = 1, limit: str = "1h") -> int:
        return int(self.call(*self.brim, "submit", "-g", gpus, "-t", limit, "--grace", "2", "--", *words))

    def log(self, job: int) -> str:
        logs = sorted((self.folder / "s/agent/attempts").glob(f"{job}-*/log/rank-0.log"))
        return "".join(path.read_text() for path in logs)

    def state(self, job: int) -> str:
        return self.client.job(job).state

    def exit_code(self, job: int) -> int | None:
        return self.client.job(job).exit_code

    def cancel(self, job: int) -> None:
        self.call(*self.brim, "cancel", job)

    def queue(self) -> str:
        return self.call(*self.brim, "ps")

    def kill_daemon(self) -> None:
        os.kill(int(re.search(r"\d+", (self.folder / "s/controller/lock").read_text())[0]), signal.SIGKILL)

    def cancel_as_other(self, job: int) -> str:
        says, said = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setresuid(OTHER, OTHER, OTHER)
                self.client.command("cancel", job)
                os.write(said, b"cancelled")
            except BrimError as error:
                os.write(said, str(error).encode())
            finally:
                os._exit(0)
        os.close(said)
        os.waitpid(child, 0)
        with open(says, "rb") as file:
            return file.read().decode()

    def stop(self) -> None:
        self.call(*self.brim, "down", "--stop", check=False)


class Gflow(System):
    def __init__(self, folder: Path, env: dict[str, str], programs: Path, executor: str, port: int) -> None:
        own = {"HOME": str(folder), "USER": "root", "TMUX_TMPDIR": str(folder), "NO_COLOR": "1"}
        super().__init__(folder, env | own)
        self.programs = programs
        config = folder / ".config" / "gflow" / "gflow.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'timezone = "UTC"\n[daemon]\nhost = "localhost"\nport = {port}\n[executor]\ntype = "{executor}"\n'
        )
        version = re.search(r"\d+\.[\d.]+", self.call(programs / "gflowd", "--version"))
        self.name = f"gflow {version[0] if version else '?'}, {executor}"
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen([str(self.programs / "gflowd")], env=self.env, stdout=log, stderr=log,
                                           start_new_session=True, cwd=self.folder)  # fmt: skip
        assert until(lambda: "gpu" in self.call(self.programs / "ginfo", check=False))

    def submit(self, *words: str, gpus: int = 1, limit: str = "1h") -> int:
        del limit
        return int(re.search(r"job (\d+)", self.call(self.programs / "gbatch", "-g", gpus, *words))[1])

    def log(self, job: int) -> str:
        path = self.folder / ".local/share/gflow/logs" / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def state(self, job: int) -> str:
        shown = re.search(r"State=(\w+)", self.call(self.programs / "gjob", "show", job, check=False))
        return shown[1].lower() if shown else ""

    def exit_code(self, job: int) -> int | None:
        shown = re.search(r"[Ee]xit ?[Cc]ode=(-?\d+)", self.call(self.programs / "gjob", "show", job, check=False))
        return int(shown[1]) if shown else None

    def cancel(self, job: int) -> None:
        self.call(self.programs / "gcancel", job)

    def queue(self) -> str:
        return self.call(self.programs / "gqueue")

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def cancel_as_other(self, job: int) -> str:
        env = self.env | {"USER": "eve"}
        done = subprocess.run([str(self.programs / "gcancel"), str(job)], user=OTHER, group=OTHER, extra_groups=[],
                              env=env, cwd="/", capture_output=True, text=True, check=False)  # fmt: skip
        return f"{done.stdout}{done.stderr}".strip()

    def stop(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill_daemon()
        subprocess.run(["tmux", "kill-server"], env=self.env, check=False, capture_output=True)


ENDED = ("finished", "failed", "cancelled", "timeout", "lost")


def times(seconds: list[float]) -> str:
    return f"min {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s of {len(seconds)}"


def first_output(system: System, repeats: int) -> str:
    commands, outputs = [], []
    for _ in range(repeats):
        begin = time.monotonic()
        job = system.submit("echo", "now")
        commands.append(time.monotonic() - begin)
        assert until(lambda j=job: system.log(j))
        outputs.append(time.monotonic() - begin)
        until(lambda j=job: system.state(j) in ENDED)
    return f"submit to first output {times(outputs)}; the command to submit alone {times(commands)}"


def sees_queue(system: System) -> str:
    job = system.submit("sleep", "2")
    seen = until(lambda: re.search(rf"\b{job}\b", system.queue()), 10)
    until(lambda: system.state(job) in ENDED)
    return "done" if seen else "NOT SEEN"


def one_device(system: System) -> str:
    job = system.submit("sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]")
    until(lambda: system.state(job) in ENDED)
    return f"CUDA_VISIBLE_DEVICES {system.log(job).strip()}"


def preempted(system: System) -> str:
    script = system.folder / "work" / "resume.sh"
    script.write_text('trap "exit 75" TERM\necho start\nfor i in $(seq 60); do sleep 0.05; done\necho end\n')
    long = system.submit("bash", str(script), gpus=2)
    assert until(lambda: "start" in system.log(long))
    short = system.submit("sleep", "0.2", gpus=2, limit="1m")
    came = until(lambda: system.state(short) in ENDED and system.state(long) in ENDED)
    starts = system.log(long).count("start")
    said = "the long job came back by itself and finished" if came and starts == 2 else "never preempted"
    return f"{said} ({starts} starts)"


def stubborn(system: System, repeats: int) -> str:
    found, left = [], 0
    for number in range(repeats):
        mark = f"31337.{os.getpid()}{number}"
        script = system.folder / "work" / f"stubborn{number}.py"
        script.write_text(STUBBORN.format(mark=mark))
        job = system.submit(sys.executable, str(script))
        assert until(lambda j=job: "ready" in system.log(j))
        begin = time.monotonic()
        system.cancel(job)
        gone = until(lambda m=mark, s=script: not living(m) and not living(str(s)), 20)
        found.append(time.monotonic() - begin)
        left += not gone
        for pid in living(mark) + living(str(script)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return f"last descendant dead {times(found)}" if not left else f"processes alive after 20 s in {left} of {repeats}"


def daemon_killed(system: System) -> str:
    job = system.submit("sh", "-c", "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.3; done; exit 3")
    assert until(lambda: "line 2" in system.log(job))
    system.kill_daemon()
    time.sleep(3)
    system.start()
    until(lambda: system.state(job) in ENDED, 20)
    time.sleep(0.5)
    lines = len(re.findall("^line", system.log(job), re.M))
    return f"state {system.state(job)}, exit code {system.exit_code(job)}, {lines} of 6 lines"


def short_jobs(system: System, repeats: int) -> str:
    found, false = [], 0
    for _ in range(repeats):
        begin = time.monotonic()
        jobs = [system.submit("true") for _ in range(100)]
        until(lambda j=jobs: system.state(j[-1]) in ENDED, 120)
        states = [system.state(job) for job in jobs if until(lambda j=job: system.state(j) in ENDED, 30) or True]
        found.append(time.monotonic() - begin)
        false += sum(state != "finished" for state in states)
    return f"100 submissions and their ends {times(found)}; {false} of {100 * repeats} not finished"


def second_user(system: System) -> str:
    job = system.submit("sleep", "300")
    until(lambda: system.state(job) == "running")
    said = system.cancel_as_other(job)
    time.sleep(1)
    state = system.state(job)
    system.cancel(job)
    return f"{'refused' if state == 'running' else f'the job is {state} now'}: {said.splitlines()[0] if said else ''}"


def stand_in(folder: Path) -> dict[str, str]:
    """Build the stand-in library; the variables with which programs find it."""
    text = (ROOT / "tests/agent/test_devices.py").read_text()
    code = re.search(r'LIBRARY = r"""\n(.*?)"""', text, re.S)[1]
    code += "int nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n"
    (folder / "nvml.c").write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    (folder / "gpus").write_text("GPU-a 450 0 70000\nGPU-b 450 0 70000\n")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "STAND_IN_NVML": str(folder / "gpus")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gflow", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="beside-", dir="/tmp"))
    folder.chmod(0o755)
    env = stand_in(folder)
    systems: list[Callable[[], System]] = [
        lambda: Brim(folder / "b", env), lambda: Gflow(folder / "p", env, options.gflow, "process", 59_101),
        lambda: Gflow(folder / "t", env, options.gflow, "tmux", 59_102),
    ]
    tasks: dict[str, Callable[[System], str]] = {
        "run and follow": lambda system: first_output(system, options.repeats), "see the queue": sees_queue,
        "one device": one_device, "preempt and come back": preempted,
        "cancel what ignores SIGTERM": lambda system: stubborn(system, options.repeats),
        "kill -9 of the daemon": daemon_killed, "100 short jobs": lambda system: short_jobs(system, options.repeats),
        "a second user cancels": second_user,
    }
    try:
        for make in systems:
            system = make()
            print(f"## {system.name}", flush=True)
            try:
                system.start()
                for name, task in tasks.items():
                    print(f"{name}: {task(system)} (load {os.getloadavg()[0]:.0f})", flush=True)
            finally:
                system.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
