"""The elastic experiment: what is drawn, how capacity is found, what a replay is summed up to."""

from __future__ import annotations

import numpy as np
import pytest

from brim.core.trace import trace_of
from brim.sim.overheads import Overheads
from brim.sim.reproduce.elastic import (
    BASELINE,
    CATEGORY_NAMES,
    OURS,
    POLICIES,
    STRONGER,
    WINDOW_H,
    Condition,
    Outcome,
    Sustained,
    arrivals_ms,
    backlog,
    drawn,
    outcome,
    policy_for,
    sustained,
    workload,
)
from brim.sim.reproduce.grid import FULL, MAIN, QUICK, backlogs, headline, points
from brim.sim.reproduce.results import Results, headlines, mm1_ratio, results_json
from brim.sim.truths.parametric import Parametric
from brim.sim.twin import ReplaySettings, replay
from brim.units import MS_PER_H
from tests.reports.fakes import replay_of, runs_of
from tests.sampling import sample


def at(load=1.0, **changes):
    values = {"gpus": 40, "category": "mix", "arrivals": "poisson", "load": load, "drop": False} | changes
    return Condition(**values)


def run(condition, policy, rate_per_h):
    trace, jobs = drawn(condition, rate_per_h)
    return replay(
        trace, condition.cluster, policy_for(policy, drop=condition.drop),
        ReplaySettings(overheads=Overheads.of_pollux(), seed=condition.seed, load=condition.load),
        truth=jobs.build(trace, condition.cluster, condition.seed),
    )


# -- what is drawn


@pytest.mark.parametrize("category", CATEGORY_NAMES)
def test_a_job_is_the_same_at_every_load_and_only_comes_sooner(category):
    (few_trace, few), (many_trace, many) = (drawn(at(load, category=category), 20.0) for load in (0.5, 2.0))
    size = len(few_trace)
    assert 0 < size < len(many_trace)
    for column in ("batch", "samples", "parameters", "gpus_max", "profile"):
        np.testing.assert_array_equal(getattr(few.jobs, column), getattr(many.jobs, column)[:size])
    np.testing.assert_array_equal(few.work_h, many.work_h[:size])
    np.testing.assert_array_equal(few_trace.gpus, many_trace.gpus[:size])
    few_ms, many_ms = (arrivals_ms(at(load), 20.0) for load in (0.5, 2.0))
    np.testing.assert_allclose(few_ms, 4 * many_ms[: len(few_ms)], atol=3)


def test_seeds_draw_other_jobs_and_clusters_other_arrivals():
    assert not np.array_equal(drawn(at(), 20.0)[1].work_h[:50], drawn(at(seed=1), 20.0)[1].work_h[:50])
    assert not np.array_equal(arrivals_ms(at(), 20.0)[:50], arrivals_ms(at(gpus=400), 20.0)[:50])


@pytest.mark.parametrize("arrivals", ["poisson", "burst"])
def test_the_mean_rate_is_the_one_asked_for(arrivals):
    counts = [len(arrivals_ms(at(1.25, arrivals=arrivals, seed=seed), 100.0)) for seed in range(40)]
    expected = 1.25 * 100 * WINDOW_H
    assert np.mean(counts) == pytest.approx(expected, abs=4 * np.sqrt(expected / 40))


def test_more_hours_of_arrivals_are_the_same_arrivals_and_go_on():
    short, long = (arrivals_ms(at(hours=hours), 20.0) for hours in (8, 32))
    np.testing.assert_array_equal(short, long[: len(short)])
    assert 24 * MS_PER_H < long[-1] < 32 * MS_PER_H
    done = replay_of(*_one_job_of_an_hour(), finish_ms=[MS_PER_H])
    assert outcome(done, at(gpus=4, hours=32)).allocated_fraction == pytest.approx(1 / 128)


def _one_job_of_an_hour():
    trace = trace_of(name="t", format="t", origin_ms=0, job_id=["a"], submit_ms=[0], gpus=[1], run_ms=[1])
    return trace, "1x4xT4", runs_of([(0, 0, MS_PER_H, [0])])


def test_bursts_keep_the_arrivals_of_each_period_and_move_four_in_five_into_its_first_half():
    steady, bursts = (arrivals_ms(at(arrivals=kind), 5000.0) / MS_PER_H for kind in ("poisson", "burst"))
    np.testing.assert_array_equal(np.floor(steady / 2), np.floor(bursts / 2))
    assert (np.diff(bursts) >= 0).all()
    assert (bursts % 2 < 1).mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("category", CATEGORY_NAMES)
def test_jobs_have_the_work_and_the_batches_that_are_said(category):
    trace, jobs = workload(at(category=category), np.arange(20_000))
    assert jobs.work_h.mean() == pytest.approx(1.0, abs=0.04)
    ratio = jobs.jobs.batch / jobs.jobs.local_batch_max
    assert ratio.min() == pytest.approx(1 / 8, abs=0.01)
    assert ratio.max() == pytest.approx(1 / 2 if category == "small" else 8, rel=0.02)
    assert (trace.gpus * jobs.jobs.local_batch_max >= jobs.jobs.batch).all()
    assert ((trace.gpus == 1) | (trace.gpus / 2 * jobs.jobs.local_batch_max < jobs.jobs.batch)).all()
    kinds = np.bincount(jobs.jobs.profile // 3, minlength=4) / len(trace)
    assert kinds.max() < 0.27 if category == "mix" else kinds.max() == 1


def test_a_batch_that_fits_one_gpu_takes_one_micro_step_there():
    condition = at(category="compute")
    trace, jobs = workload(condition, np.arange(20))
    truth = jobs.build(trace, condition.cluster)
    for batch in (8, 9, 32, 64):
        (sample,) = truth.pace(0, 0.0, (1,), batch).report.seen
        assert sample.local_batch == batch
    (sample,) = truth.pace(0, 0.0, (1,), 128).report.seen
    assert sample.local_batch == 64


def test_work_is_hours_on_one_full_gpu():
    condition = at(category="compute")
    trace, jobs = workload(condition, np.arange(50))
    truth = jobs.build(trace, condition.cluster)
    one_gpu = (1,)
    for job in range(50):
        pace = truth.pace(job, 0.0, one_gpu, int(jobs.jobs.local_batch_max[job]))
        assert pace.ends
        assert pace.until / pace.per_ms / MS_PER_H == pytest.approx(jobs.work_h[job], rel=1e-9)


# -- capacity


def test_capacity_counts_work_not_jobs():
    """One GPU, jobs of an hour and of three in turn: two hours on average, half a job per hour."""
    ends_h = np.cumsum(np.tile([1, 3], 50))
    trace = trace_of(name="t", format="t", job_id=[str(i) for i in range(100)], submit_ms=range(100), gpus=[1] * 100,
                     run_ms=[1] * 100)
    done = replay_of(trace, "1x1xT4", runs_of([(0, 0, 1, [0])]), ends_h * MS_PER_H)
    found = sustained(done, np.tile([1.0, 3.0], 50), at())
    assert found.per_h == pytest.approx(1.0)
    assert found.halves_per_h == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("policy", [OURS, BASELINE])
def test_a_backlog_is_in_a_steady_state_where_it_is_counted(policy):
    condition = at(category="communication", gpus=sample(40, 24))
    trace, jobs = backlog(condition, 12)
    done = replay(
        trace, condition.cluster, policy_for(policy, drop=False), ReplaySettings(overheads=Overheads.of_pollux()),
        truth=jobs.build(trace, condition.cluster),
    )
    found = sustained(done, jobs.work_h, condition)
    first, second = found.halves_per_h
    assert first == pytest.approx(second, rel=0.15)
    counted_until_ms = np.sort(done.finish_ms)[int(0.85 * len(trace))]
    assert done.first_start_ms.max() > counted_until_ms  # somebody waited throughout


# -- what a replay is summed up to


def by_hand(finish_h, rejected, *, first_h=0.5):
    """Four jobs that come every hour from ``first_h`` on; each held one of the four GPUs for its last hour."""
    size = len(finish_h)
    trace = trace_of(
        name="t", format="t", origin_ms=0, job_id=[str(i) for i in range(size)], gpus=[1] * size, run_ms=[1] * size,
        submit_ms=[round((first_h + i) * MS_PER_H) for i in range(size)],
    )
    ends_ms = [round((h - first_h) * MS_PER_H) for h in finish_h]
    finish_ms = [-1 if turned else end_ms for end_ms, turned in zip(ends_ms, rejected, strict=True)]
    held = [(i, end - MS_PER_H, end, [i]) for i, end in enumerate(finish_ms) if end >= 0]
    return trace, held, finish_ms, np.array(rejected, dtype=np.int64)


def test_figures_of_a_replay_by_hand():
    trace, held, finish_ms, rejected = by_hand([2.5, 7.0, 8.5, 8.0], [0, 0, 1, 0])
    runs = runs_of(sorted(held, key=lambda run: run[1]))
    done = replay_of(
        trace, "1x4xT4", runs, finish_ms, rejected=rejected, restarts=np.array([2, 0, 0, 1]),
        useful_gpu_ms=np.array([1, 1, 0, 0.7]) * MS_PER_H, round_s=np.array([0.001, 0.002, 0.003]), policy="p",
    )
    found = outcome(done, at(gpus=4))
    assert (found.submitted, found.completed, found.policy) == (4, 3, "p")
    assert found.jct_mean_s == pytest.approx(3600 * np.mean([2.0, 5.5, 4.5]))
    assert found.dropped_fraction == 0.25
    assert found.allocated_fraction == pytest.approx(3 / 32)
    assert found.restarts_per_job == 1.0
    assert found.stalled_fraction == pytest.approx(0.1)
    assert found.round_median_ms == pytest.approx(2.0)


def test_the_window_is_that_of_the_arrivals_not_of_the_first_job():
    """The first job came half an hour after the window began, so it ends 7.5 h after that job."""
    trace, held, finish_ms, rejected = by_hand([7.9, 8.0, 8.1, 8.4], [0] * 4)
    done = replay_of(trace, "1x4xT4", runs_of(sorted(held, key=lambda run: run[1])), finish_ms, rejected=rejected)
    found = outcome(done, at(gpus=4))
    assert found.completed == 2
    assert found.allocated_fraction == pytest.approx((1 + 1 + 0.9 + 0.6) / 32)


# -- policies


def can_drop(name):
    return policy_for(name, drop=True) != policy_for(name, drop=False)


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", [name for name in POLICIES if can_drop(name)])
def test_turning_away_and_waiting_agree_where_there_is_room_for_all(policy):
    condition = at(0.1)
    trace, jobs = drawn(condition, 12.0)
    waiting, turned = (
        replay(
            trace, condition.cluster, policy_for(policy, drop=drop), ReplaySettings(overheads=Overheads.of_pollux()),
            # exchanges are not timed here: the cluster is closed meanwhile, and the first job would be turned away
            truth=Parametric(trace, condition.cluster, jobs.jobs),
        )
        for drop in (False, True)
    )
    np.testing.assert_array_equal(waiting.finish_ms, turned.finish_ms)
    assert not turned.rejected.any()


@pytest.mark.cases(3)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_is_left_waiting_at_the_end(policy):
    """Jobs arrive at twice what eight GPUs sustain, some with batches that eight must share."""
    done = run(at(2.0, gpus=8), policy, 3.5)
    assert (done.finish_ms > 0).all()
    assert not done.rejected.any()
    if can_drop(policy):
        turned = run(at(2.0, gpus=8, drop=True), policy, 3.5)
        assert ((turned.finish_ms > 0) ^ (turned.rejected > 0)).all()


def test_equal_conditions_give_equal_outcomes():
    first, again = (outcome(run(at(gpus=8, seed=3), OURS, 3.5), at(gpus=8, seed=3)) for _ in range(2))
    timed = {"round_median_ms", "round_p99_ms"}
    for name in set(Outcome.__slots__) - timed:
        assert getattr(first, name) == getattr(again, name)


def test_only_policies_that_admit_by_fewest_gpus_can_turn_away():
    assert {name for name in POLICIES if not can_drop(name)} == {"goodput", "fifo"}
    assert policy_for(OURS, drop=True).size.mode == "drop"
    assert policy_for(STRONGER, drop=False).size.accumulation
    assert not policy_for(BASELINE, drop=False).size.accumulation


# -- the grid


def test_the_grid_covers_what_is_promised_and_quick_is_a_part_of_it():
    run_ = list(points(FULL, 1))
    assert len(run_) == len(set(run_))
    assert {c.gpus for c, _ in run_} == {40, 400}
    for category in CATEGORY_NAMES:
        for arrivals, loads in (("poisson", {0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5}), ("burst", {0.5, 1.0, 1.5})):
            mine = [
                (c, p) for c, p in run_ if (c.gpus, c.category, c.arrivals, c.hours) == (40, category, arrivals, 8)
            ]
            assert {c.load for c, _ in mine} >= loads
            assert {p for c, p in mine if c.drop} >= {OURS, BASELINE}
            assert {p for c, p in mine if not c.drop} >= {*MAIN, "fifo"}
    assert all(can_drop(policy) for condition, policy in run_ if condition.drop)
    assert set(points(QUICK, 1)) <= set(run_)
    capacities = [(c.gpus, c.category, policy) for c, policy, _ in backlogs(FULL)]
    assert len(capacities) == len(set(capacities)) == 3 * (5 + 2)
    assert len(list(points(QUICK, 3))) == 3 * len(list(points(QUICK, 1)))
    short = list(points(headline(FULL), 1))
    assert short == [(condition, policy) for condition, policy in run_ if policy in (OURS, BASELINE)]


# -- ratios and best points


def made(policy, *, completed=10, jct_s=100.0, **where):
    return Outcome(
        condition=at(**where), policy=policy, submitted=20, completed=completed, jct_mean_s=jct_s, jct_p95_s=200.0,
        dropped_fraction=0.0, allocated_fraction=0.5, restarts_per_job=1.0, stalled_fraction=0.1, round_median_ms=1.0,
        round_p99_ms=2.0,
    )


def capacity(policy, per_h):
    return Sustained(gpus=40, category="mix", policy=policy, per_h=per_h, halves_per_h=(per_h, per_h))


def test_mm1_reference_as_published_for_twice_the_capacity():
    assert [mm1_ratio(load, 2.0) for load in (0.9, 0.8, 0.5)] == pytest.approx([11, 6, 3])
    assert mm1_ratio(1.0, 2.0) is None


def test_the_reference_takes_the_load_relative_to_the_policy_compared_with():
    results = Results(
        capacities=(capacity(OURS, 20.0), capacity(BASELINE, 10.0), capacity(STRONGER, 12.5)), outcomes=()
    )
    assert results.mm1(at(0.5)) == pytest.approx((2 - 0.5) / 0.5)
    assert results.mm1(at(0.5), OURS, STRONGER) == pytest.approx((1.6 - 0.4) / 0.6)
    assert results.mm1(at(1.0)) is None
    assert results.mm1(at(1.1), OURS, STRONGER) == pytest.approx((20 - 11) / (12.5 - 11))
    assert results.mm1(at(1.1), OURS, "fifo") is None


def test_best_points_are_of_means_over_the_seeds_both_ran():
    """One lucky seed makes no best point, and a seed that only one policy ran does not count."""
    outcomes = (
        made(OURS, load=0.5, jct_s=10.0, completed=20), made(BASELINE, load=0.5, jct_s=100.0, completed=10),
        made(OURS, load=0.5, jct_s=50.0, seed=1), made(BASELINE, load=0.5, jct_s=50.0, seed=1),
        made(OURS, load=1.5, jct_s=20.0, completed=18), made(BASELINE, load=1.5, jct_s=60.0, completed=10),
        made(OURS, load=1.5, jct_s=1.0, completed=99, seed=1),
    )
    results = Results(capacities=(), outcomes=outcomes)
    sooner = results.best("jct_mean_s")
    assert (sooner.condition.load, sooner.value, sooner.low, sooner.high) == (1.5, 3.0, 3.0, 3.0)
    completed = results.best("completed")
    assert (completed.condition.load, completed.value) == (1.5, 1.8)
    half = results.ratio(at(0.5), "jct_mean_s")
    assert (half.value, half.low, half.high) == (pytest.approx(150 / 60), 1.0, 10.0)


def test_mean_times_of_jobs_that_were_let_in_make_no_best_point():
    outcomes = (made(OURS, drop=True, jct_s=1.0), made(BASELINE, drop=True, jct_s=100.0))
    results = Results(capacities=(), outcomes=outcomes)
    assert results.best("jct_mean_s") is None
    assert results.best("completed").value == 1.0
    assert all("mean completion" not in line for line in headlines(results))


def test_headlines_name_the_published_figure_and_the_stronger_baseline():
    means = {OURS: 10.0, BASELINE: 80.0, STRONGER: 20.0, "fifo": 90.0, "elastic-max": 120.0}
    outcomes = tuple(made(policy, jct_s=jct_s) for policy, jct_s in means.items())
    said = " ".join(headlines(Results(capacities=(), outcomes=outcomes)))
    assert "8.00 times shorter mean completion" in said
    assert "2.00 against elastic-fixed-accumulating" in said
    assert "9.00 against fifo" in said
    assert "Best point against elastic-max: 12.00 times shorter mean completion" in said
    assert "Published: up to about 10, conditions not published" in said


def test_json_holds_every_outcome_with_its_condition():
    outcomes = (made(OURS, jct_s=10.0), made(BASELINE, jct_s=80.0))
    found = results_json(Results(capacities=(capacity(BASELINE, 10.0),), outcomes=outcomes), complete=False)
    assert (found["schema"], found["complete"]) == (1, False)
    first = found["outcomes"][0]
    assert (first["gpus"], first["category"], first["load"], first["drop"]) == (40, "mix", 1.0, False)
    assert first["policy"] == OURS
    assert (first["rate_per_h"], first["jct_mean_s"]) == (10.0, 10.0)
    assert found["best"]["jct_mean_s against elastic-fixed"]["ratio"] == 8.0
    assert found["best"]["jct_mean_s against elastic-fixed-accumulating"] is None
    assert {row["figure"] for row in found["ratios"]} == {"completed", "jct_mean_s"}
