"""Jobs that wait have a forecast without a question, by a process beside the service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from brim.foresight import first_forecasts
from brim.foresight.first_forecasts import FirstForecasts
from brim.live.requests import NONE
from brim.live.service import ClusterService
from brim.live.store.state_folder import DATABASE
from tests.live.box import Box, in_state, running, until


@pytest.fixture
def box():
    box = Box()
    yield box
    box.close()


PRINTS = """
from dataclasses import replace
from brim.policies.presets import find_policy
print("found 3 nodes")
policy = replace(find_policy("fifo"), name="prints")
"""


async def answer_under(policy, database, now_ms: int, job: int) -> dict:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "brim.foresight.first_forecasts", str(database), str(policy), str(NONE), "", str(now_ms),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )
    answer, _ = await process.communicate(json.dumps([job]).encode())
    return json.loads(answer)


async def of_a_killed_controller(database, now_ms: int, job: int) -> bytes:
    """What the process prints on stderr if nobody reads its answer any more."""
    reads, writes = os.pipe()
    os.close(reads)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "brim.foresight.first_forecasts", str(database), "fifo", str(NONE), "", str(now_ms),
        stdin=asyncio.subprocess.PIPE, stdout=writes, stderr=asyncio.subprocess.PIPE,
    )
    os.close(writes)
    _, said = await process.communicate(json.dumps([job]).encode())
    assert process.returncode == -signal.SIGPIPE
    return said


@pytest.mark.timing  # the process has the lowest priority: beside other tests it would get no core for minutes
def test_a_job_that_waits_is_forecast_although_nobody_asks(box, monkeypatch):
    monkeypatch.setattr(first_forecasts, "CALM_S", 0.1)

    async def scenario(service: ClusterService) -> None:
        reads = service.engine.store.reads
        database = box.folder / "s" / "controller" / DATABASE
        beside = asyncio.create_task(FirstForecasts(service, database, "fifo", NONE).run())
        await asyncio.sleep(0)
        first, second = await box.submit(
            service, box.resumable("a", gpus=2, time_limit_s=3_600), box.resumable("b", gpus=1)
        )
        await in_state(service, first, "running")

        def forecast() -> list[int]:
            return [job for (job,) in reads._connection.execute("SELECT job FROM forecasts")]

        await until(lambda: forecast() == [second], "a forecast of the job that waits, and of no other")
        assert reads.forecasts_hit() == (0, 0)
        assert await of_a_killed_controller(database, service.now_ms(), second) == b""
        (box.folder / "prints.py").write_text(PRINTS)
        answer = await answer_under(box.folder / "prints.py", database, service.now_ms(), second)
        assert list(answer["starts_ms"]) == [str(second)]
        box.end("a")
        await in_state(service, second, "running")
        assert reads.forecasts_hit()[0] == 1, "it is scored"
        beside.cancel()
        await asyncio.wait([beside])
        assert beside.cancelled()

    running(box, scenario, "fifo")
