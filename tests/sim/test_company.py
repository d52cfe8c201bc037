"""A truth whose jobs slow each other down, with known answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.core.events import Kind
from brim.policies.feed.even import Even
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
FREE = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0)


class Divided(Rigid):
    """Jobs on one GPU share its speed equally."""

    contended: ClassVar[bool] = True

    def pace(self, job, done, nodes, batch, company):
        pace = super().pace(job, done, nodes, batch, company)
        return pace._replace(per_ms=pace.per_ms / (1 + len(company.neighbours)))


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
class LaterMore(Even):
    """Two loader workers in the first rounds, four from 6 s on."""

    tunes_running: ClassVar[bool] = True
    wakes_on: ClassVar[frozenset[Kind]] = frozenset({Kind.REPORTED})

    def __call__(self, snapshot, beliefs, grants):
        return np.full(len(snapshot.jobs), 4 if snapshot.now_ms >= 6_000 else 2)


class Fed(Rigid):
    """A job needs four loader workers for its full speed."""

    contended: ClassVar[bool] = True

    def pace(self, job, done, nodes, batch, company):
        return super().pace(job, done, nodes, batch, company)._replace(per_ms=min(1.0, company.loader_workers / 4))


def test_a_tune_of_the_loader_workers_changes_the_pace():
    trace = small_trace(job(run=10), job(at=6, run=1))  # the second submission causes the round at 6 s
    found, outcome = ends_s(trace, replace(SKIP, feed=LaterMore()), Fed)
    assert found == [13, 14]  # 6 s at half speed, 7 s at full speed; then the other
    assert (outcome.resizes.tolist(), outcome.restarts.tolist()) == ([0, 0], [0, 0])
