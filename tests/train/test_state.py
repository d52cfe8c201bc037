"""What `run.carry` was given goes back with a step that is undone, wherever the script changes it."""

import json
from pathlib import Path

import pytest

from tests import forked
from tests.elastic.storm import Event, storm

JOBS = Path(__file__).parent / "jobs"
WATCHED, LOOP, SHORT = JOBS / "watched_loop.py", JOBS / "carried_loop.py", JOBS / "short_loop.py"


def undisturbed(zygote, folder, loop=LOOP):
    folder.mkdir()
    forked.run(WATCHED, folder, 0, loop, 0, zygote=zygote, timeout_s=120, check=True)
    (answer,) = folder.glob("*.json")
    return json.loads(answer.read_text())


def test_a_kill_undoes_what_the_step_has_changed_in_carried_objects(tmp_path, zygote):
    events = [Event(5, "kill", 2), Event(12, "kill", 0), Event(20, "kill", 1)]
    words = [0, LOOP, 0.15]
    weather = storm(tmp_path, events, *words, ranks=4, zygote=zygote, timeout_s=200, job=WATCHED, replace=3)
    assert weather.code == 0, weather.stderr
    assert len(weather.done) == 3
    expected = undisturbed(zygote, tmp_path / "alone")
    assert weather.answers
    for answer in weather.answers:
        assert answer == expected, weather.stderr


@pytest.mark.slow
def test_kills_and_resizes_change_nothing_where_a_step_has_no_sample_for_some_ranks(tmp_path, zygote):
    events = [Event(3, "kill", 3), Event(8, "kill", 0), Event(11, "resize", 2), Event(15, "resize", 4)]
    weather = storm(tmp_path, events, 0, SHORT, 0.1, ranks=4, zygote=zygote, timeout_s=200, job=WATCHED, replace=3)
    assert weather.code == 0, weather.stderr
    assert len(weather.done) == 4
    expected = undisturbed(zygote, tmp_path / "alone", SHORT)
    assert weather.answers
    for answer in weather.answers:
        assert answer == expected, weather.stderr
