"""Losses of jobs that run: what the policy and `brim explain` believe of them, and that no loss breaks a round."""

from __future__ import annotations

import math
import os
import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from brim.agent.protocol import AttemptProgress
from brim.beliefs.predictability import default
from brim.core.trace import NONE
from brim.errors import ConfigError
from brim.foresight.foresight import Foresight
from brim.foresight.outlook import outlook_of
from brim.live.machine import machine_controller
from brim.live.service import ClusterService
from brim.policies.order.borda import Borda, RemainingOrAttained
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.presets import find_policy
from brim.policies.size.exchange import UnitExchange
from brim.policies.sockets import Policy
from tests.live.box import Box, in_state, running, until
from tests.live.virtual import Chances, VirtualCluster, Work, request

NEVER_FINITE = ("not a number", "infinite", "below nothing")
CURVES = Path(__file__).parents[2] / "benchmarks" / "timed_curves.py"
LOSSES = {
    "not a number": lambda k: math.nan, "infinite": lambda k: math.inf, "below nothing": lambda k: -math.inf,
    "now and then not a number": lambda k: math.nan if k % 3 else 1 / k, "constant": lambda k: 1.0,
    "nothing": lambda k: 0.0, "negative": lambda k: -1.0 / k, "huge": lambda k: 1e308 * (k % 2),
    "tiny": lambda k: 5e-324 * k, "rising": float, "falling": lambda k: 1.0 + 1.0 / k, "none": lambda k: None,
}


def test_a_controller_believes_the_classifier_that_it_was_given(tmp_path):
    own = tmp_path / "own.toml"
    shipped = files("brim.beliefs").joinpath("profiles", "predictability.toml").read_text("utf-8")
    own.write_text(re.sub('data = ".*"', 'data = "our own"', shipped), encoding="utf-8")
    for file, about in ((str(own), "our own"), ("", default().about)):
        controller = machine_controller("2xcpu-slot", "fifo", predictability=file)
        assert controller.scheduler.beliefs.progress.classifier.about == about
    own.write_text("intercept = 1", encoding="utf-8")
    with pytest.raises(ConfigError, match="found no 'feature' tables"):
        machine_controller("2xcpu-slot", "fifo", predictability=str(own))


def mix(order=None) -> Policy:
    base = find_policy("fifo")
    return Policy(
        name="mix", order=order or RemainingOrAttained(), size=UnitExchange(), place=WorkersAndServers(),
        feed=base.feed, fill=base.fill, period_ms=1_000,
    )


def told(world: VirtualCluster, loss, *, seconds: int, resets: bool = False) -> None:
    """Let the only job report a loss each second; it goes back to an old checkpoint now and then, if it resets."""
    for second in range(1, seconds):
        k = second % 7 + 1 if resets else second
        attempt = world.controller.ledger.of(1)
        if attempt is not None and attempt.begin_ms != NONE:
            world.to_controller(world.agents[attempt.uid], AttemptProgress(
                job=1, attempt=attempt.number, ranks=1, step=k, samples=8.0 * k, total=8_000.0, samples_per_s=8.0,
                loss=loss(k), step_s=1.0, local_batch=8, global_batch=8,
            ))
        world.run(world.now_ms + 1_000)


@pytest.mark.cases(7)
@pytest.mark.parametrize("order", [Borda(), RemainingOrAttained()], ids=["borda", "scale"])
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_no_losses_break_a_round(kind, resets, order):
    world = VirtualCluster(1, mix(order), Chances(), cores=2)
    asks = request(devices=("gpu", "cpu"), ranks="per-gpu", target_loss=0.5)
    world.later(500, lambda: world.submit(1, (asks, Work(1_000_000)), (asks, Work(1_000_000))))
    told(world, LOSSES[kind], seconds=20, resets=resets)
    world.check()
    state = world.controller.scheduler.state
    outlook = outlook_of(world.controller.scheduler.beliefs.progress, state.freeze(world.now_ms), 1)
    assert (outlook is None) == (kind == "none")
    assert outlook is None or outlook.text
    assert ("the newest losses are not finite" in getattr(outlook, "text", "")) == (kind in NEVER_FINITE)


def test_a_reported_total_is_the_planned_end_and_steps_on_cpu_are_known_as_such():
    world = VirtualCluster(1, mix(), Chances(), cores=2)
    asks = request(devices=("cpu",), ranks="per-gpu", target_loss=0.25)
    world.later(500, lambda: world.submit(1, (asks, Work(1_000_000))))
    told(world, LOSSES["falling"], seconds=10)
    snapshot = world.controller.scheduler.state.freeze(world.now_ms)
    assert snapshot.jobs.samples_max.tolist() == [8_000]
    assert snapshot.jobs.target_loss_ppm.tolist() == [250_000]
    assert set(zip(snapshot.seen.gpus.tolist(), snapshot.seen.local_batch.tolist(), strict=True)) == {(0, 8)}
    assert snapshot.losses.of(1)[1].tolist()[-2:] == [LOSSES["falling"](k) for k in (8, 9)]


@pytest.mark.slow
def test_explain_says_of_real_jobs_whether_their_losses_tell_their_end(box: Box) -> None:
    """One falls along a curve, the other does not learn; both report through their ranks, supervisor and agent."""

    def job(curve: str):
        words = (sys.executable, str(CURVES), curve, "1", "200", "400", "0.1", "0.1")
        return box.request(*words, name=curve, devices=("gpu", "cpu"), ranks="per-gpu", target_loss=0.2)

    async def scenario(service: ClusterService) -> None:
        ahead = Foresight(service)
        falling, other = await box.submit(service, job("falling"), job("diverging"))
        for number, is_predictable in ((falling, True), (other, False)):
            await until(lambda number=number: service.job(number).samples_done > 80 * 16, "two fifths of the run")
            found = await ahead.explain(number)
            assert found.outlook is not None
            assert found.outlook.is_predictable is is_predictable, found.outlook
            assert found.outlook.text in found.text
        await service.command(os.getuid(), "cancel", [falling, other], may_change=bool)
        for number in (falling, other):
            await in_state(service, number, "cancelled")

    assert os.environ.get("CUDA_VISIBLE_DEVICES", "") == ""
    running(box, scenario, mix(), "1x2xcpu:cpus=2")


