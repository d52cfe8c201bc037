"""A walk that remembers which requests got nothing decides as one that tries every job by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.lifecycle import Phase
from brim.core.reasons import Reason
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate, Fragmentation, Spread
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.size.as_asked import AsAsked
from brim.testing import job, snapshot_of
from brim.testing.free_lists import FreeLists, PlaceRequest, pairs_by_job
from brim.testing.rules import beliefs_of
from brim.testing.strategies import clusters, placed_jobs
from brim.testing.text import describe
from tests.sampling import sample

from .test_eviction import NewestFirst, newest


@st.composite
def queues(draw):
    """Some jobs run, and up to 12 wait that ask for one of up to three things."""
    cluster = draw(clusters(nodes_max=3))
    running = [one for one in draw(placed_jobs(cluster)) if one.on and one.phase != 4]
    asks = draw(placed_jobs(cluster, jobs_max=3).filter(lambda found: len(found) > 0))
    waiting = [
        job(at=100, gpus=ask.gpus, share=ask.share, cpu=ask.cpu, mem=ask.mem, gpu_type=ask.gpu_type)
        for ask in draw(st.lists(st.sampled_from(asks), min_size=1, max_size=12))
    ]
    return snapshot_of(cluster, *running, *waiting, now=100)


@pytest.mark.cases(1)
@pytest.mark.parametrize("order", [Arrival(), NewestFirst()], ids=["running-first", "newest-first"])
@pytest.mark.parametrize("place", [Consolidate(), Spread(), Fragmentation()], ids=lambda part: type(part).__name__)
@settings(max_examples=sample(100, 33))
@given(snapshot=queues())
def test_every_waiting_job_starts_exactly_if_it_fits_in_its_turn(order, place, snapshot):
    jobs, beliefs = snapshot.jobs, beliefs_of(snapshot, newest())
    rows = order(snapshot, beliefs)
    grants = place(snapshot, beliefs, rows, AsAsked()(snapshot, beliefs, rows))
    granted = pairs_by_job(grants.job, grants.node, grants.gpu)
    gone: set[int] = set()
    started: list[int] = []
    for turn, row in enumerate(rows.tolist()):
        if not jobs.waits[row]:
            continue
        later = {int(other) for other in rows[turn + 1 :] if jobs.holds[other]}
        free_lists = FreeLists.of_snapshot(snapshot, gone=gone | later)
        for other in started:
            free_lists.take(PlaceRequest(snapshot, other), granted[other])
        could_start = free_lists.fits(PlaceRequest(snapshot, row))
        assert (row in granted) == could_start, f"row {row}: {granted}\n{describe(snapshot)}"
        if row in granted:
            started.append(row)
            gone |= set(np.flatnonzero((grants.why == int(Reason.PREEMPTED)) & (grants.blocker == row)).tolist())


@st.composite
def two_queues(draw):
    """A queue in which many waiting jobs ask for one of few things, and the same where no two ask for the same.

    What differs is memory, of which each node has more than all of them could use.
    """
    nodes, width = draw(st.integers(1, 2)), draw(st.integers(3, 5))
    cluster = parse_cluster(f"{nodes}x{width}xT4:cpus=16,mem=1TB")
    limits = st.sampled_from((10, 60, 200))
    running = [
        job(gpus=1, on=[(node, gpu)], phase=Phase.RUNNING, start=90, limit=draw(limits))
        for node in range(nodes) for gpu in draw(st.sets(st.integers(0, width - 1), max_size=2))
    ]
    shares, cores = st.sampled_from((1000, 1000, 500)), st.sampled_from((0, 0, 7_000))
    asked = draw(st.lists(st.tuples(st.integers(1, 3), shares, cores), min_size=1, max_size=3))
    first = draw(st.sampled_from((*asked, (nodes * width, 1000, 0))))  # all GPUs: the others must not delay it
    waiting = [
        job(at=100, gpus=gpus, share=share, cpu=cpu, limit=draw(limits))
        for gpus, share, cpu in (first, *draw(st.lists(st.sampled_from(asked), min_size=3, max_size=30)))
    ]
    jobs = [*running, *waiting]
    return tuple(
        snapshot_of(cluster, *(replace(one, mem=1 + row * differ) for row, one in enumerate(jobs)), now=100)
        for differ in (0, 1)
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize("place", [
    Consolidate("stop"), Consolidate("skip"), Consolidate("reserve"), Spread("reserve"), WorkersAndServers(),
    WorkersAndServers(preempts=False), WorkersAndServers(misfit="stop"),
], ids=["stop", "skip", "reserve", "spread", "servers", "servers-stay", "servers-stop"])
@settings(max_examples=sample(600, 200))
@given(
    queues=two_queues(), turns=st.one_of(st.just([0] * 41), st.lists(st.integers(0, 3), min_size=41, max_size=41)),
    wanted=st.lists(st.sampled_from((1, 0, 2)), min_size=10, max_size=10),
)
def test_equal_requests_get_what_different_ones_get_for_the_same_reasons(place, queues, turns, wanted):
    """In any order; of at most ten jobs that run, some are to have other sizes."""
    answers = []
    for snapshot in queues:
        beliefs = Beliefs()
        rows = np.argsort(turns[: len(snapshot.jobs)], kind="stable")
        sizes = AsAsked()(snapshot, beliefs, rows)
        sizes = replace(sizes, gpus=np.where(snapshot.jobs.holds, np.resize(wanted, len(rows)), sizes.gpus))
        grants = place(snapshot, beliefs, rows, sizes)
        answers.append([
            column.tolist() for column in (grants.job, grants.node, grants.gpu, grants.why, grants.blocker)
        ])
    alike, different = answers
    assert alike == different, describe(queues[0])
