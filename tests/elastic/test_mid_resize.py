"""A rank or the supervisor is killed while a gang is resized or moved: a few cases of the sweep in ``mid_resize``."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.mid_resize import MARK, OLD, Case, run, start
from tests.gang.conftest import END_S, hunt_until_gone
from tests.sampling import sample

CASES = [("grow", "joins"), ("move", "leaves"), *sample(
    [("grow", "stays"), ("grow", "supervisor"), ("shrink", "leaves"), ("shrink", "stays"), ("shrink", "supervisor"),
     ("move", "joins"), ("move", "supervisor")], [],
)]  # fmt: skip


def case(change: str, victim: str) -> Case:
    model = sample("heavy", "mlp")
    return Case(change, victim, 0.0, model=model, pause_s=0.1, must_be_found=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mid-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def digests(place, zygote) -> set[str]:
    """What an undisturbed run comes to."""
    folder = place / "undisturbed"
    (folder / "answers").mkdir(parents=True)
    os.waitpid(start(folder, case("grow", "joins"), OLD, zygote), 0)
    assert not hunt_until_gone(f"{MARK}={folder}", END_S)
    return {json.loads(path.read_text())["digest"] for path in (folder / "answers").glob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "victim"), CASES)
def test_a_kill_in_the_middle_of_a_resize_changes_no_bit(place, zygote, digests, change, victim):
    said = run(place / f"{change}-{victim}", case(change, victim), zygote)
    assert (said["code"], said["digests"], said["killed"]) == (0, digests, True)
