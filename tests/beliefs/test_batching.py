"""Batches: how they split, what they cost in convergence, and the best one against trying them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.beliefs.batching import (
    GradientStatistics,
    Limits,
    best_batches,
    fewest_nodes,
    fixed_batches,
    gain,
    gpus_min,
    split,
)
from brim.beliefs.throughput import step_s
from brim.errors import ConfigError

GPUS = 12
NODES = fewest_nodes(GPUS, 4)


def limits(*rows):
    columns = np.array(rows, dtype=np.int64).T
    return Limits(batch_min=columns[0], batch_max=columns[1], local_batch_min=columns[2], local_batch_max=columns[3])


@st.composite
def jobs(draw):
    """Limits, parameters and noise of one job; narrow ranges and tight memory included."""
    batch_min, local_min = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    row = (batch_min, batch_min + draw(st.integers(0, 5) | st.integers(0, 400)), local_min,
           local_min + draw(st.integers(0, 60)))
    exponent = st.floats(-3, 0)
    times = [10 ** draw(exponent) for _ in range(6)]
    times[1] /= 10
    noise = draw(st.none() | st.floats(-2, 3).map(lambda log: GradientStatistics(np.array([10**log]), np.array([1.0]))))
    return row, np.array([*times, draw(st.floats(1, 10))]), noise


def tried_all(row, parameters, noise, gpus, *, accumulation, batches=None):
    """Goodput of every batch, by the rule of ``split``, -inf where it may not be."""
    low, high, local_min, local_max = row
    batches = np.arange(low, high + 1) if batches is None else batches
    if accumulation:
        local, extra = split(gpus, batches, low, high, local_max)
    else:
        local, extra = np.minimum(-(-batches // gpus), high // gpus), np.zeros_like(batches)
    fits = (local >= local_min) & (local <= local_max) & (accumulation | (-(-batches // gpus) <= local_max))
    local = np.maximum(local, 1)
    real = gpus * local * (extra + 1)
    gained = gain(real, low, noise) if noise else real / low
    return np.where(fits, gained * low / step_s(parameters, NODES[gpus], gpus, local, extra), -np.inf)


# --- splitting


def test_splits_known_from_the_published_simulator():
    local, extra = split(np.array([1, 1, 4, 4, 3]), np.array([200, 400, 800, 3200, 32]), np.array([200] * 4 + [32]),
                         np.array([12_800] * 4 + [32]), np.array([200] * 5))
    assert local.tolist() == [200, 200, 200, 200, 10]  # the last: rounded up to 11, then cut to 32 in all
    assert extra.tolist() == [0, 1, 0, 3, 0]


@given(st.integers(1, 64), st.integers(1, 5_000), st.integers(1, 300))
def test_a_split_fits_memory_and_is_off_by_less_than_one_sample_per_part(gpus, batch, local_max):
    local, extra = split(gpus, batch, 1, 10**9, local_max)
    parts = gpus * (extra + 1)
    assert 1 <= local <= local_max
    assert batch <= local * parts < batch + parts
    assert extra == 0 or local * parts >= gpus * local_max * extra or gpus == 1


def test_one_gpu_accumulates_above_the_initial_batch_to_measure_its_noise():
    assert [int(split(1, batch, 16, 64, 64)[1]) for batch in (16, 17, 64)] == [0, 1, 1]
    assert [int(split(2, batch, 16, 64, 64)[1]) for batch in (16, 17, 64)] == [0, 0, 0]


# --- convergence


def efficiency(batch, batch_min, noise):
    """Progress per sample compared with the initial batch."""
    return gain(batch, batch_min, noise) / (batch / batch_min)


@given(st.floats(1, 1000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_efficiency_is_a_fraction_that_falls_with_the_batch(scale, var, sqr):
    noise = GradientStatistics(np.array(var), np.array(sqr))
    one, many = efficiency(32.0, 32, noise), efficiency(32 * scale, 32, noise)
    assert one == pytest.approx(1)
    assert 0 < many <= 1 + 1e-12
    assert efficiency(64 * scale, 32, noise) <= many
    assert 1 - 1e-12 <= gain(32 * scale, 32, noise) <= scale * (1 + 1e-12)


def test_efficiency_at_the_ends_of_the_noise_scale():
    at = np.array([32, 64, 3200])
    for var, sqr, expected in (
        (0.0, 1.0, [1, 0.5, 0.01]),  # no noise: all wasted
        (1.0, 0.0, [1, 1, 1]),       # only noise: nothing is
        (np.nan, 1.0, [1, 1, 1]),
    ):
        assert efficiency(at, 32, GradientStatistics(np.array(var), np.array(sqr))).tolist() == expected


@given(st.floats(1, 1e4), st.floats(1e-3, 1e3))
def test_the_gain_of_a_batch_lies_between_none_and_its_size(scale, var):
    gained = gain(8 * scale, 8, GradientStatistics(np.array(var), np.array(1.0)))
    assert 1 - 1e-9 <= gained <= scale * (1 + 1e-9)


# --- the best batch


@given(jobs(), st.booleans())
def test_the_best_batch_is_that_of_trying_all(job, accumulation):
    row, parameters, noise = job
    goodput, batch = best_batches(parameters[None], NODES, limits(row), noise, accumulation=accumulation)
    assert goodput.shape == batch.shape == (1, GPUS + 1)
    assert (goodput[0, 0], batch[0, 0]) == (-np.inf, 0)
    for gpus in range(1, GPUS + 1):
        best = tried_all(row, parameters, noise, gpus, accumulation=accumulation).max()
        assert goodput[0, gpus] == pytest.approx(best)
        assert (batch[0, gpus] == 0) == np.isinf(best)


@given(jobs(), st.booleans())
def test_the_batch_named_is_allowed_and_reaches_the_goodput_named(job, accumulation):
    row, parameters, noise = job
    goodput, batch = best_batches(parameters[None], NODES, limits(row), noise, accumulation=accumulation)
    for gpus in np.flatnonzero(batch[0]):
        chosen = batch[0, gpus]
        assert row[0] <= chosen <= row[1]
        reached = tried_all(row, parameters, noise, gpus, accumulation=accumulation, batches=np.array([chosen]))
        assert reached == pytest.approx(goodput[0, gpus])


@given(jobs(), st.booleans(), st.floats(0, 1))
def test_a_fixed_batch_is_split_by_the_same_rule(job, accumulation, where):
    row, parameters, noise = job
    batch = int(row[0] + where * (row[1] - row[0]))
    goodput, chosen = fixed_batches(
        parameters[None], NODES, np.array([batch]), limits(row), noise, accumulation=accumulation
    )
    for gpus in range(1, GPUS + 1):
        wanted = tried_all(row, parameters, noise, gpus, accumulation=accumulation, batches=np.array([batch]))[0]
        assert goodput[0, gpus] == pytest.approx(wanted)
        assert chosen[0, gpus] == (0 if np.isinf(wanted) else batch)


@given(st.lists(jobs(), min_size=2, max_size=4))
def test_jobs_do_not_touch_each_other(several):
    known = [job for job in several if job[2] is not None]
    assume(len(known) > 1)
    rows, parameters, noises = zip(*known, strict=True)
    noise = GradientStatistics(*(np.concatenate(column) for column in zip(*noises, strict=True)))
    together = best_batches(np.array(parameters), NODES, limits(*rows), noise)
    for row, job in enumerate(known):
        alone = best_batches(job[1][None], NODES, limits(job[0]), job[2])
        assert together[0][row].tolist() == alone[0][0].tolist()
        assert together[1][row].tolist() == alone[1][0].tolist()


def test_without_noise_the_largest_batch_wins():
    parameters = np.array([[0.1, 0.01, 0.05, 0.01, 0.5, 0.1, 2.0]])
    goodput, batch = best_batches(parameters, NODES, limits((32, 256, 4, 64)), accumulation=False)
    assert batch[0, 1:6].tolist() == [64, 128, 192, 256, 255]
    assert goodput[0, 1] == pytest.approx(64 / 0.74)
    unknown = GradientStatistics(np.array([np.nan]), np.array([np.nan]))
    assert best_batches(parameters, NODES, limits((32, 256, 4, 64)), unknown, accumulation=False)[0].tolist() == (
        goodput.tolist())


def test_a_gradient_without_noise_wants_the_initial_batch():
    parameters = np.array([[0.1, 0.01, 0.05, 0.01, 0.5, 0.1, 2.0]])
    _, batch = best_batches(parameters, NODES, limits((32, 256, 4, 64)), GradientStatistics(np.zeros(1), np.ones(1)))
    assert batch[0, [1, 2, 4, 8]].tolist() == [32, 32, 32, 32]


@given(jobs(), st.booleans())
def test_the_fewest_gpus_are_the_first_feasible(job, accumulation):
    row, parameters, _ = job
    _, batch = best_batches(parameters[None], NODES, limits(row), accumulation=accumulation)
    feasible = np.flatnonzero(batch[0])
    try:
        fewest = int(gpus_min(limits(row), accumulation=accumulation)[0])
    except ConfigError:
        assert not len(feasible)
    else:
        assert (feasible[0] == fewest) if len(feasible) else (fewest > GPUS)


def test_the_fewest_gpus_with_and_without_accumulation():
    both = limits((128, 4096, 32, 1024), (8000, 12_800, 20, 200))
    assert gpus_min(both, accumulation=False).tolist() == [1, 40]
    assert gpus_min(both, accumulation=True).tolist() == [1, 1]


def test_a_range_that_no_number_of_gpus_can_split_names_the_job():
    both = limits((16, 64, 1, 64), (4, 6, 8, 16))
    with pytest.raises(ConfigError, match=r"job bert-7: found batch_min=4, batch_max=6, local_batch_min=8, "
                                          r"local_batch_max=16, expected a batch that some number of GPUs can split"):
        gpus_min(both, accumulation=True, names=("ncf-1", "bert-7"))
    with pytest.raises(ConfigError, match="job row 1"):
        gpus_min(both, accumulation=False)


@pytest.mark.parametrize("row", [(8, 4, 1, 2), (0, 4, 1, 2), (8, 16, 4, 3), (8, 16, 0, 3)])
def test_empty_ranges_are_refused(row):
    with pytest.raises(ConfigError, match=r"job row 1: found .*, expected 1 <= "):
        limits((1, 2, 1, 2), row)


def test_packing_uses_the_fewest_nodes():
    assert fewest_nodes(9, 4).tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
