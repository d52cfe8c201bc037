"""EASY: the head of the queue is never delayed by whoever starts behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.reasons import Reason
from brim.engine.journal import Journal
from brim.engine.round import run_round
from brim.policies.place.parts import Fragmentation, Spread
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace, snapshot_of
from brim.testing.free_lists import FreeLists, PlaceRequest, pairs_by_job
from brim.testing.rules import beliefs_of, watched
from brim.testing.strategies import clusters, jobs_of
from tests.sampling import sample

EASY = replace(PRESETS["backfill"], oracle=True)
EXACT = ReplaySettings(gap_ms=0, overheads=Overheads(start_ms=0, save_ms=0, restart_ms=0))


class Promises:
    """When each head could start, counted by hand in the round in which it became the head."""

    def __init__(self, run_ms):
        self.run_ms, self.of = run_ms, {}

    def __call__(self, snapshot, wanted):
        granted = pairs_by_job(wanted.job, wanted.node, wanted.gpu)
        waiting = [row for row in np.flatnonzero(snapshot.jobs.waits).tolist() if row not in granted]
        if not waiting:
            return
        head = waiting[0]
        job_id = int(snapshot.jobs.id[head])
        if job_id in self.of:
            return
        ahead = [row for row in granted if snapshot.jobs.holds[row] or row < head]
        left = {row: int(self.run_ms[snapshot.jobs.id[row]] - snapshot.jobs.run_ms[row]) for row in ahead}
        for row in sorted(ahead, key=lambda row: left[row]):
            free_lists = FreeLists.of_snapshot(snapshot, gone=range(len(snapshot.jobs)))
            for other in ahead:
                if left[other] > left[row]:
                    free_lists.take(PlaceRequest(snapshot, other), granted[other])
            if free_lists.fits(PlaceRequest(snapshot, head)):
                self.of[job_id] = snapshot.now_ms + left[row]
                return
        raise AssertionError(f"job {job_id} would never fit")


@settings(max_examples=sample(150, 50))
@given(st.data())
def test_backfill_never_delays_the_head(data):
    """With exact estimates the head starts at the very moment it would if nobody behind it had started."""
    cluster = data.draw(clusters(nodes_max=2))
    trace = small_trace(*data.draw(jobs_of(cluster, dependencies=False, jobs_max=14)))
    place = data.draw(st.sampled_from((EASY.place, Spread("reserve"), Fragmentation("reserve"))))
    promises = Promises(trace.run_ms)
    outcome = replay(trace, cluster, watched(replace(EASY, place=place), promises), EXACT, journal=Journal())
    for job_id, promised_ms in promises.of.items():
        assert outcome.first_start_ms[job_id] == promised_ms


@settings(max_examples=sample(100, 33))
@given(st.data())
def test_estimates_that_are_too_long_never_delay_the_head_beyond_its_promise(data):
    """Limits above the truth: jobs end early, so the head starts no later than its first reservation."""
    cluster = data.draw(clusters(nodes_max=2))
    jobs = [replace(one, limit=one.run * data.draw(st.integers(1, 4)) + 1)
            for one in data.draw(jobs_of(cluster, dependencies=False, jobs_max=12))]
    trace = small_trace(*jobs)
    promises = Promises(trace.time_limit_ms)
    outcome = replay(trace, cluster, watched(PRESETS["backfill"], promises), EXACT, journal=Journal())
    for job_id, promised_ms in promises.of.items():
        assert outcome.first_start_ms[job_id] <= promised_ms


def test_a_short_job_goes_ahead_a_long_one_does_not():
    """One of two GPUs is busy until 10 s; j1 wants both. j2 (4 s) ends before, j3 (40 s) would delay it."""
    snapshot = snapshot_of(
        "1x2xT4", job(on=[(0, 0)], limit=10), job(at=1, gpus=2, limit=5), job(at=2, limit=40), job(at=3, limit=4),
        now=5,
    )
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["backfill"]), PRESETS["backfill"])
    assert [one.job for one in result.plan.actions] == [3]
    assert result.why.tolist() == [Reason.RUNS, Reason.TOO_FEW_FREE, Reason.RESERVED, Reason.RUNS]
    assert result.blocker.tolist() == [-1, -1, 1, -1]


def test_a_job_that_ends_exactly_when_the_reservation_begins_may_go():
    snapshot = snapshot_of("1x2xT4", job(on=[(0, 0)], limit=10), job(at=1, gpus=2, limit=5), job(at=3, limit=5), now=5)
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["backfill"]), PRESETS["backfill"])
    assert [one.job for one in result.plan.actions] == [2]


def test_a_long_job_may_take_what_the_reservation_leaves():
    """The head needs two of the three GPUs that will be free: a long job may have the third."""
    snapshot = snapshot_of(
        "1x3xT4", job(on=[(0, 0), (0, 1)], limit=10), job(at=1, gpus=2, limit=5), job(at=2, limit=1000),
        job(at=3, limit=1000), now=5,
    )
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["backfill"]), PRESETS["backfill"])
    assert [one.job for one in result.plan.actions] == [2]
    assert result.why.tolist()[3] in (Reason.RESERVED, Reason.TOO_FEW_FREE)


def test_what_all_leave_that_end_when_the_reservation_begins_is_free_then():
    """Two of six GPUs are busy until 10 s; the head wants five then, so a long job may have the sixth."""
    snapshot = snapshot_of(
        "1x6xT4", job(on=[(0, 0)], limit=10), job(on=[(0, 1)], limit=10), job(at=1, gpus=5, limit=5),
        job(at=2, limit=1000), job(at=3, limit=1000), now=5,
    )
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["backfill"]), PRESETS["backfill"])
    assert [one.job for one in result.plan.actions] == [3]
    assert result.why.tolist()[4] == Reason.RESERVED


def easy_by_counts(jobs, gpus: int) -> list[int]:
    """Starts (in ms) under EASY as published, on one node: it counts GPUs, and knows run times.

    Args:
        jobs: Submission, run time and GPUs of each, in order of submission.
        gpus: Of the node.
    """
    start, queue, running, now = [-1] * len(jobs), [], {}, 0
    while True:
        running = {one: end for one, end in running.items() if end > now}
        queue += [one for one, (at, _, _) in enumerate(jobs) if at == now]
        free = gpus - sum(jobs[one][2] for one in running)
        shadow, extra = None, free
        for one in list(queue):
            _, run, asked = jobs[one]
            if shadow is None and asked > free:  # the head: it gets its GPUs when so many have ended
                shadow = min(end for end in running.values()
                             if gpus - sum(jobs[two][2] for two in running if running[two] > end) >= asked)
                extra = gpus - sum(jobs[two][2] for two in running if running[two] > shadow) - asked
            elif asked <= free and (shadow is None or now + run <= shadow or asked <= extra):
                extra -= asked if shadow is not None and now + run > shadow else 0
                start[one], free = now, free - asked
                queue.remove(one)
                running[one] = now + run
        later = [end for end in running.values() if end > now] + [at for at, _, _ in jobs if at > now]
        if not later:
            return start
        now = min(later)


@pytest.mark.slow
@settings(max_examples=sample(3000, 60))
@given(st.data())
def test_on_one_node_it_is_easy_as_published(data):
    """Which of the GPUs of a node are free says nothing: the count does."""
    gpus = data.draw(st.integers(2, 6))
    jobs = sorted(data.draw(st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 30), st.integers(1, gpus)), min_size=3, max_size=14,
    )))
    jobs = [(at - jobs[0][0], run, asked) for at, run, asked in jobs]  # a trace begins with its first job
    trace = small_trace(*(job(at=at, run=run, gpus=asked) for at, run, asked in jobs))
    cluster, wanted = parse_cluster(f"1x{gpus}xT4"), [1000 * at for at in easy_by_counts(jobs, gpus)]
    for journal in (None, Journal()):  # the compiled loop, and the general one
        assert replay(trace, cluster, EASY, EXACT, journal=journal).first_start_ms.tolist() == wanted


def test_a_long_job_has_the_gpu_that_is_free_if_the_head_can_do_with_others():
    """Five GPUs will be free, among them the one that is free now, with the least number; the head needs four."""
    snapshot = snapshot_of(
        "1x8xT4", job(on=[(0, 1), (0, 2), (0, 3), (0, 4)], gpus=4, limit=100),
        job(on=[(0, 5), (0, 6), (0, 7)], gpus=3, limit=1000), job(at=1, gpus=4, limit=50), job(at=2, limit=500), now=5,
    )
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["backfill"]), PRESETS["backfill"])
    assert [one.job for one in result.plan.actions] == [3]


def test_the_reservation_is_for_gpus_that_fit_not_for_a_count():
    """Two nodes of two: after j0 ends the gang with 2 cores per GPU still needs j1's node, so j3 must wait for it."""
    snapshot = snapshot_of(
        "2x2xT4:cpus=4", job(on=[(0, 0)], cpu=4_000, limit=20), job(on=[(1, 0)], limit=10, cpu=1_000),
        job(at=1, gpus=2, cpu=2_000, limit=5), job(at=2, cpu=1_000, limit=100), now=5,
    )
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["backfill"]), PRESETS["backfill"])
    assert result.plan.actions == ()
    assert result.why.tolist() == [Reason.RUNS, Reason.RUNS, Reason.SHAPE, Reason.RESERVED]


def test_strict_order_stops_at_the_first_misfit():
    snapshot = snapshot_of("1x2xT4", job(on=[(0, 0)]), job(at=1, gpus=2), job(at=2), now=5)
    result = run_round(snapshot, beliefs_of(snapshot, PRESETS["fifo"]), PRESETS["fifo"])
    assert result.plan.actions == ()
    assert result.why.tolist() == [Reason.RUNS, Reason.TOO_FEW_FREE, Reason.BEHIND]
    assert result.blocker.tolist() == [-1, -1, 1]
