"""What `run.carry` was given goes back with a step that is undone, wherever the script changes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elastic.storm import Event, shared_zygote, storm

JOBS = Path(__file__).parent / "jobs"
WATCHED, LOOP, SHORT = JOBS / "watched_loop.py", JOBS / "carried_loop.py", JOBS / "short_loop.py"


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    with shared_zygote(tmp_path_factory.mktemp("zygote")) as path:
        yield path


def undisturbed(folder, loop=LOOP):
    folder.mkdir()
    words = [sys.executable, WATCHED, folder, 0, loop, 0]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (answer,) = folder.glob("*.json")
    return json.loads(answer.read_text())


def test_a_kill_undoes_what_the_step_has_changed_in_carried_objects(tmp_path, zygote):
    events = [Event(5, "kill", 2), Event(12, "kill", 0), Event(20, "kill", 1)]
    words = [0, LOOP, 0.15]
    weather = storm(tmp_path, events, *words, ranks=4, zygote=zygote, timeout_s=200, job=WATCHED, replace=3)
    assert weather.code == 0, weather.stderr
    assert len(weather.done) == 3
    expected = undisturbed(tmp_path / "alone")
    assert weather.answers
    for answer in weather.answers:
        assert answer == expected, weather.stderr


def test_kills_and_resizes_change_nothing_where_a_step_has_no_sample_for_some_ranks(tmp_path, zygote):
    events = [Event(3, "kill", 3), Event(8, "kill", 0), Event(11, "resize", 2), Event(15, "resize", 4)]
    weather = storm(tmp_path, events, 0, SHORT, 0.1, ranks=4, zygote=zygote, timeout_s=200, job=WATCHED, replace=3)
    assert weather.code == 0, weather.stderr
    assert len(weather.done) == 4
    expected = undisturbed(tmp_path / "alone", SHORT)
    assert weather.answers
    for answer in weather.answers:
        assert answer == expected, weather.stderr
