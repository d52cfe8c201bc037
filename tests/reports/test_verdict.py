"""Who costs least: ties are said, and small figures keep their digits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brim.reports.verdict import Standing, _least


@pytest.mark.parametrize(("costs", "said"), [
    ({"fifo": 2.03, "srtf": 2.03, "las": 2.0301}, "fifo costs least, as 2 others do: 2.03."),
    ({"fifo": 2.5, "srtf": 2.0, "las": 2.0}, "srtf costs least, as 1 other does: 2.00, 20% less than fifo (2.50)."),
    ({"fifo": 1234.56, "srtf": 1000.0}, "srtf costs least: 1,000.0, 19% less than fifo (1,234.6)."),
    ({"fifo": 2.0, "srtf": 2.5}, "fifo costs least: 2.00."),
])  # fmt: skip
def test_the_policy_that_costs_least_is_named_with_those_that_cost_the_same(costs, said):
    groups = {
        name: [SimpleNamespace(oracle=False, cost=cost, metrics=SimpleNamespace(energy_kwh=None))]
        for name, cost in costs.items()
    }
    found = Standing(means_s=costs, complete=True, first="fifo", best="fifo", oracle=None)
    assert _least(groups, found) == [said]
