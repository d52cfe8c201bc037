"""Truth ``measured`` against the published simulator: the same policy, the same jobs, mean completion times in seconds.

Source of the figures: github.com/petuum/adaptdl, branch osdi21-artifact, run unchanged on 16 nodes of 4 GPUs.
"""

from __future__ import annotations

import json
from itertools import product

import pytest

from brim import traces
from brim.core.cluster import parse_cluster
from brim.engine.journal import Journal
from brim.policies.presets import PRESETS
from brim.reports.metrics import measure
from brim.sim.overheads import Overheads
from brim.sim.truths.measured import Measured
from brim.sim.twin import ReplaySettings, replay
from tests.cli.commands import brim
from tests.realdata.test_profiles import applications
from tests.realdata.test_read_all import DATA
from tests.sampling import sample
from tests.sim.test_compiled_loop import assert_equal

PROFILES = DATA / "profiles/pollux"
WORKLOADS = DATA / "traces/pollux/workloads"
pytestmark = pytest.mark.skipif(not PROFILES.exists(), reason=f"{PROFILES} is not here; set BRIM_DATA")
PUBLISHED_S = {1: 2_474, 2: 5_145, 3: 3_876, 4: 3_280, 5: 3_501, 6: 3_470}
CLUSTER = parse_cluster("16x4xT4")


def workload(number: int):
    return traces.read(str(WORKLOADS / f"workload-{number}.csv"))[0]


@pytest.mark.parametrize("number", [*PUBLISHED_S][: sample(6, 3)])
def test_tiresias_lands_within_three_per_cent_of_the_published_simulator(number):
    trace = workload(number)
    truth = Measured(trace, CLUSTER, applications())
    settings = ReplaySettings(overheads=Overheads.of_pollux())
    outcome = replay(trace, CLUSTER, PRESETS["tiresias-pollux"], settings, truth=truth)
    found = measure(outcome)
    assert found.finished == len(trace)
    assert found.jct_mean_s == pytest.approx(PUBLISHED_S[number], rel=0.03)


POLICIES = ("fifo", "backfill", "gittins", "srtf-oracle", "tiresias-pollux")
COSTS = (Overheads.of_pollux(), Overheads())
IN_TURN = [(policy, COSTS[place % 2]) for place, policy in enumerate(POLICIES)]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "overheads"), sample([*product(POLICIES, COSTS)], IN_TURN))
def test_a_published_workload_is_the_same_in_the_compiled_and_the_general_loop(policy, overheads):
    trace, costs = workload(6), ReplaySettings(overheads=overheads)
    one, other = (
        replay(trace, CLUSTER, PRESETS[policy], costs, truth=Measured(trace, CLUSTER, applications()), journal=journal)
        for journal in (None, Journal())
    )
    assert_equal(one, other)
    assert one.assumptions == other.assumptions


def test_the_command_replays_a_published_workload():
    done = brim("sim", "run", WORKLOADS / "workload-6.csv", "--cluster", "16x4xT4", "--truth", "measured",
                "--profiles", PROFILES, "--policy", "fifo", "-o", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["jobs"], row["finished"]) == (160, 160)
