"""Ranks that a zygote has forked show no mark of their attempt, and are found all the same."""

import os
import signal
import sys
from pathlib import Path

import pytest

from brim.agent.protocol import LOST, STOPPED, StopAttempt
from brim.gang.client import send_request
from brim.gang.messages import StatusRequest
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
