"""Profiles that come with brim: they load, say where they are from, and a broken one says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from brim.beliefs.library import NAMES, WITH_LOADING, load, parse
from brim.beliefs.throughput import step_s
from brim.errors import ConfigError, NotFoundError

GOOD = """
source = "made up"
licence = "none needed"
fitted = "nothing"

[[steps]]
name = "a"
gpu_type = "T4"
alpha_c = 0.1
beta_c = 0.01
alpha_r = 0.0
beta_r = 0
alpha_n = 0.2
beta_n = 0.1
gamma = 2.0
residual = 0.05
points = 3
gpus_max = 8
local_batch = [4, 16]

[[scaling]]
name = "b"
quantity = "samples_per_s"
at_one = 10.0
exponent = 0.9
residual = 0.0
points = 2
runs = 10
accelerators = [4, 8]
"""


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_with_brim_loads_and_names_its_source_and_licence(name):
    library = load(name)
    assert "commit" in library.source
    assert library.licence in {"Apache-2.0", "MIT"}
    assert library.steps or library.scaling or library.loading
    assert bool(library.loading) is (name in WITH_LOADING)
    for profile in library.steps.values():
        assert 0 < profile.residual < 0.4
        one, many = step_s(profile.parameters, 1, np.array([1, profile.gpus_max]), profile.local_batch[0])
        assert 0 < one <= many
        assert not profile.parameters.flags.writeable


def test_the_six_applications_are_there():
    assert list(load("pollux").steps) == ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"]


def test_a_file_reads_as_written():
    library = parse(GOOD, "x.toml")
    assert library.steps["a"].parameters.tolist() == [0.1, 0.01, 0, 0, 0.2, 0.1, 2.0]
    assert library.steps["a"].local_batch == (4, 16)
    assert library.scaling["b"].exponent == 0.9


@pytest.mark.parametrize(("old", "new", "message"), [
    ("beta_n = 0.1\n", "", "x.toml, steps 1: found no 'beta_n', expected a number from 0 up"),
    ("gamma = 2.0", "gamma = 0.5", "x.toml, steps 1: found gamma=0.5, expected a number from 1 to 10"),
    ("alpha_c = 0.1", "alpha_c = nan", "x.toml, steps 1: found alpha_c=nan"),
    ("alpha_c = 0.1", "alpha_c = true", "x.toml, steps 1: found alpha_c=True"),
    ("points = 3", "points = 0", "x.toml, steps 1: found points=0, expected a count from 1 up"),
    ("[4, 16]", "[16, 4]", r"x.toml, steps 1: found local_batch=\[16, 4\], expected two counts, the smaller first"),
    ('"samples_per_s"', '"speed"', "x.toml, scaling 1: found quantity='speed', expected one of samples_per_s"),
    ('licence = "none needed"\n', "", "x.toml: found no 'licence', expected a text"),
    ('source = "made up"', "source = 3", "x.toml: found source=3, expected a text"),
    ("[[steps]]", "[steps]", "x.toml: found steps=.*, expected an array of tables"),
    ("gamma = 2.0", "gamma 2.0", "x.toml: not TOML"),
])  # fmt: skip
def test_a_broken_file_names_file_entry_and_field(old, new, message):
    assert old in GOOD
    with pytest.raises(ConfigError, match=message):
        parse(GOOD.replace(old, new), "x.toml")


def test_a_name_stands_once():
    entry = GOOD[GOOD.index("[[scaling]]") :]
    with pytest.raises(ConfigError, match=r"x.toml: found 'b' twice, expected every name once"):
        parse(GOOD + entry, "x.toml")


def test_an_unknown_file_names_the_known_ones():
    with pytest.raises(NotFoundError, match=r"--library: found .philly., expected pollux, gavel, mlperf, synergy or a"):
        load("philly")


def test_a_file_of_ones_own_is_read_anew_every_time(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert list(load(str(path)).steps) == ["a"]
    path.write_text(GOOD.replace('"a"', '"c"'))
    assert list(load(str(path)).steps) == ["c"]


@pytest.mark.parametrize(("content", "error"), [(None, NotFoundError), (b"\xff", ConfigError), (b"a = ", ConfigError)])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, error):
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=r"mine\.toml"):
        load(str(path))
