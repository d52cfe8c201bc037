"""Least completion time: the sizes are the best of all there are, and who comes first follows what is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from brim.policies.size.completion_time import CompletionTime, longer_jobs
from brim.testing import snapshot_of
from tests.policies.size.known import PERFECT, beliefs, best_rate, choices, one_batch
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
