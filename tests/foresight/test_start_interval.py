"""The stated interval of a start: the continuations alone, then their record; never from what comes later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.core.trace import NONE
from brim.foresight.calibration import OFFSET_MS, RECORD_MAX, PastForecast
from brim.foresight.start_interval import stated

NOW_MS = 10**9
STARTS = st.lists(st.integers(NOW_MS, NOW_MS + 10**9), min_size=6, max_size=10)


def test_a_start_that_does_not_come_in_every_continuation_is_not_stated():
    assert stated(np.array([NOW_MS, NONE]), NOW_MS, ()) is None


@given(st.integers(NOW_MS, NOW_MS + 10**9), st.lists(st.integers(0, OFFSET_MS), min_size=6, max_size=10))
def test_without_a_record_it_is_from_the_first_to_the_last_continuation_if_they_agree(start_ms, later_ms):
    starts_ms = [start_ms + late_ms for late_ms in later_ms]
    found = stated(np.array(starts_ms), NOW_MS, ())
    assert found == (sum(starts_ms) // len(starts_ms), min(starts_ms), max(starts_ms))


@given(STARTS)
def test_without_a_record_it_is_wide_if_continuations_do_not_agree(starts_ms):
    found = stated(np.array([*starts_ms, max(starts_ms) + OFFSET_MS + 1]), NOW_MS, ())
    wait_ms = found.expected_ms - NOW_MS
    assert found.low_ms - NOW_MS < 0.75 * wait_ms
    assert found.high_ms - NOW_MS > 1.25 * wait_ms


@given(STARTS, st.integers(0, 10**8))
def test_a_record_of_starts_that_all_came_as_expected_makes_it_that_moment(starts_ms, wait_ms):
    record = [PastForecast(0, wait_ms, wait_ms, True)] * RECORD_MAX
    found = stated(np.array(starts_ms), NOW_MS, record)
    assert abs(found.low_ms - found.expected_ms) <= 1 + 1e-9 * found.expected_ms
    assert abs(found.high_ms - found.expected_ms) <= 1 + 1e-9 * found.expected_ms


@given(STARTS, st.integers(0, 10**8), st.integers(0, 10**8))
def test_no_start_is_stated_before_now_however_wrong_the_record(starts_ms, expected_ms, wait_ms):
    found = stated(np.array(starts_ms), NOW_MS, [PastForecast(0, expected_ms, wait_ms, True)] * RECORD_MAX)
    assert NOW_MS <= found.low_ms <= found.high_ms
