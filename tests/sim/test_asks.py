"""What a trace says about a job besides its GPUs reaches the policies of a replay."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from brim.beliefs.beliefs import Beliefs
from brim.core.arrays import IntArray
from brim.core.cluster import parse_cluster
from brim.core.events import JobSpec
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE, JobClass
from brim.policies.presets import PRESETS
from brim.sim.assumptions import describe
from brim.sim.specs import specs_of
from brim.sim.truths.categories import drawn_jobs
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import replay
from brim.testing.builders import job, small_trace
from brim.traces.transform import resample, scale_load


@dataclass(frozen=True)
class ByColumn:
    """The jobs with the largest value in a column first."""

    column: str

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs) -> IntArray:
        jobs = snapshot.jobs
        return np.lexsort((-getattr(jobs, self.column), ~jobs.holds))


def order_of_ends(trace, column):
    policy = replace(PRESETS["fifo"], name="by-column", order=ByColumn(column))
    return np.argsort(replay(trace, parse_cluster("1x1xT4"), policy).finish_ms).tolist()


def test_a_policy_reads_priorities_classes_and_deadlines_in_a_replay():
    first = job(run=5)
    assert order_of_ends(small_trace(first, job(at=1), job(at=2, priority=-1), job(at=3, priority=9)), "priority") == [
        0, 3, 1, 2
    ]
    padding = job(at=2, job_class=JobClass.PADDING)
    assert order_of_ends(small_trace(first, job(at=1), padding), "job_class") == [0, 2, 1]
    late, soon = job(at=1, deadline=50), job(at=2, deadline=40)
    assert order_of_ends(small_trace(first, soon, late, job(at=3, deadline=60)), "deadline_ms") == [0, 3, 1, 2]


def specs(trace):
    return specs_of(trace, parse_cluster("2x4xT4"), Rigid(trace))


def test_a_deadline_keeps_its_distance_from_the_submission():
    trace = small_trace(job(), job(at=10, deadline=40), job(at=20))
    assert [spec.deadline_ms for spec in specs(trace)] == [NONE, 40_000, NONE]
    assert [spec.deadline_ms for spec in specs(scale_load(trace, 2))] == [NONE, 35_000, NONE]
    assert [spec.deadline_ms for spec in specs(trace.take(np.array([1, 2])))] == [30_000, NONE]
    again = resample(trace, seed=1)
    kept = again.relative_deadline_ms != NONE
    assert set(again.relative_deadline_ms[kept].tolist()) <= {30_000}


def test_listed_sizes_hold_within_the_limits_of_the_truth():
    trace = small_trace(*(job(gpus=2, sizes=sizes, run=3_600) for sizes in ((2, 4), (1, 2, 3), ())))
    rigid = specs(trace)
    assert [spec.sizes for spec in rigid] == [(), (), ()]
    assert any("Jobs that list the sizes they can run on: 2." in line for line in Rigid(trace).sentences())
    cluster = parse_cluster("2x4xT4")
    truth = drawn_jobs(trace, cluster, 1.0, 0)
    elastic: list[JobSpec] = specs_of(trace, cluster, truth)
    least, most = (truth.columns()[name].tolist() for name in ("gpus_min", "gpus_max"))
    assert min(most) >= 4, "each job could grow"
    for spec, listed, low, high in zip(elastic, ((2, 4), (1, 2, 3)), least, most, strict=False):
        assert spec.sizes == tuple(size for size in listed if low <= size <= high)
        assert spec.limits == (spec.sizes[0], spec.sizes[-1])
    assert (elastic[2].sizes, elastic[2].limits) == ((), (least[2], most[2]))


def test_a_report_says_that_the_policies_of_brim_read_no_priorities():
    cluster = parse_cluster("1x1xT4")
    assert not any("priority" in line for line in describe(small_trace(job()), cluster))
    said = describe(small_trace(job(), job(priority=1)), cluster)
    assert any(line.startswith("Jobs with a priority, a class or a deadline: 1.") for line in said)
