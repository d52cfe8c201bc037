"""Elastic policies with real training jobs: they are measured, grow, make room in place, and what was learned stays."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.presets import find_policy
from brim.policies.sockets import Place
from tests import forked, zygotes
from tests.live.box import Box, in_state, run_and_kill, running, until

SCRIPT = Path(__file__).parent / "timed_job.py"
BATCH = 16
MICRO_S = 0.02
"""Seconds of a micro-batch; two ranks do the four of a step in half the time that one needs."""


def training(box: Box, folder: str, *, ranks_max: int = 4, **fields) -> JobRequest:
    """A job that is said to run on one device or on both; a file in this folder ends it."""
    (box.folder / folder).mkdir()
    limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "grace_s": 60.0}
    command = (sys.executable, str(SCRIPT), str(box.folder / folder / "end"), str(MICRO_S), str(ranks_max))
    return box.request(*command, **{"name": folder} | limits | fields)


def sizes_known(service: ClusterService) -> tuple[int, ...]:
    """Numbers of devices that the only job may be given."""
    state = service.engine._controller.scheduler.state
    return state.freeze(state.now_ms).jobs.sizes_of(0) if len(state) else ()


def sizes_measured(service: ClusterService) -> set[int]:
    """Numbers of devices of which step times are known."""
    state = service.engine._controller.scheduler.state
    return set(state.freeze(state.now_ms).seen.gpus.tolist())


@pytest.mark.slow
def test_a_lone_job_grows_and_makes_room_for_another_in_place(box: Box) -> None:
    """Rounds of these policies are at least half a minute apart in the twin, and their periods a minute and more."""

    async def scenario(service: ClusterService) -> None:
        [first] = await box.submit(service, training(box, "first"))
        await until(lambda: len(service.job(first).devices) == 2, "the lone job on both devices")
        await until(lambda: sizes_measured(service) == {1, 2}, "step times on both devices")
        await in_state(service, first, "running")
        assert service.job(first).samples_total == 64 * 100_000
        [second] = await box.submit(service, training(box, "second"))
        await in_state(service, second, "running")
        await in_state(service, first, "running")
        assert [len(service.job(job).devices) for job in (first, second)] == [1, 1]
        box.end("first")
        await in_state(service, first, "finished")
        await until(lambda: len(service.job(second).devices) == 2, "the other job on both devices")
        box.end("second")
        await in_state(service, second, "finished")
        for job in (first, second):
            assert (service.job(job).attempt, service.job(job).preemptions) == (1, 0)

    running(box, scenario, "goodput")


@pytest.mark.slow
def test_what_was_learned_is_there_after_a_kill_of_the_controller(box: Box) -> None:
    box.start_agent()

    async def before(service: ClusterService) -> None:
        [job] = await box.submit(service, training(box, "model", batch=16))
        await until(lambda: sizes_measured(service) == {1, 2}, "step times on one device and on both")
        box.end("model")
        await in_state(service, job, "finished")

    run_and_kill(box, before, "elastic")

    async def scenario(service: ClusterService) -> None:
        assert sizes_measured(service) == {1, 2}
        [again] = await box.submit(service, training(box, "again", batch=16, name="model"))
        await until(lambda: service.job(again).devices, "a start")
        assert len(service.job(again).devices) == 2, "its model need not be measured"
        box.end("again")
        await in_state(service, again, "finished")

    box.keys += 1
    running(box, scenario, "elastic")


@pytest.mark.slow
def test_a_job_that_cannot_use_all_that_it_asked_for_leaves_the_rest_to_others(box: Box) -> None:
    """``-g 1-2`` of a job that runs on one rank only: its ranks say so, and the engine knows."""

    async def scenario(service: ClusterService) -> None:
        [job] = await box.submit(service, training(box, "alone", ranks_max=1, gpus=2))
        await until(lambda: sizes_known(service) == (1,), "a report of the sizes")
        await until(lambda: len(service.job(job).devices) == 1, "one device")
        done = service.job(job).samples_done
        await until(lambda: service.job(job).samples_done > done, "training, after the resize")
        box.end("alone")
        await in_state(service, job, "finished")
        assert (service.job(job).attempt, service.job(job).preemptions) == (1, 0)

    running(box, scenario, "goodput")


@pytest.mark.slow
def test_what_a_job_without_checkpoints_does_again_is_lost_work(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        (box.folder / "forgets").mkdir()
        command = (sys.executable, str(SCRIPT), str(box.folder / "forgets" / "end"), str(MICRO_S), "4", "")
        [job] = await box.submit(service, box.request(*command, gpus=2, ranks="per-gpu", grace_s=60.0))
        await until(lambda: service.job(job).samples_done >= 100 * BATCH, "100 steps")
        assert service.job(job).lost_gpu_s == 0
        await service.command(os.getuid(), "requeue", [job], may_change=lambda _: True)
        await until(lambda: service.job(job).lost_gpu_s, "lost work")
        box.end("forgets")
        ended = await in_state(service, job, "finished")
        assert (ended.attempt, ended.samples_again) == (2, 0)
        half_gpu_s = 50 * 2 * MICRO_S * 2  # of 100 steps on two devices, of two micro-batches each
        assert ended.lost_gpu_s > half_gpu_s, "nearly all of them: its first report comes after a step or some"

    running(box, scenario, "fifo")


@dataclass(frozen=True)
class OnOneDevice:
    """The only job is on the first device, and on the second once a file exists."""

    place: Place
    moved: Path
    moves_running: ClassVar[bool] = True
    acts_when_idle: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order, sizes):
        grants = self.place(snapshot, beliefs, order, sizes)
        return replace(grants, gpu=np.full_like(grants.gpu, int(self.moved.exists())))


@pytest.mark.slow
def test_a_job_that_is_moved_to_other_devices_keeps_its_attempt_and_its_result(box: Box) -> None:
    """All devices on which its state is are taken from it in one decision: new ranks receive the state first."""
    script, moved = Path(__file__).parents[1] / "elastic" / "job.py", box.folder / "moved"
    words = [sys.executable, str(script), "{}", "--epochs", "12", "--pause", "0.1", "--checkpoint"]

    def command(folder: str) -> list[str]:
        (box.folder / folder).mkdir()
        out = str(box.folder / folder)
        return [word.format(out) for word in [*words, f"{out}/checkpoint"]]

    def answer(folder: str) -> dict:
        [said] = [json.loads(path.read_text()) for path in (box.folder / folder).glob("*.json")]
        return {name: said[name] for name in ("digest", "samples", "steps")}

    policy = find_policy("goodput")
    policy = replace(policy, place=OnOneDevice(policy.place, moved), period_ms=200, gap_ms=10)

    async def scenario(service: ClusterService) -> None:
        request = box.request(*command("moves"), gpus=1, gpus_min=1, gpus_max=1, ranks="per-gpu", grace_s=60.0)
        [job] = await box.submit(service, request)
        await until(lambda: service.job(job).samples_done > 0, "training")
        assert service.job(job).devices == (0,)
        moved.touch()
        await until(lambda: service.job(job).devices == (1,), "the other device")
        await in_state(service, job, "finished")
        assert (service.job(job).attempt, service.job(job).preemptions) == (1, 0)

    running(box, scenario, policy)
    forked.run(*command("stays")[1:], "--pause", "0", zygote=zygotes.of_tests(), check=True)
    assert answer("moves") == answer("stays")
