"""Remaining work: known answers, and no dependence on what the models are called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.work import QUANTILES, UNKNOWN_GPU_MS, EndedJobs, survival
from brim.core.arrays import frozen
from brim.core.ended_work import EndedWork
from brim.core.state import SERVICE_EDGES_GPU_MS
from brim.testing import job, snapshot_of
from tests.policies.size.known import with_columns

FIFTHS = (1, 4, 7, 10, 13)
"""Columns of probabilities 0.1, 0.3, 0.5, 0.7 and 0.9."""
AGAIN = [1 / 9, 3 / 7, 1, 7 / 3, 9]
"""What is left there, over what was done, where nothing longer is known."""
HOUR = 3_600_000


def left_of(done, ended=(), models=None, services=(), ran=None, had=None):
    """What is left of jobs that did so much at 1 ms a sample, when jobs of model 0 ended so."""
    jobs = [job(gpus=1, at=row, model=name) for row, name in enumerate(models or ["m"] * len(done))]
    snapshot = with_columns(
        snapshot_of("1x1xT4", *jobs, now=100), samples_done=done, run_ms=ran or [0] * len(done),
        service_gpu_ms=had or [0] * len(done),
    )
    work = EndedWork(frozen(np.zeros(len(ended), dtype=np.int64)), frozen(np.array(sorted(ended), dtype=np.float64)))
    histogram = np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64)
    for one in services:
        histogram[np.searchsorted(SERVICE_EDGES_GPU_MS, one, side="right") - 1] += 1
    snapshot = replace(snapshot, ended_work=work, ended_service=frozen(histogram))
    left = EndedJobs().left_gpu_ms(snapshot, np.where(snapshot.jobs.profile >= 0, 1.0, np.nan))
    return left[:, FIFTHS].tolist()


def test_the_columns_are_the_fifths():
    assert QUANTILES[list(FIFTHS)] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])


def test_a_job_has_left_what_ended_jobs_of_its_model_had_left():
    """Three jobs run and one is new: the job that ended at 100 stands for 1.25 of five, the one at 300 for the rest."""
    assert left_of([0, 40, 100, 250], [100, 300]) == [
        [100, 300, 300, 300, 300], [60, 260, 260, 260, 260], [5, 200, 200, 200, 200], [50] * 5,
    ]


def test_survival_is_the_published_one():
    """Weeks in remission of 21 patients with 6-mercaptopurine (Freireich and others, Blood 1963), 12 still in it."""
    ended = np.array([6, 6, 6, 7, 10, 13, 16, 22, 23.0])
    running = np.array([6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35.0])
    stands_for, others = survival(ended, running)
    survives = 1 - np.cumsum(stands_for) / 21
    assert survives[2:] == pytest.approx([0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], abs=5e-4)
    assert others == pytest.approx(21 * survives[-1])


@given(*[st.lists(st.integers(1, 20), max_size=12)] * 2)
def test_ended_jobs_stand_for_all(ended, running):
    stands_for, others = survival(np.sort(np.array(ended, dtype=float)), np.array(running, dtype=float))
    assert stands_for.sum() + others == pytest.approx(len(ended) + len(running))
    assert (stands_for >= 1 - 1e-9).all()
    assert (others > 1e-9) == (max(running, default=0) >= max(ended, default=0) and len(running) > 0)


def test_a_job_without_a_model_that_outlived_all_has_as_much_again_with_the_known_probabilities():
    done = 100 * HOUR
    found = left_of([0], models=[""], services=[HOUR] * 5, ran=[done])
    assert found[0] == pytest.approx([done * again for again in AGAIN])


def test_jobs_without_a_model_that_still_run_say_that_others_may_need_more():
    """Five ended after an hour, five have run for four: half of all need more: P(T > x times four) = 1/x."""
    hour = SERVICE_EDGES_GPU_MS[np.searchsorted(SERVICE_EDGES_GPU_MS, HOUR) - 1 :][:2].mean()
    running = [4 * HOUR] * 5
    found = left_of([0] * 6, models=[""] * 6, services=[HOUR] * 5, ran=[0, *running], had=[0, *running])
    assert found[0][:2] == pytest.approx([hour, hour])
    assert found[0][3:] == pytest.approx([4 * HOUR * times for times in (10 / 7, 10 / 3)])
    assert left_of([0], models=[""], services=[HOUR] * 5)[0] == pytest.approx([hour] * 5)


def test_jobs_that_outlive_all_of_their_model_end_beyond_the_most_that_one_has_done():
    beyond = [1 / 0.9, 1 / 0.7, 2, 1 / 0.3, 10]
    for left, done in zip(left_of([1e7, 4e6, 0], []), [1e7, 4e6, 0], strict=True):
        assert left == pytest.approx([1e7 * times - done for times in beyond])
    late, new = left_of([1e7, 0], [3e6, 3e6])  # each of three stands for itself
    assert late == pytest.approx([1e7 * times - 1e7 for times in beyond])
    assert new == pytest.approx([3e6, 3e6, 3e6, 1e7 / 0.9, 1e7 / 0.3])


def test_nothing_is_known_of_a_new_job_before_any_has_ended():
    assert left_of([0, 0])[0] == pytest.approx([UNKNOWN_GPU_MS * again for again in AGAIN])


def test_where_no_model_is_known_service_tells():
    """Nine jobs received about an hour, one about a hundred; bins are half octaves."""
    new, late = left_of([0, 0], models=["", ""], services=[HOUR] * 9 + [100 * HOUR], ran=[0, 3 * HOUR])
    assert new == pytest.approx([HOUR] * 5, rel=0.25)
    assert late == pytest.approx([97 * HOUR] * 5, rel=0.25)


def test_all_others_together_weigh_as_much_as_one_job_of_the_model():
    found = left_of([0], [10 * HOUR], services=[HOUR] * 50)[0]
    assert found[:3] == pytest.approx([HOUR] * 3, rel=0.25)
    assert found[3:] == [10 * HOUR] * 2


def test_what_a_model_is_called_changes_nothing():
    two = left_of([5.0, 5.0, 7.0], [], models=["a", "b", "b"])
    assert left_of([5.0, 5.0, 7.0], [], models=["b", "a", "a"]) == two
