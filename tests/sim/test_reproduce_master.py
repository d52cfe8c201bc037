"""The table of headline numbers: every number once, and none reproduced without its condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.sim.reproduce import eaco, master
from brim.sim.reproduce.eaco import ClusterRow
from brim.sim.reproduce.master import Headline
from brim.sim.reproduce.padding import Trained


def test_every_number_is_there_once_and_nothing_measured_is_claimed_without_an_experiment():
    rows = master.complete([*master.elastic_rows(None, None, "no points", [1.0]), *_aiturbo()])
    assert [row.number for row in rows if row.number <= 10] == list(range(1, 11))
    assert {row.verdict for row in rows if not row.ours} <= {"not measured", "re-measured"}
    assert next(row for row in rows if row.number == 24).conditions.startswith("the data pack is absent")


@pytest.mark.parametrize(("ms", "is_reached"), [(3.0, True), (1000.0, False)])
def test_real_time_is_reached_only_below_our_bound_and_never_reproduced(ms, is_reached):
    row = master.elastic_rows(None, None, "no points", [1.0, ms])[-1]
    assert (row.verdict, row.is_reached) == ("re-measured", is_reached)


def test_a_gain_below_the_published_one_is_missed_and_one_as_large_is_not():
    assert [row.is_reached for row in master.adloader_rows(0.231, 0.138, 0.185, 1)] == [False, True, False]
    assert [row.is_reached for row in master.adloader_rows(0.231, 0.29, 0.099, 1)] == [True, False, False]
    assert master.pollux_row([63.0, 50.0], [100.0, 100.0]).is_reached
    assert master.pollux_row([64.0, 50.0], [100.0, 100.0]).is_reached is False


def _aiturbo(*lower: float, held: float = 0.4, gap: float = 0.5) -> list[Headline]:
    return master.aiturbo_rows(
        lower or (1.2,), {"aiturbo": held, "fifo": 0.4, "optimus": 0.3}, {"aiturbo": gap, "fifo": 0.7, "optimus": 0.6},
        {"fifo": (3.0, 4.0)}, {"fifo": 3.5}, 20,
    )


def test_aiturbo_reaches_a_number_only_at_every_share_and_against_the_best_peer():
    jct, used, gap, ratios = _aiturbo(3.1, 2.9, held=0.45, gap=0.41)
    assert (jct.ours, jct.is_reached) == ("2.90x to 3.10x", False)
    assert (used.ours, used.is_reached) == ("+12% against fifo", False)
    assert (gap.ours, gap.is_reached) == ("41%; least of the peers 60%", False)
    assert (ratios.ours, ratios.is_reached) == ("fifo 3.00 to 4.00", False)
    assert [row.is_reached for row in _aiturbo(3.1, 3.2, held=0.47, gap=0.39)] == [True, True, True, False]


def _cluster(**changes: float) -> ClusterRow:
    row = ClusterRow(label="", kwh=1.0, active_node_h=1.0, run_growth=0.0, total_h=1.0, late=0.0, undone=0)
    return replace(row, **changes)


def test_clusters_reach_the_published_numbers_only_against_every_baseline():
    names = ("fifo", "fifo-packed", "gandiva-pack")
    bases = {nodes: {name: _cluster() for name in names} for nodes in (64, 28)}
    own = dict.fromkeys((64, 28), _cluster(kwh=0.6, active_node_h=0.5, run_growth=0.032, total_h=0.02))
    assert [row.is_reached for row in master.cluster_rows(own, bases, 400)] == [True] * 4
    bases[28]["gandiva-pack"] = _cluster(kwh=0.65)
    own[64] = replace(own[64], run_growth=0.04)
    assert [row.is_reached for row in master.cluster_rows(own, bases, 400)] == [True, False, False, True]


@pytest.mark.parametrize(("ratio", "overhead", "after", "is_reached"), [
    (2.84, 0.2, 0.76, [True, True, True]), (2.86, 0.3, 0.75, [False, False, False]),
    (float("inf"), 0.3, 0.76, [False, False, True]),
])
def test_padding_reaches_the_published_numbers_to_the_digits_published(ratio, overhead, after, is_reached):
    ours = Trained(
        way="padding", idle_share=0.36, switches_per_h=1.0, time_ratio=ratio, overhead=overhead, lost_share=0.0,
        changes=1, busy_before=0.5, busy_after=after, jct_change=0.0, late_ms_max=0,
    )
    rows = master.padding_rows(ours, drawn=True)
    assert [row.is_reached for row in rows] == is_reached
    assert {row.verdict for row in rows} == {"re-measured"}


def test_the_measured_sets_are_reproduced_only_if_each_pair_and_triple_is_met():
    table = eaco.table_rows()
    assert {row.verdict for row in master.table_rows(table)} == {"reproduced"}
    off = [replace(row, kwh=1.06 * row.published.kwh) if row.is_asked else row for row in table]
    assert {(row.verdict, row.is_reached) for row in master.table_rows(off)} == {("re-measured", False)}


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
