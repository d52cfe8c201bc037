"""Features of losses and the classifier on them: no leak, any losses, inference without scikit-learn, refusals."""

from __future__ import annotations

import builtins
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.convergence import CannotSay
from brim.beliefs.curve_features import FEATURES, seen
from brim.beliefs.predictability import KNOTS, LEVELS, default, load, parse, scale_of, scaled
from brim.beliefs.predictability_judging import CHOSEN, area, fitted_scales, folds, left_out_scores, models, scores
from brim.beliefs.predictability_training import TrainingRun, prefixes, toml, train
from brim.errors import ConfigError, NotFoundError

SAMPLES = np.arange(1.0, 61.0) * 10


def runs(families: int = 4, each: int = 6, *, kinds: tuple[str, ...] = ("falls", "wanders")) -> list[TrainingRun]:
    """Runs of which those that fall along the curve are predictable, and those that wander are not."""
    rng, made = np.random.default_rng(0), []
    for number in range(families * each):
        kind = kinds[number % len(kinds)]
        loss = 0.9 / (0.01 * rng.uniform(0.5, 3) * SAMPLES + 1) + 0.1
        if kind == "falls":
            loss = loss + 0.002 * rng.standard_normal(60)
        else:
            loss = loss * np.exp(np.cumsum(0.12 * rng.standard_normal(60)))
        made.append(TrainingRun(f"family {number // each}", SAMPLES, loss, 600.0))
    return made


@pytest.fixture(scope="module")
def found():
    return prefixes(runs())


@pytest.fixture(scope="module")
def trained(found):
    pytest.importorskip("sklearn")
    return train(found, "made up")


# -- features ---------------------------------------------------------------------------------------------------------


def test_what_is_reported_later_is_in_no_feature():
    """A run whose end is planted as a number that nobody could miss has the features of one that goes on as it was."""
    loss = 0.9 / (0.01 * SAMPLES + 1) + 0.1
    planted = np.append(loss[:-1], 1e6)
    one, other = (prefixes([TrainingRun("a", SAMPLES, end, 600.0)]) for end in (loss, planted))
    assert one.features.tolist() == other.features.tolist()
    assert one.predicted.tolist() == other.predicted.tolist()
    assert one.is_predictable.any()
    assert not other.is_predictable.any()  # the label did see it


def test_a_run_that_nobody_planned_is_not_told_how_long_it_was():
    loss = 0.9 / (0.01 * SAMPLES + 1) + 0.1
    whole, part = (prefixes([TrainingRun("a", SAMPLES[:n], loss[:n])], parts=[200 / SAMPLES[n - 1]]) for n in (60, 40))
    assert whole.features.tolist() == part.features.tolist()


def test_a_run_that_goes_back_to_a_checkpoint_teaches_what_it_does_without():
    loss = 0.9 / (0.01 * SAMPLES + 1) + 0.1
    again = np.r_[:40, 20:60]
    plain, restarted = (prefixes([TrainingRun("a", SAMPLES[rows], loss[rows], 600.0)]) for rows in (np.r_[:60], again))
    assert plain.features.tolist() == restarted.features.tolist()
    assert plain.is_predictable.tolist() == restarted.is_predictable.tolist()


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 10)), max_size=40),
    resets=st.lists(st.integers(0, 39), max_size=3), planned=st.sampled_from([math.inf, 1.0, 300.0, 1e9]),
)
def test_any_losses_give_finite_features_or_a_reason(losses, resets, planned):
    samples = np.arange(1.0, len(losses) + 1) * 10
    for at in resets:
        samples[at:] -= 0 if at >= len(samples) else samples[at] / 2
    curve = seen(samples, np.array(losses, dtype=float), planned)
    if not isinstance(curve, CannotSay):
        assert np.isfinite(curve.features).all()
        assert len(curve.features) == len(FEATURES)
        assert 0 <= default().probability(np.array([curve.features]))[0] <= 1


@pytest.mark.parametrize(
    ("losses", "why"),
    [([1.0] * 30, CannotSay.DOES_NOT_FALL), ([3.0, 2.0, 1.0], CannotSay.TOO_FEW),
     ([3.0, 2.0, 1.0, 0.9, *[math.nan] * 5], CannotSay.NOT_FINITE),
     ([3.0, 2.0, 1.0, *[math.inf] * 5], CannotSay.NOT_FINITE)],
)
def test_losses_that_say_nothing_have_a_reason(losses, why):
    assert seen(np.arange(1.0, len(losses) + 1), np.array(losses)) is why


def test_units_of_losses_and_samples_do_not_matter():
    loss = 0.9 / (0.01 * SAMPLES + 1) + 0.1 + 0.003 * np.random.default_rng(1).standard_normal(60)
    one, other = seen(SAMPLES, loss, 900.0), seen(SAMPLES * 128, loss * 1000, 900.0 * 128)
    assert one.features == pytest.approx(other.features, abs=1e-6)


# -- the classifier that comes with brim ------------------------------------------------------------------------------


def test_the_default_believes_a_clean_curve_and_not_a_wandering_one():
    clean, wandering = prefixes(runs(kinds=("falls",))), prefixes(runs(kinds=("wanders",)))
    late = clean.part >= 0.35
    believed = default().probability(clean.features[late])
    others = default().probability(wandering.features[(wandering.part >= 0.35) & ~wandering.is_predictable])
    assert np.median(believed) > 0.8
    assert np.median(others) < np.median(believed) - 0.2


def test_evidence_names_what_decided_with_its_value(found):
    row = found.features[-1]
    told = default().evidence(row)
    assert 1 <= len(told) <= 4
    assert all(one.words in FEATURES.values() and one.value in row and one.side in ("for", "against") for one in told)


def test_a_scale_is_increasing_even_where_a_feature_has_few_values():
    knots = np.array([[0.0] * 10 + [1.0] * 11, np.linspace(0, 1, KNOTS)])
    values = scaled(np.array([[-1.0, 0.5], [0.0, 0.2], [0.5, 0.1], [1.0, 0.9], [2.0, 9.0]]), [*map(scale_of, knots)])
    assert (np.diff(values[:, 0]) >= 0).all()
    assert values[1, 0] == pytest.approx(LEVELS[:10].mean())
    assert values[4, 1] == LEVELS[-1]


def _first_at_the_end(text):
    head, first, *others = text.split("[[feature]]")
    return "[[feature]]".join((head, *others, first))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace('name = "width"', 'name = "colour"'), "found feature 'colour'"),
        (lambda text: text.replace("intercept", "outercept"), "found intercept=None"),
        (lambda text: text.split("[[feature]]")[0], "found no 'feature' tables"),
        (_first_at_the_end, "found feature 'remaining' first, expected 'ahead'"),
        (lambda text: text.replace("weight_of_product", "weight_of_sum"), "found weight_of_product=None"),
        (lambda text: text.replace("weight = ", "weight = nan  # "), "found weight=nan"),
        (lambda text: text.replace("knots = [", "knots = [0.0, "), "knots that are not 21 numbers"),
        (lambda text: text.replace("knots = [", "knots = [1e9, 0.0]  # ["), "knots that are not 21 numbers"),
        (lambda text: text + "]", "not TOML"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(trained, change, words):
    text = toml(trained, {"data": "made up"})
    assert parse(text, "mine.toml").names == trained.classifier.names
    with pytest.raises(ConfigError, match=words):
        parse(change(text), "mine.toml")


def test_a_missing_file_is_refused():
    with pytest.raises(NotFoundError, match="expected a file of brim predictability fit"):
        load("nowhere.toml")


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_inference_is_that_of_scikit_learn(found, trained, monkeypatch):
    """The file's numbers give the probabilities of scikit-learn's own model, without scikit-learn."""
    columns = [found.names.index(name) for name in trained.classifier.names]
    scales = fitted_scales(found.features[:, columns])
    model = models()[CHOSEN]().fit(scaled(found.features[:, columns], scales), found.is_predictable)
    logit = model.decision_function(scaled(found.features[:, columns], scales))
    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest, **named: (_ for _ in ()).throw(
        ImportError(name)) if name.startswith("sklearn") else real(name, *rest, **named))
    read = parse(toml(trained, {"data": 'made\x01 "up" \\ \n\x7f\u00fc'}), "mine.toml")
    own = read.probability(found.features)
    odds = np.log(own / (1 - own))
    slope, offset = np.polyfit(logit, odds, 1)  # the calibration is a line on the logit
    assert odds == pytest.approx(slope * logit + offset, abs=1e-3)
    assert slope > 0


def test_what_can_be_told_apart_is_told_apart_on_families_left_out(trained):
    assert {one.name for one in trained.scores} == set(models())
    assert all(one.auc[0] > 0.8 for one in trained.scores)


@pytest.mark.slow
def test_a_family_that_is_left_out_is_not_seen(found):
    """Labels of one family are turned over: what is said of that family stays as it was."""
    pytest.importorskip("sklearn")
    own = found.family == "family 0"
    turned = np.where(own, ~found.is_predictable, found.is_predictable)
    make = models()[CHOSEN]
    said = [left_out_scores(make, folds(found.features, label, found.family), label)[own]
            for label in (found.is_predictable, turned)]
    assert said[0] == pytest.approx(said[1], abs=1e-9)


def test_the_area_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    values, label = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in values[label] for b in values[~label]]
    assert area(values, label) == pytest.approx(np.mean(pairs))
    assert math.isnan(area(values, np.ones(60, dtype=bool)))


def test_scores_know_the_rarer_class():
    label = np.array([True] * 8 + [False] * 2)
    perfect = scores("x", label.astype(float), label, np.array(["a", "b"] * 5))
    assert (perfect.auc[0], perfect.balanced, perfect.minority_f1) == (1.0, 1.0, 1.0)
    always = scores("x", np.ones(10), label, np.array(["a", "b"] * 5))
    assert (always.balanced, always.minority_f1) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([], "no prefix"),
        ([TrainingRun("a", SAMPLES[:3], np.array([3.0, 2.0, 1.0]), 30.0)], "each run has too few losses, or equal"),
        ([TrainingRun("a", SAMPLES, np.full(60, 2.0), 600.0)], "each run has too few losses, or equal"),
        ([TrainingRun("a", SAMPLES, np.full(60, math.nan), 600.0)], "each run has too few losses, or equal"),
        ([TrainingRun("a", SAMPLES, np.linspace(1, 2, 60), 600.0)], "the loss does not fall"),
        (runs(families=1), "one family only"),
        (runs(each=2, kinds=("wanders",))[:1], "unpredictable prefixes only"),
    ],
)
def test_a_history_that_teaches_nothing_is_refused(history, words):
    pytest.importorskip("sklearn")
    with pytest.raises(ConfigError, match=words):
        train(prefixes(history))


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch):
    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest, **named: (_ for _ in ()).throw(
        ImportError(name)) if name.startswith("sklearn") else real(name, *rest, **named))
    with pytest.raises(ConfigError, match="pip install"):
        models()
