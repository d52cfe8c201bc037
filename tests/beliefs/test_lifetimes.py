"""Run times from jobs that ended and jobs that run: known distributions, and what a job that has run has left."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.lifetimes import TAIL_POWER, lifetimes

MIDDLES = (np.arange(200) + 0.5) / 200


def test_jobs_that_run_make_the_others_longer_and_without_them_the_short_ones_would_be_all():
    """Exponential run times of 100 s, watched for 50 s each: only the shorter ones have ended."""
    run_s = np.random.default_rng(1).exponential(100.0, 4_000)
    seen = lifetimes(np.minimum(run_s, 50.0), np.zeros(4_000), run_s <= 50.0)
    ended_alone = lifetimes(run_s[run_s <= 50.0], np.zeros((run_s <= 50.0).sum()), np.ones((run_s <= 50.0).sum(), bool))
    quarter = np.quantile(run_s, 0.25)
    assert abs(float(seen.at(np.array(0.25), np.array(0.0))) / quarter - 1) < 0.1
    assert float(ended_alone.at(np.array(0.25), np.array(0.0))) < 0.6 * quarter


def test_jobs_that_were_old_when_the_watching_began_count_from_that_age_on():
    """Half of the jobs take 10 s and half 1,000 s; the watching begins when each long one has run for 900 s."""
    run_s, since_s = np.repeat((10.0, 1_000.0), 50), np.repeat((0.0, 900.0), 50)
    ended = np.ones(100, dtype=np.bool_)
    found = lifetimes(np.append(run_s, 400.0), np.append(since_s, 0.0), np.append(ended, False))
    assert float(found.at(np.array(0.9), np.array(0.0))) == 10.0, "of the 51 seen from their start on, 50 took 10 s"
    assert float(found.at(np.array(0.5), np.array(950.0))) == 1_000.0


def test_a_job_that_outlived_all_has_as_much_left_as_it_has_run_by_the_power_of_the_tail():
    found = lifetimes(np.array([5.0, 5.0, 5.0]), np.zeros(3), np.ones(3, dtype=np.bool_))
    assert float(found.at(np.array(1 - 2.0**-TAIL_POWER), np.array(20.0))) == 40.0
    among_all = 1 - found.survives[-1] * 2.0**-TAIL_POWER
    assert abs(float(found.at(np.array(among_all), np.array(0.0))) / 10.0 - 1) < 1e-9, "twice the longest"


@given(
    st.lists(st.tuples(st.floats(1.0, 1e9), st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=30),
    st.floats(0.0, 1e9),
)
def test_run_times_are_longer_than_what_was_run_and_grow_with_the_quantile(jobs, ran):
    run, part, ended = (np.array(column) for column in zip(*jobs, strict=True))
    ended[0] = True
    found = lifetimes(run, np.where(part < 0.5, 0.0, run * part * 0.999), ended)
    drawn = found.at(MIDDLES[:, None], np.array([ran]))[:, 0]
    assert (drawn > ran).all()
    assert (np.diff(drawn) >= 0).all()
