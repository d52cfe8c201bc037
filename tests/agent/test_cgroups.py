"""Attempts in cgroups of their own, by a real agent in a real cgroup that was made for it."""

import os
import signal
import subprocess
import sys

import pytest

from brim.agent import attempt_files, cgroups
from brim.agent.attempt_files import EndFile
from brim.agent.cgroups import LEAF, CgroupTree, noted_tree
from brim.agent.protocol import FAILED, FINISHED, LOST, NONE, RUNNING, STOPPED, StopAttempt
from brim.gang.cgroup import Cgroup
from brim.gang.client import send_request
from brim.gang.messages import StatusRequest
from brim.gang.usage import NOT_MEASURED
from tests.agent.conftest import inside
from tests.agent.test_agent import is_gone

ESCAPES = """
import os, signal, sys, time
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, [sys.executable, "-c", f"import os, time; os.close(0); os.close(1); "
                  f"open({sys.argv[1] + '.part'!r}, 'w').write(str(os.getpid())); "
                  f"os.rename({sys.argv[1] + '.part'!r}, {sys.argv[1]!r}); time.sleep(1000)"], {})
    os._exit(0)
while not os.path.exists(sys.argv[1]) or "stay" in sys.argv:
    time.sleep(0.01)
"""
"""A job whose daemon has another parent, another session, no environment, and ignores all signals."""


@pytest.fixture
def tree():
    """A cgroup made for an agent, without processes; all in it are ended afterwards."""
    own = cgroups._own_cgroup()
    if own is None:
        pytest.skip("cgroup2 is not mounted")
    found = Cgroup(own / f"brim-test-{os.getpid()}")
    try:
        found.path.mkdir()
    except OSError as error:
        pytest.skip(f"cgroup2: {own}: {error.strerror}")
    if not (found.path / "cgroup.kill").exists():
        found.remove()
        pytest.skip("cgroup2 has no cgroup.kill before Linux 5.14")
    yield found
    assert found.end(15) == []
    assert found.remove()


@pytest.fixture
def escapes(node, tmp_path):
    """Start a job that escapes, and return the process id of its daemon."""

    def start(one, attempt, *words):
        (tmp_path / "escapes.py").write_text(ESCAPES)
        place = tmp_path / f"escaped-{attempt}"
        capture = one.capture(sys.executable, "-P", tmp_path / "escapes.py", place, *words)
        one.run(1, attempt, capture, grace_s=1)
        return one.until(lambda: place.exists() and int(place.read_text()))

    return start


def status_of(one, attempt=1):
    return send_request(str(one.attempt_folder(1, attempt) / "control"), StatusRequest()).status


def test_processes_that_hide_are_ended_and_measured(tree, node, escapes):
    one = node(cgroup=tree)
    assert noted_tree(one.agent_folder).path == str(tree.path)
    daemon = escapes(one, 1)
    end = one.ended(1)
    assert end.outcome == FINISHED
    assert is_gone(daemon)
    assert not (tree.path / "job-1-1").exists()
    assert 0 < end.cpu_ms < 60_000
    written = attempt_files.read_fields(one.attempt_folder(1), attempt_files.END, EndFile)
    assert written.cpu_ms == end.cpu_ms


@pytest.mark.slow
def test_nothing_of_an_attempt_hides_from_the_next_agent(tree, node, escapes):
    """When supervisor, zygote and agent are killed, nothing but its cgroup names a process without an environment."""
    one = node(cgroup=tree)
    daemon = escapes(one, 1, "stay")
    status = status_of(one)
    for pid in (one.process.pid, status["supervisor"], status["zygote"]):
        os.kill(pid, signal.SIGKILL)
    one.kill_agent()
    assert daemon in Cgroup(tree.path / "job-1-1").processes()
    one.forget()
    one.start_agent()
    end = one.ended(1)
    assert (end.outcome, end.cpu_ms > 0) == (LOST, True)
    assert is_gone(daemon)
    assert not (tree.path / "job-1-1").exists()


@pytest.mark.slow
def test_an_adopted_attempt_stays_in_its_cgroup_and_ends_in_it(tree, node, escapes):
    (tree.path / "job-9-1").mkdir()
    one = node(cgroup=tree)
    assert not (tree.path / "job-9-1").exists(), "left by an agent before"
    daemon = escapes(one, 1, "stay")
    one.in_state(1, RUNNING)
    held = Cgroup(tree.path / "job-1-1")
    status = status_of(one)
    ranks = {rank["pid"] for rank in status["ranks"]}
    assert {daemon, *ranks} <= set(held.processes())
    assert {one.process.pid, status["supervisor"]} <= set(Cgroup(tree.path / LEAF).processes())
    one.kill_agent()
    one.forget()
    one.start_agent()
    one.until(lambda: one.synced)
    assert {daemon, *ranks} <= set(held.processes())
    one.send(StopAttempt(job=1, attempt=1, grace_s=1, reason="cancelled"))
    assert one.ended(1).outcome == STOPPED
    assert is_gone(daemon)
    assert not held.path.exists()


def test_a_cgroup_that_others_are_in_is_left_alone(tree, node):
    other = subprocess.Popen([*inside(tree), "sleep", "1000"])
    try:
        one = node(cgroup=tree)
        assert noted_tree(one.agent_folder).path == ""
        assert "other processes are in it" in noted_tree(one.agent_folder).missing
        one.run(1, 1, one.capture("true"))
        end = one.ended(1)
        assert (end.outcome, end.cpu_ms) == (FINISHED, NONE)
        assert [path.name for path in tree.path.iterdir() if path.is_dir()] == []
    finally:
        other.kill()
        other.wait()


def test_an_attempt_that_ran_out_of_memory_says_so(tree, node, tmp_path):
    (tree.path / LEAF).mkdir()
    if "memory" not in (tree.path / "cgroup.controllers").read_text():
        pytest.skip("cgroup2 has no memory controller here")
    one = node(cgroup=Cgroup(tree.path / LEAF))
    assert noted_tree(one.agent_folder) == CgroupTree(path=str(tree.path))
    script = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = bytearray(300 << 20)"
    one.run(1, 1, one.capture(sys.executable, "-c", script, cwd=tmp_path))
    one.in_state(1, RUNNING)
    (tree.path / "job-1-1" / "memory.max").write_text(str(100 << 20))
    (tmp_path / "go").touch()
    end = one.ended(1)
    assert (end.outcome, end.exit_code, end.oom_kills) == (FAILED, 137, 1)
    assert end.detail == "ended by SIGKILL; out of memory: the kernel killed 1 of its processes"
    assert 50 << 20 < end.memory_peak_bytes <= 100 << 20
    assert 1 <= end.processes_peak < 100


def test_a_cgroup_that_is_gone_is_empty_and_was_not_measured(tmp_path):
    gone = Cgroup(tmp_path / "gone")
    assert gone.is_empty()
    assert gone.end(1) == gone.processes() == []
    assert gone.usage() == NOT_MEASURED
    assert gone.remove()
