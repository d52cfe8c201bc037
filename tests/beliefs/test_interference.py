"""Slowdowns of residents: history, pairs, rule, in this order, each with its basis; and files of measured sets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.interference import Basis, DemandRule, Interference, queueing
from brim.beliefs.measured_sets import BUILTIN, load_sets, parse_sets, seeds_of
from brim.core.slowdowns import ResidentKind, ResidentSet, SeenSlowdowns
from brim.core.tables import NO_SLOWDOWNS
from brim.core.trace import NONE
from brim.errors import ConfigError, NotFoundError

A, B, C = (ResidentKind(code, NONE) for code in range(3))
LIGHT = (0.1, 0.1)


def told(*rows):
    """The table of (who, others, ratio), each by another job on GPUs of type 0."""
    seen = SeenSlowdowns()
    for job, (who, others, ratio) in enumerate(rows):
        seen.add(job, ResidentSet(who, 0, tuple(sorted(others))), ratio)
    return seen.freeze()


def test_history_goes_before_pairs_and_pairs_before_the_rule():
    table = told((A, (B, C), 1.7), (A, (B, C), 1.5), (B, (A,), 1.2), (B, (C,), 1.1), (C, (A,), 1.3))
    a, b, c = Interference().known(table).among(0, (A, B, C), (0.1, 0.2, 0.3))
    assert (a.mean, a.jobs, a.basis) == (pytest.approx(1.6), 2, Basis.HISTORY)
    assert a.variance == pytest.approx(0.02)
    assert (b.mean, b.jobs, b.basis) == (pytest.approx(1.32), 1, Basis.PAIRS)
    assert (c.jobs, c.basis) == (0, Basis.DEMAND)
    assert c.mean == pytest.approx(DemandRule().slowdowns((0.1, 0.2, 0.3))[2])


def test_the_history_of_another_gpu_type_or_batch_says_nothing_and_a_batch_that_is_not_known_may_be_any():
    """Live, a job trains with a batch of its own, which is known once it has trained alone."""
    of_8, of_16 = A._replace(batch=8), A._replace(batch=16)
    other = B._replace(batch=8)
    known = Interference().known(told((of_8, (other,), 1.7), (of_8, (other,), 1.5), (A, (other,), 1.3)))
    assert known.among(1, (of_8, other), LIGHT)[0].basis is Basis.DEMAND
    assert known.among(0, (of_16, other), LIGHT)[0].basis is Basis.DEMAND
    exact = known.among(0, (of_8, other), LIGHT)[0]
    assert (exact.basis, exact.mean, exact.jobs) == (Basis.HISTORY, pytest.approx(1.6), 2)
    for who, beside in ((A, other), (of_16, B), (A, B)):
        any_batch = known.among(0, (who, beside), LIGHT)[0]
        assert (any_batch.basis, any_batch.mean, any_batch.jobs) == (Basis.HISTORY, pytest.approx(1.5), 3)


def test_of_a_job_of_unknown_demand_nothing_is_said():
    known = Interference().known(NO_SLOWDOWNS)
    a, b = known.among(0, (A, ResidentKind(NONE, NONE)), (0.3, math.nan))
    assert a.basis is b.basis is Basis.UNKNOWN
    assert math.isnan(a.mean)
    assert known.among(0, (ResidentKind(NONE, NONE),), (math.nan,))[0] == (1.0, 0.0, 0, Basis.ALONE)


def test_seeds_are_history_of_any_batch_and_count_as_one_job():
    measured = load_sets(BUILTIN, "--x")
    seeds = seeds_of(measured, ("vgg16", "ResNet18", "other"), ("T4", "V100"))
    assert len(seeds) == 2  # one pair, both ways
    believed = Interference(seeds=seeds)
    pair = (ResidentKind(0, 256), ResidentKind(1, 64))
    first = believed.known(NO_SLOWDOWNS).among(1, pair, LIGHT)[0]
    assert (first.mean, first.jobs, first.basis) == (pytest.approx(1.0387), 1, Basis.HISTORY)
    seen = SeenSlowdowns()
    seen.add(0, ResidentSet(pair[0], 1, (pair[1],)), 1.2)
    later = believed.known(seen.freeze()).among(1, pair, LIGHT)[0]
    assert (later.mean, later.jobs) == (pytest.approx((1.0387 + 1.2) / 2), 2)
    assert believed.known(NO_SLOWDOWNS).among(0, pair, LIGHT)[0].basis is Basis.DEMAND


@pytest.mark.parametrize(("demands", "expected"), [
    ((1.0, 1.0), (2.0, 2.0)), ((1.0, 1.0, 1.0), (3.0, 3.0, 3.0)), ((0.0, 1.0), (1.0, 1.0)),
    ((0.9, 0.9), (1.85, 1.85)),
])
def test_jobs_that_take_turns(demands, expected):
    assert queueing(demands) == pytest.approx(expected, rel=0.005)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(0, 3), st.floats(0, 1))
def test_nobody_is_faster_for_neighbours_and_the_gpu_is_not_used_more_than_wholly(demands, which, more):
    ratios = queueing(demands)
    assert all(1 <= ratio <= len(demands) for ratio in ratios)
    assert max(ratios) >= sum(demands) - 1e-6 or sum(demands) <= 1 or len(set(demands)) > 1
    which %= len(demands)
    heavier = [*demands]
    heavier[which] = max(demands[which], more)
    assert all(new >= old - 1e-6 for old, new in zip(ratios, queueing(heavier), strict=True))


GOOD = '[[set]]\ngpu_type = "T4"\nmodels = ["a", "b"]\nslowdown_ratio = [1.5, 1]\n[rule]\nper_neighbour = 0.1\n'


def test_a_file_of_sets(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    found = load_sets(str(path), "--sharing")
    assert found.rule == DemandRule(per_neighbour=0.1)
    assert found.sets == (("T4", ("a", "b"), (1.5, 1.0)),)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("1.5, 1", "0.9, 1", r"mine.toml, set 1: found slowdown_ratio=0.9, expected a number of at least 1"),
    ("[1.5, 1]", "true", r"mine.toml, set 1: found slowdown_ratio=True, expected a number of at least 1"),
    ("[1.5, 1]", "nan", r"mine.toml, set 1: found slowdown_ratio=nan, expected"),
    ("1.5, 1", "1.5", r"mine.toml, set 1: found 1 slowdown_ratio for 2 models, expected one"),
    ('"a", "b"', '"a"', r"mine.toml, set 1: found models=\['a'\], expected the names of 2 to 4 models"),
    ("gpu_type", "gpu", r"mine.toml, set 1: found 'gpu', expected gpu_type"),
    ("0.1", "-0.1", r"mine.toml, rule: found per_neighbour=-0.1, expected a number from 0 up"),
    ("per_neighbour", "each", r"mine.toml, rule: found 'each', expected per_neighbour and deviation"),
    ("[rule]", "[rules]", r"mine.toml: found 'rules', expected \[rule\] and \[\[set\]\]"),
    ("[rule]", "[rule", r"mine.toml: not TOML"),
])
def test_impossible_files_are_refused_with_file_and_key(old, new, said):
    assert old in GOOD
    with pytest.raises(ConfigError, match=said):
        parse_sets(GOOD.replace(old, new), "mine.toml")


def test_a_file_that_is_not_there():
    with pytest.raises(NotFoundError, match=r"--sharing: cannot read nowhere\.toml: No such file"):
        load_sets("nowhere.toml", "--sharing")
