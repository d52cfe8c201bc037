"""The wheel has all that the command needs: installed away from the repository, it lists and begins policies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_built_wheel_works_away_from_the_repository(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], capture_output=True, text=True, check=False, timeout=300
    )
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be installed here")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("brim-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "installed", wheel], check=True, timeout=120)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    where = "import brim; print(brim.__file__)"
    said = [
        subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for words in (["-c", where], ["-m", "brim", "policy", "list"], ["-m", "brim", "policy", "new", "my-first"])
    ]
    assert said[0].startswith(str(tmp_path / "installed"))
    assert "tiresias" in said[1]
    assert said[2].split() == ["my_first.py", "test_my_first.py"]
    for part in ("beliefs/profiles/pollux.toml", "reports/assets/page.js"):
        assert (tmp_path / "installed" / "brim" / part).is_file(), part
