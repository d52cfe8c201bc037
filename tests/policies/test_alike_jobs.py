"""A walk that remembers which requests did not fit decides as one that tries every job by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.reasons import Why
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate, Fragmentation, Spread
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
            gone |= set(np.flatnonzero((grants.why == int(Why.PREEMPTED)) & (grants.blocker == row)).tolist())
