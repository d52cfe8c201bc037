"""Jobs on CPU and on devices under the controller, exchanged between them, through crashes and lost messages."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from brim.agent.protocol import ON_CPU
from brim.errors import ConfigError
from brim.live.requests import read_request
from brim.policies.allocations import as_asked, picked, sizes_of
from brim.policies.feed.shares import EqualPerJob
from brim.policies.order.arrival import Arrival
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from tests.live.virtual import Chances, VirtualCluster, Work, request
from tests.sampling import sample

BOTH = ("gpu", "cpu")
CORES = 3
SEEDS, GROUPS = sample((120, 4), (2, 1))


@dataclass(frozen=True, slots=True)
class _Swaps:
    """Draws for each job and three seconds, from the snapshot alone, whether it is on CPU."""

    resizes_running: ClassVar[bool] = True
    calm_ms: int
    seed: int

    def __call__(self, snapshot, beliefs, order):
        jobs, has = snapshot.jobs, as_asked(snapshot)
        able = jobs.cpu_ranks_max > 0
        there = has._replace(
            workers=np.where(jobs.gpus > 0, jobs.gpus, jobs.cpu_ranks_max), on_gpu=np.zeros(len(jobs), dtype=bool),
        )
        turn = min(snapshot.now_ms, self.calm_ms) // 3_000
        draws = [random.Random(f"{self.seed} {job} {turn}").random() < 0.5 for job in jobs.id.tolist()]
        return sizes_of(snapshot, picked(able & np.array(draws, dtype=bool), there, has))


def swapping(calm_ms: int, seed: int = 0) -> Policy:
    base = find_policy("fifo")
    return Policy(
        name="swapping", order=Arrival(), size=_Swaps(calm_ms, seed), place=WorkersAndServers(),
        feed=EqualPerJob() if seed % 2 else base.feed, fill=base.fill, period_ms=1_000,
    )


def life(seed: int, policy: Policy, chances: Chances | None = None) -> VirtualCluster:
    """A dozen jobs of one or two ranks, with and without cores, for half a minute; then calm until they have ended.

    In every other seed each loader worker takes a core, too.
    """
    world = VirtualCluster(seed, policy, chances, cores=CORES)
    draw = random.Random(f"jobs {seed}")

    def submit() -> None:
        devices = draw.choice((BOTH, BOTH, ("gpu",), ("cpu",)))
        ranks = draw.choice(("one", "per-gpu"))
        asks = request(gpus=draw.choice((1, 1, 2)), devices=devices, ranks=ranks, cpus_per_gpu=draw.choice((0.0, 1.0)))
        world.submit(draw.randint(1, 3), (asks, Work(draw.randint(500, 9_000), ignores=draw.random() < 0.1)))
        if len(world.accepted) < 12:
            world.later(draw.randint(1, 3_000), submit)

    world.later(1, submit)
    for _ in range(300):
        world.run(world.now_ms + 100)
        world.witness()
    world.settle()
    return world


@pytest.mark.parametrize("group", range(GROUPS))
def test_storms_over_two_kinds_of_device_keep_every_invariant(group):
    kinds, exchanged = set(), 0
    for seed in range(group, SEEDS, GROUPS):
        world = life(seed, swapping(30_000, seed))
        attempts = world.store.attempts()
        kinds |= {ON_CPU in one.devices for one in attempts}
        exchanged += sum(one.stop_reason == "exchanged" for one in attempts)
    assert kinds == {True, False}
    assert exchanged


def test_an_exchanged_job_goes_on_at_once_on_the_other_kind():
    """Nobody can be granted in between what is kept for it: it starts when its last process has ended."""
    world = VirtualCluster(1, swapping(30_000), Chances(), cores=CORES)
    world.later(500, lambda: world.submit(1, (request(devices=BOTH, ranks="per-gpu"), Work(20_000))))
    world.run(60_000)
    world.settle()
    attempts = sorted(world.store.attempts(), key=lambda one: one.number)
    assert len(attempts) > 2
    for before, after in pairwise(attempts):
        assert (before.stop_reason, before.outcome) == ("exchanged", "stopped")
        assert (ON_CPU in before.devices) != (ON_CPU in after.devices)
        assert after.decided_ms == before.end_ms
    assert attempts[-1].outcome == "finished"
    assert world.store.jobs()[1].preemptions == 0


def test_a_held_job_waits_after_its_exchange():
    world = VirtualCluster(1, swapping(30_000), Chances(), cores=CORES)
    world.later(500, lambda: world.submit(1, (request(devices=BOTH), Work(60_000))))
    while not any(one.stop_reason == "exchanged" for one in world.store.attempts()):
        world.run(world.now_ms + 5)
    world.command(1, "hold", 1)
    world.run(world.now_ms + 5_000)
    assert world.store.jobs()[1].state == "held"
    world.command(1, "release", 1)
    world.run(world.now_ms + 5_000)
    assert world.store.jobs()[1].state in ("running", "starting")


@pytest.mark.parametrize(("policy", "cores", "reason"), [
    ("backfill", 1, "policy backfill runs no job on CPU"),
    ("swapping", 2, "it needs 4 cores on CPU, a node has 3 cores"),
])  # fmt: skip
def test_a_job_for_cpu_alone_that_cannot_run_says_why(policy, cores, reason):
    world = VirtualCluster(1, swapping(0) if policy == "swapping" else find_policy(policy), Chances(), cores=CORES)
    asks = replace(request(devices=("cpu",), gpus=2 if cores > 1 else 1), cpus_per_gpu=float(cores))
    world.later(500, lambda: world.submit(1, (asks, Work(100))))
    world.run(5_000)
    world.check()
    assert reason in world.store.jobs()[1].reason


def test_a_job_for_cpu_alone_waits_for_cores():
    world = VirtualCluster(1, swapping(0), Chances(), cores=CORES)
    asks = request(devices=("cpu",), cpus_per_gpu=2.0)
    world.later(500, lambda: world.submit(1, (asks, Work(4_000)), (asks, Work(100))))
    world.run(2_500)
    assert [world.store.jobs()[job].state for job in (1, 2)] == ["running", "pending"]
    world.settle()
    assert {job.state for job in world.store.jobs().values()} == {"finished"}


@pytest.mark.parametrize("devices", [(), ("tpu",), ("gpu", "gpu"), "gpu", ["cpu", 1]])
def test_unknown_kinds_of_device_are_refused_in_a_line(devices):
    plain = {"name": "job", "capture": "0" * 32, "digest": "0" * 64, "devices": devices}
    with pytest.raises(ConfigError, match=r"^devices: found .*, expected 'gpu', 'cpu' or both, each once$"):
        read_request(plain)
