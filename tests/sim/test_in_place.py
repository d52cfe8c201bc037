"""A resize in place: its cost, and the rules for rounds that come with it, as under a live controller."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.engine.journal import Journal
from brim.policies.presets import find_policy
from brim.policies.sockets import Sizes
from brim.sim.overheads import Overheads
from brim.sim.truths.seen import SeenRates
from brim.sim.twin import ReplaySettings, replay


@pytest.mark.parametrize(("resize_ms", "resizes", "finish_ms"), [(200, 1, 5_700), (None, 0, 10_000)])
def test_a_lone_job_grows_once_it_has_told_its_speed(resize_ms, resizes, finish_ms):
    """1,000 samples, 100/s on one GPU until the round at 1 s; then a pause of 200 ms, and 200/s on two.

    Through a checkpoint, rounds of the policy are half a minute apart, and the job ends before the second.
    """
    one = np.array([1])
    trace = trace_of(name="t", format="test", job_id=["a"], submit_ms=[0], gpus=[1], batch=[16])
    truth = SeenRates(trace, np.array([[100.0, 200.0]]), samples=np.array([1000]), gpus_min=one, gpus_max=2 * one)
    costs = Overheads(save_ms=0, restart_ms=0, resize_ms=resize_ms)
    found = replay(trace, parse_cluster("1x2xT4"), find_policy("goodput"), ReplaySettings(overheads=costs),
                   truth=truth, journal=Journal())
    assert found.resizes.tolist() == [resizes]
    assert found.finish_ms.tolist() == [finish_ms]
    assert found.service_gpu_ms.tolist() == [1_200 + 2 * 4_500 if resizes else 10_000]


class SmallerOnceAnotherWaits:
    """All GPUs for the first job; one less for each other job."""

    resizes_running = True

    def __call__(self, snapshot, beliefs, order):
        sizes = np.ones(len(snapshot.jobs), dtype=np.int64)
        sizes[0] = max(1, snapshot.jobs.gpus_max[0] - len(sizes) + 1)
        return Sizes(gpus=sizes)


def test_a_job_that_is_resized_while_it_starts_still_has_the_rest_of_its_start_before_it():
    """A start takes 10 s. At 4 s it gives one of two GPUs away, and works from 10 s on: 1,000 samples at 100/s."""
    one = np.array([1, 1])
    trace = trace_of(name="t", format="test", job_id=["a", "b"], submit_ms=[0, 4_000], gpus=[2, 1], batch=[16, 16])
    truth = SeenRates(trace, np.array([[100.0, 200.0]] * 2), samples=np.array([1_000, 10_000]), gpus_min=one,
                      gpus_max=np.array([2, 1]))
    costs = Overheads(start_ms=10_000, save_ms=0, restart_ms=0, resize_ms=200)
    policy = replace(find_policy("elastic"), size=SmallerOnceAnotherWaits(), period_ms=0)
    found = replay(trace, parse_cluster("1x2xT4"), policy, ReplaySettings(overheads=costs), truth=truth,
                   journal=Journal())
    assert found.resizes.tolist() == [1, 0]
    assert found.first_start_ms.tolist()[1] < 10_000
    assert found.finish_ms.tolist()[0] == 20_000
