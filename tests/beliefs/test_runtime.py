"""Estimates of run times: limits, history, truth, and what happens when they are outlived."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.runtime import UNKNOWN_RUN_MS, TrueRunTimes, UserHistory, UserLimits, remaining_ms
from brim.core.events import Event, JobSpec, Kind
from brim.core.setting import setting_of
from brim.testing import job, snapshot_of, state_with
from brim.testing.strategies import snapshots


@given(snapshots())
def test_an_estimate_always_lies_above_what_has_run(snapshot):
    for model in (UserLimits(), UserHistory(), TrueRunTimes(np.full(100, 3))):
        assert (remaining_ms(model, snapshot) > 0).all()
        assert model.total_ms(snapshot).tolist() == model.total_ms(snapshot).tolist()


@given(st.integers(1, 10_000), st.integers(0, 10**9))
def test_an_outlived_estimate_is_doubled_until_it_is_above_and_no_further(limit_s, ran_s):
    snapshot = snapshot_of("1x1xT4", job(on=[(0, 0)], limit=limit_s), now=ran_s)
    estimate = UserLimits().total_ms(snapshot)[0]
    doublings = np.log2(estimate / (limit_s * 1000))
    assert doublings == round(doublings)
    assert estimate > ran_s * 1000
    assert doublings == 0 or estimate / 2 <= ran_s * 1000


def with_history(*runs_s: int):
    """Ann's past jobs, then one that waits (limit 500 s) and one of Bob's (no limit)."""
    state = state_with("1x1xT4")
    ann, bob = state.user_code("ann"), state.user_code("bob")
    now = 0
    for number, run_s in enumerate(runs_s):
        state.apply(Event(now, Kind.SUBMITTED, number, spec=JobSpec(id=number, user=ann, submit_ms=now, gpus=1)))
        state.apply(Event(now, Kind.START, number, setting=setting_of(((0, 0),))))
        state.apply(Event(now, Kind.STARTED, number))
        now += run_s * 1000
        state.apply(Event(now, Kind.FINISHED, number))
    for number, user, limit_ms in ((100, ann, 500_000), (101, ann, -1), (102, bob, -1)):
        spec = JobSpec(id=number, user=user, submit_ms=now, gpus=1, time_limit_ms=limit_ms)
        state.apply(Event(now, Kind.SUBMITTED, number, spec=spec))
    return state.freeze(now)


def test_limits_first_then_history_then_the_unknown():
    snapshot = with_history(100, 300)
    assert UserLimits().total_ms(snapshot).tolist() == [500_000, 200_000, UNKNOWN_RUN_MS]
    assert UserHistory().total_ms(snapshot).tolist() == [200_000, 200_000, UNKNOWN_RUN_MS]


def test_history_is_the_mean_of_the_last_two_and_one_counts_alone():
    assert UserHistory().total_ms(with_history(100))[1] == 100_000
    assert UserHistory().total_ms(with_history(900, 100, 300))[1] == 200_000


def test_history_never_exceeds_the_jobs_own_limit():
    assert UserHistory().total_ms(with_history(5_000, 5_000)).tolist()[:2] == [500_000, 5_000_000]
