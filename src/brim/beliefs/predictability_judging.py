"""How good a classifier of predictable jobs is on families that it has not seen. Needs scikit-learn.

Families (types of jobs, kinds of work) are left out as a whole: rows of one family are too alike for less.

Shapes: M prefixes, F features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import kendalltau, pearsonr, spearmanr
from scipy.stats import t as student

from brim.beliefs.predictability import CUT, KNOTS, Scale, scale_of, scaled, with_products
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.errors import ConfigError

PENALTY: Final = 0.03
"""Inverse strength of the penalty of the logistic regression. Ours: of 0.003 to 0.1, all within 0.002 AUC, the best on
left-out families of brim's own curves."""
WEAK: Final = 0.05
"""Largest correlation of a feature that is left out, if its importance is below half of the mean too. The five
strongest alone, as in AITurbo's slides, were worse on families left out: docs/decisions/0026."""
FOLDS_MAX: Final = 12
"""Parts of a cross-validation: a part is a family, or several where there are more families. Ours."""
TRAINED_MAX: Final = 3000
"""Prefixes that a classifier is trained on, each so-and-so-many-th of more. Ours: support vectors take the square."""
CHOSEN: Final = "logistic regression"


class Scores(NamedTuple):
    """How good a classifier is on families that it has not seen.

    Attributes:
        name: The classifier, or the feature.
        auc: Area under the curve over all prefixes together, with its interval of 95 % over families.
        family_auc: Mean of the areas of each family, with its interval.
        balanced: Balanced accuracy at ``CUT``.
        minority_f1: F1 of the rarer class.
    """

    name: str
    auc: tuple[float, float, float]
    family_auc: tuple[float, float, float]
    balanced: float
    minority_f1: float


def scores(name: str, probability: FloatArray, label: BoolArray, family: Any) -> Scores:
    """Judge probabilities that were given to prefixes of families that were left out (M,)."""
    kinds = sorted(set(family.tolist()))
    apart = [area(probability[family == kind], label[family == kind]) for kind in kinds]
    without = [area(probability[family != kind], label[family != kind]) for kind in kinds]
    pooled = area(probability, label)
    called, rare = probability >= CUT, bool(label.mean() <= 0.5)
    hits = float(np.sum((called == rare) & (label == rare)))
    both = [np.mean(called[label == value] == value) for value in (True, False) if (label == value).any()]
    return Scores(
        name, _jackknifed(pooled, without), _mean_interval(apart), float(np.mean(both)),
        2 * hits / max(float(np.sum(called == rare) + np.sum(label == rare)), 1.0),
    )


def area(probability: FloatArray, label: BoolArray) -> float:
    """Part of the pairs of one of each class that are in the right order, ties counting half; NaN for one class."""
    if label.all() or not label.any():
        return np.nan
    for_label, others = np.sort(probability[label]), probability[~label]
    below = np.searchsorted(for_label, others, side="left") + np.searchsorted(for_label, others, side="right")
    return float(1 - below.mean() / (2 * len(for_label)))


def _mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    known = np.array(values)[np.isfinite(values)]
    if len(known) < 2:
        return (float(known.mean()) if len(known) else np.nan, np.nan, np.nan)
    off = float(student.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return float(known.mean()), float(known.mean()) - off, min(float(known.mean()) + off, 1.0)


def _jackknifed(pooled: float, without: Sequence[float]) -> tuple[float, float, float]:
    """The value with its interval, from what it is without each family."""
    known = np.array(without)[np.isfinite(without)]
    if len(known) < 2:
        return pooled, np.nan, np.nan
    count = len(known)
    off = float(student.ppf(0.975, count - 1) * np.sqrt((count - 1) / count * np.sum((known - known.mean()) ** 2)))
    return pooled, pooled - off, min(pooled + off, 1.0)


def models() -> dict[str, Callable[[], Any]]:
    """The five classifiers of AITurbo's slides, on features that are scaled already.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415 - only who trains needs it
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
        from sklearn.neighbors import KNeighborsClassifier  # noqa: PLC0415
        from sklearn.neural_network import MLPClassifier  # noqa: PLC0415
        from sklearn.pipeline import make_pipeline  # noqa: PLC0415
        from sklearn.preprocessing import FunctionTransformer  # noqa: PLC0415
        from sklearn.svm import SVC  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "training a classifier needs scikit-learn, which is not installed: pip install 'brim[predictability]'"
        ) from None
    return {
        "nearest neighbours": lambda: KNeighborsClassifier(50),
        CHOSEN: lambda: make_pipeline(
            FunctionTransformer(with_products), LogisticRegression(C=PENALTY, class_weight="balanced", max_iter=2000)),
        "random forest": lambda: RandomForestClassifier(
            100, min_samples_leaf=10, class_weight="balanced", random_state=0),
        "support vectors": lambda: SVC(C=0.3, gamma=0.01, class_weight="balanced"),
        "perceptron": lambda: MLPClassifier((16,), alpha=1.0, max_iter=300, random_state=0),
    }


class Fold(NamedTuple):
    """Families that are left out, and what a classifier for them is trained on.

    Attributes:
        test: Prefixes of these families (M,).
        features: Of the others, scaled, those that are not weak.
        label: Of the others.
        asked: Features of these families, scaled in the same way.
    """

    test: BoolArray
    features: FloatArray
    label: BoolArray
    asked: FloatArray


def folds(features: FloatArray, label: BoolArray, family: Any) -> list[Fold]:
    """Leave out each family in turn; features are chosen and scaled on the others only.

    Raises:
        ConfigError: the others have one class only.
    """
    kinds = sorted(set(family.tolist()))
    number = np.array([kinds.index(kind) % FOLDS_MAX for kind in family.tolist()])
    found = []
    for one in range(min(len(kinds), FOLDS_MAX)):
        test = number == one
        if label[~test].all() or not label[~test].any():
            raise ConfigError("without one of its families, the history has prefixes of one class only")
        thin = thinned(np.flatnonzero(~test))
        columns = strong_columns(features[thin], label[thin])
        scales = fitted_scales(features[thin][:, columns])
        found.append(Fold(
            test, scaled(features[thin][:, columns], scales), label[thin],
            scaled(features[test][:, columns], scales)))
    return found


def left_out(make: Callable[[], Any], of: Sequence[Fold], label: BoolArray) -> FloatArray:
    """Probability of each prefix by a classifier that has not seen its family (M,).

    The two numbers of its calibration are from what was said of the other families while they were left out.
    """
    said = left_out_scores(make, of, label)
    found = np.zeros(len(label))
    for fold in of:
        slope, offset = calibration(said[~fold.test], label[~fold.test])
        found[fold.test] = 1 / (1 + np.exp(-np.clip(slope * said[fold.test] + offset, -50, 50)))
    return found


def left_out_scores(make: Callable[[], Any], of: Sequence[Fold], label: BoolArray) -> FloatArray:
    """What a classifier that has not seen the family of a prefix says of it, before calibration (M,)."""
    found = np.zeros(len(label))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a perceptron that might learn more
        for fold in of:
            found[fold.test] = score_of(make().fit(fold.features, fold.label), fold.asked)
    return found


def thinned(rows: IntArray) -> IntArray:
    """Each so-and-so-many-th row, ``TRAINED_MAX`` of them at most."""
    return rows[:: -(-len(rows) // TRAINED_MAX)]


def score_of(model: Any, features: FloatArray) -> FloatArray:
    """Distance from the border of the two classes, or the logarithm of their odds."""
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(features))
    probability = np.clip(model.predict_proba(features)[:, 1], 1e-3, 1 - 1e-3)
    return np.asarray(np.log(probability / (1 - probability)))


def calibration(said: FloatArray, label: BoolArray) -> tuple[float, float]:
    """Slope and offset of the logistic curve from scores of left-out families to their labels (Platt)."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    found = LogisticRegression(C=1e3).fit(said[:, None], label)
    return max(float(found.coef_[0, 0]), 0.0), float(found.intercept_[0])


def fitted_scales(features: FloatArray) -> tuple[Scale, ...]:
    """The normal scale of each feature (M, F)."""
    return tuple(map(scale_of, np.quantile(features, np.linspace(0.02, 0.98, KNOTS), axis=0).T))


class Strength(NamedTuple):
    """How a feature goes with the label: three correlations, and its importance in a forest (the mean is 1)."""

    name: str
    pearson: float
    kendall: float
    spearman: float
    importance: float


def strengths(names: Sequence[str], features: FloatArray, label: BoolArray) -> list[Strength]:
    """How each feature goes with the label, in their order."""
    wanted, forest = label.astype(float), models()["random forest"]().fit(features, label)
    rows = []
    for name, column, importance in zip(names, features.T, forest.feature_importances_, strict=True):
        found = [0.0 if np.ptp(column) == 0 else float(of(column, wanted).statistic)
                 for of in (pearsonr, kendalltau, spearmanr)]
        rows.append(Strength(name, found[0], found[1], found[2], float(importance) * len(names)))
    return rows


def strong_columns(features: FloatArray, label: BoolArray) -> list[int]:
    """Columns of the features that are not weak by all four measures, and the first."""
    rows = strengths([""] * features.shape[1], features, label)
    return [column for column, row in enumerate(rows)
            if not column or max(map(abs, row[1:4])) >= WEAK or row.importance >= 0.5]
