"""Training jobs of real processes that are exchanged between devices and CPU: no sample is lost, whatever is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from brim.agent.folders import attempt_folder
from brim.agent.protocol import ON_CPU
from brim.core.lifecycle import Phase
from brim.foresight.foresight import Foresight
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.allocations import as_asked, picked, present, sizes_of
from brim.policies.order.arrival import Arrival
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from tests import forked, zygotes
from tests.live.box import Box, in_state, run_and_kill, running, until

SCRIPT = Path(__file__).parent / "exchanged_job.py"
CURVES = Path(__file__).parents[2] / "benchmarks" / "timed_curves.py"
STEPS = 60
BATCH = 8
CLUSTER = "1x2xcpu:cpus=2"


@dataclass(frozen=True, slots=True)
class _ByProgress:
    """On CPU in every other twenty steps; a job that starts is left where it was sent.

    What a job has done is an estimate, which falls when a report says less or a kill takes steps back.
    """

    resizes_running: ClassVar[bool] = True
    before_first: Callable[[], object] = bool

    def __call__(self, snapshot, beliefs, order):
        asked, jobs = as_asked(snapshot), snapshot.jobs
        turn = jobs.samples_done // (BATCH * STEPS // 3)
        if turn.any():
            self.before_first()
        by_turn = asked._replace(on_gpu=asked.on_gpu & ((jobs.cpu_ranks_max == 0) | (turn % 2 == 0)))
        return sizes_of(snapshot, picked(jobs.phase == Phase.STARTING, present(snapshot), by_turn))


def by_progress(before_first: Callable[[], object] = bool) -> Policy:
    """The policy; before it exchanges a job, and in all rounds after, it calls what is given."""
    base = find_policy("fifo")
    return Policy(
        name="by-progress", order=Arrival(), size=_ByProgress(before_first), place=WorkersAndServers(), feed=base.feed,
        fill=base.fill, period_ms=200,
    )


def training(box: Box, step_s: float = 0.1, **fields) -> JobRequest:
    command = (sys.executable, str(SCRIPT), str(STEPS), str(step_s))
    asks = {"devices": ("gpu", "cpu"), "ranks": "per-gpu", "grace_s": 60.0, "attempts_max": 1}
    return box.request(*command, **asks | fields)


def attempts_of(service: ClusterService, job: int) -> list:
    return list(service.engine.store.reads.attempts(job))


def said(box: Box, job: int, attempt: int) -> str:
    folder = attempt_folder(box.folder / "s" / "agent", job, attempt) / "log"
    return "".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))


@pytest.fixture(scope="module")
def undisturbed(zygote: str) -> str:
    """What the job says at its end when nobody disturbs it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("BRIM_")}
    return forked.run(SCRIPT, STEPS, 0, zygote=zygote, env=env, check=True).stdout.splitlines()[-1]


def check_end(box: Box, service: ClusterService, job: int, undisturbed: str) -> None:
    attempts = attempts_of(service, job)
    kinds = [ON_CPU in one.devices for one in attempts]
    assert kinds == [bool(number % 2) for number in range(len(kinds))]  # from one kind to the other
    assert len(kinds) > 1
    for one in attempts:
        kind = "cpu" if ON_CPU in one.devices else "gpu"
        assert f"device {kind}, threads 1, visible ''" in said(box, job, one.number)
    assert said(box, job, attempts[-1].number).splitlines()[-1] == undisturbed
    assert re.match(rf"{STEPS * BATCH} samples", undisturbed)
    assert service.job(job).samples_total == STEPS * BATCH
    assert (service.job(job).preemptions, service.job(job).failures) == (0, 0)


@pytest.mark.slow
def test_an_exchanged_job_makes_every_sample_once(box: Box, undisturbed: str) -> None:
    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, training(box))
        await in_state(service, job, "finished")
        check_end(box, service, job, undisturbed)
        assert service.job(job).lost_gpu_s == 0.0

    running(box, scenario, by_progress(), CLUSTER)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["controller", "rank"])
def test_a_kill_during_the_exchange_loses_nothing(box: Box, undisturbed: str, killed: str) -> None:
    stopped: list[int] = []

    def stop_rank() -> None:
        """Else it might leave before it is killed."""
        if not stopped:
            stopped.extend(map(int, re.findall(r"^process (\d+)$", said(box, 1, 1), re.M)))
            os.kill(stopped[0], signal.SIGSTOP)

    async def exchanging(service: ClusterService) -> int:
        [job] = await box.submit(service, training(box))
        await until(lambda: any(one.stop_reason == "exchanged" for one in attempts_of(service, job)), "an exchange")
        return job

    async def until_it_is_exchanged(service: ClusterService) -> None:
        await exchanging(service)

    async def to_its_end(service: ClusterService) -> None:
        job = 1
        if killed == "rank":
            job = await exchanging(service)
            os.kill(stopped[0], signal.SIGKILL)
            await until(lambda: attempts_of(service, job)[0].outcome, "the end of the attempt")
            assert attempts_of(service, job)[0].exit_code == 128 + signal.SIGKILL
        await in_state(service, job, "finished")
        check_end(box, service, job, undisturbed)

    box.start_agent()
    if killed == "controller":
        run_and_kill(box, until_it_is_exchanged, by_progress(), CLUSTER)
    running(box, to_its_end, by_progress(stop_rank if killed == "rank" else bool), CLUSTER)


@pytest.mark.slow
def test_under_aiturbo_a_job_begins_on_cpu_and_goes_on_on_a_gpu_that_is_left(box: Box) -> None:
    """Another one has both GPUs at first. What is left takes minutes on CPU, so that also a slow restart pays."""
    command = (sys.executable, str(CURVES), "falling", "1", str(STEPS), str(STEPS), "0.02", "3")

    async def scenario(service: ClusterService) -> None:
        [other] = await box.submit(service, box.resumable("other", gpus=2))
        await in_state(service, other, "running")
        [job] = await box.submit(service, box.request(
            *command, devices=("gpu", "cpu"), ranks="per-gpu", grace_s=60.0, attempts_max=1, target_loss=0.2,
        ))
        await until(lambda: service.job(job).samples_done, "a step on CPU")
        assert service.job(job).devices == (ON_CPU,)
        believed = await Foresight(service).explain(job)
        assert "Its progress is not believed predictable; nothing can be said" in believed.text
        box.end("other")
        await in_state(service, job, "finished")
        assert [ON_CPU in one.devices for one in attempts_of(service, job)] == [True, False]
        assert attempts_of(service, job)[0].stop_reason == "exchanged"
        assert (service.job(job).preemptions, service.job(job).failures) == (0, 0)
        env = {**os.environ, "BRIM_CKPT_DIR": str(box.folder / "alone")}
        alone = forked.run(*command[1:-2], 0, 0, zygote=zygotes.of_tests(), env=env, check=True)
        assert said(box, job, 2).splitlines()[-1] == alone.stdout.splitlines()[-1]

    running(box, scenario, "aiturbo", CLUSTER)
