"""How the service and a followed job are left: Ctrl-C, a full disk, the foreground, and a folder that is a link."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.test_live import Box, until, until_running

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="brim-"))  # pytest's own is too long for a socket
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def box(folder):
    made = Box(folder)
    yield made
    for lock in (made.state / "controller" / "lock", made.state / "agent" / "lock"):
        with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):
            os.kill(int(lock.read_text(encoding="ascii").split()[0]), signal.SIGTERM)


@pytest.fixture
def small(folder):
    """A volume of 24 MiB for the state, which only root can mount."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    volume = folder / "state"
    volume.mkdir()
    words = [mount, "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(volume)]
    if os.geteuid() or mount is None or umount is None or subprocess.run(words, check=False).returncode:
        pytest.skip("no volume can be mounted here: it takes root")
    yield volume
    subprocess.run([umount, "-l", str(volume)], check=True)


def started(box, *words):
    """A command that goes on, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "brim.cli.main", *words], cwd=box.work, env=box.env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_the_foreground_serves_until_ctrl_c_and_the_agent_stays(box):
    with started(box, "up", "--foreground", "--devices", "1") as serving:
        while b"Z" not in (stat := Path(f"/proc/{serving.pid}/stat").read_bytes()).split(b") ")[1][:1]:
            if "1 device" in (shown := box("status", code=None).stdout) and "agents: none" not in shown:
                break
        assert stat
        assert box.pid("controller") == serving.pid, "it is the controller itself"
        assert box("run", "--", "echo", "served").stdout == "served\n"
        os.killpg(serving.pid, signal.SIGINT)
        said = serving.communicate(timeout=60)
    assert serving.returncode == 0, said
    assert "Traceback" not in said[1]
    assert "no controller" in box("ps", code=1).stderr
    os.kill(box.pid("agent"), 0)


def test_ctrl_c_detaches_from_a_job_that_goes_on(box):
    box("up", "--devices", "1", timeout_s=240)
    with started(box, "run", "--", "sh", "-c", "echo began; until test -e go; do sleep 0.05; done; echo ended") as run:
        assert run.stdout.readline() == "began\n"
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (130, "")
    assert "detached; job 1 goes on: see `brim logs -f 1`" in err
    (shown,) = json.loads(box("ps", "--json").stdout)["jobs"]
    assert (shown["id"], shown["state"]) == (1, "running")
    (box.work / "go").touch()
    assert box("logs", "-f", "1").stdout == "began\nended\n"
    assert json.loads(box("history", "--json").stdout)["jobs"][0]["state"] == "finished"
    box("down", "--stop")


def test_a_command_that_follows_a_job_waits_for_the_next_controller(box):
    box("up", "--devices", "1", timeout_s=240)
    words = ("sh", "-c", "echo began; until test -e go; do sleep 0.05; done; echo ended; exit 3")
    with started(box, "run", "--", *words) as run:
        assert run.stdout.readline() == "began\n"
        box("down")
        assert "Ctrl-C detaches" in run.stderr.readline()
        assert run.stderr.readline() == "brim: no controller answers; job 1 goes on, and this waits for the next one\n"
        (box.work / "go").touch()
        assert run.stdout.readline() == "ended\n"
        box("up", "--devices", "1", timeout_s=60)
        _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (3, "brim: job 1 failed: attempt 1 exited with 3\n")
    box("down", "--stop")


def test_the_next_service_may_have_another_number_of_slots(box):
    both = [started(box, "up", "--devices", "2") for _ in range(2)]  # in two terminals at once
    shown = [one.communicate(timeout=240)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sum(text.startswith("already up: ") for text in shown) == 1
    assert sum(text.startswith("policy backfill, 2 devices") for text in shown) == 1
    assert box("run", "-g", "2", "--", "echo", "two").stdout == "two\n"
    box("down")
    assert "the agent does (process " in box("down", "--stop", code=3).stderr
    assert "3 devices" in box("up", "--devices", "3", timeout_s=60).stdout
    assert box("run", "-g", "3", "--", "echo", "three").stdout == "three\n"
    box("down", "--stop")
    assert "the agent" not in box("down", code=3).stderr


ERRS = """
from dataclasses import dataclass, replace
from brim.policies.presets import find_policy

@dataclass(frozen=True)
class Errs:
    def __call__(self, snapshot, beliefs):
        if len(snapshot.jobs):
            raise ValueError("it errs\\x1b[31m")
        return snapshot.jobs.id

policy = replace(find_policy("fifo"), name="errs", order=Errs())
"""


def test_a_policy_whose_error_ends_the_service_is_named_until_another_one_takes_over(box):
    (box.work / "errs.py").write_text(ERRS, encoding="utf-8")
    box("up", "--devices", "1", "--policy", "errs.py", timeout_s=240)
    box("submit", "-n", "kept", "--", "true", code=None)  # its answer may come too late
    named = "there is none (the last one ended: policy 'errs', order: ValueError: it errs?[31m"
    until(lambda: named in box("ps", code=None).stderr)
    assert "(the last one ended: policy 'errs', order: ValueError: it errs" in box("doctor", code=1).stdout
    box("up", "--devices", "1", "--policy", "fifo", timeout_s=240)
    until(lambda: "finished" in box("history").stdout)
    box("down", "--stop")
    assert "there is none: start one" in box("ps", code=1).stderr


def test_a_service_that_was_refused_beside_another_is_not_the_last_that_ended(box, folder):
    box("up", "--devices", "1", timeout_s=240)
    refused = box("up", "--devices", "1", code=4, BRIM_RUNTIME=str(folder / "other")).stderr
    assert "already uses" in refused
    box("down", "--stop")
    assert "there is none: start one" in box("ps", code=1).stderr


def test_a_runtime_folder_that_is_a_link_is_refused(box, folder):
    (folder / "elsewhere").mkdir(0o700)
    box.run_folder.symlink_to(folder / "elsewhere")
    for words in (["up", "--devices", "1"], ["up", "--devices", "1", "--foreground"], ["status"]):
        done = box(*words, code=None)
        assert done.returncode in (1, 4), (words, done.stdout)
        assert "Traceback" not in done.stderr
        assert ("is a link" in done.stderr) or words == ["status"]
    assert not list((folder / "elsewhere").iterdir())


def test_a_service_on_a_full_disk_says_so_ends_and_goes_on_with_what_it_had(small, box):
    box("up", "--devices", "1", timeout_s=240)
    job = box("submit", "--hold", "echo", "kept").stdout.strip()
    fill = small / "fill"
    with open(fill, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    assert "No space left on device" in box("submit", "true", code=1).stderr
    for verb in ("release", "hold") * 100:
        if (done := box(verb, job, code=None)).returncode:
            break
    assert done.returncode == 1
    assert f"the volume {small} (tmpfs) has 0" in done.stderr
    assert f"trouble: the controller cannot write {small}/controller/brim.db" in box("status").stdout
    assert "has ended" in box("down").stdout
    fill_up(small / "more")
    assert f"the volume of {small}/controller is full" in box("up", "--devices", "1", code=1).stderr
    (small / "more").unlink()
    fill.unlink()
    box("up", "--devices", "1", timeout_s=240)
    assert [each["id"] for each in json.loads(box("ps", "--json").stdout)["jobs"]] == [int(job)]
    box("release", job)
    assert box("logs", "-f", job).stdout == "kept\n"
    box("down", "--stop")


def fill_up(path):
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def test_a_job_that_ends_on_a_full_disk_runs_once_and_every_verb_names_the_disk(small, box):
    box("up", "--devices", "2", timeout_s=240)
    code = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\npathlib.Path('done').touch()"
    job = box("submit", "-n", "last", "--", sys.executable, "-I", "-S", "-c", code).stdout.strip()
    until_running(box, job)
    waits = box("submit", "--hold", "-n", "next", "--", "true").stdout.strip()
    fill_up(small / "fill")
    (box.work / "go").touch()
    end = small / "agent" / "attempts" / f"{job}-1" / "end.json"
    until(end.exists)  # there is room for it
    named = f"cannot write {small}/controller/brim.db: No space left on device"
    until(lambda: named in box("ps").stderr)
    for words in (["explain", waits], ["eta"], ["submit", "--dry-run", "true"], ["hold", waits], ["history"]):
        assert named in box(*words, code=None).stderr, words
    (small / "fill").unlink()
    until(lambda: "finished" in box("history").stdout)
    shown = box("history").stdout
    assert f"{job} " in shown
    assert box("release", waits).returncode == 0
    assert box("logs", "-f", waits).returncode == 0
    assert [each["attempt"] for each in json.loads(box("history", "--json").stdout)["jobs"]] == [1, 1]
    until(lambda: not box("ps").stderr)
    box("down", "--stop")


def test_an_agent_that_was_killed_is_started_again_by_the_controller(box):
    box("up", "--devices", "1", timeout_s=240)
    job = box("submit", "--", "sh", "-c", "echo $BRIM_ATTEMPT; until test -e go; do sleep 0.05; done").stdout.strip()
    until_running(box, job)
    before = box.pid("agent")
    os.kill(before, signal.SIGKILL)
    until(lambda: "is away: it goes on, and how it ends" in box("explain", job).stdout)
    until(lambda: "agents: none" not in box("status").stdout)
    assert box.pid("agent") != before
    (box.work / "go").touch()
    assert box("logs", "-f", job).stdout == "1\n"
    box("down", "--stop")
