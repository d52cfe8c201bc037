"""`--ranks per-gpu` over a real controller and agent: a plain torch script as two ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.cli.commands import brim
from tests.cli.test_live import Box, until_running

pytest.importorskip("torch", reason="PyTorch (extra torch) is not installed")
pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([10.0 ** rank])
dist.all_reduce(total)
local, last = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
print(f"rank {rank} of {size}, local {local} of {last}, sum {total.item():.0f}", flush=True)
if sys.argv[1:] == ["fail"]:
    if rank == 1:
        sys.exit(7)
    time.sleep(1000)
if sys.argv[1:] == ["train"]:
    saved = Path("step")
    step = begin = int(saved.read_text()) if saved.exists() else 0
    while not (begin and step >= begin + 3):
        time.sleep(0.01)
        total = torch.ones(1)
        dist.all_reduce(total)
        step += 1
        if rank == 0:
            saved.with_name("part").write_text(str(step))
            saved.with_name("part").rename(saved)
    print(f"rank {rank} ends {step - begin} steps after it came back", flush=True)
dist.destroy_process_group()
"""
LINES = ["rank 0 of 2, local 0 of 2, sum 11", "rank 1 of 2, local 1 of 2, sum 11"]
TWO = ("-g", "2", "--ranks", "per-gpu")


@pytest.fixture(scope="module")
def up():
    folder = Path(tempfile.mkdtemp(prefix="brim-"))  # pytest's own is too long for a socket
    box = Box(folder)
    (box.work / "plain.py").write_text(SCRIPT, encoding="utf-8")
    try:
        box("up", "--devices", "2", "--policy", "srtf", timeout_s=240)
        yield box
    finally:
        brim("down", "--stop", cwd=folder, env=box.env)
        shutil.rmtree(folder)


def test_each_rank_has_torchruns_variables_and_a_log_of_its_own(up):
    done = up("run", *TWO, "--", sys.executable, "plain.py", timeout_s=240)
    assert done.stdout == f"{LINES[0]}\n"
    assert re.search(r"this shows rank 0, and `brim logs -f --rank 1 \d+` the next", done.stderr)
    for rank, line in enumerate(LINES):
        assert up("logs", "--rank", str(rank)).stdout == f"{line}\n"


def test_when_one_rank_fails_the_other_is_ended_and_its_code_is_the_jobs(up):
    done = up("run", *TWO, "--", sys.executable, "plain.py", "fail", code=7, timeout_s=240)
    assert "failed" in done.stderr
    assert "rank 1 failed first: exited with 7" in done.stderr
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(up.work) != os.readlink(line.with_name("cwd")), line.read_bytes()


@pytest.mark.slow
def test_a_gang_makes_room_comes_back_and_goes_on(up):
    job = up("submit", *TWO, "-t", "1h", "--", sys.executable, "plain.py", "train").stdout.strip()
    until_running(up, job)
    while not (up.work / "step").exists():
        time.sleep(0.05)
    short = up("submit", "-g", "1", "-t", "1m", "--wait", "--", "echo", "short").stdout.strip()
    assert up("logs", short).stdout == "short\n"
    up("logs", "-f", job, timeout_s=240)
    (shown,) = [one for one in json.loads(up("history", "--json").stdout)["jobs"] if one["id"] == int(job)]
    assert (shown["state"], shown["attempt"], shown["preemptions"]) == ("finished", 2, 1)
    for rank in range(2):
        assert f"rank {rank} ends 3 steps after it came back" in up("logs", "--rank", str(rank), job).stdout
