"""Padding jobs take no cores from the loaders of regular jobs, which run as if there were no padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.replay import Replay
from brim.core.trace import JobClass
from brim.policies.feed.even import Even
from brim.policies.feed.shares import EqualPerJob, EqualPerRank, Fixed
from brim.policies.feed.throughput import Throughput
from brim.policies.presets import find_policy
from brim.policies.sockets import Feed
from brim.sim.overheads import Overheads, PaddingCosts
from brim.sim.truths.loading import LoadingData
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ReplaySettings, replay
from brim.testing.builders import Job, job, small_trace

MODELS = {name: np.array((100.0, cores / 100, 0.0, 0.0, 0.0, 1000.0)) for name, cores in (("light", 1), ("heavy", 4))}
AT_ONCE = ReplaySettings(overheads=Overheads(save_ms=0, padding=PaddingCosts(grace_ms=0, change_ms=0)))
DEMANDS = st.sampled_from(sorted(MODELS))


def times(jobs: list[Job], regular: int, policy: str, feed: Feed, cpus: int, *, loading: bool) -> list[list[int]]:
    """Starts and finishes of the first jobs."""
    where, trace = parse_cluster(f"2x3xT4:cpus={cpus}"), small_trace(*jobs)
    truth = LoadingData(Rigid(trace), trace, where, MODELS) if loading else None
    found: Replay = replay(trace, where, replace(find_policy(policy), feed=feed), AT_ONCE, truth=truth)
    rows = [found.trace.job_id.index(one.name) for one in jobs[:regular]]
    return [found.first_start_ms[rows].tolist(), found.finish_ms[rows].tolist()]


@pytest.mark.cases(1)
@pytest.mark.parametrize("loading", [False, True])
@pytest.mark.parametrize(("feed", "cpus"), [
    (Even(), 12), (Fixed(2), 12), (Throughput(), 12), (EqualPerJob(), 12), (EqualPerRank(), 12), (Throughput(), 5),
    (EqualPerJob(), 5),
], ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value))
@pytest.mark.parametrize("policy", ["fifo+padding", "backfill+padding", "srtf+padding", "brim"])
@given(
    regular=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 300), st.integers(1, 4), DEMANDS), min_size=1, max_size=6,
    ),
    padding=st.lists(
        st.tuples(st.integers(0, 200), st.integers(50, 400), st.integers(1, 2), DEMANDS), min_size=1, max_size=2,
    ),
)
@settings(max_examples=3, deadline=None)
def test_regular_jobs_start_and_finish_as_if_there_were_no_padding(
    policy: str, feed: Feed, cpus: int, loading: bool,
    regular: list[tuple[int, int, int, str]], padding: list[tuple[int, int, int, str]],
) -> None:
    ours = [job(at=0, run=1, name="first")] + [
        job(at=at, run=run, gpus=gpus, limit=9 * run, name=f"r{row}", model=model)
        for row, (at, run, gpus, model) in enumerate(regular)
    ]
    theirs = [
        job(at=at, run=run, gpus=gpus, limit=9 * run, name=f"p{row}", model=model, job_class=JobClass.PADDING, user="p")
        for row, (at, run, gpus, model) in enumerate(padding)
    ]
    alone = times(ours, len(ours), policy, feed, cpus, loading=loading)
    assert times(ours + theirs, len(ours), policy, feed, cpus, loading=loading) == alone


def test_a_padding_job_waits_for_cores_that_the_loader_of_a_regular_job_uses() -> None:
    """The regular job has all cores of the node for its loader: none is left for a process and a worker of another."""
    ours = [job(at=0, run=100, model="heavy", name="regular")]
    pads = [job(at=0, run=10, model="light", name="pad", job_class=JobClass.PADDING, user="p")]
    where = parse_cluster("1x2xT4:cpus=6")
    trace = small_trace(*ours, *pads)
    found = replay(
        trace, where, replace(find_policy("fifo+padding"), feed=EqualPerJob()), AT_ONCE,
        truth=LoadingData(Rigid(trace), trace, where, MODELS),
    )
    regular, pad = (found.trace.job_id.index(name) for name in ("regular", "pad"))
    assert found.finish_ms[regular] == 100_000
    assert found.first_start_ms[pad] == 100_000
