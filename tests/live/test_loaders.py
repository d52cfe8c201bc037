"""Loader workers of running training jobs: what a plan decides reaches their ranks, and what they report, the plan."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from tests.live.box import Box, in_state, running, until

SCRIPT = Path(__file__).parent / "loading_job.py"


@dataclass(frozen=True)
class AsTheFileSays:
    """As many loader workers for each rank as a file says."""

    file: Path
    tunes_running: ClassVar[bool] = True
    acts_when_idle: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, grants):
        return np.full(len(snapshot.jobs), int(self.file.read_text()))


def ask_for(file: Path, workers: int) -> None:
    """Write it at once: a round that reads an empty file would fail."""
    part = file.with_suffix(".part")
    part.write_text(str(workers))
    part.replace(file)


def policy_with(file: Path) -> Policy:
    ask_for(file, 3)
    return replace(find_policy("fifo"), feed=AsTheFileSays(file), period_ms=100)


def training(box: Box, folder: str, **fields) -> JobRequest:
    (box.folder / folder).mkdir()
    return box.request(sys.executable, str(SCRIPT), str(box.folder / folder), ranks="per-gpu", grace_s=60.0, **fields)


def bounds(box: Box, folder: str, rank: int = 0) -> list[int]:
    path = box.folder / folder / f"bounds-{rank}"
    return json.loads(path.read_text() or "[]") if path.exists() else []


def wait_ratio(service: ClusterService) -> float:
    """Part of its step that the only job waits for data, as the engine knows it."""
    state = service.engine._controller.scheduler.state
    return float(state.freeze(state.now_ms).jobs.loader_wait_ratio[0]) if len(state) else math.nan


@pytest.mark.slow
def test_loader_workers_of_running_ranks_change_and_no_bit_of_the_job_does(box: Box) -> None:
    """Its samples are those of an undisturbed run, in the same order: they have random numbers of their own."""
    file = box.folder / "workers"

    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, training(box, "feeds", gpus=2))
        seen = [3]
        await until(lambda: all(bounds(box, "feeds", rank) == seen for rank in (0, 1)), "the workers of its start")
        await until(lambda: wait_ratio(service) > 0.1, "a report of its wait for data")
        for workers in (1, 4, 2):
            ask_for(file, workers)
            seen.append(workers)
            await until(lambda: all(bounds(box, "feeds", rank) == seen for rank in (0, 1)), f"{workers} workers")
        await until(lambda: wait_ratio(service) > 0.1, "a report after the change")
        await until(lambda: service.job(job).loader_wait_ratio is not None, "the commit of that report")
        assert "of each step; the policy allows it 2 loader workers a rank" in service.explain(job)
        box.end("feeds")
        await in_state(service, job, "finished")
        assert (service.job(job).attempt, service.job(job).loader_wait_ratio) == (1, None)

    running(box, scenario, policy_with(file))
    said = json.loads((box.folder / "feeds" / "result").read_text())
    (box.folder / "alone").mkdir()
    command = (sys.executable, str(SCRIPT), str(box.folder / "alone"), str(said["steps"]))
    subprocess.run(command, check=True, env={**os.environ, "BRIM_CKPT_DIR": str(box.folder / "alone" / "saved")})
    assert json.loads((box.folder / "alone" / "result").read_text()) == said


def test_other_jobs_take_no_notice_of_loader_workers(box: Box) -> None:
    file = box.folder / "workers"

    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, box.resumable("plain"))
        await in_state(service, job, "running")
        seen = service.engine._controller.agents.seen
        tuned = seen(os.getuid(), job, 1).sequence + 1
        ask_for(file, 1)
        await until(lambda: seen(os.getuid(), job, 1).sequence >= tuned, "the tune")
        box.end("plain")
        await in_state(service, job, "finished")
        assert len(box.starts("plain")) == 1

    running(box, scenario, policy_with(file))
