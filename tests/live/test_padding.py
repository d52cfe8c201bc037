"""Padding jobs live: they fill what regular jobs leave, shrink and leave within their grace, and come back."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from brim.live.requests import JobRequest
from brim.live.service import ClusterService
from brim.policies.fill.padding import Padding
from brim.policies.presets import find_policy
from tests import forked, zygotes
from tests.live.box import Box, in_state, running, until

JOB = Path(__file__).parents[1] / "elastic" / "job.py"
WORDS = ("--epochs", "60", "--pause", "0.05")
"""Half a minute on two devices, most of it waited: it must not end before the regular jobs do."""
POLICY = replace(find_policy("fifo+padding"), fill=Padding(join_ratio=0.0))
"""Without a throttle, so that the test does not wait until a gap is known to be long."""


def command(box: Box, folder: str, *more: str) -> list[str]:
    """A training job that says at the end what it has come to."""
    (box.folder / folder).mkdir()
    out = str(box.folder / folder)
    return [sys.executable, str(JOB), out, *WORDS, *more, "--checkpoint", f"{out}/checkpoint"]


def answer(box: Box, folder: str) -> dict[str, object]:
    """Digest of the weights, samples and steps."""
    found = [json.loads(path.read_text()) for path in (box.folder / folder).glob("*.json")]
    assert found, "the job said nothing"
    return {name: found[0][name] for name in ("digest", "samples", "steps")}


def padding(box: Box, *words: str, **fields) -> JobRequest:
    """A request for a padding job on one device or both, with a grace that a loaded machine keeps."""
    limits = {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "ranks": "per-gpu", "grace_s": 30.0, "job_class": "padding"}
    return box.request(*words, **limits | fields)


@pytest.mark.slow
def test_a_padding_job_fills_shrinks_leaves_returns_and_ends_with_the_bits_it_would_have_alone(box: Box) -> None:
    async def scenario(service: ClusterService) -> None:
        [pad] = await box.submit(service, padding(box, *command(box, "padded")))
        await until(lambda: len(service.job(pad).devices) == 2, "the padding job on both devices")
        await until(lambda: service.job(pad).samples_done > 0, "training")
        [one] = await box.submit(service, box.resumable("one"))
        await in_state(service, one, "running")
        assert len(service.job(pad).devices) == 1, "it has shrunk in place"
        assert (service.job(pad).attempt, service.job(pad).preemptions) == (1, 0)
        [other] = await box.submit(service, box.resumable("other"))
        await in_state(service, other, "running")
        await until(lambda: service.job(pad).state == "pending", "the padding job without devices")
        assert service.job(pad).preemptions == 1
        for name, job in (("one", one), ("other", other)):
            box.end(name)
            await in_state(service, job, "finished")
            assert service.job(job).preemptions == 0
        await until(lambda: len(service.job(pad).devices) == 2, "the padding job back on both devices")
        assert service.job(pad).attempt == 2
        await in_state(service, pad, "finished")

    running(box, scenario, POLICY)
    forked.run(*command(box, "alone", "--pause", "0")[1:], zygote=zygotes.of_tests(), check=True)
    assert answer(box, "padded") == answer(box, "alone")


STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(sys.argv[1]) / f"lives-{os.environ.get('RANK', 0)}").touch()
while True:
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_padding_job_that_does_not_leave_is_killed_when_its_grace_is_over(box: Box) -> None:
    """Its ranks neither know brim.train nor obey SIGTERM: a regular job gets a device all the same."""
    (box.folder / "stubborn").mkdir()
    words = (sys.executable, "-I", "-S", "-c", STUBBORN, str(box.folder / "stubborn"))

    async def scenario(service: ClusterService) -> None:
        [pad] = await box.submit(service, padding(box, *words, grace_s=1.0))
        await until(lambda: len(service.job(pad).devices) == 2, "the padding job on both devices")
        await until((box.folder / "stubborn" / "lives-0").exists, "its first rank")
        [one] = await box.submit(service, box.resumable("one"))
        await in_state(service, one, "running")
        box.end("one")
        await in_state(service, one, "finished")
        await service.command(os.getuid(), "cancel", [pad], may_change=lambda record: True)
        await in_state(service, pad, "cancelled")

    running(box, scenario, POLICY)


@pytest.mark.slow
def test_the_padding_job_that_has_done_least_gives_way(box: Box) -> None:
    """Both have a device and save nothing; a regular job that needs one gets that of the second.

    They do not know brim.train, so that each stop of them takes the whole grace: a second, and not half a minute.
    """
    words = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")

    async def scenario(service: ClusterService) -> None:
        pads = []
        for _ in range(2):
            pads += await box.submit(service, padding(box, *words, gpus_max=1, grace_s=1.0))
            await in_state(service, pads[-1], "running")
        [one] = await box.submit(service, box.resumable("one"))
        await in_state(service, one, "running")
        assert [service.job(pad).preemptions for pad in pads] == [0, 1]
        assert service.job(pads[0]).state == "running"
        box.end("one")
        await in_state(service, one, "finished")
        await service.command(os.getuid(), "cancel", pads, may_change=lambda record: True)
        for pad in pads:
            await in_state(service, pad, "cancelled")

    running(box, scenario, POLICY)
