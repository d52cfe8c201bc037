"""The profiles that come with brim are what their refit command writes: every word, and numbers within one percent.

Where measured speeds do not tell a parameter, the optimiser stops at a place that depends on the processor.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from brim.beliefs.library import NAMES
from tests.realdata.test_read_all import DATA

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "refit_profiles.py"
NEEDED = ("pollux", "gavel", "mlperf_training_v4.0")


def test_the_profiles_are_what_the_refit_command_writes(tmp_path):
    for folder in NEEDED:
        if not (DATA / "profiles" / folder).exists():
            pytest.skip(f"{DATA / 'profiles' / folder} is not here; set BRIM_DATA")
    spec = importlib.util.spec_from_file_location("refit_profiles", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main([str(DATA), str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.toml" for name in NAMES)
    for path in tmp_path.iterdir():
        shipped = files("brim.beliefs").joinpath("profiles", path.name).read_text("utf-8")
        (words, numbers), (shipped_words, shipped_numbers) = map(words_and_numbers, (path.read_text("utf-8"), shipped))
        assert words == shipped_words, path.name
        assert numbers == pytest.approx(shipped_numbers, rel=0.01), path.name


def words_and_numbers(text):
    values = r"(?<= = )[0-9][0-9.e+-]*$"
    return re.sub(values, "", text, flags=re.M), [float(each) for each in re.findall(values, text, re.M)]


def test_a_folder_without_the_measurements_is_one_line(tmp_path):
    for words, said in ((["DATA"], "no folder pollux, gavel, mlperf_training_v4.0"), ([], "usage: python benchmarks/")):
        done = subprocess.run(
            [sys.executable, SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert said in line
