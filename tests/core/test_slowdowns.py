"""Slowdowns reported beside neighbours: what the state learns, keeps, saves and shows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brim.beliefs.speeds import SeenSpeeds
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.saved import state_bytes, state_of
from brim.core.setting import setting_of
from brim.core.slowdowns import ResidentKind, ResidentSet, SeenSlowdowns
from brim.core.state import ClusterState
from brim.core.trace import NONE


def shared_gpu(*profiles, batch=NONE):
    """Jobs of these models on the same GPU of the second type; they have run since 0."""
    state = ClusterState(parse_cluster("1x1xT4+1x2xV100"), ("ann",))
    for number, profile in enumerate(profiles):
        spec = JobSpec(id=number, user=0, submit_ms=0, gpus=1, profile=profile, batch=batch)
        state.apply(Event(0, Kind.SUBMITTED, number, spec=spec))
        setting = setting_of([(1, 0)], share_milli=1000 // len(profiles), batch=batch)
        state.apply(Event(0, Kind.START, number, setting=setting))
        state.apply(Event(0, Kind.STARTED, number))
    return state


def tell(state, job, ratio, at_ms=5):
    report = Report(samples_done=0.0, samples_per_s=1.0, slowdown_ratio=ratio)
    state.apply(Event(at_ms, Kind.REPORTED, job, report=report))


def rows_of(state, now_ms=100):
    table = state.freeze(now_ms).slowdowns
    columns = (table.profile, table.batch, table.gpu_type, table.others, table.count, table.mean_ratio, table.variance)
    return [
        (profile, batch, gpu_type, [tuple(one) for one in others if one[0] != NONE], count, mean, variance)
        for profile, batch, gpu_type, others, count, mean, variance in zip(
            *(column.tolist() for column in columns), strict=True)
    ]


def test_a_slowdown_is_kept_under_the_exact_set_of_residents():
    state = shared_gpu(3, 0, 7, batch=32)
    tell(state, 0, 1.5)
    assert rows_of(state) == [(3, 32, 1, [(0, 32), (7, 32)], 1, 1.5, 0.0)]
    state.apply(Event(6, Kind.FINISHED, 2))
    tell(state, 0, 1.2, at_ms=7)  # another company: the last one is history
    assert rows_of(state) == [
        (3, 32, 1, [(0, 32)], 1, 1.2, 0.0), (3, 32, 1, [(0, 32), (7, 32)], 1, 1.5, 0.0),
    ]


def test_a_job_that_reports_often_counts_once():
    state = shared_gpu(3, 3)
    for at_ms, ratio in ((5, 1.9), (6, 1.5), (7, 1.4)):
        tell(state, 0, ratio, at_ms)
    tell(state, 1, 1.6, 8)
    (profile, batch, gpu_type, others, count, mean, variance), = rows_of(state)
    assert (profile, batch, gpu_type, others, count) == (3, NONE, 1, [(3, NONE)], 2)
    assert (mean, variance) == (pytest.approx(1.5), pytest.approx(0.02))
    for job in (0, 1):
        state.apply(Event(9, Kind.FINISHED, job))
    assert rows_of(state)[0][4:] == (2, pytest.approx(1.5), pytest.approx(0.02))


@pytest.mark.parametrize(("profiles", "ratio"), [
    ((3,), 1.3), ((3, NONE), 1.3), ((NONE, 3), 1.3), ((3,) * 5, 1.3), ((3, 4), math.nan),
], ids=["alone", "beside an unknown model", "of an unknown model", "too many", "not observed"])
def test_nothing_is_learnt_of(profiles, ratio):
    state = shared_gpu(*profiles)
    tell(state, 0, ratio)
    assert rows_of(state) == []


def test_noise_below_one_counts_as_one():
    state = shared_gpu(3, 4)
    tell(state, 0, 0.97)
    assert rows_of(state)[0][5] == 1.0


def test_what_was_learnt_is_saved_with_the_state_and_renumbered_with_its_jobs():
    state = shared_gpu(3, 3, 4)
    tell(state, 0, 1.5)
    tell(state, 1, 1.4)
    state.apply(Event(6, Kind.FINISHED, 0))
    tell(state, 2, 1.1, 7)
    saved = state_bytes(state)
    back, _ = state_of(saved, state.cluster)
    assert rows_of(back) == rows_of(state)
    assert state_bytes(back) == saved
    other, _ = state.renumbered()
    tell(other, 0, 1.3, 8)  # it was job 1
    assert (3, NONE, 1, [(4, NONE)], 1, 1.3, 0.0) in rows_of(other)
    assert len(rows_of(other)) == len(rows_of(state)) + 1
    other.apply(Event(9, Kind.FINISHED, 1))


def measures(state, job, step_s, at_ms):
    """A job reports the time of a step of 8 samples on a GPU."""
    report = Report(samples_done=0.0, samples_per_s=1.0, seen=(Sample(1, 1, 8, step_s, 0.0),))
    state.apply(Event(at_ms, Kind.REPORTED, job, report=report))


def test_steps_beside_neighbours_change_no_belief_of_how_fast_a_model_is():
    """They did: a job that shared once was believed to be as slow alone, and so was each of its model."""
    state = shared_gpu(3, 4)
    state.apply(Event(5, Kind.FINISHED, 1))
    measures(state, 0, 0.5, 6)
    before = SeenSpeeds().of_models(state.freeze(7)).parameters.tolist()
    spec = JobSpec(id=2, user=0, submit_ms=7, gpus=1, profile=3)
    state.apply(Event(7, Kind.SUBMITTED, 2, spec=spec))
    state.apply(Event(7, Kind.START, 2, setting=setting_of([(1, 0)], share_milli=500)))
    state.apply(Event(7, Kind.STARTED, 2))
    for job in (0, 2):
        measures(state, job, 0.9, 8)
    assert state.freeze(9).seen.step_s.tolist() == [0.5]
    assert SeenSpeeds().of_models(state.freeze(9)).parameters.tolist() == 2 * before
    assert state.sizes_seen(2) == 0
    state.apply(Event(10, Kind.FINISHED, 2))
    measures(state, 0, 0.7, 11)
    assert state.step_s_alone(0, 1, 8) == pytest.approx(0.6)


def test_a_step_time_alone_is_of_the_job_or_else_of_another_of_its_model_and_is_saved():
    state = shared_gpu(3)
    assert math.isnan(state.step_s_alone(0, 1, 8))
    measures(state, 0, 0.5, 5)
    for job, profile in ((1, 3), (2, 4), (3, NONE)):
        state.apply(Event(6, Kind.SUBMITTED, job, spec=JobSpec(id=job, user=0, submit_ms=6, gpus=1, profile=profile)))
    state.apply(Event(7, Kind.START, 3, setting=setting_of([(1, 1)])))
    state.apply(Event(7, Kind.STARTED, 3))
    measures(state, 3, 0.2, 8)
    for one in (state, state_of(state_bytes(state), state.cluster)[0]):
        assert [one.step_s_alone(job, 1, 8) for job in (0, 1, 3)] == [0.5, 0.5, 0.2]
        assert all(map(math.isnan, (one.step_s_alone(2, 1, 8), one.step_s_alone(0, 2, 8), one.step_s_alone(0, 1, 4))))
        one.apply(Event(9, Kind.FINISHED, 0))
        assert one.step_s_alone(1, 1, 8) == 0.5


def test_ranks_on_cpu_have_no_neighbours():
    state = shared_gpu(3, 4)
    spec = JobSpec(id=2, user=0, submit_ms=5, gpus=1, profile=5, cpu_ranks_max=1)
    state.apply(Event(5, Kind.SUBMITTED, 2, spec=spec))
    state.apply(Event(5, Kind.START, 2, setting=setting_of([(1, NONE), (1, 1)])))
    tell(state, 0, 1.5, 6)
    assert [row[3] for row in rows_of(state)] == [[(4, NONE)]]


def test_sets_seen_the_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr("brim.core.slowdowns.SETS_KEPT", 2)
    seen = SeenSlowdowns()
    for job, profile in enumerate((1, 2, 3)):
        seen.add(job, ResidentSet(ResidentKind(profile, NONE), 0, (ResidentKind(9, NONE),)), 1.5)
        seen.over(job)
    assert np.array_equal(seen.freeze().profile, [2, 3])
