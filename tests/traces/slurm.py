"""A real Slurm with accounting on this machine, for tests: loopback only, make-believe GPUs, all files in one folder.

munge, MariaDB, slurmdbd, slurmctld and one slurmd per node run in the foreground as children of the test, and are ended
by their process ids. The GPUs are null devices; scheduling and accounting are real. Needs root and Debian's packages
slurm-wlm, slurmdbd, mariadb-server and munge.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port

PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sacct")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
NODES = {"a1": ("a100", 4), "a2": ("a100", 4), "a3": ("a100", 2), "t1": ("t4", 2)}
"""Node -> GPU type, GPUs; the first letter is its partition."""
STARTS_S = 180.0
"""A busy machine takes that long at worst; an idle one, seconds."""
ENDS_S = 10.0


def why_not() -> str:
    """Why Slurm cannot run here; empty where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"no Slurm with accounting on this machine: no {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


class Slurm:
    """A running cluster; commands are run with its configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf"), "LC_ALL": "C.UTF-8"}
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str | bytes, timeout_s: float = 30) -> str:
        """Run a command and return what it prints."""
        done = subprocess.run(command, env=self._environment, capture_output=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def shell(self, line: str) -> bytes:
        """Run a line of shell and return what it prints, byte for byte."""
        done = subprocess.run(line, shell=True, env=self._environment, capture_output=True, timeout=30, check=True)
        return done.stdout

    def submit(self, *args: str | bytes, script: str = "sleep 1") -> str:
        """Submit a job and return its id."""
        return self.run("sbatch", "--parsable", "-o", "/dev/null", *args, "--wrap", script)

    def wait_until_running(self, job: str) -> None:
        """Wait for the job to start."""
        _until(lambda: self.run("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING", f"job {job} to run")

    def wait_until_empty(self) -> None:
        """Wait until no job is queued or running, and the accounting has heard of it."""
        _until(lambda: not self.run("squeue", "-h"), "the queue to empty")
        jobs = set(self.run("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%A").split())
        accounting = ("sacct", "-a", "-X", "-n", "-P", "-o")
        _until(lambda: jobs <= set(self.run(*accounting, "jobidraw").split()), "the accounting of every job")
        _until(lambda: "Unknown" not in self.run(*accounting, "end"), "the accounting of every end")

    def _start(self, *command: str, user: str | None = None) -> subprocess.Popen[bytes]:
        log = (self.folder / "log" / Path(command[0]).name).open("ab")
        process = subprocess.Popen(
            command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, group=user,
            extra_groups=[] if user else None, start_new_session=True,
        )  # fmt: skip
        log.close()
        self._running.append(process)
        return process

    def up(self) -> None:
        """Start everything and wait until all nodes are idle."""
        folder = self.folder
        for name in ("log", "state", "spool", "db", "db-tmp", "munge", "gpu"):
            (folder / name).mkdir()
        self._start_munge()
        self._start_database()
        _write_configuration(folder)
        for gpu in range(max(count for _, count in NODES.values())):
            os.mknod(folder / "gpu" / f"nvidia{gpu}", 0o20666, os.makedev(1, 3))
        self._start("slurmdbd", "-D")
        _until(lambda: self._answers("sacctmgr", "-n", "list", "cluster"), "slurmdbd")
        for what in (("cluster", "rig"), ("account", "lab", "cluster=rig"), ("user", "root", "account=lab")):
            self.run("sacctmgr", "-i", "add", *what)
        self._start("slurmctld", "-D")
        for node in NODES:
            (folder / "spool" / node).mkdir()
            self._start("slurmd", "-D", "-N", node)
        try:
            _until(lambda: self._answers("sinfo", "-hN", "-t", "idle", "-o", "%N").split() == list(NODES), "all nodes")
        except TimeoutError as error:
            logs = (file.read_text(errors="replace")[-1_500:] for file in sorted((folder / "log").glob("slurm*")))
            raise TimeoutError("\n".join((str(error), self._answers("sinfo", "-hNl"), *logs))) from None

    def _answers(self, *command: str) -> str:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            return self.run(*command, timeout_s=5) or "yes"
        return ""

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        for path in (folder, folder / "key"):
            os.chown(path, pwd.getpwnam("munge").pw_uid, pwd.getpwnam("munge").pw_gid)
        (folder / "key").chmod(0o400)
        options = [f"--{name}={folder / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self._start("munged", "--foreground", "--force", f"--key-file={folder / 'key'}", *options, user="munge")
        _until((folder / "socket").is_socket, "munge")

    def _start_database(self) -> None:
        folder, temporary = self.folder / "db", self.folder / "db-tmp"
        for path in (folder, temporary):  # a server that starts removes what others have in a common temporary folder
            shutil.chown(path, "mysql")
        options = ("--no-defaults", "--user=mysql", f"--datadir={folder}", f"--tmpdir={temporary}")
        self.run("mariadb-install-db", *options, timeout_s=120)
        folder.chmod(0o755)
        self._start(
            "mariadbd", *options, f"--socket={folder / 'socket'}",
            "--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        client = ("mariadb", "--no-defaults", "-S", str(folder / "socket"), "-e")
        _until(lambda: self._answers(*client, "select 1"), "MariaDB")
        self.run(*client, "create database slurm_acct_db; create user slurm@localhost identified by 'slurm'; "
                          "grant all on slurm_acct_db.* to slurm@localhost")  # fmt: skip
        self._environment["MYSQL_UNIX_PORT"] = str(folder / "socket")

    def down(self) -> None:
        """End the jobs, then the daemons, newest first, each by its process id."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, TimeoutError):
            self.run("scancel", "--user=root")
            _until(lambda: not self.run("squeue", "-h"), "the queue to empty", ENDS_S)
        for process in reversed(self._running):
            process.terminate()
            try:
                process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until(true, what: str, within_s: float = STARTS_S) -> None:
    end_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {within_s:g} s for {what}")
        time.sleep(0.1)


def _write_configuration(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    ports: set[int] = set()  # below those that the kernel gives to connections, which would take them meanwhile
    while len(ports) < 2 + len(NODES):
        ports.add(free_port())
    control, database, *nodes = ports
    munge = f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket"
    (folder / "slurmdbd.conf").write_text(f"""\
{munge}
DbdHost=localhost
DbdPort={database}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
PidFile={folder}/slurmdbd.pid
""")
    (folder / "slurmdbd.conf").chmod(0o600)
    rows = "".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=32 CoresPerSocket=32 "
        f"RealMemory=64000 Gres=gpu:{kind}:{count} State=UNKNOWN\n"
        for port, (node, (kind, count)) in zip(nodes, NODES.items(), strict=True)
    )
    # a requeued job starts again once its credential has expired: after five seconds instead of two minutes
    (folder / "slurm.conf").write_text(f"""\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
{munge},cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SchedulerParameters=bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={database}
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:t4
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait=2
{rows}PartitionName=a Nodes=a[1-3] Default=YES DefaultTime=60 MaxTime=INFINITE State=UP
PartitionName=t Nodes=t1 DefaultTime=60 MaxTime=INFINITE State=UP
""")
    (folder / "gres.conf").write_text("".join(
        f"NodeName={node} Name=gpu Type={kind} File={folder}/gpu/nvidia[0-{count - 1}]\n"
        for node, (kind, count) in NODES.items()
    ))  # fmt: skip


@contextlib.contextmanager
def slurm_running() -> Iterator[Slurm]:
    """A cluster in a folder of its own, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="brim-slurm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # munge and MariaDB run as users of their own
        slurm = Slurm(folder)
        try:
            slurm.up()
            yield slurm
        finally:
            slurm.down()
