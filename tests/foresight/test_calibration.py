"""Intervals from the record of earlier forecasts: what they cover, and that nothing to come is in them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.trace import NONE
from brim.foresight.calibration import (
    ERRORS_ELSEWHERE,
    OFFSET_MS,
    RECORD_MAX,
    ROOT,
    STARTS_MIN,
    PastForecast,
    past_forecasts,
    recalibrated,
)

MIN = 60_000
WAITS = st.integers(0, 10**9)
RECORDS = st.lists(
    st.builds(lambda made, expected, wait, started: PastForecast(made, made + expected, made + wait, started),
              st.integers(0, 10**9), WAITS, WAITS, st.booleans()), max_size=60,
)
LEARNED = {True: 300, False: RECORD_MAX}
"""Forecasts after which the record tells of the cluster, by whether the continuations agree."""


@pytest.mark.parametrize("agreed", [True, False])
def test_intervals_cover_what_they_say_of_jobs_that_are_always_expected_too_early(agreed):
    """Waits are three times as long as expected, times a factor of log-deviation 0.5."""
    draw = random.Random(3)
    rows, hits = [], 0
    for number in range(LEARNED[agreed] + 300):
        made_ms, expected_ms = number * 30 * MIN, draw.randrange(10 * MIN, 300 * MIN)
        wait_ms = round(3 * expected_ms * draw.lognormvariate(0, 0.5))
        around = recalibrated(expected_ms, past_forecasts(rows, made_ms), agreed=agreed)
        if number >= LEARNED[agreed]:
            assert around is not None
            hits += around[0] <= wait_ms <= around[1]
        rows.append((made_ms, made_ms + expected_ms, made_ms + wait_ms, NONE))
    assert 0.74 <= hits / 300 <= 0.86


def test_too_few_starts_say_nothing_where_continuations_agree():
    record = [PastForecast(0, 10 * MIN, 20 * MIN, True)] * (STARTS_MIN - 1)
    waiting = PastForecast(0, 10 * MIN, 20 * MIN, False)
    assert recalibrated(MIN, [*record, *[waiting] * 9], agreed=True) is None
    assert recalibrated(MIN, [*record, record[0]], agreed=True) is not None


def test_a_cluster_without_a_record_has_the_errors_of_another_one():
    """Of its 25 errors the third lies around a tenth from the lower end, and the 23rd around that from the upper."""
    middle = (60 * MIN + OFFSET_MS) ** ROOT
    expected = [(middle + ERRORS_ELSEWHERE[place]) ** (1 / ROOT) - OFFSET_MS for place in (2, 22)]
    assert recalibrated(60 * MIN, []) == pytest.approx(expected)
    assert sorted(ERRORS_ELSEWHERE) == ERRORS_ELSEWHERE.tolist()


def test_the_errors_of_another_cluster_leave_as_its_own_come():
    """Its own jobs all start as expected: the interval shrinks to that moment, and is there when the record is full."""
    own = PastForecast(0, 10 * MIN, 10 * MIN, True)
    counts = (0, 300, 600, 790, 810, RECORD_MAX)
    low, high = np.array([recalibrated(60 * MIN, [own] * count) for count in counts]).T
    assert (np.diff(high - low) <= 0).all()
    assert high[3] > low[3]
    assert (low[-2:], high[-2:]) == (pytest.approx(60 * MIN), pytest.approx(60 * MIN))


def test_jobs_that_still_wait_make_the_intervals_longer():
    """Half of the jobs started after ten minutes, as expected; the others have waited for an hour, and still do."""
    started = [PastForecast(0, 10 * MIN, 10 * MIN, True)] * 20
    waiting = [PastForecast(0, 10 * MIN, 60 * MIN, False)] * 20
    alone, both = (recalibrated(10 * MIN, record, agreed=True) for record in (started, [*started, *waiting]))
    assert alone is not None
    assert both is not None
    assert both[1] > 5 * alone[1]


def test_what_comes_later_is_not_in_the_record():
    rows = [(0, 5, 40, 90), (0, 5, 60, NONE), (0, 5, NONE, 30), (0, 5, NONE, NONE), (51, 55, 60, NONE)]
    assert past_forecasts(rows, 50) == (
        PastForecast(0, 5, 40, True), PastForecast(0, 5, 50, False), PastForecast(0, 5, 30, False),
        PastForecast(0, 5, 50, False),
    )


@given(RECORDS, WAITS, st.floats(0.1, 0.9), st.floats(0.0, 0.09), st.booleans())
def test_more_coverage_is_never_narrower_and_no_wait_is_negative(record, wait_ms, coverage, more, agreed):
    narrow, wide = (recalibrated(wait_ms, record, part, agreed=agreed) for part in (coverage, coverage + more))
    assert (narrow is None) == (wide is None)
    if narrow is not None and wide is not None:
        assert 0.0 <= wide[0] <= narrow[0] <= narrow[1] <= wide[1]


@given(RECORDS, WAITS, st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_the_record_does_not_matter_and_a_longer_wait_is_never_said_to_be_shorter(
    record, wait_ms, draw, agreed
):
    shuffled = draw.sample(record, len(record))
    around = recalibrated(wait_ms, record, agreed=agreed)
    assert recalibrated(wait_ms, shuffled, agreed=agreed) == around
    longer = recalibrated(wait_ms + MIN, record, agreed=agreed)
    if around is not None and longer is not None:
        assert around[0] <= longer[0]
        assert around[1] <= longer[1]
