"""Gangs in which a rank, a command, or the opening of a log fails: what ends, what goes on, and what is said."""

import os
import signal
import subprocess
import sys

import pytest

from brim.gang.messages import (
    KillRequest,
    ResizeRequest,
    StopRequest,
)
from brim.gang.processes import find_process
from tests.gang.conftest import PATIENCE_S, RANK
from tests.gang.test_supervisor import pids, stepping, training


def test_the_exception_of_one_rank_ends_all_with_its_traceback_first(launch):
    gang = launch("--nproc", 4, RANK, "fail=2:5")
    assert gang.wait() == 1
    lines = gang.stderr().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Traceback"))
    assert not [line for line in lines[:first] if "brim: control" not in line and "broke" not in line]
    assert lines.count("ValueError: the user's own mistake in 2") == 1
    assert lines[-1] == "brim: rank 2 failed first: exited with 1"


def test_of_several_tracebacks_the_first_cause_comes_first(launch):
    gang = launch("--nproc", 4, "--failure-grace", 60, RANK, "fail=1:5", "brittle", "ignore")
    assert gang.wait() == 1
    text = gang.stderr()
    assert text.index("the user's own mistake in 1") < text.index("Traceback", text.index("Traceback") + 1)
    assert text.count("lost its peers") >= 1
    assert text.splitlines()[-1] == "brim: rank 1 failed first: exited with 1"


@pytest.mark.cases(1)
@pytest.mark.parametrize("linger_s", [0, 1])
@pytest.mark.parametrize("steps", [5, 0])
def test_survivors_that_wait_for_a_new_generation_end_with_a_gang_that_fails(launch, steps, linger_s):
    """They ask for no step to leave after, so SIGTERM is not heard by a session."""
    gang = launch("--nproc", 3, "--failure-grace", 120, RANK, f"fail=1:{steps}", f"linger={linger_s}", "ignore")
    assert gang.wait(60) == 1
    assert "SIGKILL" not in gang.stderr()


def test_a_rank_that_raised_and_then_got_sigterm_failed_by_its_exception(launch, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, socket, time\nfrom brim.gang.codec import encode\n"
        "from brim.gang.messages import Failed, Hello\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['BRIM_CONTROL'])\n"
        "s.sendall(encode(Hello(int(os.environ['BRIM_ID']), os.getpid())))\n"
        "if os.environ['BRIM_ID'] == '1': s.sendall(encode(Failed('ValueError: mine\\n')))\n"
        "time.sleep(60)\n"
    )
    gang = launch("--nproc", 2, tmp_path / "slow.py")
    assert gang.wait() == 1
    assert gang.stderr().splitlines()[-1] == "brim: rank 1 failed first: by an exception"


def test_peers_that_fail_sooner_do_not_hide_the_first_cause(launch, tmp_path):
    script = tmp_path / "gloo.py"
    script.write_text(
        "import os, signal, socket, sys, time\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which comes first where it stalls now\n"
        "    server = socket.create_server(('127.0.0.1', port)); peer, _ = server.accept()\n"
        "    try: raise ValueError('the cause')\n"
        "    finally: peer.close(); time.sleep(0.3)\n"
        "while True:\n"
        "    try: peer = socket.create_connection(('127.0.0.1', port)); break\n"
        "    except OSError: time.sleep(0.02)\n"
        "if not peer.recv(1): raise ConnectionError('a consequence')\n"
    )
    gang = launch("--nproc", 2, "--failure-grace", 60, script)
    assert gang.wait() == 1
    text = gang.stderr()
    assert "the cause" in text
    assert "a consequence" in text


@pytest.mark.timing
def test_a_killed_rank_failed_first_though_the_exception_of_another_is_seen_sooner(launch, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, socket, time\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    server = socket.create_server(('127.0.0.1', port)); peer, _ = server.accept()\n"
        "    peer.close(); peer, _ = server.accept(); peer.recv(1)  # until the other has ended\n"
        "    time.sleep(0.05); os.kill(os.getpid(), signal.SIGKILL)\n"
        "while True:\n"
        "    try: peer = socket.create_connection(('127.0.0.1', port)); break\n"
        "    except OSError: time.sleep(0.02)\n"
        "if not peer.recv(1):\n"
        "    until_the_end = socket.create_connection(('127.0.0.1', port)); raise ConnectionError('a consequence')\n"
    )
    gang = launch("--nproc", 2, script)
    assert gang.wait() == 128 + signal.SIGKILL
    text = gang.stderr()
    assert "a consequence" in text
    assert text.splitlines()[-1] == "brim: rank 0 failed first: ended by SIGKILL"


def test_a_gang_of_a_fixed_size_fails_when_a_rank_is_killed(launch):
    gang = launch("--nproc", 2, RANK, "sizes=2")
    os.kill(pids(gang.until(training(2)))[0], signal.SIGKILL)
    assert gang.wait() == 128 + signal.SIGKILL
    assert "the other ranks continue" not in gang.stderr()
    assert gang.stderr().splitlines()[-1] == "brim: rank 0 failed first: ended by SIGKILL"


def test_with_logs_the_first_traceback_is_shown_and_each_rank_has_its_file(launch, tmp_path):
    gang = launch("--nproc", 2, "--logs", tmp_path / "logs", RANK, "fail=1:3")
    assert gang.wait() == 1
    assert "mistake in 1" in gang.stderr()
    assert "mistake in 1" in (tmp_path / "logs" / "rank-1.log").read_text()
    assert (tmp_path / "logs" / "rank-0.log").exists()


@pytest.mark.parametrize("wrong", ["file", "log"])
def test_logs_that_cannot_be_opened_at_the_start_end_it(launch, tmp_path, wrong):
    logs = tmp_path / "logs"
    if wrong == "file":
        logs.write_text("x")
    else:
        (logs / "rank-1.log").mkdir(parents=True)
    gang = launch("--nproc", 2, "--logs", logs, RANK)
    assert gang.wait() == (2 if wrong == "file" else 126)
    last = gang.stderr().splitlines()[-1]
    expected = {"file": f"brim: --logs {logs}: File exists; expected a writable folder",
                "log": f"brim: rank 1: its output cannot be opened: Is a directory: {logs / 'rank-1.log'}"}  # fmt: skip
    assert last == expected[wrong]
    assert "Traceback" not in gang.stderr()


@pytest.mark.parametrize("replace", [0, 5])
def test_a_newcomer_whose_log_cannot_be_opened_does_not_come_and_the_gang_goes_on(launch, tmp_path, replace):
    logs = tmp_path / "logs"
    gang = launch("--nproc", 2, "--replace", replace, "--logs", logs, RANK)
    gang.until(training(2))
    logs.rename(tmp_path / "elsewhere")
    logs.write_text("x")
    answer = gang.request(ResizeRequest(4))
    assert not answer.ok
    assert answer.detail.startswith("rank 3: its output cannot be opened: File exists")
    status = gang.status()
    assert status["target"] == 2
    assert training(2)(status)
    assert gang.stderr().count("cannot be opened") == 2
    stepping(gang)
    logs.unlink()
    assert gang.request(ResizeRequest(3)).ok
    gang.until(training(3))
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75


def test_a_replacement_that_cannot_be_started_does_not_end_the_others(launch, tmp_path):
    logs = tmp_path / "logs"
    gang = launch("--nproc", 2, "--replace", 3, "--logs", logs, RANK)
    gang.until(training(2))
    logs.rename(tmp_path / "elsewhere")
    logs.write_text("x")
    assert gang.request(KillRequest(1)).ok
    gang.until(lambda status: training(1)(status) and status["generation"] == 2)
    stepping(gang)
    assert gang.stderr().count("cannot be opened") == 1
    assert gang.request(StopRequest()).ok
    assert gang.wait() == 0


def test_a_crash_of_a_plain_command_ends_the_gang(launch):
    gang = launch("--nproc", 2, "--command", "bash", "-c", 'if [ $RANK = 1 ]; then exit 5; fi; sleep 60')
    assert gang.wait(30) == 5  # the other rank would run for 60 s
    assert "rank 1 failed first: exited with 5" in gang.stderr()


TRACED = """
import ctypes, os, signal
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
PTRACE_TRACEME = 0  # each signal stops it until its parent lets it go on, and so does an exec
ctypes.CDLL(None).ptrace(PTRACE_TRACEME, 0, 0, 0)
os.kill(os.getpid(), signal.SIGUSR1)
ctypes.CDLL(None).ptrace(PTRACE_TRACEME, 0, 0, 0)
os.execvp("sh", ["sh", "-c", "exit 3"])
"""


@pytest.mark.parametrize("zygote_lives", [True, False])
def test_a_rank_that_has_itself_traced_gets_its_signals_and_goes_on(launch, tmp_path, zygote_lives):
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    gang = launch("--nproc", 1, "--command", sys.executable, "-c", wait + TRACED)
    status = gang.until(lambda status: status["ranks"][0]["pid"])
    if not zygote_lives:
        os.kill(status["zygote"], signal.SIGKILL)
        gang.until(lambda status: find_process(status["ranks"][0]["pid"]).parent == gang.process.pid)
    go.touch()
    assert gang.wait() == 3
    assert gang.stdout() == "heard\n"
    assert gang.stderr().splitlines()[-1] == "brim: rank 0 failed first: exited with 3"


def test_a_command_that_cannot_be_started_is_named(launch):
    gang = launch("--nproc", 2, "--command", "no-such-program", "x")
    assert gang.wait() == 127
    assert "cannot start no-such-program" in gang.stderr()


def test_a_plain_command_is_terminated_and_resumable(launch):
    gang = launch("--nproc", 2, "--command", "bash", "-c", "sleep 60 & wait")
    gang.until(lambda status: all(rank["pid"] for rank in status["ranks"]))
    assert "no rank has connected yet" in gang.request(ResizeRequest(1)).detail
    gang.process.send_signal(signal.SIGTERM)
    assert gang.wait() == 75


def test_a_plain_command_has_what_torchrun_sets(launch):
    gang = launch("--nproc", 2, "--devices", "4,7", "--command", "env")
    assert gang.wait() == 0
    lines = gang.stdout().splitlines()
    for name in ("RANK=0", "RANK=1", "LOCAL_RANK=1", "LOCAL_RANK=0"):
        assert lines.count(name) == 1
    for name in ("WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "CUDA_VISIBLE_DEVICES=4,7",
                 "GROUP_RANK=0", "OMP_NUM_THREADS=1"):
        assert lines.count(name) == 2
    assert sum(line.startswith("MASTER_PORT=") for line in lines) == 2


STARTS_NO_ZYGOTE = """
import os, sys
from brim.gang.launch_config import LaunchConfig
from brim.gang.supervisor import Supervisor
env = {**os.environ, "PYTHONHOME": "/nonexistent"}
config = LaunchConfig(("true",), 1, sys.argv[1] + "/s", "/", env=env, preload=(), log_folder=sys.argv[1] + "/log")
print(Supervisor(config).run().detail)
"""
ENDS_BEFORE_IT_IS_ASKED = """
import os
from brim.gang.zygote_client import ZygoteClient
private = ZygoteClient.private
def ended(*args):
    zygote = private(*args)
    os.waitid(os.P_PID, zygote.pid, os.WEXITED | os.WNOWAIT)
    return zygote
ZygoteClient.private = ended
"""


@pytest.mark.parametrize("before", ["", ENDS_BEFORE_IT_IS_ASKED], ids=["at some time", "before it is asked"])
def test_a_gang_whose_zygotes_all_end_before_they_start_a_rank_fails(tmp_path, before):
    words = [sys.executable, "-c", before + STARTS_NO_ZYGOTE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "rank 0: no zygote: 3 ended before they had started a rank\n"
