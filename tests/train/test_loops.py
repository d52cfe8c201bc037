"""Loops that people bring, ported: ``examples/loops``. The bits do not depend on ranks, resizes, kills and stops."""

import difflib
import json
import re
from pathlib import Path

import pytest

from tests import forked, zygotes
from tests.elastic.storm import Event, storm
from tests.sampling import sample

pytestmark = pytest.mark.slow  # every loop on every number of ranks
ROOT = Path(__file__).parents[2]
LOOPS = ROOT / "examples" / "loops"
JOB = Path(__file__).parent / "jobs" / "watched_loop.py"
PAUSE_S = 0.03
TIMEOUT_S = 240
FRESH = "images"
"""Its reference is not forked from the zygote of the gangs."""

SMALL = {  # arguments, and optimizer steps: those that nothing disturbs take half as many in the part
    "causal_lm": (("--epochs", 2, "--blocks", sample(270, 126)), sample(30, 14)),
    "digits": (("--epochs", 3, "--batch-size", 128), 36),
    "gpt": (("--iters", 30), 30),
    "images": (("--epochs", 3, "--samples", 640), 30),
    "words": (("--epochs", 2, "--words", sample(6_000, 3_000)), sample(38, 20)),
}


DISTURBED = sample([*SMALL], ["gpt", "images"])
"""Loops that are resized, killed and stopped: of the part, one reads its tokens itself and one has buffers."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    """One with the libraries of the loops, which take a rank longer to import than its steps do."""
    with zygotes.shared(tmp_path_factory.mktemp("zygote"), "transformers.models.gpt2", "sklearn.datasets") as path:
        yield path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tokens that the loops share."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data, zygote):
    """What a loop comes to in one process, without a launcher."""
    known = {}

    def of(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            words = [JOB, folder, 0, *command(name, folder / "out", data)]
            if name == FRESH:
                forked.run_fresh(*words, cwd=folder, timeout_s=TIMEOUT_S)
            else:
                ran(zygote, words, folder)
            (answer,) = folder.glob("*.json")
            known[name] = json.loads(answer.read_text())
            assert known[name]["steps"] == SMALL[name][1]
        return known[name]

    return of


def command(name, out, data):
    words = [LOOPS / "elastic" / f"{name}.py", *SMALL[name][0], "--out", out]
    return [*words, "--data", data] if name == "gpt" else words


def ran(zygote, words, folder):
    return forked.run(*words, zygote=zygote, cwd=folder, timeout_s=TIMEOUT_S, check=True).stdout


def check(weather, expected):
    assert weather.code == 0, weather.stderr
    assert weather.answers, weather.stderr
    for answer in weather.answers:
        assert answer == expected, weather.stderr


def test_every_loop_has_a_plain_one_beside_it():
    names = {path.stem for path in (LOOPS / "elastic").glob("*.py")}
    assert names == {path.stem for path in (LOOPS / "plain").glob("*.py")} == SMALL.keys()


@pytest.mark.parametrize("name", sample([*SMALL], [name for name in SMALL if name not in DISTURBED]))
def test_one_process_and_four_ranks_come_to_the_same(tmp_path, zygote, data, undisturbed, name):
    expected = undisturbed(name)
    words = command(name, tmp_path / "out", data)
    check(storm(tmp_path, [], 0, *words, ranks=4, zygote=zygote, timeout_s=TIMEOUT_S, job=JOB), expected)


@pytest.mark.parametrize("name", DISTURBED)
def test_a_resize_a_kill_and_a_stop_change_nothing(tmp_path, zygote, data, undisturbed, name):
    events = [Event(5, "resize", 4), Event(11, "kill", 0), Event(18, "preempt"), Event(24, "resize", 1)]
    words = command(name, tmp_path / "out", data)
    weather = storm(tmp_path, events, PAUSE_S, *words, ranks=2, zygote=zygote, timeout_s=TIMEOUT_S, job=JOB)
    check(weather, undisturbed(name))
    assert weather.starts == 2
    assert {"resize", "kill", "preempt"} <= {event.what for event in weather.done}


def test_a_kill_between_two_steps_changes_no_buffer(tmp_path, zygote, data, undisturbed):
    """The pause is behind the commit, so the survivor learns of the kill between two steps."""
    words = command("images", tmp_path / "out", data)
    events = [Event(2, "kill", 1), Event(13, "kill", 1)]
    weather = storm(tmp_path, events, 0.06, *words, ranks=2, zygote=zygote, timeout_s=TIMEOUT_S, job=JOB, replace=2)
    check(weather, undisturbed("images"))


@pytest.mark.parametrize("name", SMALL)
def test_the_plain_loop_runs(tmp_path, zygote, data, name):
    words = [LOOPS / "plain" / f"{name}.py", *SMALL[name][0], "--out", tmp_path]
    printed = ran(zygote, [*words, *(["--data", data] if name == "gpt" else [])], tmp_path)
    assert re.search(r"loss|right", printed)


def changed(name):
    """Lines of the plain loop, of those the ones that go, and the ones that come; indentation does not count."""
    plain, elastic = (
        [line.strip() for line in (LOOPS / kind / f"{name}.py").read_text().splitlines() if line.strip()]
        for kind in ("plain", "elastic")
    )
    marks = [line[:2] for line in difflib.ndiff(plain, elastic)]
    return len(plain), marks.count("- "), marks.count("+ ")


def test_the_document_tells_how_many_lines_change():
    document = (ROOT / "docs" / "how-to-train-elastically.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)\.py`\]\S+ .*?\| (\d+) \| (\d+) \| (\d+) \|", document, re.MULTILINE)
    assert {name: tuple(map(int, numbers)) for name, *numbers in rows} == {name: changed(name) for name in SMALL}
