"""The experiment of AITurbo: what is measured of a replay, ratios of paired seeds, and its tables on a few jobs."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.parameter_servers import Allocation
from brim.cli import replays, reproduce_aiturbo
from brim.core.cluster import parse_cluster
from brim.core.replay import Runs
from brim.policies.order.arrival import Arrival
from brim.sim.overheads import Overheads
from brim.sim.reproduce import aiturbo_peers, aiturbo_sweep
from brim.sim.reproduce.aiturbo import RUN_S_MAX, SweepPoint, workload
from brim.sim.reproduce.aiturbo_peers import ShortestByCurve
from brim.sim.reproduce.aiturbo_sweep import AGAINST, EVERY, PARTS, PRIORS, SHARES, factor, measured, plan
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace
from brim.testing.builders import snapshot_of

TINY = SweepPoint(jobs=5)


def test_devices_are_counted_while_jobs_arrive_while_one_has_nothing_and_until_all_have_ended():
    """Two GPUs and four cores. From 0 to 20 s one GPU and no core, which computes half of that time; then nothing until
    60 s; then all until 140 s, of which 1.5 GPUs and 1 core compute. The second job waits from 100 s to 120 s.
    """
    trace = small_trace(job(run=20), job(at=100, run=20))
    found = replay(trace, parse_cluster("1x2xT4:cpus=4"), aiturbo_sweep.PEERS["fifo"])

    def column(*values):
        return np.array(values, dtype=np.int64)

    runs = Runs(
        job=column(0, 0, 1), start_ms=column(0, 60_000, 120_000), end_ms=column(20_000, 120_000, 140_000),
        share_milli=column(1000, 1000, 1000), first_gpu=column(0, 1, 3, 5), gpu=column(0, 0, 1, 0, 1),
        cores_milli=column(0, 4_000, 4_000), gpus_busy=np.array([0.5, 1.5, 1.5]),
        cores_busy_milli=np.array([0.0, 1_000.0, 1_000.0]),
    )
    one = measured(replace(found, runs=runs, finish_ms=column(120_000, 140_000)))
    hour = 3600
    assert one.arriving == pytest.approx((100 / hour, 0.2 * 0.5 + 0.4, 0.4, 0.0, 0.2 * 0.25 + 0.4 * 0.75, 0.1, 0.5))
    waits = 60 / hour  # from 20 to 60 s with nothing, from 100 to 120 s with all devices taken
    assert one.waiting == pytest.approx((waits, 1 / 3, 1 / 3, 0.0, 0.25, 1 / 12, 0.5))
    assert one.whole == pytest.approx(
        (140 / hour, (10 + 80) / 140, 80 / 140, 0.0, (5 + 60) / 140, 20 / 140, 0.5))
    assert one.jct_min == pytest.approx((120 + 40) / 2 / 60)
    assert np.isnan(one.long_min)
    assert one.short_min == one.jct_min


def test_cores_of_servers_and_of_workers_on_cpu_are_recorded_by_the_ranks_that_a_job_has():
    few = workload(TINY)
    found = replay(few.trace, few.cluster, aiturbo_sweep.PEERS["fifo"], truth=few.truth)
    gpus = np.diff(found.runs.first_gpu)
    asked = few.truth.jobs.servers[found.runs.job] + gpus  # two cores each, as asked
    assert found.runs.cores_milli.tolist() == (2_000 * asked).tolist()
    ours = replay(few.trace, few.cluster, aiturbo_sweep.AITURBO, truth=few.truth)
    assert (ours.runs.cores_milli > 0).all()
    assert (ours.runs.cores_milli % 1_000 == 0).all()


@pytest.mark.parametrize(("name", "cluster", "restarts"), [
    ("fifo", "8x4xK80:cpus=64", False), ("las", "1x8xK80:cpus=64", True),
])  # fmt: skip
def test_devices_are_busy_while_workers_compute_and_servers_update(name, cluster, restarts):
    """Jobs keep their sizes: each computes for as long as its steps take, not while it starts or saves."""
    few = workload(replace(TINY, cluster=cluster))
    overheads = Overheads(start_ms=30_000, save_ms=1_200_000, restart_ms=30_000)
    policy = replace(aiturbo_sweep.PEERS[name], gap_ms=0, period_ms=300_000)
    found = replay(few.trace, few.cluster, policy, ReplaySettings(overheads=overheads), truth=few.truth)
    assert found.restarts.any() == restarts
    trace, jobs, runs = few.trace, few.truth.jobs, found.runs
    rows = np.arange(len(trace))
    asked = np.full(len(rows), 2_000)
    has = Allocation(trace.gpus[rows], np.ones(len(rows), bool), asked, jobs.servers[rows], asked)
    phases = jobs.models.phases(trace.profile[rows], trace.batch[rows], has)
    steps, lasts_s = jobs.samples / trace.batch, (runs.end_ms - runs.start_ms) / 1000
    gpu_s = np.bincount(runs.job, runs.gpus_busy * lasts_s)
    assert gpu_s == pytest.approx(steps * phases.compute_s * trace.gpus, rel=0.01)
    core_s = steps * 2_000 * (phases.compute_s * trace.gpus + phases.update_s * jobs.servers)
    assert np.bincount(runs.job, runs.cores_busy_milli * lasts_s) == pytest.approx(core_s, rel=0.01)


def test_by_curve_believes_each_curve_and_a_fixed_time_where_there_is_none_or_it_says_too_long(monkeypatch):
    snapshot = snapshot_of("1x2xK80:cpus=8", *(job(gpus=1, name=name) for name in "abcd"))
    left_s = np.array([1e20, 100.0, 10_000.0, 2 * RUN_S_MAX])
    monkeypatch.setattr(aiturbo_peers, "remaining_s", lambda *_: left_s)
    assert ShortestByCurve()(snapshot, Beliefs()).tolist() == [1, 0, 3, 2]
    assert ShortestByCurve(50.0)(snapshot, Beliefs()).tolist() == [0, 3, 1, 2]


def test_the_orders_differ_in_nothing_else():
    for group in ("orders", "orders, alike", "orders, own sizes"):
        policies = [one.policy for one in plan(quick=False) if one.group == group]
        assert len({replace(policy, order=Arrival(), oracle=False) for policy in policies}) == 1
        assert len({policy.order for policy in policies}) == 4


def test_the_ratio_of_paired_seeds_is_a_geometric_mean_with_a_t_interval():
    found = factor([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert found == pytest.approx((0.5, 0.5, 0.5))
    half = 4.302653 * np.std(np.log([0.5, 2.0, 1.0]), ddof=1) / np.sqrt(3)  # t of 97.5 % with two degrees of freedom
    assert factor([1.0, 2.0, 1.0], [2.0, 1.0, 1.0]) == pytest.approx((1.0, np.exp(-half), np.exp(half)), rel=1e-5)
    assert factor([3.0], [2.0]) == pytest.approx((1.5, np.nan, np.nan), nan_ok=True)
    told = [reproduce_aiturbo._told(factor([mean] * seeds, [2.0] * seeds)) for mean, seeds in ((3.0, 1), (1.0, 2))]
    assert told == ["1.50 (one seed)", "0.50 (0.50 to 0.50)"]


def test_every_policy_runs_the_same_jobs_of_twenty_seeds():
    sweep = [one for one in plan(quick=False) if one.group == "sweep"]
    by_policy = {label: [one.point for one in sweep if one.label == label] for label in EVERY}
    assert len({tuple(points) for points in by_policy.values()}) == 1
    assert sorted({point.unpredictable for point in by_policy["aiturbo"]}) == list(SHARES)
    assert all(len({point.seed for point in points}) == 20 for points in by_policy.values())
    assert not any(policy.oracle for policy in (EVERY | AGAINST | PARTS).values())


def could_be_sent(tasks):
    """Whether other processes could be given them, which would take longer to start than all of them take here."""
    return [task.policy.name for task in pickle.loads(pickle.dumps(tasks))] == [task.policy.name for task in tasks]


@pytest.fixture(scope="module")
def ran():
    """Every group of the experiment, each on one seed of three jobs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SEEDS", "SEEDS_OF_ORDERS", "SEEDS_OF_MORE", "SEEDS_OF_500"):
            patch.setattr(aiturbo_sweep, name, 1)
        for name in ("SHARES", "SOME", "CROSSED", "ENDS"):
            patch.setattr(aiturbo_sweep, name, (0.5,))
        patch.setattr(replays, "_are_short", could_be_sent)
        planned = [one._replace(point=replace(one.point, jobs=3)) for one in plan(quick=False)]
        return planned, reproduce_aiturbo.run(planned)


@pytest.mark.slow
def test_the_tables_show_each_policy_and_say_what_was_published(ran, monkeypatch, capsys):
    monkeypatch.setattr(aiturbo_sweep, "plan", lambda quick: ran[0])
    monkeypatch.setattr(reproduce_aiturbo, "run", lambda _: ran[1])
    reproduce_aiturbo.reproduce_aiturbo(quick=False, output="table")
    said = capsys.readouterr().out
    for label in (*EVERY, *PARTS, *PRIORS, "true remaining time", "by attained service"):
        assert label in said
    for words in ("ratio to it", "published: 60 % before", "load 1.8", "until all end", "estimates 3", "alike"):
        assert words in said


@pytest.mark.slow
def test_json_has_every_replay(ran, monkeypatch, capsys):
    monkeypatch.setattr(aiturbo_sweep, "plan", lambda quick: ran[0])
    monkeypatch.setattr(reproduce_aiturbo, "run", lambda _: ran[1])
    reproduce_aiturbo.reproduce_aiturbo(quick=False, output="json")
    found = json.loads(capsys.readouterr().out)["replays"]
    assert len(found) == len(ran[0])
    assert {one["group"] for one in found} == {one.group for one in ran[0]}
    assert {one["load"] for one in found} == {0.9, 1.8, None}  # all together: no load
    for one in found:
        whole = one["whole"]
        assert one["jct_min"] > 0
        assert 0 <= whole["gpus_busy"] <= whole["gpus_held"] <= 1
        assert 0 <= whole["cores_busy"] <= whole["cores_held"] <= 1


@pytest.mark.slow
def test_the_headlines_say_how_far_each_number_is_from_the_published_one(ran):
    found = reproduce_aiturbo.Findings(*ran)
    rows = {row.number: row for row in reproduce_aiturbo.headlines(found, seeds=1)}
    assert sorted(rows) == [4, 5, 6, 9]
    best = found.best_peer(0.5)
    assert rows[4].ours == f"{1 / found.factor(0.5, best).mean:.2f}x to {1 / found.factor(0.5, best).mean:.2f}x"
    assert rows[4].is_reached is (1 / found.factor(0.5, best).mean >= 3)
    assert all(row.verdict == "re-measured" and "1 seed" in row.conditions for row in rows.values())
