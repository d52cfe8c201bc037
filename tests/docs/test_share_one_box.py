"""Every command of docs/how-to-share-one-box.md runs, in its order, and does what the document says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.test_predictability import history

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/how-to-share-one-box.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)
SAID = {
    0: ("4 devices, 0 jobs run, 0 wait", "cpu3", "your agent is connected"),
    1: ("hello from a job",),
    2: ("step 1", "step 2", "train"),
    3: ("gpus: 4", "it would start now"),
    4: ("training for 90 epochs",),
    5: ("runs of the same user and size",),
    6: ("it is held until it is released",),
    7: ("runs on gpu",),
    8: ("18 runs of 3 families", "4 devices"),
    9: ("finished at step 20 in attempt 2",),
    10: ('"schema":1', '"jobs":['),
    11: ("http://127.0.0.1:", "has cancelled it"),
    12: ("4 devices",),
    13: ("has ended",),
}
"""What each block prints, among other things."""


@pytest.mark.slow
def test_every_command_runs_and_says_what_it_should() -> None:
    folder = Path(tempfile.mkdtemp(prefix="brim-", dir="/tmp"))  # pytest's own is too long for a socket
    (folder / "work").mkdir()
    history().write_csv(folder / "work" / "losses.csv")
    env = {
        **os.environ, "BRIM_STATE": str(folder / "state"), "BRIM_RUNTIME": str(folder / "run"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        assert len(BLOCKS) == len(SAID)
        for number, block in enumerate(BLOCKS):
            script = block.replace("brim join ann", f"brim join {folder}/run")
            script = re.sub(r"^pip install .*\n", "", script)  # it is here
            script = script.replace("--predictability", "--devices 4 --predictability")  # the options that it had
            done = subprocess.run(
                ["bash", "-e", "-u", "-o", "pipefail", "-c", script], cwd=folder / "work", env=env, timeout=240,
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            for said in SAID[number]:
                assert said in done.stdout, (block, done.stdout, done.stderr)
        assert (folder / "work" / "backup.tgz").stat().st_size
    finally:
        subprocess.run(["brim", "down", "--stop"], env=env, cwd=folder, check=False, capture_output=True, timeout=60)
        shutil.rmtree(folder)
