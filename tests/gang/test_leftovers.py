"""What is left of a gang after daemons, kills and many starts: no process, memory, descriptor, file or port."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from brim.gang.messages import (
    KillRequest,
    ResizeRequest,
)
from brim.gang.processes import find_process
from tests.gang.conftest import PATIENCE_S, RANK, shared_memory, shared_memory_name
from tests.gang.test_supervisor import pids, training
from tests.sampling import sample

ORPHAN = """
import os, sys, time, signal
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if "exec" in sys.argv: os.execv("/bin/sleep", ["sleep", "60"])
            os.environ.clear()
            time.sleep(60)
        os._exit(0)
    os.wait()
daemon()
open(f"ready{os.environ['RANK']}", "w").close()
if "wait" in sys.argv: time.sleep(60)
if "fail" in sys.argv: 1/0
"""


@pytest.mark.cases(1)
@pytest.mark.parametrize("words", [["exec"], ["fork"], ["fork", "fail"], ["exec", "wait"]])
def test_daemons_that_double_forked_away_are_gone_with_the_gang(launch, tmp_path, words):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    gang = launch("--nproc", 2, tmp_path / "orphan.py", *words)
    if "wait" in words:
        while not all((gang.folder / f"ready{n}").exists() for n in range(2)):
            time.sleep(0.02)
        gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == {"fail": 1, "wait": 75}.get(words[-1], 0)


def test_daemons_of_a_killed_rank_go_with_it_while_the_others_stay(launch, tmp_path):
    (tmp_path / "both.py").write_text(ORPHAN + "\nimport runpy\nsys.argv = ['rank.py']\n"
                                      f"runpy.run_path({str(RANK)!r}, run_name='__main__')")
    gang = launch("--nproc", 2, tmp_path / "both.py", "exec")
    ids = pids(gang.until(training(2)))
    deadline_s = time.monotonic() + PATIENCE_S
    while asleep(gang) != {"0", "1"} and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert asleep(gang) == {"0", "1"}
    os.kill(ids[1], signal.SIGKILL)
    gang.until(training(1))
    deadline_s = time.monotonic() + PATIENCE_S
    while asleep(gang) != {"0"} and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert asleep(gang) == {"0"}


def asleep(gang):
    """Ranks whose daemons are there."""
    mark, found = gang.status()["gang"], set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() == ["sleep", "60"] and process.environ().get("BRIM_GANG") == mark:
                found.add(process.environ()["BRIM_ID"])
    return found


def test_shared_memory_of_a_killed_rank_is_unlinked(launch, tmp_path):
    (tmp_path / "shared.py").write_text(
        "from multiprocessing.shared_memory import SharedMemory\nimport os, time\n"
        f"m = SharedMemory(name={shared_memory_name(tmp_path)!r} + os.environ['RANK'], create=True, size=4096)\n"
        "open('ready' + os.environ['RANK'], 'w').close()\ntime.sleep(60)\n"
    )
    gang = launch("--nproc", 2, tmp_path / "shared.py")
    while not all((gang.folder / f"ready{n}").exists() for n in range(2)):
        time.sleep(0.02)
    assert len(shared_memory(tmp_path)) == 2
    gang.request(KillRequest(0))
    assert gang.wait() == 128 + signal.SIGKILL
    assert not shared_memory(tmp_path)


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def test_when_the_supervisor_is_killed_nothing_is_left(launch, tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    gang = launch("--nproc", 2, tmp_path / "stubborn.py", env={"TMPDIR": str(tmp_path)})
    ids = pids(gang.until(lambda status: all(rank["pid"] for rank in status["ranks"])))
    zygote = gang.status()["zygote"]
    gang.process.kill()
    gang.wait()
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and any(psutil.pid_exists(pid) for pid in [*ids.values(), zygote]):
        time.sleep(0.02)
    assert not [pid for pid in [*ids.values(), zygote] if psutil.pid_exists(pid)]
    assert not list(tmp_path.glob("brim-*"))
    again = launch("--nproc", 1, RANK, "steps=3", control=gang.control)
    assert again.wait() == 0


def test_a_signal_after_the_end_of_the_gang_does_not_change_the_exit_code(launch):
    gang = launch("--nproc", 1, "--command", "sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 3")
    gang.until(lambda status: status["ranks"][0]["pid"])
    (gang.folder / "go").touch()
    while Path(gang.control).exists():  # the supervisor removes it when all ranks have ended
        pass
    while gang.process.poll() is None:
        gang.process.terminate()
    assert gang.wait() == 3, gang.stderr()


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments_leave_nothing(launch, seed):
    dice = random.Random(seed)
    gang = launch("--nproc", 4, RANK, "sizes=1,2,4")
    gang.until(lambda status: True)  # from then on it handles signals
    time.sleep(dice.uniform(0, 0.4))
    for _ in range(8):
        with contextlib.suppress(OSError):
            status = gang.status()
            ranks = [pid for pid in pids(status).values() if pid]
            what = dice.choice(["rank", "rank", "zygote", "resize", "resize"])
            if what == "resize":
                gang.request(ResizeRequest(dice.choice([1, 2, 4])))
            elif what == "zygote" and status["zygote"]:
                os.kill(status["zygote"], signal.SIGKILL)
            elif len(ranks) > 1:
                os.kill(dice.choice(ranks), signal.SIGKILL)
        time.sleep(dice.uniform(0, 0.15))
    if gang.process.poll() is None:
        gang.process.send_signal(dice.choice([signal.SIGKILL, signal.SIGTERM]))
    code = gang.wait()
    assert code in (75, -9, 137, 0), gang.stderr()
    if code == -9:
        time.sleep(1.5)


def test_gangs_leak_no_descriptor_thread_file_or_port(tmp_path):
    program = f"""
import os, sys, threading, glob, tempfile
from brim.gang.launch_config import LaunchConfig
from brim.gang.supervisor import Supervisor
def count():
    files = glob.glob(tempfile.gettempdir() + '/brim-*')
    return len(os.listdir('/proc/self/fd')), threading.active_count(), len(files)
for n in range({sample(51, 16)}):
    if n == 1: before = count()
    config = LaunchConfig((sys.executable, '-c', ''), 2, {str(tmp_path / "s")!r}, '/', preload=())
    result = Supervisor(config).run()
    assert result.exit_code == 0, result
print(before == count(), before, count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert done.stdout.startswith("True"), done.stdout + done.stderr
    listening = [c for c in psutil.net_connections() if c.status == psutil.CONN_LISTEN and c.pid == os.getpid()]
    assert not listening


def test_the_fork_of_a_shared_zygote_serves_a_gang(launch, tmp_path):
    path = tmp_path / "z"
    root = subprocess.Popen([sys.executable, "-m", "brim.gang.zygote", "--listen", path, "--preload", "json"],
                            env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert b"listening" in root.stderr.readline()
        gang = launch("--nproc", 2, "--zygote", path, RANK)
        status = gang.until(training(2))
        assert {rank["start_method"] for rank in status["ranks"]} == {"fork"}
        gang.request(KillRequest(1))
        gang.until(training(1))
        gang.process.send_signal(signal.SIGTERM)
        assert gang.wait() == 75
        assert not Path(f"/proc/{status['ranks'][0]['pid']}").exists()
    finally:
        root.terminate()
        root.wait()
        root.stderr.close()
    assert not path.exists()


@pytest.mark.slow
def test_ranks_are_killed_although_their_zygotes_and_the_one_that_listened_are_gone(launch, tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    listening = subprocess.Popen(
        [sys.executable, "-m", "brim.gang.zygote", "--listen", str(tmp_path / "z"), "--preload", ""]
    )
    while not (tmp_path / "z").exists():
        time.sleep(0.02)
    gang = launch("--nproc", 2, "--zygote", tmp_path / "z", tmp_path / "stubborn.py")
    status = gang.until(lambda status: all(rank["pid"] for rank in status["ranks"]))
    listening.terminate()
    listening.wait()
    os.kill(status["zygote"], signal.SIGKILL)
    gang.until(lambda status: not status["zygote"])
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75, gang.stderr()
    left = [found for rank in status["ranks"] if (found := find_process(rank["pid"])) and found.state not in "ZX"]
    assert not left


def test_a_gang_whose_shared_zygote_ends_before_it_has_forked_one_starts_its_own(launch, tmp_path):
    """As when an agent is killed while its zygote still loads torch."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "z"))
        listener.listen()
        gang = launch("--nproc", 2, "--zygote", tmp_path / "z", RANK)
        listener.accept()[0].close()
    gang.until(training(2))
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75, gang.stderr()


STARTS = """
import subprocess, sys
words = [sys.executable, "-m", "brim.gang.zygote", "--listen", sys.argv[1], "--preload", "json"]
zygote = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
print(zygote.stderr.readline(), zygote.pid, flush=True)
zygote.wait()
"""


def test_a_shared_zygote_ends_with_the_process_that_started_it(tmp_path):
    path = tmp_path / "z"
    parent = subprocess.Popen([sys.executable, "-c", STARTS, path], stdout=subprocess.PIPE, text=True)
    said = parent.stdout.readline()
    assert "listening" in said
    pidfd = os.pidfd_open(int(said.split()[-1]))
    parent.kill()
    parent.communicate()
    ended = select.select([pidfd], [], [], 20)[0]
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    assert ended
    assert not path.exists()


def test_a_shared_zygote_whose_parent_has_ended_before_it_could_watch_it_ends(tmp_path):
    parent = subprocess.Popen(["true"])
    parent.wait()
    words = [sys.executable, "-m", "brim.gang.zygote", "--listen", tmp_path / "z", "--preload", "json"]
    subprocess.run([*words, "--parent", str(parent.pid)], check=True, timeout=PATIENCE_S, capture_output=True)


def test_a_shared_zygote_removes_no_file(tmp_path):
    (tmp_path / "z").write_text("of somebody")
    done = subprocess.run([sys.executable, "-m", "brim.gang.zygote", "--listen", tmp_path / "z", "--preload", "json"],
                          capture_output=True, text=True, check=False, timeout=PATIENCE_S)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"brim zygote: --listen {tmp_path / 'z'}: ")
    assert (tmp_path / "z").read_text() == "of somebody"
