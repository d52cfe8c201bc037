"""What is removed of jobs that ended long ago, and what is not."""

from __future__ import annotations

import fcntl
import json
import os
import time

import pytest

from brim.cli import retention
from brim.cli.retention import KEPT_DAYS, remove_ended

DAY_S = 86_400
OLD_S = (KEPT_DAYS + 1) * DAY_S


class Folder:
    """The folder of an agent, with jobs that were run."""

    def __init__(self, path):
        self.path, self.now_s = path, time.time()
        (path / "captures").mkdir()
        (path / "scripts").mkdir()

    def capture(self, name, age_s, *command):
        path = self.path / "captures" / f"{name}.json"
        path.write_text(json.dumps({"version": 1, "command": command or ["true"], "env": {}, "cwd": "/"}))
        os.utime(path, (self.now_s - age_s,) * 2)
        return path

    def script(self, name, age_s):
        path = self.path / "scripts" / name
        path.touch()
        os.utime(path, (self.now_s - age_s,) * 2)
        return path

    def attempt(self, job, number, age_s, *, over=True, capture=None):
        folder = self.path / "attempts" / f"{job}-{number}"
        (folder / "log").mkdir(parents=True)
        (folder / "log" / "rank-0.log").write_text("words")
        (folder / "fence").write_text(json.dumps({"capture": capture or f"c{job}"}))
        if over:
            (folder / "forgotten").touch()
        (folder / "end.json").touch()
        os.utime(folder / "end.json", (self.now_s - age_s,) * 2)
        return folder

    def removed(self, living=(), captures=()):
        return remove_ended(self.path, living, captures, self.now_s)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_an_old_job_goes_with_its_capture_script_and_logs_but_not_its_checkpoints(folder):
    script, checkpoint = folder.script("a", OLD_S), folder.path / "jobs" / "1" / "checkpoint"
    checkpoint.mkdir(parents=True)
    capture = folder.capture("c1", OLD_S, str(script))
    attempts = [folder.attempt(1, number, OLD_S) for number in (1, 2)]
    young = folder.capture("c2", 0), folder.attempt(2, 1, (KEPT_DAYS - 1) * DAY_S), folder.script("b", 0)
    assert folder.removed() == [1]
    assert not any(path.exists() for path in (script, capture, *attempts))
    assert all(path.exists() for path in (*young, checkpoint))


@pytest.mark.parametrize("why", ["its id", "its capture", "an end that nobody knows", "a process", "a younger attempt"])
def test_nothing_of_a_living_job_is_removed_however_old(folder, why):
    script = folder.script("a", OLD_S)
    capture, first = folder.capture("c1", OLD_S, str(script)), folder.attempt(1, 1, OLD_S)
    second = folder.attempt(1, 2, 0 if why == "a younger attempt" else OLD_S, over=why != "an end that nobody knows")
    fd = os.open(second, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if why == "a process":
            fcntl.flock(fd, fcntl.LOCK_EX)
        assert folder.removed([1] if why == "its id" else [], ["c1"] if why == "its capture" else []) == []
    finally:
        os.close(fd)
    assert all(path.exists() for path in (script, capture, first, second))


def test_a_capture_that_was_never_run_goes_unless_its_job_lives(folder):
    gone, waits, young = folder.capture("a", OLD_S), folder.capture("b", OLD_S), folder.capture("c", 0)
    assert folder.removed(captures=["b"]) == []
    assert [path.exists() for path in (gone, waits, young)] == [False, True, True]


def test_an_array_goes_as_a_whole_because_it_has_one_capture(folder):
    """Without its folder, an agent would run a job again while the capture is there."""
    capture = folder.capture("c", OLD_S)
    folder.attempt(1, 1, OLD_S, capture="c")
    folder.attempt(2, 1, OLD_S + 9, capture="c", over=False)
    assert folder.removed() == []
    (folder.path / "attempts" / "2-1" / "forgotten").touch()
    young = folder.attempt(3, 1, 0, capture="c")
    assert folder.removed() == []
    os.utime(young / "end.json", (0, 0))
    assert sorted(folder.removed()) == [1, 2, 3]
    assert not capture.exists()


def test_of_many_jobs_the_newest_are_kept(folder, monkeypatch):
    monkeypatch.setattr(retention, "KEPT_JOBS", 2)
    for job in (1, 2, 3, 4):
        folder.attempt(job, 1, (10 - job) * DAY_S)
    assert folder.removed(living=[1]) == [2]
