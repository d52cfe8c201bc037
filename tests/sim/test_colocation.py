"""A truth whose jobs slow each other down, with known answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.events import Kind
from brim.core.tables import Grants
from brim.policies.feed.even import Even
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace
from brim.testing.rules import check_never_shared, check_one_place

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
FREE = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0)


class Divided(Rigid):
    """Jobs on one GPU share its speed equally."""

    contended: ClassVar[bool] = True

    def pace(self, job, done, nodes, batch, colocation):
        pace = super().pace(job, done, nodes, batch, colocation)
        return pace._replace(per_ms=pace.per_ms / (1 + len(colocation.neighbours)))


def ends_s(trace, policy, truth, settings=FREE):
    outcome = replay(trace, parse_cluster("1x1xT4:cpus=8"), policy, settings, truth=truth(trace))
    return [ms / 1000 for ms in outcome.finish_ms.tolist()], outcome


@pytest.mark.parametrize(("jobs", "expected"), [
    (((0, 10), (0, 10)), [20, 20]),
    (((0, 10), (0, 5)), [15, 10]),  # 5 s of work each until 10 s, then the other alone
    (((0, 10), (4, 3)), [13, 10]),  # 4 s alone, 3 s of work in 6 s, 3 s alone
    (((0, 1), (4, 3)), [1, 7]),
])
def test_jobs_on_one_gpu_slow_each_other_down_from_the_moment_they_meet_until_they_part(jobs, expected):
    trace = small_trace(*(job(at=at, run=run, share=500) for at, run in jobs))
    found, outcome = ends_s(trace, SKIP, Divided)
    assert found == expected
    assert not any("what sharing costs is not modelled" in sentence for sentence in outcome.assumptions)


def test_a_job_that_is_preempted_leaves_its_neighbour_alone():
    """Shortest first: job 0 meets job 1 from 0 s on; at 2 s job 2 takes the half of job 0, the longest."""
    trace = small_trace(*(
        job(at=at, run=run, share=500, limit=run) for at, run in ((0, 100), (0, 9), (2, 3))
    ))
    srtf = replace(PRESETS["srtf"], name="mine")
    found, _ = ends_s(trace, srtf, Divided)
    assert found[2] == 8  # 3 s of work at half speed
    assert found[1] == 8 + (9 - 1 - 3) * 2 - 0  # 1 s of work by 2 s, 3 s by 8 s, then job 0 is back beside it
    assert found[0] == sum((100, 9, 3))  # the GPU was never idle


def test_the_company_of_a_rigid_truth_changes_nothing():
    trace = small_trace(*(job(run=run, share=500) for run in (10, 5)))
    assert ends_s(trace, SKIP, Rigid)[0] == [10, 5]


@dataclass(frozen=True)
class AllTogether(Consolidate):
    """All jobs on the first GPU, up to four, with equal shares that change as jobs come and go."""

    acts_when_idle: ClassVar[bool] = True
    shares_gpus: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order, sizes):
        jobs = snapshot.jobs
        there = sorted(order[(jobs.holds | jobs.waits)[order]].tolist(), key=lambda row: (not jobs.holds[row], row))[:4]
        rows, none = np.array(sorted(there), dtype=np.int64), np.zeros(len(jobs), dtype=np.int64)
        return Grants(
            job=rows, node=0 * rows, gpu=0 * rows, share_milli=np.full(len(rows), 1000 // max(len(rows), 1)),
            why=none, blocker=none - 1,
        )


def test_shares_change_as_jobs_come_and_go_and_nobody_is_stopped_for_it():
    trace = small_trace(job(run=10), job(at=4, run=3))
    found, outcome = ends_s(trace, replace(SKIP, place=AllTogether()), Divided)
    assert found == [13, 10]  # as in the test above
    runs = outcome.runs
    assert runs.job.tolist() == [0, 0, 1, 0]
    assert runs.start_ms.tolist() == [0, 4_000, 4_000, 10_000]
    assert runs.end_ms.tolist() == [4_000, 10_000, 10_000, 13_000]
    assert runs.share_milli.tolist() == [1000, 500, 500, 1000]
    assert outcome.service_gpu_ms.tolist() == outcome.useful_gpu_ms.tolist() == [10_000, 3_000]
    assert (outcome.resizes.tolist(), outcome.restarts.tolist()) == ([0, 0], [0, 0])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=7), st.sampled_from((0, 2)))
def test_no_gpu_is_granted_more_than_once_and_service_is_what_was_held(jobs, start_s):
    """Every job of n has a floor of 1000 / n; sums of whole milliseconds lose less than one each."""
    trace = small_trace(*(job(at=at, run=run) for at, run in sorted(jobs)))
    settings = replace(FREE, overheads=Overheads(save_ms=0, restart_ms=0, start_ms=1000 * start_s))
    _, outcome = ends_s(trace, replace(SKIP, place=AllTogether()), Divided, settings)
    check_never_shared(outcome)
    check_one_place(outcome)
    runs = outcome.runs
    held = np.bincount(runs.job, (runs.end_ms - runs.start_ms) * runs.share_milli / 1000, len(trace))
    several = np.bincount(runs.job, minlength=len(trace))
    assert (np.abs(outcome.service_gpu_ms - held) <= several).all()
    stalled_ms = 1000 * start_s
    assert (outcome.useful_gpu_ms <= outcome.service_gpu_ms).all()
    assert (outcome.service_gpu_ms - outcome.useful_gpu_ms <= stalled_ms + several).all()
    if not start_s:
        times = np.unique(np.concatenate((runs.start_ms, runs.end_ms)))
        together = [((runs.start_ms <= at) & (at < runs.end_ms)).sum() for at in times[:-1].tolist()]
        whole = sum(length * n * (1000 // n) / 1000 for length, n in zip(np.diff(times), together, strict=True) if n)
        assert outcome.service_gpu_ms.sum() == pytest.approx(whole, abs=len(runs.job))


@dataclass(frozen=True)
class LaterMore(Even):
    """Two loader workers in the first rounds, four from 6 s on."""

    tunes_running: ClassVar[bool] = True
    wakes_on: ClassVar[frozenset[Kind]] = frozenset({Kind.REPORTED})

    def __call__(self, snapshot, beliefs, grants):
        return np.full(len(snapshot.jobs), 4 if snapshot.now_ms >= 6_000 else 2)


class Fed(Rigid):
    """A job needs four loader workers for its full speed."""

    contended: ClassVar[bool] = True

    def pace(self, job, done, nodes, batch, colocation):
        pace = super().pace(job, done, nodes, batch, colocation)
        return pace._replace(per_ms=min(1.0, colocation.loader_workers / 4))


def test_a_tune_of_the_loader_workers_changes_the_pace():
    trace = small_trace(job(run=10), job(at=6, run=1))  # the second submission causes the round at 6 s
    found, outcome = ends_s(trace, replace(SKIP, feed=LaterMore()), Fed)
    assert found == [13, 14]  # 6 s at half speed, 7 s at full speed; then the other
    assert (outcome.resizes.tolist(), outcome.restarts.tolist()) == ([0, 0], [0, 0])
