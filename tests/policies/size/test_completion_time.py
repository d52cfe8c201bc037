"""Least completion time: the sizes are the best of all there are, and who comes first follows what is left."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from brim.policies.size.completion_time import CompletionTime, longer_jobs
from brim.policies.size.goodput import Goodput
from brim.testing import job, snapshot_of
from tests.policies.size.known import PERFECT, UNKNOWN, beliefs, best_rate, choices, one_batch, with_columns
from tests.policies.size.test_goodput import cases, sized, speedups

SHARED = (0.0, 0.01, 0.1, 0.1, 0.1, 0.1, 1.0)
"""10 ms per sample, and an exchange that grows: each GPU more brings less."""


@given(cases())
@pytest.mark.parametrize("price", [0.0, 0.5])
def test_sizes_are_the_exhaustive_search_of_what_v_falls_by(price, case):
    snapshot, jobs, speeds, width, capacity = case
    table, options = snapshot.jobs, speedups(*case)
    left = [10_000.0 * (row + 1) for row in range(len(jobs))]
    alone_s = []
    for row, (one, p) in enumerate(zip(jobs, speeds, strict=True)):
        noise = {"var": float(table.grad_var[row]), "sqr": float(table.grad_sqr[row])}
        least, known = min(options[row]), not math.isnan(p[0])
        rate = best_rate(p, one, least, width, accumulation=True, **noise) if known else 1.0
        alone_s.append(left[row] / rate if known else max(table.run_ms[row] * table.gpus[row] / 1000, 1_800) / least)
    work = [time_s * min(sizes) for time_s, sizes in zip(alone_s, options, strict=True)]
    longer = [sum((b > a) + (b == a) / 2 for b in work) for a in work]

    def speed(row, size) -> float:
        if size == table.gpus_now[row]:
            return options[row][size]
        cost_s = table.stalled_ms[row] / 1000 / table.starts[row] if table.starts[row] else 30.0
        cost_s = max(cost_s, 1.0)
        lasts_s = min(max(300, 2 * cost_s), cost_s + alone_s[row] / options[row][size])
        return options[row][size] * (1 - cost_s / lasts_s)

    def total(sizes) -> float:
        value = 0.0
        for row, size in enumerate(sizes):
            gpu_price = 2.0 * longer[row] / capacity + price
            gain = min((1 + gpu_price * gpus) / speed(row, gpus) for gpus in options[row])
            if size:
                value += gain * speed(row, size) - price * size
            elif table.gpus_now[row]:
                cost_s = max(table.stalled_ms[row] / 1000 / table.starts[row] if table.starts[row] else 30.0, 1.0)
                value -= gain * cost_s / max(300, 2 * cost_s)
        return value

    got = sized(CompletionTime(gpu_price=price), snapshot, beliefs(*speeds, left=left)).tolist()
    best = max(total(sizes) for sizes in choices([[0, *options[row]] for row in range(len(jobs))], capacity))
    assert sum(got) <= capacity
    assert total(got) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_jobs_that_scale_perfectly_run_one_after_the_other_the_shortest_first():
    snapshot = snapshot_of("1x4xT4", one_batch(), one_batch(at=1), one_batch(at=2), now=3)
    assert sized(CompletionTime(), snapshot, beliefs(*[PERFECT] * 3, left=(3e6, 1e6, 2e6))).tolist() == [0, 4, 0]


def test_of_equal_jobs_the_first_is_served_first():
    snapshot = snapshot_of("1x4xT4", one_batch(), one_batch(at=1), now=3)
    assert sized(CompletionTime(), snapshot, beliefs(*[PERFECT] * 2, left=(3e6, 3e6))).tolist() == [4, 0]


def test_jobs_that_gain_little_from_more_gpus_share_them_whatever_is_left():
    snapshot = snapshot_of("1x4xT4", *[one_batch()] * 4, now=3)
    assert sized(CompletionTime(), snapshot, beliefs(*[SHARED] * 4, left=(1e3, 1e4, 1e5, 1e6))).tolist() == [1] * 4


@pytest.mark.parametrize(("price", "gpus"), [(0.0, 8), (0.2, 8), (1e9, 1)])
def test_where_gpu_time_is_dear_a_job_gets_as_many_gpus_as_it_uses_well(price, gpus):
    """Perfect speed-up makes GPU time the same on all sizes; with an exchange it is least on one GPU."""
    snapshot = snapshot_of("1x8xT4", one_batch(), now=1)
    perfect, shared = ([p] for p in (PERFECT, (0.0, 0.01, 0.05, 0.0, 0.05, 0.0, 1.0)))
    assert sized(CompletionTime(gpu_price=price), snapshot, beliefs(*perfect, left=(1e6,))).tolist() == [8]
    assert sized(CompletionTime(gpu_price=price), snapshot, beliefs(*shared, left=(1e6,))).tolist() == [gpus]


def test_the_number_of_longer_jobs_is_expected_over_what_may_be_left():
    """The first needs 2, the second 1 or 3, the third 9: the second is longer than the first half the time."""
    left = np.array([[2.0, 2.0], [1.0, 3.0], [9.0, 9.0]])
    assert longer_jobs(left).tolist() == [0.5 + 0.5 + 1, 0.5 + 0.5 + 1, 0.5]


@pytest.mark.parametrize(("seen", "most"), [(1, 4), (2, 8)])
def test_a_job_grows_by_no_more_than_the_limit(seen, most):
    snapshot = snapshot_of("4x4xT4", one_batch(gpus_max=16), now=1)
    assert sized(CompletionTime(), snapshot, beliefs(PERFECT, seen=[seen], left=(1e6,))).tolist() == [most]


@pytest.mark.parametrize(("narrow_at", "saves", "gpus"), [
    (0, True, [0, 4]), (0, False, [1, 0]), (1, True, [4, 0]), (1, False, [4, 0]),
])  # fmt: skip
def test_a_job_that_would_start_over_makes_room_only_for_one_that_came_before(narrow_at, saves, gpus):
    """It runs on one of four GPUs; the other job, which waits, asks for all of them."""
    snapshot = snapshot_of("1x4xT4", job(at=narrow_at, start=2, on=[(0, 0)]), job(gpus=4, at=1 - narrow_at), now=20)
    known = replace(beliefs(UNKNOWN, UNKNOWN), saves_unreported=saves)
    assert sized(CompletionTime(), snapshot, known).tolist() == gpus


@pytest.mark.parametrize(("saves", "gpus"), [(True, [2, 0]), (False, [1, 1])])
def test_a_job_that_would_start_over_makes_no_room_for_one_that_grows(saves, gpus):
    snapshot = snapshot_of("1x2xT4", one_batch(on=[(0, 0)]), job(at=1, on=[(0, 1)]), now=20)
    snapshot = with_columns(snapshot, samples_done=[64.0, 0.0])
    known = replace(beliefs(PERFECT, UNKNOWN, left=(1e4, 1e6)), in_place_ms=200.0, saves_unreported=saves)
    assert sized(CompletionTime(), snapshot, known).tolist() == gpus


def test_jobs_that_would_start_over_and_do_not_fit_as_whole_gpus_are_no_error():
    """Sizes count whole GPUs, so that two halves of one are more than there is; both jobs have run for long."""
    snapshot = snapshot_of("1x1xT4", *[job(share=500, on=[(0, 0)])] * 2, job(at=2), now=9)
    snapshot = with_columns(snapshot, service_gpu_ms=[10**12, 10**12, 0], run_ms=[10**12, 10**12, 0])
    known = replace(beliefs(*[UNKNOWN] * 3), saves_unreported=False)
    assert sized(Goodput(), snapshot, known).tolist() == [0, 0, 1]


@pytest.mark.parametrize(("reported", "saves", "lost_s"), [(0.0, False, 100), (0.0, True, 0), (64.0, False, 0)])
def test_a_stop_costs_a_start_and_the_run_that_was_not_saved(reported, saves, lost_s):
    """It has run for 100 s; a start takes 1 s, and sizes last 300 s."""
    snapshot = with_columns(snapshot_of("1x1xT4", job(on=[(0, 0)]), now=100), samples_done=[reported])
    known = replace(beliefs(UNKNOWN), saves_unreported=saves)
    none, stays = np.array([[0], [1]]), np.zeros((2, 1), dtype=np.bool_)
    _, worth = CompletionTime().with_worth(snapshot, known, np.zeros(1, dtype=np.int64))
    stopped, goes_on = worth(none, stays)
    assert stopped / goes_on == pytest.approx(-(1 + lost_s) / 300)
