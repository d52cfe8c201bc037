"""The live cluster on a GPU: what it gives out, finds occupied, measures and moves; skipped where there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from brim.live.gpu_types import type_of
from tests.cli.test_live import Box, until, until_running

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"), pytest.mark.slow]

JOB = str(Path(__file__).with_name("trained_job.py"))
OCCUPIES = """
import sys, time, torch
kept = torch.zeros(int(float(sys.argv[1]) * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")
print("occupies", flush=True)
time.sleep(float(sys.argv[2]))
"""
COMPUTES = """
import time, torch
x = torch.randn(8192, 8192, device="cuda")
end_s = time.monotonic() + 6
while time.monotonic() < end_s:
    (x @ x).sum().item()
"""


def up(*words):
    """A box whose cluster is the GPUs of this machine; all that it started ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="brim-"))  # pytest's own is too long for a socket
    box = Box(folder)
    try:
        box("up", *words, timeout_s=240)
        yield box
    finally:
        box("down", "--stop", code=None)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def exclusive():
    yield from up()


@pytest.fixture
def aiturbo():
    yield from up("--policy", "aiturbo")


@pytest.fixture
def eaco():
    yield from up("--policy", "eaco")


def python(code, *words):
    return sys.executable, "-c", code, *map(str, words)


def test_a_job_computes_on_the_gpu_that_it_was_given(exclusive):
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    assert f"x{len(names)}x{type_of(names)}:" in json.loads(exclusive("status", "--json").stdout)["status"]["cluster"]
    code = "from torch import cuda, ones; print(cuda.device_count(), cuda.get_device_name(), ones(3).cuda().sum())"
    assert exclusive("run", "-g", "1", "--", *python(code)).stdout == f"1 {names[0]} tensor(3., device='cuda:0')\n"


def test_the_next_job_finds_the_memory_of_one_that_was_cancelled(exclusive):
    gpus = str(torch.cuda.device_count())
    first = exclusive("submit", "-g", gpus, "--", *python(OCCUPIES, 0.8, 600)).stdout.strip()
    until(lambda: "occupies" in exclusive("logs", first).stdout)
    second = exclusive("submit", "-g", gpus, "--", *python(OCCUPIES, 0.8, 0)).stdout.strip()
    exclusive("cancel", first)
    until(lambda: exclusive.job(second).state == "finished")
    assert "occupies" in exclusive("logs", second).stdout


def test_a_gpu_that_a_process_of_somebody_uses_is_withheld_until_that_has_ended(exclusive):
    with subprocess.Popen(python(OCCUPIES, 0.1, 600), stdout=subprocess.PIPE, text=True) as other:
        try:
            other.stdout.readline()
            until(lambda: f"in use by process {other.pid}" in exclusive("status").stdout)
            job = exclusive("submit", "-g", str(torch.cuda.device_count()), "true").stdout.strip()
            until(lambda: "withheld" in exclusive("explain", job).stdout)
            assert exclusive.job(job).state == "pending"
        finally:
            other.kill()
    until(lambda: exclusive.job(job).state == "finished")


def test_a_job_that_is_interrupted_goes_on_with_the_bits_of_one_that_is_not(exclusive):
    env = {name: value for name, value in os.environ.items() if not name.startswith("BRIM_")}
    alone = subprocess.run([sys.executable, JOB, "200", "0"], env=env, capture_output=True, text=True, check=True)
    folder = exclusive.work
    job = exclusive("submit", "-g", "1", "--", sys.executable, JOB, "200", "0.02", folder).stdout.strip()
    until((folder / "trains").exists)
    exclusive("requeue", job)
    until(lambda: exclusive.job(job).state == "finished")
    said = exclusive("logs", job).stdout.splitlines()
    assert said.count("device cuda, asked for gpu") == exclusive.job(job).attempt == 2
    assert said[-1] == alone.stdout.splitlines()[-1]


def test_energy_is_that_of_the_driver(exclusive):
    job = exclusive("submit", "--wait", "-g", "1", "--", *python(COMPUTES)).stdout.strip()
    bill = json.loads(exclusive("bill", "--json").stdout)
    [kwh] = [one["gpu_kwh"] for one in bill["jobs"] if one["job"] == job]
    assert 6 * 50 < kwh * 3.6e6 < 60 * 2_000  # J: six seconds and its start, on any GPU that computes


def test_a_job_that_begins_on_cpu_goes_on_on_a_gpu_when_one_is_free(aiturbo):
    gpus = str(torch.cuda.device_count())
    other = aiturbo("submit", "-g", gpus, "--", "sleep", "600").stdout.strip()
    until_running(aiturbo, other)
    job = aiturbo(
        "submit", "-c", "1", "--devices", "gpu,cpu", "--target-loss", "0.21", "--", sys.executable, JOB, "600", "0.5",
        aiturbo.work,
    ).stdout.strip()  # fmt: skip
    until((aiturbo.work / "trains").exists)
    assert aiturbo("logs", job).stdout.splitlines()[0] == "device cpu, asked for cpu"
    aiturbo("cancel", other)
    until(lambda: "device cuda, asked for gpu" in aiturbo("logs", job).stdout)
    aiturbo("cancel", job)


def test_two_jobs_share_a_gpu_once_their_steps_alone_are_known(eaco):
    uses = ("-g", "1", "-n", "model", "--gpu-mem", "2GB", "--gpu-util", "10%")
    folders = [eaco.work / name for name in ("alone", "beside")]
    jobs = []
    for folder in folders:
        folder.mkdir()
        jobs.append(eaco("submit", *uses, "--", sys.executable, JOB, "100000", "0.05", folder).stdout.strip())
    until(lambda: all((folder / "trains").exists() for folder in folders))
    shared = [eaco.job(job).devices for job in jobs]
    assert torch.cuda.device_count() > 1 or shared == [(0,), (0,)]
    until(lambda: re.search(r"times as long as alone", eaco("explain", jobs[1]).stdout))
    eaco("cancel", *jobs)
