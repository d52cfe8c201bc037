"""The agent with real processes: what it starts ends as it was ordered, whoever is killed meanwhile."""

import errno
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.agent import attempt, attempt_files
from brim.agent.agent import Agent
from brim.agent.capture import write_capture
from brim.agent.cgroups import CgroupTree
from brim.agent.devices import CpuSlots
from brim.agent.protocol import (
    ENDED,
    FAILED,
    FINISHED,
    LOST,
    NONE,
    RUNNING,
    STOPPED,
    STOPPING,
    UNUSABLE,
    AttemptSeen,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
)
from brim.gang import processes
from brim.gang.inherited import Inherited


def test_a_plain_command_runs_with_its_environment_and_its_exit_code_is_told(node):
    one = node(devices=2)
    assert one.hello.devices == ("cpu0", "cpu1")
    capture = one.capture(
        "/bin/sh", "-c", 'echo "$GREETING $BRIM_JOB_ID.$BRIM_ATTEMPT on $BRIM_DEVICES, $(pwd)"; env >&2; exit 75',
        env={"GREETING": "hello", "BRIM_CONTROL": "/of/another/job"},
    )
    one.run(7, 3, capture, devices=(1,), loader_workers=2)
    end = one.ended(7, 3)
    assert (end.outcome, end.exit_code, end.blame) == (FAILED, 75, "job")
    assert end.detail == "exited with 75, though it was not asked to stop"
    assert end.started_ms_ago >= end.ended_ms_ago >= 0
    log = one.log(7, 3)
    assert f"hello 7.3 on cpu1, {one.folder}" in log
    assert "RANK=" not in log
    assert "BRIM_LOADER_WORKERS=2" in log
    assert "/of/another/job" not in log
    assert f"BRIM_CKPT_DIR={one.agent_folder}/jobs/7/checkpoint" in log


def test_a_job_has_the_umask_and_limits_of_its_user_and_a_script_for_slurm_its_variables(node):
    one = node(devices=2)
    variables = ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID", "RESTART_COUNT", "GPUS_ON_NODE", "JOB_GPUS")
    words = "umask; ulimit -c; echo " + " ".join(f"$SLURM_{name}" for name in variables)
    inherits = Inherited(umask=0o27, limits={"core": 0})
    capture = one.capture("/bin/sh", "-c", words, inherits=inherits, slurm=True, indices=(4, 5))
    one.run(9, 2, capture, devices=(0, 1), array=7, index=5)
    assert one.ended(9, 2).outcome == FINISHED
    assert one.log(9, 2) == "0027\n0\n9 7 5 1 2 0,1\n"
    one.run(10, 1, capture, array=7, index=6)
    assert "found index 6, which was not submitted" in one.ended(10).detail
    alone = one.capture("/bin/sh", "-c", "echo ${BRIM_ARRAY_INDEX-none}")
    one.run(11, 1, alone, array=11, index=1)
    assert one.ended(11).outcome == FINISHED
    assert one.log(11, 1) == "none\n"
    one.run(12, 1, alone, array=11, index=2)
    assert "belongs to another job" in one.ended(12).detail


@pytest.mark.slow
def test_a_gang_is_resized_onto_other_devices_stopped_and_resumes_where_it_was(node, tmp_path):
    one = node(devices=4)
    end = tmp_path / "end"
    capture = one.capture(sys.executable, Path(__file__).parent / "trainer.py", end)
    one.run(1, 1, capture, devices=(0, 1), ranks=2, batch=32, grace_s=30)
    one.until(lambda: one.progress.get((1, 1)) and one.progress[1, 1].samples, 120)
    assert one.seen[1, 1].state == RUNNING
    one.until_logged("size 2 batch 32", 1)
    one.send(ResizeAttempt(job=1, attempt=1, sequence=50, devices=(1, 2, 3, 0), ranks=4))
    seen = one.until(lambda: one.seen[1, 1].sequence == 50 and one.seen[1, 1])
    assert (seen.ranks, seen.devices) == (4, (0, 1, 2, 3))
    one.send(ResizeAttempt(job=1, attempt=1, sequence=51, devices=(2, 3), ranks=2, batch=64))
    seen = one.until(lambda: one.seen[1, 1].sequence == 51 and one.seen[1, 1])
    assert (seen.ranks, seen.devices) == (2, (2, 3))
    one.send(ResizeAttempt(job=1, attempt=1, sequence=50, devices=(0, 1), ranks=2))
    one.until_logged("size 2 batch 64", 1, rank=2)
    one.send(ResizeAttempt(job=1, attempt=1, sequence=52, devices=(2, 3, 0), ranks=3))
    seen = one.until(lambda: one.seen[1, 1].sequence == 52 and one.seen[1, 1])
    assert (seen.ranks, seen.devices, seen.detail) == (2, (2, 3), "")  # it runs on 1, 2 or 4 ranks only
    one.send(StopAttempt(job=1, attempt=1, grace_s=30, reason="preempted"))
    stopped = one.ended(1)
    assert (stopped.outcome, stopped.exit_code) == (STOPPED, 75)
    one.run(1, 2, capture, devices=(3,), ranks=1, grace_s=30)
    progress = one.until(lambda: one.progress.get((1, 2)))
    assert progress.samples > one.progress[1, 1].samples
    end.touch()
    assert one.ended(1, 2).outcome == FINISHED
    assert "begins on |cpu3" in one.log(1, 2)
    assert "begins on |cpu1,cpu2,cpu3,cpu0" in one.log(1, 1, rank=2)


STUBBORN = """
trap "" TERM HUP INT
echo ready
(setsid sh -c 'trap "" TERM; (setsid sh -c "trap : TERM; echo \\$\\$ > daemon; while :; do sleep 1; done" &)' &)
while :; do sleep 1; done
"""
"""Ignores SIGTERM, and has a grandchild that has forked away into a session of its own twice."""


def stubborn(one):
    return one.capture("/bin/sh", "-c", STUBBORN)


def daemon(one):
    """The process id of the daemon, once it is there."""
    path = one.folder / "daemon"
    one.until(lambda: (one.receive(0.02) or True) and path.exists() and path.read_text().strip())
    return int(path.read_text())


def is_gone(pid):
    return (found := processes.find_process(pid)) is None or found.state in "ZX"


def test_a_job_that_ignores_sigterm_forks_and_daemonises_is_gone_with_its_end(node):
    one = node()
    one.run(1, 1, stubborn(one))
    pid = daemon(one)
    asked_s = time.monotonic()
    one.send(StopAttempt(job=1, attempt=1, grace_s=1, reason="preempted"))
    end = one.ended(1)
    assert STOPPING in [report.state for report in one.history if isinstance(report, AttemptSeen)]
    assert (end.outcome, end.exit_code) == (STOPPED, 137)
    assert is_gone(pid)
    assert time.monotonic() - asked_s >= 1


@pytest.mark.timing
def test_a_stubborn_job_is_gone_two_seconds_after_its_grace(node):
    one = node()
    one.run(1, 1, stubborn(one))
    pid = daemon(one)
    asked_s = time.monotonic()
    one.send(StopAttempt(job=1, attempt=1, grace_s=0.5, reason="cancelled"))
    one.ended(1)
    assert time.monotonic() - asked_s < 0.5 + 2
    assert is_gone(pid)


def test_a_shorter_grace_shortens_a_longer_one(node):
    one = node()
    one.run(1, 1, stubborn(one), grace_s=600)
    daemon(one)
    one.send(StopAttempt(job=1, attempt=1, grace_s=600, reason="preempted"))
    one.in_state(1, STOPPING)
    one.send(StopAttempt(job=1, attempt=1, grace_s=0, reason="cancelled"))
    assert one.ended(1).outcome == STOPPED


def waiting_for(one, name):
    """A command that ends with 7 once a file is there."""
    return one.capture("/bin/sh", "-c", f"echo $$ > {name}.pid; while [ ! -e {name} ]; do sleep 0.05; done; exit 7")


def test_attempts_outlive_a_killed_agent_and_the_next_one_tells_their_true_ends(node):
    one = node()
    for job, name in ((1, "first"), (2, "second")):
        one.run(job, 1, waiting_for(one, name), devices=(job,))
        one.in_state(job, RUNNING)
        one.until(lambda name=name: (one.receive(0.02) or True) and (one.folder / f"{name}.pid").exists())
    one.kill_agent()
    (one.folder / "first").touch()
    folder = one.attempt_folder(1)
    while not (folder / "end.json").exists():
        time.sleep(0.02)
    one.forget()
    one.start_agent()
    one.until(lambda: one.synced)
    assert one.seen[2, 1].state == RUNNING
    assert one.seen[2, 1].started_ms_ago > 0
    end = one.ended(1)
    assert (end.outcome, end.exit_code) == (FAILED, 7)
    pid = int((one.folder / "second.pid").read_text())
    assert not is_gone(pid)
    (one.folder / "second").touch()
    assert one.ended(2).exit_code == 7


def test_an_attempt_that_was_adopted_is_stopped_like_any_other(node):
    one = node()
    one.run(1, 1, stubborn(one))
    pid = daemon(one)
    one.kill_agent()
    one.start_agent()
    one.until(lambda: one.synced)
    one.send(StopAttempt(job=1, attempt=1, grace_s=0.2, reason="cancelled"))
    assert (one.ended(1).outcome, is_gone(pid)) == (STOPPED, True)


@pytest.mark.parametrize("agent_too", [False, True])
def test_an_attempt_whose_supervisor_was_killed_is_lost_and_none_of_its_processes_lives(node, agent_too):
    one = node()
    one.run(1, 1, stubborn(one))
    pid = daemon(one)
    one.in_state(1, RUNNING)
    supervisor = json.loads((one.attempt_folder(1) / "pids.json").read_text())["pid"]
    if agent_too:
        one.kill_agent()
    os.kill(supervisor, signal.SIGKILL)
    if agent_too:
        one.forget()
        one.start_agent()
    end = one.ended(1)
    assert (end.outcome, end.exit_code) == (LOST, NONE)
    assert (end.blame, end.detail) == (
        ("node", "its supervisor was gone when its agent started") if agent_too else ("", "its supervisor was killed")
    )
    assert is_gone(pid)
    one.run(1, 2, one.capture("/bin/true"))
    assert one.ended(1, 2).outcome == FINISHED


def test_a_job_that_kills_the_process_that_has_started_it_is_lost_and_its_node_is_not_to_blame(node):
    one = node()
    go = one.folder / "go"
    wait = f"until [ -e {go} ]; do sleep 0.01; done"  # a process that kills its zygote before it is reported runs again
    one.run(1, 1, one.capture("/bin/sh", "-c", f"{wait}; kill -9 $PPID; sleep 1000"))
    one.in_state(1, RUNNING)
    go.touch()
    end = one.ended(1)
    assert (end.outcome, end.blame, end.exit_code) == (LOST, "", NONE)


def test_an_error_of_a_supervisor_is_told_as_one(tmp_path, monkeypatch):
    class Broken:
        def __init__(self, config):
            raise ValueError("no such thing")

    monkeypatch.setattr(attempt, "Supervisor", Broken)
    launch = attempt_files.LaunchFile(
        job=1, attempt=1, command=("true",), env={}, cwd="/", ranks=0, devices=(), grace_s=1.0, gang="g", control="",
        zygote=None,
    )  # fmt: skip
    attempt.run_attempt(tmp_path, launch)
    end = attempt_files.read_fields(tmp_path, attempt_files.END, attempt_files.EndFile)
    assert (end.outcome, end.blame) == (LOST, "")
    assert end.detail == "its supervisor ended with an error: ValueError: no such thing"


def test_a_fork_that_the_limit_of_processes_refuses_is_told_at_once(tmp_path, monkeypatch):
    def refuse():
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    name, digest = write_capture(tmp_path / "captures", ["/bin/true"], {"PATH": "/bin"}, "/")
    with selectors.DefaultSelector() as selector:
        one = Agent(tmp_path, tmp_path / "none", CpuSlots(1), CgroupTree(), selector)
        monkeypatch.setattr(os, "fork", refuse)
        one._receive_start(StartAttempt(job=1, attempt=1, sequence=1, capture=name, digest=digest, devices=(0,)))
        one._perform()
        (seen,) = one._attempts.seen()
    assert (seen.state, seen.outcome) == (ENDED, FAILED)
    assert "cannot be started: [Errno 11] Resource temporarily unavailable" in seen.detail


def test_what_the_user_has_not_signed_is_never_run(node):
    one = node()
    capture = one.capture("/usr/bin/touch", one.folder / "ran")
    path = one.agent_folder / "captures" / f"{capture[0]}.json"
    signed = path.read_text()
    path.write_text(signed.replace("ran", "evil"))
    one.run(1, 1, capture)
    end = one.ended(1)
    assert (end.outcome, end.blame) == (UNUSABLE, "job")
    assert "not what was submitted" in end.detail
    path.write_text(signed)
    one.run(1, 1, capture)  # a late copy
    one.run(2, 1, ("0" * 32, capture[1]))
    assert "No such file" in one.ended(2).detail
    one.run(3, 1, capture)
    assert one.ended(3).outcome == FINISHED
    one.run(4, 1, capture)
    assert "belongs to another job" in one.ended(4).detail
    (one.folder / "ran").unlink()
    one.run(3, 2, capture)
    one.until(lambda: (s := one.seen.get((3, 2))) and s.outcome == UNUSABLE and "finished already" in s.detail)
    assert not [path for path in one.folder.iterdir() if path.name in ("ran", "evil")]


def test_a_command_that_does_not_exist_is_unusable_and_one_that_is_killed_has_failed(node):
    one = node()
    one.run(1, 1, one.capture("no-such-command"))
    end = one.ended(1)
    assert (end.outcome, end.exit_code) == (UNUSABLE, 127)
    assert "no-such-command" in end.detail
    one.run(2, 1, one.capture("/bin/sh", "-c", "kill -SEGV $$"))
    end = one.ended(2)
    assert (end.outcome, end.exit_code, end.blame) == (FAILED, 139, "job")


def test_ends_are_told_again_until_the_controller_knows_them_and_it_may_vanish_and_return(node):
    one = node()
    one.run(1, 1, one.capture("/bin/true"))
    one.until(lambda: (s := one.seen.get((1, 1))) and s.outcome == FINISHED)
    for _ in range(2):
        one.vanish()
        one.listen()
        one.until(lambda: one.synced)
        assert one.seen[1, 1].outcome == FINISHED
    one.ended(1)
    one.run(2, 1, one.capture("/bin/true"))
    one.ended(2)  # so the order to forget was read
    one.vanish()
    one.listen()
    one.until(lambda: one.synced)
    assert (1, 1) not in one.seen


def test_one_agent_per_user_and_node(node):
    one = node()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "brim.agent", "--devices", "1"], env=one.env, capture_output=True, text=True,
        check=False,
    )
    assert (done.returncode, f"an agent (process {one.process.pid}) already uses" in done.stderr) == (4, True)


def test_hostile_lines_do_no_harm(node):
    one = node()
    one.connection.sendall(b'{"v":1,"type":"start_attempt","job":{}}\n[[[[\n\xff\xfe\n{"v":1,"type":"dance"}\n')
    one.connection.sendall(b'{"v":1,"type":"stop_attempt","job":5,"attempt":1,"grace_s":NaN,"reason":""}\n')
    one.run(-5, 1, one.capture("/usr/bin/touch", one.folder / "ran"))
    assert "found job -5" in one.ended(-5).detail
    one.run(10**400, 1, ("../../etc", "x"))
    one.run(6, 1, ("../../etc", "x"), name="\ud800")
    assert one.ended(6).outcome == UNUSABLE
    one.run(1, 1, one.capture("/bin/true"), devices=(99,))
    assert "found device 99, expected one of 0 to 3" in one.ended(1).detail
    one.connection.sendall(b'{"v":9}\n')
    one.until(lambda: not one.synced)
    one.until(lambda: one.synced)
    assert (5, 1) not in one.seen, "a line with NaN is no order"


def test_a_state_folder_with_a_path_too_long_for_sockets_will_do(node):
    one = node(state="/".join(["a-long-name-of-a-folder"] * 6))
    one.run(1, 1, one.capture("/bin/sh", "-c", "echo $BRIM_CONTROL; exit 4"))
    assert one.ended(1).exit_code == 4
    control = Path(one.log(1).strip())
    assert len(str(control)) < 107
    assert not control.parent.exists()
    one.run(2, 1, waiting_for(one, "go"))
    one.in_state(2, RUNNING)
    one.kill_agent()
    one.start_agent()
    one.until(lambda: one.synced)
    one.send(StopAttempt(job=2, attempt=1, grace_s=5, reason="cancelled"))
    assert (one.ended(2).outcome, one.seen[2, 1].exit_code) == (STOPPED, 143)


@pytest.mark.slow
def test_a_supervisor_that_hangs_is_ended_with_all_its_processes(node):
    one = node()
    one.run(1, 1, stubborn(one))
    pid = daemon(one)
    supervisor = json.loads((one.attempt_folder(1) / "pids.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    one.send(StopAttempt(job=1, attempt=1, grace_s=0, reason="cancelled"))
    assert one.ended(1).outcome == STOPPED
    assert is_gone(pid)
    assert is_gone(supervisor)


def test_files_of_a_job_are_for_its_user_only(node):
    one = node()
    one.run(1, 1, one.capture("/bin/true"))
    one.ended(1)
    everything = [one.agent_folder.parent, *one.agent_folder.parent.rglob("*")]
    found = [path for path in everything if path.lstat().st_mode & 0o77]
    assert found == []


def test_a_new_agent_starts_the_zygote_that_the_newest_python_job_used(node, tmp_path):
    """So the next job of that environment does not wait for torch; other commands have none of their own."""
    python, starts = tmp_path / "python3", tmp_path / "starts"
    python.write_text(f'#!/bin/sh\ntest "$1" = -c && echo zygote >> {starts}\nexit 0\n')
    python.chmod(0o755)
    one = node()
    one.run(1, 1, one.capture(python, "train.py"))
    one.ended(1)
    one.run(2, 1, one.capture("/bin/true"))
    one.ended(2)
    assert starts.read_text() == "zygote\n"
    one.kill_agent()
    one.start_agent()
    one.until(lambda: starts.read_text() == "zygote\nzygote\n")


def test_a_folder_that_cannot_be_used_is_said_in_a_line(tmp_path):
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "brim.agent", "--devices", "1"], check=False, capture_output=True, text=True,
        env={**os.environ, "BRIM_STATE": f"{tmp_path}/file/state"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"brim agent: {tmp_path}/file/state: Not a directory\n")
