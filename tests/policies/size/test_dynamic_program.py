"""Effective Elastic Scaling: sizes and batches against every choice, admission, restarts against what they bring."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.trace import NONE
from brim.policies.order.arrival import Arrival
from brim.policies.size.dynamic_program import DynamicProgram
from brim.testing import job, snapshot_of
from tests.policies.size.known import (
    PERFECT,
    UNKNOWN,
    beliefs,
    choices,
    elastic,
    one_batch,
    rate,
    step_s,
    with_columns,
)

TYPICAL = (0.02, 0.004, 0.03, 0.01, 0.1, 0.03, 1.5)
HORIZON_S = 600


def sized(snapshot, *speeds, part=None):
    known = beliefs(*speeds)
    return (part or DynamicProgram())(snapshot, known, Arrival()(snapshot, known))


def scaling_factor(p, one, gpus, batch, width, *, accumulation):
    """R(b, k) / R(b_ref, 1), b_ref the largest batch that fits one GPU."""
    local = min(one.batch_max, one.local_batch_max)
    return rate(p, one, gpus, batch, width, accumulation=accumulation) / (local / step_s(p, 1, local, 0, width))


def factors(p, one, width, capacity):
    """Size -> best scaling factor over every batch of the range; who cannot run so may accumulate."""
    fits = [s for s in range(one.gpus_min, min(one.gpus_max, capacity) + 1)
            if (s < width and s & (s - 1) == 0) or (s >= width and s % width == 0)] or [one.gpus_min]
    for accumulation in (False, True):
        found = {s: max(
            scaling_factor(p, one, s, batch, width, accumulation=accumulation)
            for batch in range(one.batch_min, one.batch_max + 1)
        ) for s in fits}
        found = {s: value for s, value in found.items() if value > -math.inf}
        if found:
            return found
    raise AssertionError("a job that cannot run")


@st.composite
def cases(draw, jobs_max=4, waits=True):
    """Jobs that hold GPUs or wait on one or two small nodes, their speeds, and what a restart costs all of them."""
    count, width = draw(st.sampled_from(((1, 4), (2, 2), (2, 4))))
    free = [(node, gpu) for node in range(count) for gpu in range(width)]
    jobs, speeds = [], []
    for row in range(draw(st.integers(1, jobs_max))):
        least = draw(st.sampled_from((1, 1, 1, 2, 4)))
        low = draw(st.integers(40, 150))
        held = min(draw(st.sampled_from((least, 2 * least, *((0, 0) if waits else ())))), len(free))
        on, free = (free[:held], free[held:]) if held >= least else ((), free)
        if not on and not waits:
            continue
        jobs.append(elastic(
            at=row, gpus=least, gpus_min=least, gpus_max=draw(st.integers(least + 1, 8)), batch=low, batch_min=low,
            batch_max=draw(st.integers(low, 300)), on=on,
        ))
        spread = st.floats(0.001, 0.1)
        speeds.append((*(draw(spread) for _ in range(6)), draw(st.floats(1, 4))))
    cost_s = draw(st.sampled_from((0, 10, 60, 150)))
    snapshot = snapshot_of(f"{count}x{width}xT4", *jobs, now=100)
    size = len(snapshot.jobs)
    return with_columns(snapshot, starts=[1] * size, stalled_ms=[cost_s * 1000] * size), jobs, speeds, width, cost_s


def total(snapshot, options, sizes, cost_s=0.0):
    """Sum of scaling factors; who runs and changes loses the cost's share of the horizon."""
    now = snapshot.jobs.gpus_now
    return sum(
        options[row][size] * (1 - cost_s / HORIZON_S if now[row] and size != now[row] else 1)
        for row, size in enumerate(sizes) if size
    )


@given(cases())
def test_the_total_scaling_factor_is_the_greatest_over_all_gpus_and_batches(case):
    snapshot, jobs, speeds, width, cost_s = case
    capacity = int(snapshot.nodes.gpus.sum())
    options = [factors(p, one, width, capacity) for one, p in zip(jobs, speeds, strict=True)]
    least = [min(sizes) for sizes in options]
    runs = snapshot.jobs.holds.tolist()
    admitted, left = set(), capacity
    for row in sorted(range(len(jobs)), key=lambda row: not runs[row]):  # who runs, then who waits, by arrival
        if least[row] <= left:
            admitted.add(row)
            left -= least[row]
        elif not runs[row]:
            break
    sizes = sized(snapshot, *speeds)
    got = sizes.gpus.tolist()
    assert {row for row, size in enumerate(got) if size} == admitted
    assert sum(got) <= capacity
    could = choices([list(options[row]) if row in admitted else [0] for row in range(len(jobs))], capacity)
    best = max(total(snapshot, options, some, cost_s) for some in could)
    assert total(snapshot, options, got, cost_s) == pytest.approx(best, rel=1e-9)
    for row in admitted:
        one, batch = jobs[row], int(sizes.global_batch[row])
        assert one.batch_min <= batch <= one.batch_max
        found = max(
            scaling_factor(speeds[row], one, got[row], batch, width, accumulation=how) for how in (False, True)
        )
        assert found == pytest.approx(options[row][got[row]], rel=1e-9)


@given(cases(jobs_max=3, waits=False))
def test_a_plan_that_changes_anything_is_worth_more_than_none_its_restarts_paid(case):
    snapshot, jobs, speeds, width, cost_s = case
    options = [factors(p, one, width, 8) for one, p in zip(jobs, speeds, strict=True)]
    now = snapshot.jobs.gpus_now.tolist()
    if any(size not in options[row] for row, size in enumerate(now)):
        return  # it holds what it would not be given today
    got = sized(snapshot, *speeds).gpus.tolist()
    assert total(snapshot, options, got, cost_s) >= total(snapshot, options, now) - 1e-9


@given(cases())
def test_dearer_restarts_never_bring_a_plan_of_more_worth_or_more_change(case):
    snapshot, jobs, speeds, width, _ = case
    options = [factors(p, one, width, 8) for one, p in zip(jobs, speeds, strict=True)]
    now = snapshot.jobs.gpus_now
    before = math.inf, math.inf
    for cost_s in (20, 40, 80, 160, 320):
        dearer = with_columns(snapshot, stalled_ms=[cost_s * 1000] * len(jobs))
        got = sized(dearer, *speeds).gpus.tolist()
        changed = sum(
            options[row][size] for row, size in enumerate(got) if size and now[row] and size != now[row]
        )
        worth = total(snapshot, options, got)
        assert worth <= before[0] + 1e-9
        assert changed <= before[1] + 1e-9
        before = worth, changed


@pytest.mark.parametrize(("cost_s", "gpus"), [(299, 2), (301, 1)])
def test_a_change_must_pay_within_the_horizon(cost_s, gpus):
    """Twice the speed for 600 s less the cost: worth it below 300 s."""
    snapshot = snapshot_of("1x2xT4", one_batch(on=[(0, 0)]), now=9)
    snapshot = with_columns(snapshot, starts=[1], stalled_ms=[cost_s * 1000])
    assert sized(snapshot, PERFECT).gpus.tolist() == [gpus]


@pytest.mark.parametrize(("other", "expected"), [(one_batch, [2, 4]), (job, [4, 2])])
def test_a_job_shrinks_if_the_whole_plan_gains_and_not_otherwise(other, expected):
    """Two GPUs less make the first a little slower, and the second twice as fast if it is elastic."""
    hardly = (0.5, 0.14 / 64, 0.0, 0.0, 0.0, 0.0, 1.0)
    four, two = [(0, 0), (0, 1), (1, 0), (1, 1)], [(2, 0), (2, 1)]
    snapshot = snapshot_of("3x2xT4", one_batch(on=four), other(on=two), now=9)
    assert sized(snapshot, hardly, PERFECT if other is one_batch else UNKNOWN).gpus.tolist() == expected


WAITING = (one_batch(gpus=3, gpus_min=3, gpus_max=4), job(at=1, gpus=2), job(at=2), one_batch(at=3))
"""On one node of 4 GPUs: the first takes all 4 (3 do not fit together), and each of the others fits without it."""


def test_queue_stops_at_the_first_that_does_not_fit():
    snapshot = snapshot_of("1x4xT4", job(gpus=1), *(replace(one, at=one.at + 1) for one in WAITING), now=9)
    sizes = sized(snapshot, *[UNKNOWN] * 5)
    assert (sizes.gpus.tolist(), sizes.reject.tolist()) == ([1, 0, 0, 0, 0], [False] * 5)


def test_drop_turns_away_exactly_who_does_not_fit():
    snapshot = snapshot_of("1x4xT4", job(gpus=1), *(replace(one, at=one.at + 1) for one in WAITING), now=9)
    sizes = sized(snapshot, *[UNKNOWN] * 5, part=DynamicProgram(mode="drop"))
    assert sizes.gpus.tolist() == [1, 0, 2, 1, 0]
    assert sizes.reject.tolist() == [False, True, False, False, True]


def test_who_runs_comes_before_who_waits_and_is_never_turned_away():
    snapshot = snapshot_of("1x4xT4", job(gpus=2), one_batch(at=1, start=2, on=[(0, 0), (0, 1), (0, 2), (0, 3)]), now=9)
    for mode in ("queue", "drop"):
        sizes = sized(snapshot, UNKNOWN, PERFECT, part=DynamicProgram(mode=mode))
        assert sizes.gpus.tolist() == [2, 2]
        assert not sizes.reject.any()


@given(cases())
def test_queue_and_drop_agree_when_all_fit(case):
    snapshot, _, speeds, _, _ = case
    queue = sized(snapshot, *speeds)
    drop = sized(snapshot, *speeds, part=DynamicProgram(mode="drop"))
    if (queue.gpus > 0).all():
        assert queue.gpus.tolist() == drop.gpus.tolist()
        assert queue.global_batch.tolist() == drop.global_batch.tolist()
    turned_away = drop.reject.tolist()
    assert turned_away == [not size and bool(waits) for size, waits in zip(drop.gpus, snapshot.jobs.waits, strict=True)]


@pytest.mark.parametrize(("batch", "expected"), [("asked", 96), ("largest", 512)])
def test_a_fixed_batch_is_the_same_on_every_size(batch, expected):
    for cluster in ("1x1xT4", "1x4xT4", "2x4xT4"):
        part = DynamicProgram(batch, accumulation=True)
        sizes = sized(snapshot_of(cluster, elastic(batch=96), now=1), TYPICAL, part=part)
        assert sizes.global_batch.tolist() == [expected]


def test_who_asked_no_batch_has_the_smallest():
    snapshot = with_columns(snapshot_of("1x4xT4", elastic(), now=1), batch=[NONE])
    assert sized(snapshot, TYPICAL, part=DynamicProgram("asked", accumulation=True)).global_batch.tolist() == [64]


def test_a_random_batch_is_drawn_at_submission_and_evenly_from_the_range():
    jobs = [elastic(at=row / 10, batch_max=73) for row in range(1_000)]
    part = DynamicProgram("random", accumulation=True)
    speeds = [TYPICAL] * len(jobs)
    drawn = sized(snapshot_of("999x4xT4", *jobs, now=100), *speeds, part=part).global_batch
    later = sized(snapshot_of("999x4xT4", *jobs, now=900, down=range(2)), *speeds, part=part)
    assert later.global_batch[later.gpus > 0].tolist() == drawn[later.gpus > 0].tolist()
    counts = np.bincount(drawn, minlength=74)[64:]
    assert counts.sum() == len(jobs)
    assert ((counts - 100) ** 2 / 100).sum() < 27.9  # chi squared, 9 degrees of freedom, 0.1 %


def test_with_a_fixed_batch_nothing_but_gpus_is_chosen():
    one = elastic(batch=96)
    sizes = sized(snapshot_of("2x4xT4", one, now=1), TYPICAL, part=DynamicProgram("asked", accumulation=True))
    value = {gpus: scaling_factor(TYPICAL, one, gpus, 96, 4, accumulation=True) for gpus in (1, 2, 4, 8)}
    assert sizes.gpus.tolist() == [max(value, key=value.get)]


def test_who_would_change_only_its_batch_loses_nothing():
    snapshot = snapshot_of("1x1xT4", elastic(on=[(0, 0)], batch_now=512), now=9)
    sizes = sized(with_columns(snapshot, starts=[1], stalled_ms=[500_000]), TYPICAL)
    assert (sizes.gpus.tolist(), sizes.global_batch.tolist()) == ([1], [64])


def test_only_elastic_jobs_that_nobody_knows_are_analysed():
    snapshot = snapshot_of("2x4xT4", elastic(), elastic(at=1), job(at=2), now=9)
    sizes = sized(snapshot, TYPICAL, UNKNOWN, UNKNOWN)
    assert sizes.analyse.tolist() == [False, True, False]
    assert sizes.gpus.tolist() == [4, 1, 1]  # the unknown one is measured on its fewest GPUs


def test_who_is_on_a_node_that_drains_keeps_it_and_others_share_the_rest():
    for part in (DynamicProgram(), DynamicProgram(mode="drop")):
        snapshot = snapshot_of(
            "2x4xT4", one_batch(on=[(0, 0)], batch_now=64), job(on=[(0, 1)]), one_batch(at=1), now=2, draining=[0],
        )
        sizes = sized(snapshot, PERFECT, UNKNOWN, PERFECT, part=part)
        assert sizes.gpus.tolist() == [1, 1, 4]
        assert sizes.global_batch.tolist() == [64, NONE, 64]
        assert not sizes.reject.any()


def test_a_job_too_large_for_the_open_nodes_of_a_type_takes_no_room():
    large = elastic(gpus=6, gpus_min=6, gpus_max=8)
    snapshot = snapshot_of("1x4xT4+1x4xV100", large, one_batch(at=1), now=2)
    sizes = sized(snapshot, PERFECT, PERFECT, part=DynamicProgram(mode="drop"))
    assert (sizes.gpus.tolist(), sizes.reject.tolist()) == ([0, 4], [True, False])
