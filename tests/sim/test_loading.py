"""Jobs that wait for their data, with known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.runtime import UserLimits
from brim.core.cluster import parse_cluster
from brim.errors import ConfigError, NotFoundError
from brim.policies.feed.shares import Fixed
from brim.policies.presets import PRESETS
from brim.sim.compiled.eligible import eligible_loop
from brim.sim.compiled.scenario import Scenario
from brim.sim.overheads import Overheads
from brim.sim.truth_option import TruthOption
from brim.sim.truths.loading import LoadingData, shared
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import Colocation, NodeColocation
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace

FREE = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0, start_ms=0), gap_ms=0)
WANTS = {name: np.array((100.0, cores / 100, 0.0, 0.0, 0.0, 1000.0)) for name, cores in (("light", 1), ("heavy", 4))}


def with_feed(feed, name="fifo"):
    return replace(PRESETS[name], name="mine", feed=feed)


def ends_s(trace, cluster, policy, models=WANTS, disk=np.inf, settings=FREE):
    where = parse_cluster(cluster)
    truth = LoadingData(Rigid(trace), trace, where, models, disk)
    return [round(ms / 1000, 1) for ms in replay(trace, where, policy, settings, truth=truth).finish_ms.tolist()]


@pytest.mark.parametrize(("cpus", "workers", "expected"), [
    (9, 8, 100.1),  # 4 cores for 4 workers would do
    (9, 2, 200.0),  # two workers deliver half
    (3, 8, 200.0),  # so do eight on two cores
    (2, 1, 400.0),
])
def test_a_job_goes_as_fast_as_its_loader(cpus, workers, expected):
    trace = small_trace(job(run=100, model="heavy"))
    assert ends_s(trace, f"1x1xT4:cpus={cpus}", with_feed(Fixed(workers))) == [pytest.approx(expected, abs=0.2)]


def test_jobs_of_a_node_share_its_cores_from_the_moment_they_meet_until_they_part():
    """Eight workers on four cores: half of what each wants. The second comes at 50 s, when the first has half done."""
    trace = small_trace(job(run=100, model="heavy"), job(at=50, run=100, model="heavy"))
    found = ends_s(trace, "1x2xT4:cpus=6", with_feed(Fixed(4)))
    assert found == pytest.approx([150, 200], abs=0.5)  # 50 s alone, 100 s together; then the other has 50 s left


def test_jobs_of_other_nodes_and_unknown_models_are_left_alone():
    jobs = [job(run=100, model="heavy")] * 2 + [job(run=100, model="other"), job(run=9)]
    trace = small_trace(*jobs)
    assert ends_s(trace, "1x1xT4:cpus=5+1x3xT4:cpus=7", with_feed(Fixed(4))) == pytest.approx(
        [100, 100, 100, 9], abs=0.2
    )


def test_a_cluster_without_known_cores_limits_no_loader():
    assert ends_s(small_trace(job(run=100, model="heavy")), "1x1xT4", with_feed(Fixed(1))) == [100]


def test_storage_is_shared_until_the_page_cache_holds_the_data():
    """1,000 samples of 1 MB at 100/s from a disk of 50 MB/s: 20 s for the first epoch; the rest from memory."""
    reads = {"heavy": WANTS["heavy"].copy()}
    reads["heavy"][[3, 4]] = 1e6, 1e9
    trace = small_trace(job(run=100, model="heavy"))
    assert ends_s(trace, "1x1xT4:cpus=9,mem=64GB", with_feed(Fixed(8)), reads, 50e6) == [pytest.approx(110, abs=0.5)]
    tiny = ends_s(trace, "1x1xT4:cpus=9,mem=0.1GB", with_feed(Fixed(8)), reads, 50e6)
    assert tiny == [pytest.approx(20 + 90 / (50 / 89.3), abs=5)]  # the tenth that fits memory is read from there


def test_cores_go_to_who_needs_them_and_the_equal_split_is_slower():
    """Light wants 1 and heavy 4 of 5 cores; an equal split gives 2 to each."""
    trace = small_trace(job(run=400, model="light"), job(run=400, model="heavy"))
    believed = ReplaySettings(overheads=FREE.overheads, gap_ms=0)
    cluster = parse_cluster("1x2xT4:cpus=7")
    truth = LoadingData(Rigid(trace), trace, cluster, WANTS)
    learning = replay(trace, cluster, PRESETS["adloader"], believed, truth=truth)
    even = ends_s(trace, "1x2xT4:cpus=7", PRESETS["adloader-even"])
    assert even == pytest.approx([400, 800], abs=1)
    assert learning.finish_ms.tolist()[0] / 1000 == pytest.approx(400, abs=5)
    assert learning.finish_ms.tolist()[1] / 1000 < 560  # it knows nothing at first: it learns from what they report
    assert any("whose loader is unknown" in said for said in learning.assumptions)


def test_what_a_job_reports_is_the_part_of_its_time_that_it_waits():
    trace = small_trace(job(run=100, model="heavy"))
    truth = LoadingData(Rigid(trace), trace, parse_cluster("1x1xT4:cpus=9"), WANTS)
    colocation = Colocation(loader_workers=1, on_nodes=(NodeColocation(0, 1, ()),))
    report = truth.pace(0, 0.0, (1,), -1, colocation).report
    assert report is not None
    assert report.loader_wait_ratio == pytest.approx(0.75, abs=1e-3)
    assert report.samples_per_s == pytest.approx(25, abs=0.1)


def test_compiled_loops_refuse_it():
    trace = small_trace(job(model="heavy"))
    cluster = parse_cluster("1x1xT4:cpus=4")
    truth = LoadingData(Rigid(trace), trace, cluster, WANTS)
    assert eligible_loop(Scenario(trace=trace, cluster=cluster, policy=PRESETS["fifo"], truth=truth,
                                  run_times=UserLimits(), overheads=Overheads(), gap_ms=0)) is None


def test_the_command_line_names_a_library():
    trace, cluster = small_trace(job(model="alexnet")), parse_cluster("1x1xT4:cpus=4")
    assert isinstance(TruthOption(loading="synergy").build(trace, cluster), LoadingData)
    with pytest.raises(NotFoundError, match=r"--loading: found 'fast', expected synergy or a .toml file"):
        TruthOption(loading="fast").build(trace, cluster)
    with pytest.raises(ConfigError, match="--loading pollux: found no 'loading' table"):
        TruthOption(loading="pollux").build(trace, cluster)


@pytest.mark.parametrize(("policy", "told"), [
    ("fifo", ["The profile library synergy has step times of no model of this trace."]),
    ("adloader", ["What cores bring the loaders of alexnet is known beforehand (profile library synergy)."]),
])
def test_a_replay_says_of_a_library_what_its_policy_takes_from_it(policy, told):
    found = replay(small_trace(job(model="alexnet", run=60)), parse_cluster("1x1xT4:cpus=4"), PRESETS[policy],
                   ReplaySettings(library="synergy"))
    assert [line for line in found.assumptions if "profile library" in line] == told


@pytest.mark.parametrize(("wants", "weights", "amount", "expected"), [
    ([1, 10, 10], [1, 1, 3], 9, [1, 2, 6]), ([1, 1], [1, 1], 9, [1, 1]), ([0, 5], [9, 1], 4, [0, 4]),
    ([5, 5], [0, 1], 4, [0, 4]),
])
def test_an_amount_is_shared_by_weight_and_nobody_gets_more_than_it_wants(wants, weights, amount, expected):
    assert shared([float(each) for each in wants], [float(each) for each in weights], amount) == expected
