"""Train the classifier of ``predictability.py`` on the losses of runs that have ended. Needs scikit-learn.

A prefix is a run of which only a part is seen. It is predictable if the curve through that part says the loss of the
run's end within a tenth of the drop since 5 % of the run.

Shapes: M prefixes, F features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from brim.beliefs.convergence import CannotSay
from brim.beliefs.curve_features import FEATURES, SINCE, end_of, seen
from brim.beliefs.predictability import Classifier, scaled
from brim.beliefs.predictability_judging import (
    CHOSEN,
    Scores,
    Strength,
    area,
    calibration,
    fitted_scales,
    folds,
    left_out,
    left_out_scores,
    models,
    scores,
    strengths,
    strong_columns,
    thinned,
)
from brim.core.arrays import BoolArray, FloatArray, IntArray, frozen
from brim.core.losses import LossBook
from brim.errors import ConfigError

PARTS: Final = (0.1, 0.15, 0.25, 0.35, 0.5, 0.7)
"""Parts of each run that are seen."""
GOOD: Final = 0.1
"""Largest error of the loss of the end, over the drop since ``SINCE`` of the run, of a prefix that is predictable."""
REPORTS_MIN: Final = 8
"""Fewest reports of a run whose end is worth a prediction."""


class TrainingRun(NamedTuple):
    """The reports of a run that has ended.

    Attributes:
        family: Type of the job, or kind of work.
        samples: Samples by each report, in their order.
        loss: The losses.
        planned: Samples at which its user planned the end; NaN where that is not known.
    """

    family: str
    samples: FloatArray
    loss: FloatArray
    planned: float = np.nan


class Prefixes(NamedTuple):
    """Runs of which a part is seen.

    Attributes:
        features: (M, F).
        names: Of the features.
        is_predictable: Whether the curve through that part says the loss of the end (M,).
        family: (M,).
        part: Which part is seen (M,).
        run: Number of the run (M,).
        predicted: Loss of the end that the curve says (M,).
        newest: Loss that was reported last (M,).
        end: Loss of the end (M,).
        drop: Drop since ``SINCE`` of the run (M,).
        silent: Of each prefix that says nothing: its family, its part, and the reason.
    """

    features: FloatArray
    names: tuple[str, ...]
    is_predictable: BoolArray
    family: Any
    part: FloatArray
    run: IntArray
    predicted: FloatArray
    newest: FloatArray
    end: FloatArray
    drop: FloatArray
    silent: tuple[tuple[str, float, CannotSay], ...]

    @property
    def cannot_say(self) -> Counter[CannotSay]:
        """How many prefixes say nothing, by reason."""
        return Counter(reason for _, _, reason in self.silent)


def prefixes(runs: Iterable[TrainingRun], parts: Sequence[float] = PARTS) -> Prefixes:
    """Return the prefixes of all runs with enough finite losses; those that say nothing are counted only."""
    rows: list[tuple[Any, ...]] = []
    features: list[tuple[float, ...]] = []
    silent: list[tuple[str, float, CannotSay]] = []
    for number, run in enumerate(runs):
        known = np.isfinite(run.samples) & ~np.isnan(run.loss) & (run.samples > 0)
        samples, loss = run.samples[known], run.loss[known]
        finite = np.flatnonzero(np.isfinite(loss))
        if len(finite) < REPORTS_MIN or np.ptp(loss[finite]) == 0:
            continue
        for part, now, points in _seen_parts(samples, loss, float(samples.max()), parts):
            curve = seen(*points, planned=run.planned if np.isfinite(run.planned) else np.inf)
            if isinstance(curve, CannotSay):
                silent.append((run.family, part, curve))
                continue
            last = float(samples.max()) if np.isfinite(run.planned) else end_of(now, np.inf)
            if last > samples.max():  # nobody planned its end, and it has not gone on for as long again
                continue
            end = float(loss[np.flatnonzero(samples >= last)[-1]])
            drop = float(loss[np.flatnonzero(samples >= SINCE * last)[0]]) - end
            predicted = curve.loss_at(last)
            is_good = bool(np.isfinite(drop) and drop > 0 and abs(predicted - end) <= GOOD * drop)
            features.append(curve.features)
            rows.append((is_good, run.family, part, number, predicted, curve.newest, end, drop))
    columns = zip(*rows, strict=True) if rows else ((),) * 8
    good, family, part_of, run_of, predicted_of, newest, ends, drops = map(np.array, columns)
    return Prefixes(
        np.array(features).reshape(-1, len(FEATURES)), tuple(FEATURES), good.astype(bool), family, part_of, run_of,
        predicted_of, newest, ends, drops, tuple(silent),
    )


def _seen_parts(
    samples: FloatArray, loss: FloatArray, last: float, parts: Sequence[float]
) -> Iterable[tuple[float, float, tuple[FloatArray, FloatArray]]]:
    """What a cluster keeps of the reports by each part of a run: the part, the samples, the points."""
    book, order = LossBook(), iter(zip(samples.tolist(), loss.tolist(), strict=True))
    pending = next(order, None)
    for part in sorted(parts):
        while pending is not None and pending[0] <= part * last:
            book.add(0, *pending)
            pending = next(order, None)
        yield part, part * last, book.freeze().of(0)


# -- training ---------------------------------------------------------------------------------------------------------


class TrainedClassifier(NamedTuple):
    """A classifier and how good it and others are on families that were left out.

    Attributes:
        classifier: To use.
        scores: Of the five classifiers.
        single: The best single feature.
        strengths: Of all features.
    """

    classifier: Classifier
    scores: list[Scores]
    single: Scores
    strengths: list[Strength]


def train(found: Prefixes, about: str = "") -> TrainedClassifier:
    """Judge all five classifiers, train the chosen one on everything, and calibrate it on left-out families.

    Raises:
        ConfigError: the prefixes are of one class or family only, or scikit-learn is missing.
    """
    check(found)
    label, family = found.is_predictable, found.family
    of = folds(found.features, label, family)
    judged = [scores(name, left_out(make, of, label), label, family) for name, make in models().items()]
    make, thin = models()[CHOSEN], thinned(np.arange(len(label)))
    columns = strong_columns(found.features[thin], label[thin])
    scales = fitted_scales(found.features[thin][:, columns])
    model = make().fit(scaled(found.features[thin][:, columns], scales), label[thin])
    slope, offset = calibration(left_out_scores(make, of, label), label)
    regression = model[-1]
    classifier = Classifier(
        tuple(found.names[column] for column in columns), scales, frozen(slope * regression.coef_[0]),
        float(slope * regression.intercept_[0] + offset), about,
    )
    return TrainedClassifier(
        classifier, judged, best_single(found), strengths(found.names, found.features[thin], label[thin]))


def best_single(found: Prefixes) -> Scores:
    """The feature that orders prefixes best by itself, its direction chosen on all of them."""
    best = None
    for name, column in zip(found.names, found.features.T, strict=True):
        sign = 1 if area(column, found.is_predictable) >= 0.5 else -1
        one = scores(name, sign * column, found.is_predictable, found.family)
        if best is None or one.auc[0] > best.auc[0]:
            best = one
    assert best is not None
    return best


def check(found: Prefixes) -> None:
    """Refuse prefixes that teach nothing.

    Raises:
        ConfigError: there are none, they are of one class, or of one family.
    """
    if not len(found.is_predictable):
        why = "; ".join(f"{count} times {reason}" for reason, count in found.cannot_say.items())
        why = why or "each run has too few losses, or equal ones"
        raise ConfigError(
            f"found no prefix of a run from which its end could be predicted ({why}), "
            f"expected runs with {REPORTS_MIN} finite losses or more that fall"
        )
    if found.is_predictable.all() or not found.is_predictable.any():
        kind = "predictable" if found.is_predictable.all() else "unpredictable"
        raise ConfigError(f"found {kind} prefixes only ({len(found.is_predictable)}), expected some of both classes")
    if len(set(found.family.tolist())) < 2:
        raise ConfigError(f"found one family only ({found.family[0]}), expected two or more: one is left out to judge")


def toml(trained: TrainedClassifier, card: dict[str, str]) -> str:
    """The file of a classifier, with its card.

    Args:
        trained: What ``train`` returned.
        card: Lines that say what it was trained on: data, licence, date and so on, by name.
    """
    own, chosen = trained.classifier, next(one for one in trained.scores if one.name == CHOSEN)
    lines = [f"{name} = {_text(value)}" for name, value in card.items()]
    lines += [
        f"auc = [{', '.join(f'{value:.3f}' for value in chosen.auc)}]  # left-out families, and its interval of 95 %",
        f"family_auc = [{', '.join(f'{value:.3f}' for value in chosen.family_auc)}]  # mean over left-out families",
        f"balanced_accuracy = {chosen.balanced:.3f}", f"minority_f1 = {chosen.minority_f1:.3f}",
        f"intercept = {own.intercept:.8g}",
    ]
    weights, of_products = own.weights.reshape(2, -1).tolist()
    for name, weight, of_product, scale in zip(own.names, weights, of_products, own.scales, strict=True):
        lines += ["", "[[feature]]", f'name = "{name}"', f"weight = {weight:.8g}",
                  f"weight_of_product = {of_product:.8g}",
                  f"knots = [{', '.join(f'{knot:.8g}' for knot in scale.knots.tolist())}]"]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    plain = value.replace("\\", "/").replace('"', "'")
    return '"' + "".join(sign if sign.isprintable() else " " for sign in plain) + '"'
