"""The compiled lane and the event loop are one twin: the same columns, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.replay import Replay
from brim.engine.journal import Journal
from brim.policies.place.parts import Spread
from brim.policies.presets import PRESETS
from brim.sim.lane import can_take_lane
from brim.sim.overheads import Overheads
from brim.sim.twin import Settings, replay
from brim.testing import job, small_trace
from brim.testing.strategies import clusters, jobs_of

from .exact import run

COLUMNS = ("first_start_ms", "finish_ms", "service_gpu_ms", "useful_gpu_ms", "lost_gpu_ms", "preemptions", "restarts",
           "failed")


def assert_equal(one: Replay, other: Replay) -> None:
    for name in COLUMNS:
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    for name in ("job", "start_ms", "end_ms", "first_gpu", "gpu"):
        assert getattr(one.runs, name).tolist() == getattr(other.runs, name).tolist(), name
    assert (one.end_ms, one.partial, one.rounds) == (other.end_ms, other.partial, other.rounds)


@settings(max_examples=200)
@given(st.data())
def test_the_lane_decides_as_the_loop_does(data):
    cluster = data.draw(clusters())
    jobs = data.draw(jobs_of(cluster, dependencies=False, jobs_max=14))
    if data.draw(st.booleans()):
        jobs = [replace(one, limit=one.limit or 1) for one in jobs]
    trace = small_trace(*jobs)
    policy = PRESETS[data.draw(st.sampled_from(("fifo", "backfill", "sjf", "sjf-oracle")))]
    if data.draw(st.booleans()):
        policy = replace(policy, place=Spread(policy.place.misfit))
    if data.draw(st.booleans()):
        policy = replace(policy, oracle=True)
    settings = Settings(gap_ms=data.draw(st.sampled_from((0, 1_000, 7_000))),
                        overheads=Overheads(start_ms=data.draw(st.sampled_from((0, 3_000)))))
    assert_equal(replay(trace, cluster, policy, settings), replay(trace, cluster, policy, settings, journal=Journal()))


def test_the_lane_is_taken_where_it_may():
    trace = small_trace(job(run=5))
    outcome = run(trace, "1x1xT4", "fifo")
    assert len(outcome.round_s) == 0  # only the lane does not time its rounds
    assert len(run(trace, "1x1xT4", "fifo", lane=False).round_s) == 1


@pytest.mark.parametrize("name", ["srtf", "las", "tiresias", "fair", "gittins"])
def test_policies_that_interrupt_do_not_take_it(name):
    outcome = run(small_trace(job(run=5), job(run=5)), "1x1xT4", name)
    assert len(outcome.round_s) == outcome.rounds > 0


def test_dependencies_do_not_take_it():
    trace = small_trace(job(run=5), job(run=5, after="j0"))
    assert not can_take_lane(PRESETS["fifo"], trace, Settings().faults, None)


def test_a_busy_cluster_of_400_jobs_is_the_same_in_both():
    rng = np.random.default_rng(3)
    jobs = [job(at=int(at), run=int(length), gpus=int(gpus)) for at, length, gpus in zip(
        np.sort(rng.integers(0, 3_000, 400)), rng.integers(1, 120, 400), 2 ** rng.integers(0, 4, 400), strict=True)]
    trace = small_trace(*jobs)
    for name in ("fifo", "backfill", "sjf-oracle"):
        policy = replace(PRESETS[name], oracle=True)
        assert_equal(run(trace, "4x4xT4", policy), run(trace, "4x4xT4", policy, lane=False))
