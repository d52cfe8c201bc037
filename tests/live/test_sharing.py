"""Jobs that share a device, with real processes."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from brim.live import slowdowns
from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.presets import find_policy
from tests.live.box import Box, in_state, run_and_kill, running, until
from tests.live.sharing import Together

JOB = Path(__file__).with_name("sharing_job.py")


def shares(service: ClusterService) -> dict[int, int]:
    """Thousandths of its devices that each attempt has."""
    return {one.job: one.share_milli for one in service.engine._controller.ledger}


def test_a_job_joins_another_on_its_device_and_leaves_again_and_no_process_of_that_one_ends(box: Box) -> None:
    policy = replace(find_policy("fifo"), place=Together(), period_ms=200)

    async def scenario(service: ClusterService) -> None:
        [first] = await box.submit(service, box.resumable("first"))
        await in_state(service, first, "running")
        second, third = await box.submit(service, box.resumable("second"), box.resumable("third"))
        await in_state(service, second, "running")
        await until(lambda: box.starts("second"), "its process")
        assert (service.job(first).devices, service.job(second).devices) == ((0,), (0,))
        assert shares(service) == {first: 500, second: 500}
        assert service.nodes()[0]["devices"][0]["jobs"] == [first, second]
        assert service.job(third).state == "pending"
        box.end("first")
        await in_state(service, first, "finished")
        await in_state(service, third, "running")
        assert service.job(third).devices == (0,)
        box.end("third")
        await in_state(service, third, "finished")
        await until(lambda: shares(service) == {second: 1000}, "the whole device")
        box.end("second")
        await in_state(service, second, "finished")
        assert [len(box.starts(name)) for name in ("first", "second", "third")] == [1, 1, 1]
        assert [service.job(job).exit_code for job in (first, second, third)] == [0, 0, 0]

    running(box, scenario, policy)


CLUSTER = "1x2xcpu:mem=32GB"
PERIOD_S = 0.5
"""Between two reports of step times, so that no test waits for means of ten seconds."""
HARMFUL, HARMLESS = (0.1, 0.02), (0.01, 0.1)
"""Seconds of a step on the device, and beside it. All of these jobs claim to use a device for 0.3 of their time."""


@pytest.fixture
def short_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdowns, "MEASURED_EVERY_S", PERIOD_S)


def training(box: Box, folder: str, seconds: tuple[float, float], **fields) -> JobRequest:
    """A training job that shares its device; all have the same name, as jobs of one model."""
    (box.folder / folder).mkdir()
    words = (str(box.folder / folder), *map(str, seconds), str(PERIOD_S))
    uses = {"gpu_util_milli": 300, "gpu_mem_mib": 4_000, "gpus": 1, "ranks": "per-gpu", "grace_s": 60.0}
    return box.request(sys.executable, str(JOB), *words, **{"name": "model"} | uses | fields)


def steps_known(service: ClusterService) -> list[float]:
    """Step times alone that the engine knows."""
    state = service.engine._controller.scheduler.state
    return state.freeze(state.now_ms).seen.step_s.tolist()


async def beside_each_other(box: Box, service: ClusterService, seconds: tuple[float, float]) -> tuple[int, int]:
    """Let a job that was measured alone be joined by another, which had to wait for that; return both."""
    [first] = await box.submit(service, training(box, "first", seconds))
    await until(lambda: steps_known(service), "its steps alone")
    [second] = await box.submit(service, training(box, "second", seconds))
    await until((box.folder / "second" / "trains").exists, "training beside it")
    await until(lambda: shares(service) == {first: 500, second: 500}, "equal shares")
    return first, second


async def undone(service: ClusterService, first: int, second: int) -> float:
    """Wait until the second job has left, and has a device of its own; return seconds until it was told to."""
    began_s = time.monotonic()
    await until(lambda: service.job(second).preemptions == 1, "the end of the trial")
    took_s = time.monotonic() - began_s
    await until(lambda: shares(service) == {first: 1000, second: 1000}, "a device of its own")
    await in_state(service, second, "running")
    assert (service.job(first).devices, service.job(second).devices) == ((0,), (1,))
    assert [service.job(job).attempt for job in (first, second)] == [1, 2], "no process of the first has ended"
    return took_s


async def all_end(box: Box, service: ClusterService, **jobs: int) -> None:
    for name in jobs:
        box.end(name)
    for job in jobs.values():
        await in_state(service, job, "finished")


@pytest.mark.slow
def test_a_pair_that_is_harmful_is_undone_within_one_observation_and_not_tried_again(
    box: Box, short_means: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowdowns, "LATE_S", 10.0)  # an observation is longer than a stall of the machine

    async def scenario(service: ClusterService) -> None:
        first, second = await beside_each_other(box, service, HARMFUL)
        for job, other in ((first, second), (second, first)):
            assert "because of how much each job uses them alone" in service.explain(job)
            assert f"It shares devices with job {other}" in service.explain(job)
        took_s = await undone(service, first, second)
        assert took_s < 2 * slowdowns.settled_ms(0.3) / 1000, "two observations: a loaded machine has the second"
        [third] = await box.submit(service, training(box, "third", HARMFUL))
        await until(lambda: "0 are free" in service.explain(third), "why it waits")
        rounds = service.status()["rounds"]
        await until(lambda: service.status()["rounds"] > rounds + 2, "rounds in which it could join")
        assert shares(service) == {first: 1000, second: 1000}, "such a pair is barred for a day"
        box.end("first")
        await in_state(service, third, "running")
        await all_end(box, service, second=second, third=third)

    running(box, scenario, "eaco", CLUSTER)


@pytest.mark.slow
def test_it_is_undone_by_a_controller_that_was_started_again_meanwhile(box: Box, short_means: None) -> None:
    box.start_agent()
    jobs = (1, 2)

    async def before(service: ClusterService) -> None:
        slowdowns.LATE_S = 60.0  # in this process: it is killed before it has observed the pair
        assert await beside_each_other(box, service, HARMFUL) == jobs

    run_and_kill(box, before, "eaco", CLUSTER)

    async def scenario(service: ClusterService) -> None:
        assert service.job(jobs[1]).preemptions == 0, "the controller was killed too late for this test"
        await undone(service, *jobs)
        await all_end(box, service, first=jobs[0], second=jobs[1])

    box.keys += 2
    running(box, scenario, "eaco", CLUSTER)


@pytest.mark.slow
def test_a_pair_that_is_harmless_stays_and_jobs_that_do_not_fit_or_say_nothing_do_not_share(
    box: Box, short_means: None
) -> None:
    """The third fits by its use of time, not by its memory: a slot has half of the 32 GB. The fourth says nothing."""
    async def scenario(service: ClusterService) -> None:
        first, second = await beside_each_other(box, service, HARMLESS)
        await until(lambda: service.job(first).slowdown_ratio and service.job(second).slowdown_ratio, "slowdowns")
        assert "times as long as alone" in service.explain(first)
        [third] = await box.submit(service, training(box, "third", HARMLESS, gpu_mem_mib=14_000))
        await in_state(service, third, "running")
        assert service.job(third).devices == (1,)
        [fourth] = await box.submit(service, box.resumable("fourth"))
        await until(lambda: "nobody knows how much it uses" in service.explain(fourth), "why it waits")
        assert "--gpu-util and --gpu-mem would say it" in service.explain(fourth)
        assert shares(service) == {first: 500, second: 500, third: 1000}
        assert (service.job(second).attempt, service.job(second).preemptions) == (1, 0)
        await all_end(box, service, first=first, second=second, third=third, fourth=fourth)

    running(box, scenario, "eaco", CLUSTER)


def test_jobs_that_were_never_measured_alone_share_nothing_and_say_why(box: Box) -> None:
    """They do not report their steps: if one slowed the other down, nobody would find out."""
    async def scenario(service: ClusterService) -> None:
        uses = {"gpu_util_milli": 300, "gpu_mem_mib": 4_000}
        jobs = {}
        for name in ("first", "second"):
            [jobs[name]] = await box.submit(service, box.resumable(name, **uses))
            await in_state(service, jobs[name], "running")
        [third] = await box.submit(service, box.resumable("third", **uses))
        await until(lambda: "how long steps of it take alone" in service.explain(third), "why it waits")
        assert shares(service) == dict.fromkeys(jobs.values(), 1000)
        await all_end(box, service, **jobs, third=third)

    running(box, scenario, "eaco", CLUSTER)
