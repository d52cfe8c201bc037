"""``brim up`` on a machine with GPUs, which a stand-in for NVIDIA's library plays."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.cli.test_live import Box, until
from tests.nvml import Rack, build

pytestmark = pytest.mark.slow


@pytest.fixture
def box():
    folder = Path(tempfile.mkdtemp(prefix="brim-"))
    try:
        build(folder)
        Rack(folder / "gpus")
        made = Box(folder)
        made.env |= {"LD_LIBRARY_PATH": str(folder), "STAND_IN_NVML": str(folder / "gpus"),
                     "STAND_IN_GPU": "NVIDIA A100-SXM4-80GB"}  # fmt: skip
        yield made
        made("down", "--stop")
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_gpus_are_given_out_by_the_name_that_the_driver_says_and_within_a_quota(box):
    box("up", "--user-gpus", "1", "--user-jobs", "2", timeout_s=240)
    assert "x2xA100-SXM4-80GB:" in json.loads(box("status", "--json").stdout)["status"]["cluster"]
    assert box("run", "-g", "A100:1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout == "GPU-a\n"
    job = box("submit", "-g", "H100", "true").stdout.strip()
    assert "it needs GPUs of type H100, the cluster has A100-SXM4-80GB" in box("explain", job).stdout
    box("cancel", job)
    first, second = (box("submit", "-g", "1", "sleep", "60").stdout.strip() for _ in range(2))
    assert "and a user may have 2" in box("submit", "true", code=1).stderr
    until(lambda: "quota" in box.job(second).holds)
    assert "may have 1 GPUs at the same time" in box("ps").stdout
    box("cancel", first, second)
