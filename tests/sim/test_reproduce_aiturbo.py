"""The experiment of AITurbo: what is measured of a replay, ratios of paired seeds, and its tables on a few jobs."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from brim.cli import replays, reproduce_aiturbo
from brim.core.cluster import parse_cluster
from brim.core.replay import Runs
from brim.sim.reproduce import aiturbo_sweep
from brim.sim.reproduce.aiturbo import SweepPoint, workload
from brim.sim.reproduce.aiturbo_sweep import AGAINST, EVERY, PARTS, SHARES, factor, measured, plan
from brim.sim.twin import replay
from brim.testing import job, small_trace

TINY = SweepPoint(jobs=5)


def test_held_devices_are_counted_while_jobs_arrive():
    """Two GPUs and four cores from 0 to 100 s: one GPU and no core for 20 s, then nothing, then all for 40 s."""
    trace = small_trace(job(run=20), job(at=100, run=20))
    found = replay(trace, parse_cluster("1x2xT4:cpus=4"), aiturbo_sweep.PEERS["fifo"])

    def column(*values):
        return np.array(values, dtype=np.int64)

    runs = Runs(
        job=column(0, 1), start_ms=column(0, 60_000), end_ms=column(20_000, 140_000), share_milli=column(1000, 1000),
        first_gpu=column(0, 1, 3), gpu=column(0, 0, 1), cores_milli=column(0, 4_000),
    )
    one = measured(replace(found, runs=runs))
    assert one.gpus_held == pytest.approx(0.2 * 0.5 + 0.4)
    assert one.cores_held == pytest.approx(0.4)
    assert one.gap_p80 == pytest.approx(0.0)  # 0.5 for a fifth of the time, 0 for the rest
    assert one.jct_min == pytest.approx((20 + 20) / 2 / 60)
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
        for name in ("SEEDS", "SEEDS_OF_MORE", "SEEDS_OF_500"):
            patch.setattr(aiturbo_sweep, name, 1)
        for name in ("SHARES", "SOME"):
            patch.setattr(aiturbo_sweep, name, (0.5,))
        patch.setattr(replays, "_are_short", could_be_sent)
        planned = [one._replace(point=replace(one.point, jobs=3)) for one in plan(quick=False)]
        return planned, reproduce_aiturbo.run(planned)


def test_the_tables_show_each_policy_and_say_what_was_published(ran, monkeypatch, capsys):
    monkeypatch.setattr(aiturbo_sweep, "plan", lambda quick: ran[0])
    monkeypatch.setattr(reproduce_aiturbo, "run", lambda _: ran[1])
    reproduce_aiturbo.reproduce_aiturbo(quick=False, output="table")
    said = capsys.readouterr().out
    for label in (*EVERY, *PARTS, "true remaining time"):
        assert label in said
    for words in ("ratio to it", "published: 60 % before", "load 1.8", "log sd of estimates 3", "alike"):
        assert words in said


def test_json_has_every_replay(ran, monkeypatch, capsys):
    monkeypatch.setattr(aiturbo_sweep, "plan", lambda quick: ran[0])
    monkeypatch.setattr(reproduce_aiturbo, "run", lambda _: ran[1])
    reproduce_aiturbo.reproduce_aiturbo(quick=False, output="json")
    found = json.loads(capsys.readouterr().out)["replays"]
    assert len(found) == len(ran[0])
    assert {one["group"] for one in found} == {one.group for one in ran[0]}
    assert all(one["jct_min"] > 0 and 0 <= one["gpus_held"] <= 1 and 0 <= one["cores_held"] <= 1 for one in found)


def test_the_headlines_say_how_far_each_number_is_from_the_published_one(ran):
    found = reproduce_aiturbo.Findings(*ran)
    rows = {row.number: row for row in reproduce_aiturbo.headlines(found, seeds=1)}
    assert sorted(rows) == [4, 5, 6, 9]
    best = found.best_peer(0.5)
    assert rows[4].ours == f"{1 / found.factor(0.5, best).mean:.2f}x to {1 / found.factor(0.5, best).mean:.2f}x"
    assert rows[4].is_reached is (1 / found.factor(0.5, best).mean >= 3)
    assert all(row.verdict == "re-measured" and "1 seed" in row.conditions for row in rows.values())
