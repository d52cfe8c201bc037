"""What an agent finds of one that was killed: ranks without a mark of their attempt, and one that has just begun."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from brim.agent import adoption, agent, attempt_files, boot_clock, leftovers
from brim.agent.adoption import found_attempts
from brim.agent.attempt import _lock
from brim.agent.cgroups import CgroupTree
from brim.agent.devices import CpuSlots
from brim.agent.protocol import ENDED, FINISHED, LOST, NONE, ORDERS, RUNNING, STOPPED, StartAttempt, StopAttempt
from brim.gang import processes
from brim.gang.client import send_request
from brim.gang.messages import GANG_VARIABLE, StatusRequest
from tests.agent.test_agent import is_gone


def train(one, attempt, capture):
    """Start the job, and return the process ids of its supervisor, zygote and ranks when it trains."""
    one.run(1, attempt, capture, devices=(0, 1), ranks=2, grace_s=20)
    one.until(lambda: one.progress.get((1, attempt)), 120)
    status = send_request(str(one.attempt_folder(1, attempt) / "control"), StatusRequest()).status
    ranks = [rank["pid"] for rank in status["ranks"]]
    assert [rank["start_method"] for rank in status["ranks"]] == ["fork", "fork"]
    return status["supervisor"], status["zygote"], ranks


@pytest.mark.slow
def test_forked_ranks_are_gone_whichever_of_brims_processes_are_killed(node, tmp_path):
    one = node()
    capture = one.capture(sys.executable, Path(__file__).parent / "trainer.py", tmp_path / "end")
    supervisor, _, ranks = train(one, 1, capture)
    os.kill(supervisor, signal.SIGKILL)
    assert one.ended(1).outcome == LOST
    assert all(map(is_gone, ranks))

    supervisor, zygote, ranks = train(one, 2, capture)
    for pid in (zygote, supervisor):
        os.kill(pid, signal.SIGKILL)
    assert one.ended(1, 2).outcome == LOST
    assert all(map(is_gone, [*ranks, zygote]))

    supervisor, zygote, ranks = train(one, 3, capture)
    for pid in (one.process.pid, zygote, supervisor):
        os.kill(pid, signal.SIGKILL)
    one.kill_agent()
    one.forget()
    one.start_agent()
    assert one.ended(1, 3).outcome == LOST
    assert all(map(is_gone, [*ranks, zygote]))

    train(one, 4, capture)
    one.kill_agent()
    one.start_agent()
    one.until(lambda: one.synced)
    one.send(StopAttempt(job=1, attempt=4, grace_s=20, reason="preempted"))
    assert one.ended(1, 4).outcome == STOPPED


def test_the_end_of_a_process_whose_zygote_was_killed_is_not_made_up(node):
    """Nobody can have seen its exit code then: the attempt is lost, and does not fail with one."""
    one = node()
    one.run(1, 1, one.capture("sleep", "1000"))
    one.until(lambda: one.seen.get((1, 1)) and one.seen[1, 1].state == RUNNING)
    status = send_request(str(one.attempt_folder(1, 1) / "control"), StatusRequest()).status
    [rank] = status["ranks"]
    os.kill(status["zygote"], signal.SIGKILL)
    ended = one.ended(1)
    assert (ended.outcome, ended.exit_code, ended.blame) == (LOST, NONE, "")
    assert ended.detail == "ended with an unknown exit code, since its zygote had ended"
    assert is_gone(rank["pid"])


def no_strays(everything):
    """No child of this process is an orphan of an attempt."""
    return ()


def test_a_process_that_has_the_id_of_one_that_ended_is_left_alone():
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        (it,) = leftovers.known([stranger.pid])
        assert [one.pid for one in leftovers.processes_of("gang", [it], no_strays)] == [stranger.pid]
        before = leftovers.KnownProcess(it.pid, it.start_ticks - 1)
        assert leftovers.processes_of("gang", [before], no_strays) == []
        assert leftovers.kill("gang", [before], no_strays, lambda _: None) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_attempt_whose_agent_was_killed_before_it_said_who_it_is_is_adopted(tmp_path, monkeypatch):
    monkeypatch.setattr(adoption, "BEGIN_S", 60.0)
    folder = tmp_path / "7-1"
    folder.mkdir()
    order = StartAttempt(job=7, attempt=1, sequence=1, capture="c", digest="d", devices=(0,))
    attempt_files.write_durably(folder, attempt_files.FENCE, json.loads(ORDERS.encode(order)))
    lock = _lock(folder)
    child = os.fork()
    if not child:
        try:
            time.sleep(0.3)
            attempt_files.write_pids(folder, attempt_files.PidsFile(pid=os.getpid(), start_ticks=1, boot_id="b"))
            signal.pause()
        finally:
            os._exit(1)
    os.close(lock)
    try:
        (found,) = found_attempts(tmp_path, "b")
        assert found.pids is not None
        assert (found.pids.pid, found.end) == (child, None)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_attempt_that_ends_while_a_new_agent_looks_has_the_end_that_it_wrote(tmp_path, monkeypatch):
    folder, boot_id = tmp_path / "attempts" / "1-1", boot_clock.boot_id()
    folder.mkdir(parents=True)
    order = StartAttempt(job=1, attempt=1, sequence=1, capture="c", digest="d", devices=(0,))
    attempt_files.write_durably(folder, attempt_files.FENCE, json.loads(ORDERS.encode(order)))
    gone = subprocess.Popen(["true"])
    gone.wait()
    attempt_files.write_pids(folder, attempt_files.PidsFile(pid=gone.pid, start_ticks=1, boot_id=boot_id))
    lock = _lock(folder)

    def looked(parent, boot_id):
        found = found_attempts(parent, boot_id)
        end = attempt_files.EndFile(
            outcome=FINISHED, exit_code=0, detail="", blame="", started_ms=1, ended_ms=2, boot_id=boot_id
        )
        attempt_files.write_end(folder, end)
        os.close(lock)
        return found

    monkeypatch.setattr(agent, "found_attempts", looked)
    with selectors.DefaultSelector() as selector:
        one = agent.Agent(tmp_path, tmp_path / "none", CpuSlots(1), CgroupTree(), selector)
        one._restore()
        (seen,) = one._attempts.seen()
    assert (seen.state, seen.outcome) == (ENDED, FINISHED)
    assert attempt_files.read_fields(folder, attempt_files.END, attempt_files.EndFile).outcome == FINISHED


def test_a_process_that_has_left_everything_but_its_mark_is_found():
    """In a session of its own, a child of nobody that brim knows: of both its supervisor and its agent killed."""
    marks = {"this attempt": True, "another": False}
    found = [subprocess.Popen(["sleep", "1000"], env={GANG_VARIABLE: mark}, start_new_session=True) for mark in marks]
    try:
        of_attempt = {process.pid for process in leftovers.processes_of("this attempt", (), no_strays)}
        assert [process.pid in of_attempt for process in found] == [*marks.values()]
    finally:
        for process in found:
            process.kill()
            process.wait()


def test_a_signal_reaches_the_process_that_was_seen_and_no_later_one_with_its_id():
    """I12: the id is the same, the start time is not."""
    child = subprocess.Popen(["sleep", "1000"])
    try:
        seen = processes.find_process(child.pid)
        assert not processes.send_signal(replace(seen, start_ticks=seen.start_ticks - 1), signal.SIGKILL)
        assert child.poll() is None
        assert processes.send_signal(seen, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not processes.send_signal(seen, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
