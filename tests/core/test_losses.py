"""Reported losses: what is kept, from which events, and through a saved state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.events import Event, Kind, Report
from brim.core.losses import POINTS_KEPT, LossBook
from brim.core.saved import state_bytes, state_of
from brim.testing import job, state_with


def book_of(points) -> LossBook:
    book = LossBook()
    for samples, loss in points:
        book.add(7, samples, loss)
    return book


def kept(points):
    return [column.tolist() for column in book_of(points).freeze().of(7)]


def test_points_are_kept_as_they_were_reported_and_only_those_that_tell_anything():
    said = [(0.0, 9.0), (1.0, 3.0), (2.0, 3.0), (3.0, math.nan), (4.0, 2.0)]
    assert kept(said) == [[1.0, 4.0], [3.0, 2.0]]
    assert [column.tolist() for column in book_of(said).freeze().of(8)] == [[], []]


def test_what_a_job_makes_again_after_a_checkpoint_replaces_what_it_had_reported():
    assert kept([(1, 5), (2, 4), (3, 3), (2, 4.5), (4, 2)]) == [[1, 2, 4], [5, 4.5, 2]]


def test_a_loss_that_is_not_finite_stays_so():
    assert kept([(1, 5), (2, math.inf), (3, 3)])[1] == [5, math.inf, 3]
    assert kept([(1, math.inf), (2, math.inf), (3, math.inf)])[1] == [math.inf] * 3


@given(st.integers(1, 2_000))
def test_memory_is_bounded_and_points_are_means_of_equally_many_reports(count):
    samples, loss = kept([(float(k), 1.0 / k) for k in range(1, count + 1)])
    assert len(samples) <= POINTS_KEPT
    stride = max(1, round(samples[0] * 2 - 1))
    groups = [range(first, min(first + stride, count + 1)) for first in range(1, count + 1, stride)]
    assert samples == pytest.approx([np.mean(group) for group in groups])
    assert loss == pytest.approx([np.mean([1 / k for k in group]) for group in groups])


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(allow_nan=True, allow_infinity=True)), max_size=400))
def test_samples_increase_whatever_is_reported(points):
    samples, loss = kept([(one, math.inf if math.isinf(other) else other) for one, other in points])
    assert sorted(set(samples)) == samples
    assert not any(map(math.isnan, loss))


def test_reports_are_noted_survive_saving_and_are_gone_with_their_job():
    state = state_with("1x4xV100", job(gpus=1, on=[(0, 0)]), job(gpus=1), now=5)
    for samples in (10.0, 20.0):
        report = Report(samples_done=samples, samples_per_s=1.0, loss=30.0 / samples)
        state.apply(Event(state.now_ms + 1, Kind.REPORTED, 0, report=report))
    back, _ = state_of(state_bytes(state), state.cluster)
    renumbered, ids = back.copy().renumbered()
    for one, place in ((state, 0), (back, 0), (renumbered, ids.tolist().index(0))):
        assert [column.tolist() for column in one.freeze(one.now_ms).losses.of(place)] == [[10.0, 20.0], [3.0, 1.5]]
    state.apply(Event(state.now_ms + 1, Kind.FINISHED, 0))
    assert not state.freeze(state.now_ms).losses.jobs
