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
    ROOT,
    SPAN_MS,
    SPANS_ELSEWHERE,
    STARTS_MIN,
    Calibration,
    relative_error,
)
from brim.live.records import PastForecast

MIN = 60_000
NOW_MS = 10**10
WAITS = st.integers(0, 10**9)
RECORDS = st.lists(
    st.builds(lambda made, expected, apart, wait, started: past(made, expected, wait if started else NONE, apart),
              st.integers(0, 10**9), WAITS, WAITS, WAITS, st.booleans()), max_size=60,
)
ASKED = st.tuples(WAITS, st.one_of(st.integers(0, OFFSET_MS), WAITS))
"""Shortest wait in the continuations, and by how much the longest is longer."""


def past(made_ms: int, expected_ms: int, wait_ms: int = NONE, apart_ms: int = 0) -> PastForecast:
    """A forecast by its waits; a job without a wait still waits."""
    first_ms, start_ms = max(expected_ms - apart_ms, 0), NONE if wait_ms == NONE else made_ms + wait_ms
    return PastForecast(
        made_ms, made_ms + expected_ms, made_ms + first_ms, made_ms + expected_ms + apart_ms, start_ms, NONE
    )


def around(record, expected_ms, apart_ms, now_ms=NOW_MS, **options):
    first_ms, last_ms = max(expected_ms - apart_ms, 0), expected_ms + apart_ms
    return Calibration(record, now_ms, **options).around(expected_ms, first_ms, last_ms)


@pytest.mark.parametrize("agreed", [True, False])
def test_intervals_cover_what_they_say_of_jobs_that_are_always_expected_too_early(agreed):
    """Waits are three times as long as expected, times a factor of log-deviation 0.5."""
    draw = random.Random(3)
    record, hits, learned = [], 0, 300 if agreed else 2 * SPANS_ELSEWHERE
    for number in range(learned + 300):
        made_ms, expected_ms = number * SPAN_MS, draw.randrange(10 * MIN, 300 * MIN)
        apart_ms = 0 if agreed else expected_ms // 2
        wait_ms = round(3 * expected_ms * draw.lognormvariate(0, 0.5))
        found = around(record, expected_ms, apart_ms, made_ms)
        if number >= learned:
            assert found is not None
            hits += found[0] <= wait_ms <= found[1]
        record.append(past(made_ms, expected_ms, wait_ms, apart_ms))
    assert 0.74 <= hits / 300 <= 0.86


def test_too_few_starts_say_nothing_where_continuations_agree():
    record = [past(0, 10 * MIN, 20 * MIN)] * (STARTS_MIN - 1)
    assert around([*record, *[past(0, 10 * MIN)] * 9], MIN, 0) is None
    assert around([*record, record[0]], MIN, 0) is not None


def test_a_cluster_without_a_record_has_the_errors_of_another_one():
    """Of its 25 errors the third lies around a tenth from the lower end, and the 23rd around that from the upper."""
    middle, low, high = ((wait * MIN + OFFSET_MS) ** ROOT for wait in (60, 30, 90))
    expected = [(middle + ERRORS_ELSEWHERE[at] * (high - low) ** 0.5) ** (1 / ROOT) - OFFSET_MS for at in (2, 22)]
    assert around([], 60 * MIN, 30 * MIN) == pytest.approx(expected)
    assert sorted(ERRORS_ELSEWHERE) == ERRORS_ELSEWHERE.tolist()


def test_intervals_are_wider_where_the_continuations_are_further_apart():
    wide, wider = (around([], 60 * MIN, apart * MIN) for apart in (5, 50))
    assert wider[0] < wide[0] < wide[1] < wider[1]


def test_the_errors_of_another_cluster_leave_as_its_own_come():
    """Its own jobs all start as expected: the interval shrinks to that moment, and is there when the record is full."""
    spans = (0, 20, 40, 48, 52, SPANS_ELSEWHERE)
    low, high = np.array([
        around([past(span * SPAN_MS, 10 * MIN, 10 * MIN, MIN) for span in range(count)], 60 * MIN, 10 * MIN)
        for count in spans
    ]).T
    assert (np.diff(high - low) <= 0).all()
    assert high[3] > low[3]
    assert (low[-2:], high[-2:]) == (pytest.approx(60 * MIN), pytest.approx(60 * MIN))


def test_a_burst_of_forecasts_counts_as_much_as_one():
    """A thousand jobs of half a day that start ten times as late as expected: one of 61 such times is not a tenth."""
    quiet = [past(span * SPAN_MS, 10 * MIN, 10 * MIN, MIN) for span in range(SPANS_ELSEWHERE)]
    burst = [past(SPANS_ELSEWHERE * SPAN_MS + number, 10 * MIN, 100 * MIN, MIN) for number in range(1_000)]
    assert around([*quiet, *burst], 60 * MIN, 10 * MIN) == around(quiet, 60 * MIN, 10 * MIN)


@pytest.mark.parametrize(("spans", "beyond"), [(8, 0), (20, 1), (25, 1), (35, 2), (45, 3)])
def test_the_start_that_is_asked_for_counts_as_one_beyond_the_interval(spans, beyond):
    """Of ``spans`` and one more, a tenth lies beyond each end, and that one is among them."""
    record = [past(span * SPAN_MS, 100 * MIN, (60 + span) * MIN) for span in range(spans)]
    alone = Calibration([*record] * STARTS_MIN, NOW_MS).around(100 * MIN, 100 * MIN, 100 * MIN)
    assert alone == pytest.approx(((60 + beyond) * MIN, (60 + spans - 1 - beyond) * MIN))


def test_jobs_that_still_wait_make_the_intervals_longer():
    """Half of the jobs started after ten minutes, as expected; the others have waited for an hour, and still do."""
    started, waiting = [past(0, 10 * MIN, 10 * MIN)] * 20, [past(0, 10 * MIN)] * 20
    alone, both = (around(record, 10 * MIN, 0, 60 * MIN) for record in (started, [*started, *waiting]))
    assert alone is not None
    assert both is not None
    assert both[1] > 5 * alone[1]


def test_what_comes_later_does_not_count():
    """At 50: one that started, three that have waited until then or until they gave up, and none that is made later."""
    ends = [(40, 90), (60, NONE), (NONE, 30), (NONE, NONE)]
    rows = [PastForecast(0, 5, 5, 5, start * MIN if start != NONE else NONE, end * MIN if end != NONE else NONE)
            for start, end in ends]
    later = PastForecast(51 * MIN, 55 * MIN, 55 * MIN, 55 * MIN, 60 * MIN, NONE)
    known = [PastForecast(0, 5, 5, 5, 40 * MIN, NONE), *[PastForecast(0, 5, 5, 5, NONE, NONE)] * 2, rows[2]]
    assert around([*rows, later] * 20, 10 * MIN, 0, 50 * MIN) == around(known * 20, 10 * MIN, 0, 50 * MIN)
    assert around(known * 20, 10 * MIN, 0, 50 * MIN) != around([*rows, later] * 20, 10 * MIN, 0, 70 * MIN)


def test_an_error_is_relative_to_how_far_the_continuations_are_apart():
    near, far = (
        float(relative_error(*(np.array([wait * MIN]) for wait in (90, 60, 60 - apart, 60 + apart)))[0])
        for apart in (5, 50)
    )
    assert near > 2 * far > 0


@given(RECORDS, ASKED, st.floats(0.1, 0.9), st.floats(0.0, 0.09))
def test_more_coverage_is_never_narrower_and_no_wait_is_negative(record, asked, coverage, more):
    narrow, wide = (around(record, *asked, coverage=part) for part in (coverage, coverage + more))
    assert (narrow is None) == (wide is None)
    if narrow is not None and wide is not None:
        assert 0.0 <= wide[0] <= narrow[0] <= narrow[1] <= wide[1]


@given(RECORDS, WAITS, st.randoms(use_true_random=False))
def test_the_order_of_the_record_does_not_matter(record, wait_ms, draw):
    for apart_ms in (0, wait_ms):
        shuffled = draw.sample(record, len(record))
        assert around(shuffled, wait_ms, apart_ms) == around(record, wait_ms, apart_ms)


@given(RECORDS, st.integers(0, 10**9), WAITS, WAITS)
def test_a_longer_wait_is_never_said_to_be_shorter(record, first_ms, expected_ms, last_ms):
    calibration = Calibration(record, NOW_MS)
    low, high = sorted((first_ms, last_ms))
    one, longer = (calibration.around(wait_ms, low, high) for wait_ms in (expected_ms, expected_ms + MIN))
    if one is not None and longer is not None:
        assert one[0] <= longer[0]
        assert one[1] <= longer[1]
