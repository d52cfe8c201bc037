"""The stated interval of a start: the continuations alone, then their record; never from what comes later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.core.trace import NONE
from brim.foresight.calibration import OFFSET_MS, SPAN_MS, SPANS_ELSEWHERE, Calibration
from brim.foresight.start_interval import stated
from brim.live.records import PastForecast

NOW_MS = 10**10
NOTHING = Calibration((), NOW_MS)
STARTS = st.lists(st.integers(NOW_MS, NOW_MS + 10**9), min_size=6, max_size=10)


def test_a_start_that_does_not_come_in_every_continuation_is_not_stated():
    assert stated(np.array([NOW_MS, NONE]), NOW_MS, NOTHING) is None


@given(st.integers(NOW_MS, NOW_MS + 10**9), st.lists(st.integers(0, OFFSET_MS), min_size=6, max_size=10))
def test_without_a_record_it_is_from_the_first_to_the_last_continuation_if_they_agree(start_ms, later_ms):
    starts_ms = [start_ms + late_ms for late_ms in later_ms]
    found = stated(np.array(starts_ms), NOW_MS, NOTHING)
    ends_ms = min(starts_ms), max(starts_ms)
    assert found == (sum(starts_ms) // len(starts_ms), *ends_ms, *ends_ms)


@given(STARTS)
def test_without_a_record_it_is_wide_if_continuations_do_not_agree(starts_ms):
    found = stated(np.array([*starts_ms, max(starts_ms) + OFFSET_MS + 1]), NOW_MS, NOTHING)
    wait_ms = found.expected_ms - NOW_MS
    assert found.low_ms - NOW_MS < 0.75 * wait_ms
    assert found.high_ms - NOW_MS > 1.25 * wait_ms


def record(expected_ms: int, wait_ms: int) -> Calibration:
    """What equal forecasts of as many half days tell as another cluster's errors count."""
    made = range(0, SPANS_ELSEWHERE * SPAN_MS, SPAN_MS)
    return Calibration(
        [PastForecast(at, at + expected_ms, at, at + 2 * expected_ms, at + wait_ms, NONE) for at in made], NOW_MS
    )


@given(STARTS, st.integers(0, 10**8))
def test_a_record_of_starts_that_all_came_as_expected_makes_it_that_moment(starts_ms, wait_ms):
    found = stated(np.array(starts_ms), NOW_MS, record(wait_ms, wait_ms))
    assert abs(found.low_ms - found.expected_ms) <= 1 + 1e-9 * found.expected_ms
    assert abs(found.high_ms - found.expected_ms) <= 1 + 1e-9 * found.expected_ms


@given(STARTS, st.integers(0, 10**8), st.integers(0, 10**8))
def test_no_start_is_stated_before_now_however_wrong_the_record(starts_ms, expected_ms, wait_ms):
    found = stated(np.array(starts_ms), NOW_MS, record(expected_ms, wait_ms))
    assert NOW_MS <= found.low_ms <= found.high_ms
