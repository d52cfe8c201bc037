"""Pollux and goodput: sizes are the fittest of all there are; costs, weights and limits by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.arrays import IntArray
from brim.policies.order.arrival import Arrival
from brim.policies.size.goodput import Goodput, PolluxFitness, restart_ms
from brim.testing import job, snapshot_of
from tests.policies.size.known import (
    PERFECT,
    UNKNOWN,
    beliefs,
    best_rate,
    choices,
    elastic,
    one_batch,
    rate,
    with_columns,
)

SERIAL = (0.64, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
"""A step takes as long whatever the batch: nothing is gained by more GPUs for a job of one batch."""


def sized(part, snapshot, known) -> IntArray:
    return part(snapshot, known, Arrival()(snapshot, known)).gpus


@st.composite
def cases(draw):
    """Up to three jobs that hold GPUs or wait on one or two nodes, their speeds, and columns of what they did."""
    count, width = draw(st.sampled_from(((1, 4), (2, 2), (1, 6))))
    free = [(node, gpu) for node in range(count) for gpu in range(width)]
    jobs, speeds = [], []
    columns = {name: [] for name in ("placements", "starts", "stalled_ms", "samples_done", "grad_var", "grad_sqr")}
    for _ in range(draw(st.integers(1, 3))):
        least = draw(st.sampled_from((1, 1, 2)))
        held = min(draw(st.sampled_from((0, 0, least, 2 * least))), len(free))
        on, free = (free[:held], free[held:]) if held >= least else ((), free)
        jobs.append(elastic(
            gpus=least, gpus_min=least, gpus_max=draw(st.integers(least + 1, 6)), batch_max=draw(st.integers(64, 160)),
            at=draw(st.integers(0, 900)), on=on,
        ))
        spread = st.floats(0.001, 0.1)
        known = draw(st.integers(0, 4)) > 0
        speeds.append((*(draw(spread) for _ in range(6)), draw(st.floats(1, 4))) if known else UNKNOWN)
        attempts = draw(st.integers(1 if on else 0, 4))
        columns["placements"].append(attempts)
        columns["starts"].append(attempts)
        columns["stalled_ms"].append(attempts * draw(st.sampled_from((0, 10_000, 100_000, 400_000))))
        columns["samples_done"].append(draw(st.sampled_from((0.0, 1e4, 1e7))))
        columns["grad_var"].append(draw(st.sampled_from((math.nan, 1.0, 50.0))))
        columns["grad_sqr"].append(1.0)
    jobs.sort(key=lambda one: one.at)
    snapshot = with_columns(snapshot_of(f"{count}x{width}xT4", *jobs, now=1_000), **columns)
    return snapshot, jobs, tuple(speeds), width, count * width


def speedups(snapshot, jobs, speeds, width, capacity):
    """By job: size -> speed-up over its smallest size."""
    found = []
    for row, (one, p) in enumerate(zip(jobs, speeds, strict=True)):
        fits = [s for s in range(one.gpus_min, min(one.gpus_max, capacity) + 1)
                if (s < width and s & (s - 1) == 0) or (s >= width and s % width == 0)] or [one.gpus_min]
        if math.isnan(p[0]):
            found.append({fits[0]: 1.0})
            continue
        noise = {"var": float(snapshot.jobs.grad_var[row]), "sqr": float(snapshot.jobs.grad_sqr[row])}
        rates = {s: best_rate(p, one, s, width, accumulation=True, **noise) for s in fits}
        found.append({s: value / rates[fits[0]] for s, value in rates.items()})
    return found


@given(cases())
def test_pollux_is_the_exhaustive_search_of_the_generalised_mean(case):
    snapshot, jobs, speeds, _, capacity = case
    now, options = snapshot.jobs.gpus_now, speedups(*case)
    table = snapshot.jobs

    def fitness(sizes) -> float:
        total = 0.0
        for row, size in enumerate(sizes):
            speed = options[row][size] if size else 0.01
            if size and now[row] and size != now[row]:
                age_s, cost_s = 1_000 - jobs[row].at, table.stalled_ms[row] / 1000 / max(table.starts[row], 1)
                factor = (age_s - max(table.placements[row] - 1, 0) * cost_s) / max(age_s + cost_s, 1e-3)
                speed *= max(factor, 0.0)
            total += speed ** -1.0 / len(sizes) if speed else math.inf
        return 1 / total if total < math.inf else 0.0

    got = sized(PolluxFitness(), snapshot, beliefs(*speeds)).tolist()
    best = max(fitness(sizes) for sizes in choices([[0, *options[row]] for row in range(len(jobs))], capacity))
    assert sum(got) <= capacity
    assert fitness(got) == pytest.approx(best, rel=1e-9)


@given(cases())
def test_goodput_is_the_exhaustive_search_of_weighted_logarithms(case):
    snapshot, jobs, speeds, width, capacity = case
    table, options = snapshot.jobs, speedups(*case)

    def total(sizes) -> float:
        value = 0.0
        for row, size in enumerate(sizes):
            one, p = jobs[row], speeds[row]
            cost_s = table.stalled_ms[row] / 1000 / table.starts[row] if table.starts[row] else 30.0
            if math.isnan(p[0]):
                work_s = table.service_gpu_ms[row] / 1000
            else:
                noise = {"var": float(table.grad_var[row]), "sqr": float(table.grad_sqr[row])}
                least = min(options[row])
                work_s = table.samples_done[row] / best_rate(p, one, least, width, accumulation=True, **noise)
            weight = (1 + work_s / 1_800) ** -0.25
            speed = options[row][size] if size else 0.01
            if size and size != table.gpus_now[row]:
                speed *= max(1 - cost_s / 120, 0.5)
            value += weight * math.log(speed)
        return value

    got = sized(Goodput(), snapshot, beliefs(*speeds)).tolist()
    best = max(total(sizes) for sizes in choices([[0, *options[row]] for row in range(len(jobs))], capacity))
    assert sum(got) <= capacity
    assert total(got) == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("part", "growth"), [(PolluxFitness(), 2), (Goodput(), 4)])
@pytest.mark.parametrize("seen", [1, 2])
def test_a_job_grows_by_no_more_than_the_limit(part, growth, seen):
    snapshot = snapshot_of("4x4xT4", one_batch(gpus_max=16), now=1)
    assert sized(part, snapshot, beliefs(PERFECT, seen=[seen])).tolist() == [growth * seen]


@pytest.mark.parametrize("part", [PolluxFitness(), Goodput()])
def test_gpus_that_bring_nothing_stay_free(part):
    snapshot = snapshot_of("2x4xT4", one_batch(), one_batch(), now=1)
    assert sized(part, snapshot, beliefs(SERIAL, PERFECT)).tolist() == [1, 4]


@pytest.mark.parametrize("part", [PolluxFitness(), Goodput()])
def test_equal_jobs_share_equally(part):
    snapshot = snapshot_of("2x4xT4", *[one_batch()] * 4, now=1)
    assert sized(part, snapshot, beliefs(*[PERFECT] * 4)).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(("cost_s", "gpus"), [(59, 2), (61, 1)])
def test_goodput_changes_a_job_when_that_pays_within_the_horizon(cost_s, gpus):
    """Twice the speed for 120 s less the cost is worth more than 120 s as it is, if the cost is below 60 s."""
    snapshot = snapshot_of("1x2xT4", one_batch(on=[(0, 0)]), now=10)
    snapshot = with_columns(snapshot, stalled_ms=[cost_s * 1000])
    assert sized(Goodput(), snapshot, beliefs(PERFECT)).tolist() == [gpus]


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 1), (3, 3)])
def test_a_dear_change_may_take_twice_its_cost_to_pay(nodes, gpus):
    """At three times the speed an hour is won back in one and a half, at twice the speed in two: not in less."""
    one = one_batch(gpus_max=nodes, batch=60, batch_min=60, batch_max=60, on=[(0, 0)])
    snapshot = with_columns(snapshot_of(f"{nodes}x1xT4", one, now=10), stalled_ms=[3_600_000])
    assert sized(Goodput(), snapshot, beliefs(PERFECT)).tolist() == [gpus]


@pytest.mark.parametrize(("age_s", "restarts", "gpus"), [(91, 0, 2), (31, 0, 2), (29, 0, 1), (120, 1, 2), (80, 1, 1)])
def test_pollux_changes_a_job_when_its_age_outweighs_its_restarts(age_s, restarts, gpus):
    """A cost of 30 s: 2 (T - 30 R) / (T + 30) > 1 from 30 s of age on, with a restart behind it from 90 s on."""
    snapshot = snapshot_of("1x2xT4", one_batch(on=[(0, 0)]), now=age_s)
    snapshot = with_columns(snapshot, placements=[restarts + 1], starts=[1], stalled_ms=[30_000])
    assert sized(PolluxFitness(), snapshot, beliefs(PERFECT)).tolist() == [gpus]


def test_a_change_is_believed_to_take_as_long_as_starts_took_or_30_s():
    snapshot = with_columns(snapshot_of("1x2xT4", job(), job()), starts=[0, 4], stalled_ms=[0, 80_000])
    assert restart_ms(snapshot, beliefs()).tolist() == [30_000, 20_000]


def test_a_change_in_place_is_believed_to_take_its_own_time():
    snapshot = snapshot_of("1x2xT4", job(), job(on=[(0, 0)]))
    assert restart_ms(snapshot, replace(beliefs(), in_place_ms=200.0)).tolist() == [30_000, 200]


@pytest.mark.parametrize(("part", "kind"), [
    (part, kind) for part in (PolluxFitness(), Goodput()) for kind in ("rigid", "elastic", "known")
])
@pytest.mark.parametrize("stalled_s", [0, 119, 120, 100_000])
def test_whoever_waits_alone_starts_whatever_its_starts_took(part, kind, stalled_s):
    one = job(gpus=2) if kind == "rigid" else one_batch(gpus_max=2)
    columns = {"placements": [5], "starts": [1], "stalled_ms": [stalled_s * 1000]}
    snapshot = with_columns(snapshot_of("1x2xT4", one, now=10**6), **columns)
    known = beliefs(PERFECT if kind == "known" else UNKNOWN)
    assert sized(part, snapshot, known).tolist() == [1 if kind == "elastic" else 2]


def test_young_jobs_come_first_and_the_weight_of_work_is_as_written():
    """One GPU, one job that did 10 s of work on one GPU and waits, one that did W and runs.

    The first gets the GPU if log(0.75) - w log(0.01) > -log(0.01) w', w and w' the weights; both have the batch of 64,
    100 samples per second, and starts that took 30 s.
    """
    def winner(work_s):
        snapshot = snapshot_of("1x1xT4", one_batch(on=[(0, 0)]), one_batch(at=1), now=2)
        snapshot = with_columns(snapshot, samples_done=[work_s * 100, 1_000], starts=[0, 0])
        return sized(Goodput(), snapshot, beliefs(PERFECT, PERFECT)).tolist()

    young = (1 + 10 / 1800) ** -0.25
    level = young + young * math.log(0.75) / -math.log(0.01)
    threshold_s = 1800 * (level**-4 - 1)
    assert winner(threshold_s * 0.99) == [1, 0]
    assert winner(threshold_s * 1.01) == [0, 1]


def test_work_is_counted_on_the_fewest_gpus_and_as_gpu_time_where_no_rate_is_known():
    known, rigid = one_batch(gpus=2, gpus_min=2, at=0), job(at=1, gpus=2)
    snapshot = with_columns(
        snapshot_of("1x2xT4", known, rigid, now=2), samples_done=[400_000, 0], service_gpu_ms=[0, 2_100_000],
    )
    # 400 000 samples at 200/s on two GPUs are 2000 s: less weight than 2100 s of GPU time has
    assert sized(Goodput(), snapshot, beliefs(PERFECT, UNKNOWN)).tolist() == [2, 0]
    more = with_columns(snapshot, samples_done=[440_000, 0])
    assert sized(Goodput(), more, beliefs(PERFECT, UNKNOWN)).tolist() == [0, 2]


@pytest.mark.parametrize("part", [PolluxFitness(), Goodput()])
def test_the_batch_is_the_best_on_the_gpus_given(part):
    p, one = (0.02, 0.004, 0.03, 0.01, 0.1, 0.03, 1.5), elastic()
    snapshot = snapshot_of("2x4xT4", one, now=1)
    sizes = part(snapshot, beliefs(p), np.array([0]))
    gpus, batch = int(sizes.gpus[0]), int(sizes.global_batch[0])
    best = best_rate(p, one, gpus, 4, accumulation=True)
    assert rate(p, one, gpus, batch, 4, accumulation=True) == pytest.approx(best)


def test_a_job_whose_share_changes_while_it_waits_to_start_costs_what_others_do():
    """It has held its GPU for 160 ms, and has not begun: another was let in beside it."""
    snapshot = with_columns(snapshot_of("1x1xT4", job(), job(), now=5), starts=[0, 0], stalled_ms=[160, 0])
    with_stall, without = restart_ms(snapshot, beliefs(None))
    assert with_stall == without > 0
