"""The table of headline numbers: every number once, and none reproduced without its condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.sim.reproduce import eaco, master
from brim.sim.reproduce.master import Headline


def test_every_number_is_there_once_and_nothing_measured_is_claimed_without_an_experiment():
    rows = master.complete(master.elastic_rows(None, None, "no points", [1.0]))
    assert [row.number for row in rows if row.number <= 10] == list(range(1, 11))
    assert {row.verdict for row in rows if not row.ours} <= {"with issue 14", "not measured", "re-measured"}
    assert next(row for row in rows if row.number == 24).conditions.startswith("the data pack is absent")


@pytest.mark.parametrize(("ms", "verdict"), [(3.0, "reproduced"), (1000.0, "re-measured")])
def test_real_time_is_reproduced_only_below_its_bound(ms, verdict):
    assert master.elastic_rows(None, None, "no points", [1.0, ms])[-1].verdict == verdict


def test_the_measured_sets_are_reproduced_only_if_each_pair_and_triple_is_met():
    table = eaco.table_rows()
    assert {row.verdict for row in master.table_rows(table)} == {"reproduced"}
    off = [replace(row, kwh=1.06 * row.published.kwh) if row.is_asked else row for row in table]
    assert {row.verdict for row in master.table_rows(off)} == {"re-measured"}


def test_savings_and_growths_of_the_published_sets_are_the_published_ones():
    """With the published figures in place of ours: 29.8 to 44.5 % energy, 3.0 to 8.4 and 24.5 % time."""
    exact = [replace(row, kwh=row.published.kwh, jct_h=row.published.jct_h) for row in eaco.table_rows()]
    energy, time = master.table_rows(exact)
    assert energy.ours == "-29.8% to -44.5%"
    assert time.ours == "+3.0% to +8.4%, +24.5%"


def test_a_measured_row_takes_the_place_of_the_one_that_says_why_not():
    row = master.pollux_row([60.0, 50.0], [100.0, 100.0])
    assert (row.ours, row.verdict) == ("-40% to -50%", "re-measured")
    found = [one for one in master.complete([row]) if one.number == row.number]
    assert found == [row]
    assert isinstance(found[0], Headline)
