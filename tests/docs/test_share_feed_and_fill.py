"""The commands of docs/how-to-share-feed-and-fill.md run, and its files are ones that brim reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs/how-to-share-feed-and-fill.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_replay_shows_sharing_loader_cores_padding_energy_and_cost(tmp_path) -> None:
    (script,), (power,) = (re.findall(rf"^ *```{kind}\n(.*?)^ *```$", TEXT, re.M | re.S) for kind in ("sh", "toml"))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "power.toml").write_text(power)
    script += "\nbrim sim run jobs.csv -c 1x2xRTX4090 -p fifo --power power.toml"
    words = ["bash", "-e", "-c", script]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said in ("kWh", "CO2 kg", "cost", "eaco: Starts beside other jobs", "0.6 (elastic) or 0.13 (padding)",
                 "Jobs wait for their data", "What cores bring the loaders of m5, res18, res50 is known",
                 "JCT regular", "uses the least energy: ", "costs least: "):  # fmt: skip
        assert said in done.stdout
    assert "of GPUs (150 to 1,000 W for 2 RTX4090)" in done.stdout
