"""Remaining work: known answers, and no dependence on what the models are called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.work import QUANTILES, UNKNOWN_GPU_MS, EndedJobs
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


def left_of(done, ended=(), models=None, services=(), ran=None):
    """What is left of jobs that did so much at 1 ms a sample, when jobs of model 0 ended so."""
    jobs = [job(gpus=1, at=row, model=name) for row, name in enumerate(models or ["m"] * len(done))]
    snapshot = with_columns(
        snapshot_of("1x1xT4", *jobs, now=100), samples_done=done, run_ms=ran or [0] * len(done)
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
    assert left_of([0, 40, 100, 250], [100, 300]) == [
        [100, 100, 100, 300, 300], [60, 60, 60, 260, 260], [5, 5, 5, 200, 200], [50] * 5,
    ]


def test_a_job_without_a_model_that_outlived_all_has_as_much_again_with_the_known_probabilities():
    done = 100 * HOUR
    found = left_of([0], models=[""], services=[HOUR] * 5, ran=[done])
    assert found[0] == pytest.approx([done * again for again in AGAIN])


def test_the_job_of_a_model_that_did_more_than_all_that_ended_will_end_at_twice_that():
    assert left_of([1e7, 4e6, 0], []) == [[1e7] * 5, [1.6e7] * 5, [2e7] * 5]
    assert left_of([1e7, 0], [3e6, 3e6]) == [[1e7] * 5, [3e6] * 5]


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
