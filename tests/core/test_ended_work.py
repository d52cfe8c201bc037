"""Work of ended jobs: what is kept, from which events, and through a saved state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.core.ended_work import MODELS_KEPT, TOTALS_KEPT, EndedWorkBook
from brim.core.events import Event, Kind, Report
from brim.core.saved import state_bytes, state_of
from brim.core.trace import JobClass
from brim.testing import job, state_with

REPORT = Report(samples_done=100.0, samples_per_s=10.0)


def test_the_newest_jobs_of_a_model_are_kept_sorted_by_model_and_work():
    book = EndedWorkBook()
    for samples in range(TOTALS_KEPT + 5, 0, -1):
        book.add(3, float(samples))
    book.add(1, 7.0)
    book.add(-1, 9.0)
    book.add(2, 0.0)
    found = book.freeze()
    assert found.of(3).tolist() == [float(samples) for samples in range(1, TOTALS_KEPT + 1)]
    assert (found.profile[0], found.samples[0]) == (1, 7.0)
    assert found.of(2).tolist() == found.of(9).tolist() == []


def test_the_model_that_ended_jobs_the_longest_ago_is_forgotten():
    book = EndedWorkBook((profile, [1.0]) for profile in range(MODELS_KEPT))
    book.add(0, 2.0)
    book.add(MODELS_KEPT, 1.0)
    assert book.freeze().of(0).tolist() == [1.0, 2.0]
    assert book.freeze().of(1).tolist() == []


@pytest.mark.parametrize("kind", [Kind.FINISHED, Kind.FAILED])
def test_a_completed_job_tells_its_work_up_to_its_end_and_it_survives_saving(kind):
    state = state_with("1x4xV100", job(gpus=1, on=[(0, 0)], model="m"), now=5)
    state.apply(Event(5_000, Kind.REPORTED, 0, report=REPORT))
    before = state.freeze(6_000)
    state.apply(Event(8_000, kind, 0))
    learnt = state.freeze(8_000).ended_work.of(0).tolist()
    assert learnt == ([130.0] if kind is Kind.FINISHED else [])
    assert before.ended_work.of(0).tolist() == []
    read, _ = state_of(state_bytes(state), state.cluster)
    assert read.freeze(8_000).ended_work.of(0).tolist() == learnt
    assert state_bytes(read) == state_bytes(state)


def test_work_of_padding_jobs_tells_regular_jobs_nothing():
    one = replace(job(gpus=1, on=[(0, 0)], model="m"), job_class=int(JobClass.PADDING))
    state = state_with("1x4xV100", one, now=5)
    state.keep_apart(True)
    state.apply(Event(5_000, Kind.REPORTED, 0, report=REPORT))
    state.apply(Event(8_000, Kind.FINISHED, 0))
    assert len(state.freeze(8_000).ended_work.profile) == 0
