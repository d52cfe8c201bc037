"""Training jobs of real processes whose ranks are killed from outside: they keep their size, and their result."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from brim.agent.attempt import REPLACEMENTS_MAX
from brim.agent.folders import attempt_folder
from brim.gang.client import send_request
from brim.gang.messages import StatusRequest
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from tests import forked
from tests.live.box import Box, in_state, running, until

SCRIPT = Path(__file__).parent / "exchanged_job.py"
STEPS = 40


def training(box: Box, step_s: float, **fields) -> JobRequest:
    command = (sys.executable, str(SCRIPT), str(STEPS), str(step_s), "", "4")
    return box.request(*command, **{"gpus": 2, "ranks": "per-gpu", "attempts_max": 1} | fields)


def log_of(box: Box, rank: int) -> str:
    path = attempt_folder(box.folder / "s" / "agent", 1, 1) / "log" / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def status(box: Box) -> dict:
    return send_request(str(attempt_folder(box.folder / "s" / "agent", 1, 1) / "control"), StatusRequest()).status


async def kill(box: Box, rank: int) -> None:
    """Kill a rank once it trains."""
    await until(lambda: log_of(box, rank) and status(box)["settled"] and rank in status(box)["members"], "training")
    [process] = re.findall(r"^process (\d+)$", log_of(box, rank), re.M)
    os.kill(int(process), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("least", [2, 1])
def test_a_killed_rank_is_replaced_on_its_device_and_the_result_is_the_same(box: Box, zygote: str, least: int) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("BRIM_")}
    undisturbed = forked.run(SCRIPT, STEPS, 0, "", 4, zygote=zygote, env=env, check=True).stdout.splitlines()[-1]

    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, training(box, 0.1, gpus_min=least))
        await kill(box, 1)
        await until(lambda: status(box)["members"] == [0, 2] and status(box)["settled"], "two ranks again")
        assert [rank["device"] for rank in status(box)["ranks"]] == ["cpu0", "cpu1", "cpu1"]
        await until(lambda: "ended by SIGKILL and was replaced, 1 of at most 3" in service.explain(job), "a note")
        assert service.job(job).devices == (0, 1)
        await in_state(service, job, "finished")
        assert (service.job(job).attempt, service.job(job).failures) == (1, 0)
        assert {log_of(box, rank).splitlines()[-1] for rank in (0, 2)} == {undisturbed}

    running(box, scenario, "fifo")


@pytest.mark.slow
def test_an_attempt_that_loses_ranks_again_and_again_fails_and_is_followed_by_another(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, training(box, 0.2, attempts_max=2))
        for rank in range(1, REPLACEMENTS_MAX + 2):
            await kill(box, rank)
        await until(lambda: service.job(job).attempt == 2, "a second attempt")
        [first, *_] = service.engine.store.reads.attempts(job)
        assert (first.outcome, first.exit_code) == ("failed", 128 + signal.SIGKILL)
        assert first.detail.startswith("rank 4 failed first: ended by SIGKILL; 3 ranks had been replaced")
        await in_state(service, job, "finished")

    running(box, scenario, "fifo")
