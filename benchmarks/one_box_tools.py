"""brim, gflow and jobd behind the same few calls, for the tasks of `beside_one_box_tools.py`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

OTHER = 4_001
"""The second user's number."""
PATIENCE_S = 60.0
ENDED = ("finished", "failed", "cancelled", "timeout", "lost", "preempted", "orphaned")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
"""What a terminal is told between the characters: gflow's tmux executor keeps it in the log."""


def until(holds: Callable[[], object], timeout_s: float = PATIENCE_S, *, every_s: float = 0.005) -> bool:
    """Whether it holds in time."""
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class System(ABC):
    """A scheduler with its state in a folder of its own.

    Attributes:
        name: With its version.
        daemons: What runs all the time, each of which is killed once.
        cancel_s: Its longest time from a cancel to its SIGKILL.
    """

    name: str
    daemons: tuple[str, ...]
    cancel_s: float

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        (folder / "work").mkdir(parents=True)

    def call(self, *words: object, check: bool = True) -> str:
        done = subprocess.run(list(map(str, words)), env=self.env, cwd=self.folder / "work", capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        if check and done.returncode:
            raise SystemExit(f"{words}: {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout + done.stderr

    def daemon(self, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / "daemon.log").open("ab") as log:
            return subprocess.Popen(list(map(str, words)), env=self.env, stdout=log, stderr=log, cwd=self.folder,
                                    stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip

    def lines(self, job: int) -> list[str]:
        """What a job wrote, without what a terminal is told."""
        return [line.strip() for line in ESCAPES.sub("", self.log(job)).splitlines()]

    def has_ended(self, job: int) -> bool:
        return self.state(job) in ENDED

    def ended(self, *jobs: int, timeout_s: float = PATIENCE_S) -> bool:
        """Whether these jobs have ended in time; it takes a process to ask some systems."""
        return all(until(lambda j=job: self.has_ended(j), timeout_s, every_s=0.05) for job in jobs)

    def as_other(self, *words: object, **env: str) -> str:
        """What a command says to the second user."""
        done = subprocess.run(list(map(str, words)), user=OTHER, group=OTHER, extra_groups=[], env=self.env | env,
                              cwd="/", capture_output=True, text=True, check=False)  # fmt: skip
        return f"{done.stdout}{done.stderr}".strip()

    @abstractmethod
    def start(self) -> None:
        """Start whatever does not run, and wait until it answers."""

    @abstractmethod
    def submit(self, *words: str, gpus: int = 1, short: bool = False) -> int:
        """Submit a job; a short one is one that is to go first."""

    @abstractmethod
    def log(self, job: int) -> str: ...

    @abstractmethod
    def state(self, job: int) -> str: ...

    @abstractmethod
    def exit_code(self, job: int) -> int | None: ...

    @abstractmethod
    def cancel(self, job: int) -> None: ...

    @abstractmethod
    def queue(self) -> str: ...

    @abstractmethod
    def kill(self, daemon: str) -> None:
        """Kill one of the daemons with SIGKILL."""

    @abstractmethod
    def cancel_as_other(self, job: int) -> str:
        """Let the second user cancel a job; returns what was said."""

    def make_room(self, job: int) -> str:
        """Stop a job by hand, such that another can start; returns the command."""
        raise NotImplementedError

    def again(self, job: int) -> int:
        """Bring a job back by hand; returns its new number."""
        raise NotImplementedError

    @abstractmethod
    def stop(self) -> None:
        """End everything, jobs too."""


class Brim(System):
    daemons = ("controller", "agent")
    cancel_s = 2.0
    brim = (sys.executable, "-m", "brim.cli.main")

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        from brim.api.client import Client

        super().__init__(folder, env | {"BRIM_STATE": str(folder / "s"), "BRIM_RUNTIME": str(folder / "r")})
        self.name, self.client = f"brim {self.call(*self.brim, '--version').split()[-1]}", Client(folder / "r/api.sock")

    def start(self) -> None:
        self.call(*self.brim, "up", "--policy", "srtf", "--allow", OTHER)

    def submit(self, *words: str, gpus: int = 1, short: bool = False) -> int:
        limit = "1m" if short else "1h"
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

    def kill(self, daemon: str) -> None:
        os.kill(int(re.search(r"\d+", (self.folder / "s" / daemon / "lock").read_text())[0]), signal.SIGKILL)

    def cancel_as_other(self, job: int) -> str:
        from brim.errors import BrimError

        says, said = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setresuid(OTHER, OTHER, OTHER)
                refused = self.client.command("cancel", [job]).refused
                os.write(said, str(refused.get(job, "cancelled")).encode())
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
    """gflow with one of its executors, and its shortest poll interval.

    Its programs are on the PATH: a job in tmux says by ``gcancel`` that it has ended, and is running for ever without.
    """

    daemons = ("gflowd",)
    cancel_s = 10.0

    def __init__(self, folder: Path, env: dict[str, str], programs: Path, executor: str) -> None:
        own = {"HOME": str(folder), "USER": "root", "TMUX_TMPDIR": str(folder), "NO_COLOR": "1",
               "PATH": f"{programs}:{env['PATH']}"}  # fmt: skip
        super().__init__(folder, env | own)
        config = folder / ".config" / "gflow" / "gflow.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'timezone = "UTC"\n[daemon]\nhost = "localhost"\nport = {free_port()}\ngpu_poll_interval_secs = 1\n'
            f'[executor]\ntype = "{executor}"\n'
        )
        for name in (".profile", ".bashrc"):  # what tmux starts is a login shell, which sets its own PATH
            (folder / name).write_text(f"export PATH={programs}:$PATH\n")
        self.programs = programs
        version = re.search(r"\d+\.[\d.]+", self.call(programs / "gflowd", "--version"))
        self.name = f"gflow {version[0] if version else '?'}, {executor}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.process = self.daemon(self.programs / "gflowd")
        assert until(lambda: "gpu" in self.call(self.programs / "ginfo", check=False))

    def submit(self, *words: str, gpus: int = 1, short: bool = False) -> int:
        options = ("-p", 100, "-t", "1") if short else ()
        return int(re.search(r"job (\d+)", self.call(self.programs / "gbatch", "-g", gpus, *options, *words))[1])

    def log(self, job: int) -> str:
        path = self.folder / ".local/share/gflow/logs" / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def _shown(self, pattern: str, job: int) -> str:
        shown = re.search(pattern, self.call(self.programs / "gjob", "show", job, check=False))
        return shown[1].lower() if shown else ""

    def state(self, job: int) -> str:
        return self._shown(r"State=(\w+)", job)

    def exit_code(self, job: int) -> int | None:
        shown = self._shown(r"(?i)exit ?code=(-?\d+)", job)
        return int(shown) if shown else None

    def cancel(self, job: int) -> None:
        self.call(self.programs / "gcancel", job)

    def queue(self) -> str:
        return self.call(self.programs / "gqueue")

    def kill(self, daemon: str) -> None:
        del daemon
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def cancel_as_other(self, job: int) -> str:
        return self.as_other(self.programs / "gcancel", job, USER="eve")

    def make_room(self, job: int) -> str:
        self.cancel(job)
        return "gcancel, then gjob redo"

    def again(self, job: int) -> int:
        return int(re.findall(r"\d+", self.call(self.programs / "gjob", "redo", job))[-1])

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill("gflowd")
        subprocess.run(["tmux", "kill-server"], env=self.env, check=False, capture_output=True)


SLICE = "user.slice/user-0.slice/user@0.service"
"""Where jobd looks for the scopes of its jobs, below the mount of control groups, for root."""
USER_MANAGER = f"""
mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && mount -t cgroup2 none /sys/fs/cgroup || exit 1
mkdir -p /sys/fs/cgroup/{SLICE} && echo $$ > /sys/fs/cgroup/{SLICE}/cgroup.procs
/usr/lib/systemd/systemd --user &
until systemctl --user is-active basic.target -q 2>/dev/null; do sleep 0.1; done
touch $HOME/ready
wait
echo 1 > /sys/fs/cgroup/{SLICE}/cgroup.kill
"""


class Jobd(System):
    """jobd: a broker with a token, and a worker with 100 slots beside a systemd user instance.

    It needs the latter in order to end all processes of a job, so one of its own is started, in a mount namespace. Its
    intervals (2 s to look for a signal, 60 s from SIGTERM to SIGKILL of a cancel, 5 s from heartbeat to heartbeat,
    5 min of waiting before it preempts) are constants in its source, version 0.5.52.
    """

    daemons = ("broker", "worker")
    cancel_s = 65.0

    def __init__(self, folder: Path, env: dict[str, str], programs: Path) -> None:
        port = free_port()
        own = {"HOME": str(folder), "PATH": f"{programs}:{env['PATH']}", "XDG_RUNTIME_DIR": str(folder / "x"),
               "JOBD_URL": f"http://127.0.0.1:{port}", "JOBD_PORT": str(port), "JOBD_API_TOKEN": "shared",
               "JOBD_CONFIG_DIR": str(folder / "c"), "JOBD_LOGS_DIR": str(folder / "l"), "JOBD_WORKER_HOST": "box",
               "JOBD_WORKER_MAX_CONCURRENT_JOBS": "100"}  # fmt: skip
        super().__init__(folder, env | own)
        self.programs = programs
        self.name = f"jobd {self.call(programs / 'job', '--version').split()[-1]}"
        (folder / "x").mkdir(mode=0o700)
        (folder / "c").mkdir()
        (folder / "c" / "projects.yaml").write_text(
            "projects:\n"
            "  long: {priority: 10, defaults: {preemptible: true, checkpoint_grace_s: 2}}\n"
            "  short: {priority: 90, defaults: {preemptible: true, checkpoint_grace_s: 2}}\n"
        )
        self.manager: subprocess.Popen[bytes] | None = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.words: dict[int, tuple[str, ...]] = {}

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.env['JOBD_URL']}{path}", headers={"Authorization": "Bearer shared"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def _worker_is_heard(self, since: datetime) -> bool:
        with contextlib.suppress(OSError):
            return any(datetime.fromisoformat(worker["last_heartbeat"]) >= since for worker in self._ask("/workers"))
        return False

    def start(self) -> None:
        since = datetime.now(UTC)
        if self.manager is None:
            self.manager = self.daemon("unshare", "-m", "bash", "-c", USER_MANAGER)
            assert until((self.folder / "ready").exists), "no systemd user instance"
        broker, worker = self.programs / "jobd", self.programs / "jobd-worker"
        for name, words in {"broker": (broker,), "worker": ("nsenter", "-m", "-t", self.manager.pid, worker)}.items():
            if name not in self.processes or self.processes[name].poll() is not None:
                self.processes[name] = self.daemon(*words)
        assert until(lambda: self._worker_is_heard(since)), "no worker"

    def submit(self, *words: str, gpus: int = 1, short: bool = False) -> int:
        memory = ("--vram-required", 70) if gpus == 2 else ()  # it knows one GPU: two are its whole memory
        project = "short" if short else "long"
        said = self.call(self.programs / "job", "submit", "--gpu", "--no-eta", "-p", project, *memory, "--", *words)
        job = int(json.loads(said.splitlines()[0])["id"])
        self.words[job] = words
        return job

    def log(self, job: int) -> str:
        path = self.folder / "l" / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def state(self, job: int) -> str:
        state = self._ask(f"/jobs/{job}")["state"]
        return "finished" if state == "completed" else state

    def exit_code(self, job: int) -> int | None:
        return self._ask(f"/jobs/{job}")["exit_code"]

    def cancel(self, job: int) -> None:
        self.call(self.programs / "job", "cancel", job)

    def queue(self) -> str:
        return self.call(self.programs / "job", "list")

    def kill(self, daemon: str) -> None:
        self.processes[daemon].kill()
        self.processes[daemon].wait()

    def cancel_as_other(self, job: int) -> str:
        packages = next(self.programs.parent.glob("lib/*/site-packages"))  # the interpreter may be in root's home
        words, env = ("/usr/bin/python3", self.programs / "job", "cancel", job), {"PYTHONPATH": str(packages)}
        without = self.as_other(*words, **env | {"JOBD_API_TOKEN": "", "HOME": "/"})
        assert self.state(job) == "running", without
        self.as_other(*words, **env | {"HOME": "/"})
        return f"refused without the token ({without.splitlines()[-1]}), which all who submit share"

    def make_room(self, job: int) -> str:
        self.call(self.programs / "job", "preempt", job)
        return "job preempt, then job submit again"

    def again(self, job: int) -> int:
        return self.submit(*self.words[job], gpus=2)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        if self.manager is not None:
            where = Path("/proc") / str(self.manager.pid) / "root/sys/fs/cgroup" / SLICE
            with contextlib.suppress(OSError):
                (where / "cgroup.kill").write_text("1")
            self.manager.wait()
