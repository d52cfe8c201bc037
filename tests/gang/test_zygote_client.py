"""A real zygote, and the supervisor's end of the connection."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from brim.gang.zygote_client import ZygoteClient
from brim.gang.zygote_events import ProcessExited, ProcessStarted, ZygoteReady
from tests.gang.conftest import PATIENCE_S


@pytest.fixture
def zygote(tmp_path):
    client = ZygoteClient.private(sys.executable, [], dict(os.environ), str(tmp_path), 1.0)
    (ready,) = client.receive()
    assert isinstance(ready, ZygoteReady)
    yield client
    os.kill(client.pid, signal.SIGCONT)
    client.close()
    os.waitpid(client.pid, 0)


def start(client, folder):
    """Request a process that makes a file, and wait until it is there as far as the zygote knows."""
    (folder / "script.py").write_text("open('ran', 'w').close()\n")
    client.start(0, [sys.executable, "script.py"], dict(os.environ), str(folder), [0, 1, 2])
    deadline_s = time.monotonic() + PATIENCE_S
    children = Path(f"/proc/{client.pid}/task/{client.pid}/children")
    while not children.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    time.sleep(0.2)  # time for the script, if it did not wait


def test_a_fork_runs_only_once_its_process_id_has_been_read(zygote, tmp_path):
    start(zygote, tmp_path)
    assert not (tmp_path / "ran").exists()
    events = zygote.receive()
    while not any(isinstance(event, ProcessExited) for event in events):
        events += zygote.receive()
    started, exited = events
    assert started.start_method == "fork"
    assert exited == ProcessExited(0, 0)
    assert (tmp_path / "ran").exists()
    os.close(started.pidfd)


def test_a_fork_runs_although_its_zygote_is_stopped_after_the_report(zygote, tmp_path):
    start(zygote, tmp_path)
    os.kill(zygote.pid, signal.SIGSTOP)
    (started,) = zygote.receive()
    assert isinstance(started, ProcessStarted)
    deadline_s = time.monotonic() + PATIENCE_S
    while not (tmp_path / "ran").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert (tmp_path / "ran").exists()
    os.close(started.pidfd)


def test_a_fork_whose_supervisor_ends_before_it_reads_the_report_never_runs(zygote, tmp_path):
    start(zygote, tmp_path)
    zygote.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{zygote.pid}/stat").read_text().split()[2] != "Z" and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not (tmp_path / "ran").exists()
