"""Which policy is best and which costs least: ties are said, and stopped replays are compared with none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from brim.beliefs.power import curves_for, load_curves
from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.reports.summary import by_policy, summarise
from brim.reports.verdict import Standing, _least, verdict
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace


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


@pytest.mark.parametrize(("stopped", "said"), [
    ((), "srtf has the shortest mean job completion time: "),
    (("srtf",), "Under fifo the mean job completion time is "),
    (("fifo",), "Under srtf the mean job completion time is "),
    (("fifo", "srtf"), "No replay is complete: these findings are over the jobs that finished."),
])
def test_a_replay_that_was_stopped_is_compared_with_no_complete_one(stopped, said):
    """Its means are over the jobs that ended soon, and it has used less energy."""
    trace = small_trace(job(run=500, limit=500), *(job(at=at, run=2 * at, limit=2 * at) for at in range(1, 9)))
    cluster = parse_cluster("1x1xV100")
    settings = ReplaySettings(power=curves_for(cluster, load_curves("builtin")))
    replays = [replay(trace, cluster, replace(PRESETS[name], oracle=False), settings) for name in ("fifo", "srtf")]
    cut = [
        replace(one, finish_ms=np.where(one.finish_ms < 540_000, one.finish_ms, -1), partial=True)
        if one.policy in stopped else one for one in replays
    ]
    groups = {policy: group for (_, policy), group in by_policy(summarise(cut)).items()}
    sentences = verdict(groups)
    assert sentences[0].startswith(said)
    assert any("energy" in sentence for sentence in sentences) == (not stopped)
