"""The knapsack of sizes against every choice there is, and against the paper's recurrence as a plain loop."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InvariantError
from brim.policies.size import knapsack
from brim.policies.size.knapsack import best_sizes

NO = -np.inf
SEEDS = st.integers(0, 2**32 - 1)


def best_by_trying(value, capacity):
    """Of all choices: most value, then fewest GPUs, then most for the earliest jobs."""
    best = None
    for sizes in product(*(np.flatnonzero(row > NO).tolist() for row in value)):
        if sum(sizes) <= capacity:
            key = (sum(value[j, g] for j, g in enumerate(sizes)), -sum(sizes), sizes)
            best = key if best is None else max(best, key)
    return None if best is None else list(best[2])


def best_total_by_loop(value, capacity):
    """P[j][c] of the paper, at c = capacity; -inf where nothing fits."""
    best = np.zeros(capacity + 1)
    for row in value:
        before, best = best, np.full(capacity + 1, NO)
        for g in np.flatnonzero(row[: capacity + 1] > NO):
            np.maximum(best[g:], before[: capacity + 1 - g] + row[g], out=best[g:])
    return best[capacity]


def total(value, sizes):
    return value[np.arange(len(value)), sizes].sum()


def small(rng):
    """Whole values, so that ties are real; holes, negative values, smallest sizes above 1, no GPUs forbidden or not."""
    jobs, largest = rng.integers(1, 6), rng.integers(0, 6)
    value = rng.integers(-4, rng.choice([1, 3, 9]), (jobs, largest + 1)).astype(float)
    value[rng.random(value.shape) < rng.choice([0, 0.2, 0.6])] = NO
    value[np.arange(largest + 1) < rng.integers(0, 3, (jobs, 1))] = NO
    least = np.argmax(value > NO, axis=1).sum()
    return value, int(rng.choice([max(least - 1, 0), least, least + 1, rng.integers(0, 16)]))


def power_law(rng, jobs, sizes):
    return rng.uniform(0.5, 2, (jobs, 1)) * sizes ** rng.uniform(0.3, 1, (jobs, 1))


def amdahl(rng, jobs, sizes):
    serial = rng.uniform(0, 0.3, (jobs, 1))
    return 1 / (serial + (1 - serial) / np.maximum(sizes, 0.5))


def perfect(rng, jobs, sizes):
    return 0.1 * sizes * rng.integers(1, 3, (jobs, 1))


def powers_of_two(rng, jobs, sizes):
    return np.where(sizes & (sizes - 1), NO, power_law(rng, jobs, sizes))


def odd_sizes(rng, jobs, sizes):
    return np.where(sizes % 2, perfect(rng, jobs, sizes), NO)


def dips(rng, jobs, sizes):
    return power_law(rng, jobs, sizes) * rng.choice([1, 1, 0.7], (jobs, len(sizes)))


def minimum_sizes(rng, jobs, sizes):
    return np.where(sizes < rng.integers(1, 5, (jobs, 1)), NO, dips(rng, jobs, sizes))


def few_values(rng, jobs, sizes):
    return rng.integers(-3, 4, (jobs, len(sizes))).astype(float)


def uniform(rng, jobs, sizes):
    return rng.random((jobs, len(sizes))) - 0.3


def holes(rng, jobs, sizes):
    return np.where(rng.random((jobs, len(sizes))) < 0.7, NO, 5 + sizes)


def growing(rng, jobs, sizes):
    return rng.random((jobs, 1)) * sizes**1.5


def alike(rng, jobs, sizes):
    return powers_of_two(rng, 3, sizes)[rng.integers(3, size=jobs)]


FAMILIES = (power_law, amdahl, perfect, powers_of_two, odd_sizes, dips, minimum_sizes, few_values, uniform, holes,
            growing, alike)


def larger(family, rng):
    """A table of the family and a capacity, from too little for anybody to enough for all."""
    jobs, largest = int(rng.integers(1, 60)), int(rng.integers(1, 25))
    value = family(rng, jobs, np.arange(largest + 1)).astype(float)
    if rng.random() < 0.5:
        value[:, 0] = NO
    return value, int(rng.integers(0, jobs * 4 + 2))


def test_the_choice_is_the_best_of_all_choices():
    rng = np.random.default_rng(1)
    infeasible = 0
    for _ in range(800):
        value, capacity = small(rng)
        want = best_by_trying(value, capacity)
        got = best_sizes(value, capacity)
        assert (None if got is None else got.tolist()) == want, (value, capacity)
        infeasible += want is None
    assert 80 < infeasible < 500


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@given(seed=SEEDS)
def test_the_total_is_that_of_the_recurrence(family, seed):
    value, capacity = larger(family, np.random.default_rng(seed))
    want, got = best_total_by_loop(value, capacity), best_sizes(value, capacity)
    if got is None:
        assert want == NO
    else:
        assert got.sum() <= capacity
        assert total(value, got) == pytest.approx(want, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@given(seed=SEEDS)
def test_the_answer_does_not_depend_on_the_shortcuts(family, seed):
    """The gap not lowered; everything left in; few stages kept at a time: the same GPUs for every job."""
    value, capacity = larger(family, np.random.default_rng(seed))
    want = best_sizes(value, capacity)
    if want is None:
        return
    lax = {
        "_narrow": lambda priced, order, price: price * priced.slack * 2 + 2.0**40,
        "_rows_apart": lambda stages: seed % 5 + 1,
    }
    for name, stand_in in lax.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(knapsack, name, stand_in)
            assert best_sizes(value, capacity).tolist() == want.tolist(), name


@given(seed=SEEDS)
def test_the_order_of_the_jobs_does_not_change_the_total(seed):
    rng = np.random.default_rng(seed)
    value, capacity = larger(FAMILIES[seed % len(FAMILIES)], rng)
    shuffled = value[rng.permutation(len(value))]
    one, other = best_sizes(value, capacity), best_sizes(shuffled, capacity)
    assert (one is None) == (other is None)
    if one is not None:
        assert total(value, one) == pytest.approx(total(shuffled, other), rel=1e-11, abs=1e-12)
        assert one.sum() == other.sum()


@given(seed=SEEDS, power=st.integers(-300, 300))
def test_scaling_all_values_changes_nothing(seed, power):
    value, capacity = larger(FAMILIES[seed % len(FAMILIES)], np.random.default_rng(seed))
    one, other = best_sizes(value, capacity), best_sizes(value * 2.0**power, capacity)
    assert (one is None and other is None) or one.tolist() == other.tolist()


def test_equal_tables_give_equal_answers_whatever_their_layout():
    value, capacity = larger(dips, np.random.default_rng(5))
    frozen = value.copy()
    frozen.setflags(write=False)
    want = best_sizes(value, capacity).tolist()
    for same in (value, frozen, np.asfortranarray(value), np.repeat(value, 2, axis=1)[:, ::2]):
        assert best_sizes(same, capacity).tolist() == want


@pytest.mark.parametrize("family", [powers_of_two, dips, odd_sizes, growing], ids=lambda family: family.__name__)
def test_a_round_of_hundreds_of_jobs_is_solved_exactly(family):
    value = family(np.random.default_rng(2), 300, np.arange(33)).astype(float)
    value[:, 0] = NO
    got = best_sizes(value, 801)
    assert got.sum() <= 801
    assert total(value, got) == pytest.approx(best_total_by_loop(value, 801), rel=1e-12)


def test_smallest_sizes_that_just_fit_are_given_and_one_more_is_infeasible():
    value = np.array([[NO, NO, 3.0, 9.0], [NO, 1.0, 5.0, 9.0], [NO, NO, NO, -2.0]])
    assert best_sizes(value, 6).tolist() == [2, 1, 3]
    assert best_sizes(value, 5) is None


def test_ties_go_to_fewer_gpus_then_to_earlier_jobs():
    assert best_sizes(np.array([[0.0, 2, 2], [0, 0, 0]]), 4).tolist() == [1, 0]
    assert best_sizes(np.array([[0.0, 1, 2]] * 3), 4).tolist() == [2, 2, 0]
    assert best_sizes(np.array([[0.0, NO, 2]] * 3), 5).tolist() == [2, 2, 0]
    assert best_sizes(np.array([[0.0, NO, 2, 3, 4], [0, 1, 2, NO, NO], [0, 1, NO, NO, NO]]), 6).tolist() == [4, 2, 0]


def test_values_that_differ_by_rounding_tie():
    assert 0.1 + 0.2 > 0.3
    assert best_sizes(np.array([[0, 0.3, 0.1 + 0.2]] * 8), 20).tolist() == [1] * 8


def test_nothing_to_size_and_nothing_to_give():
    assert best_sizes(np.zeros((0, 4)), 7).tolist() == []
    assert best_sizes(np.array([[1.0, 2.0]]), 0).tolist() == [0]
    assert best_sizes(np.array([[5.0]]), 3).tolist() == [0]
    assert best_sizes(np.array([[NO, NO]]), 3) is None
    assert best_sizes(np.array([[NO, 2.0]]), 0) is None


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e300, 1.7e308])
def test_values_near_the_ends_of_floating_point(scale):
    value = np.array([[-1.0, 0.2, 1.0], [-1.0, 0.5, 0.6], [-1.0, -0.5, -1.0]]) * scale
    assert best_sizes(value, 3).tolist() == [2, 1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_value_is_refused_with_its_place(bad):
    value = np.zeros((3, 4))
    value[2, 1] = bad
    with pytest.raises(InvariantError, match=r"job row 2, column 1: found (nan|inf), expected a number or -inf"):
        best_sizes(value, 5)


@pytest.mark.parametrize(("shape", "capacity"), [((3, 0), 4), ((3,), 4), ((3, 4), -1)])
def test_tables_without_columns_and_negative_capacities_are_refused(shape, capacity):
    with pytest.raises(InvariantError, match="expected"):
        best_sizes(np.zeros(shape), capacity)
