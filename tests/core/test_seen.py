"""Reported step times: the table is built again when its rows or times change, and only then."""

from __future__ import annotations

import pytest

from brim.core.events import Sample
from brim.core.seen import SeenStepTimes


@pytest.mark.parametrize(
    ("again", "same"),
    [(Sample(1, 2, 8, 0.5, 0.1), True), (Sample(1, 2, 8, 0.6, 0.1), False), (Sample(1, 2, 9, 0.5, 0.1), False)],
)
def test_a_report_of_the_same_times_leaves_the_table_as_it_was(again, same):
    seen_times = SeenStepTimes()
    seen_times.add(7, 0, [Sample(1, 2, 8, 0.5, 0.1)])
    before = seen_times.freeze(lambda jobs: jobs)
    seen_times.add(7, 0, [again])
    after = seen_times.freeze(lambda jobs: jobs)
    assert (after.step_s is before.step_s) == same
    rows = [list(zip(table.local_batch.tolist(), table.step_s.tolist(), strict=True)) for table in (before, after)]
    assert (rows[0] == rows[1]) == same


def test_a_first_report_of_times_that_are_zero_is_a_row():
    seen_times = SeenStepTimes()
    seen_times.add(7, 0, [])
    seen_times.freeze(lambda jobs: jobs)
    seen_times.add(7, 0, [Sample(1, 1, 1, 0.0, 0.0)])
    assert len(seen_times.freeze(lambda jobs: jobs).step_s) == 1
