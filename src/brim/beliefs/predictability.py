"""Whether the curve through a job's losses says where it ends: a probability, from features known by now.

A classifier is a logistic regression of features that are put on a normal scale first, and of their products with
how far ahead the end is: what tells much late in a run may tell little early. It is trained where scikit-learn is
(``predictability_training.py``) and used without it: numbers of a small file, and a sum.

Shapes: F features, K knots of each, M prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from brim.beliefs.curve_features import FEATURES
from brim.beliefs.toml_files import parse_toml, read_toml
from brim.core.arrays import FloatArray, frozen
from brim.errors import ConfigError

CUT: Final = 0.4
"""Probability from which a job counts as predictable. Ours: near the share of predictable prefixes among those that the
default was trained on, so that both classes weigh the same (AITurbo's successor: 0.5 of balanced classes)."""
KNOTS: Final = 21
"""Quantiles of each feature that are kept."""
LEVELS: Final[FloatArray] = frozen(
    np.array([NormalDist().inv_cdf(part) for part in np.linspace(0.02, 0.98, KNOTS).tolist()])
)
"""The normal scale at these quantiles (K,): what lies beyond the first and last counts as they do."""
FIRST: Final = next(iter(FEATURES))
"""The feature with which all others are multiplied: how far ahead the end is."""
TOLD: Final = 4
"""Features that are named as evidence."""
_FILE: Final = "predictability.toml"


class Evidence(NamedTuple):
    """A feature in plain words, its value, and whether it speaks for or against a predictable job."""

    words: str
    value: float
    side: Literal["for", "against"]


class Scale(NamedTuple):
    """How a feature is put on a normal scale: straight lines between the knots, and flat beyond them.

    Attributes:
        knots: Quantiles of the feature in the training data, in increasing order; some may be equal (K,).
        values: The knots without repeats.
        levels: The normal scale at these; of equal knots, the mean.
    """

    knots: FloatArray
    values: FloatArray
    levels: FloatArray


def scale_of(knots: FloatArray) -> Scale:
    """The scale with these knots (K,)."""
    values, place, count = np.unique(knots, return_inverse=True, return_counts=True)
    return Scale(frozen(knots), frozen(values), frozen(np.bincount(place, LEVELS) / count))


def scaled(features: FloatArray, scales: Sequence[Scale]) -> FloatArray:
    """Put features on their scales (M, F)."""
    columns = [np.interp(column, of.values, of.levels) for column, of in zip(features.T, scales, strict=True)]
    return np.stack(columns, axis=1)


def with_products(on_scales: FloatArray) -> FloatArray:
    """Features on their scales (M, F), and the product of each with the first (M, 2 F)."""
    return np.concatenate((on_scales, on_scales * on_scales[:, :1]), axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A logistic regression on a normal scale.

    Attributes:
        names: Features that it reads, ``FIRST`` the first (F,).
        scales: Of each.
        weights: Of each on the normal scale, above 0 where it speaks for a predictable job, then of its product with
            the first (2 F,).
        intercept: Of the logistic regression, calibrated on families that were left out.
        about: What it was trained on, in a line.
    """

    names: tuple[str, ...]
    scales: tuple[Scale, ...]
    weights: FloatArray
    intercept: float
    about: str

    def probability(self, features: FloatArray) -> FloatArray:
        """Probability of each of some prefixes that the job's end is predicted (M,).

        Args:
            features: In the order of ``FEATURES`` (M, all).
        """
        says = with_products(self._scaled(features)) @ self.weights + self.intercept
        found: FloatArray = 1.0 / (1.0 + np.exp(-says))
        return found

    def evidence(self, features: FloatArray) -> tuple[Evidence, ...]:
        """The features of one prefix that speak most for or against, the strongest first.

        Args:
            features: In the order of ``FEATURES`` (all,).
        """
        says = (with_products(self._scaled(features[None]))[0] * self.weights).reshape(2, -1).sum(axis=0)
        strongest = np.argsort(-np.abs(says), kind="stable")[:TOLD].tolist()
        values = dict(zip(FEATURES, features.tolist(), strict=True))
        return tuple(
            Evidence(FEATURES[self.names[row]], values[self.names[row]], "for" if says[row] > 0 else "against")
            for row in strongest if says[row]
        )

    def _scaled(self, features: FloatArray) -> FloatArray:
        order = list(FEATURES)
        return scaled(features[:, [order.index(name) for name in self.names]], self.scales)


@cache
def default() -> Classifier:
    """The classifier that comes with brim; the file says what it was trained on."""
    return parse(files("brim.beliefs").joinpath("profiles", _FILE).read_text("utf-8"), _FILE)


def load(path: str, option: str = "--predictability") -> Classifier:
    """Read a classifier that ``brim predictability fit`` wrote.

    Raises:
        NotFoundError: the file cannot be read.
        ConfigError: it is broken.
    """
    return parse(read_toml(path, option, "a file of brim predictability fit"), path)


def parse(text: str, file: str) -> Classifier:
    """Read a classifier from TOML; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, lacks a field, names another feature, or has an impossible value.
    """
    content = parse_toml(text, file)
    entries = content.get("feature")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{file}: found no 'feature' tables, expected a file of brim predictability fit")
    names = [entry.get("name") for entry in entries]
    for name in names:
        if name not in FEATURES or names.count(name) > 1:
            raise ConfigError(f"{file}: found feature {name!r}, expected each once of {', '.join(FEATURES)}")
    if names[0] != FIRST:
        raise ConfigError(f"{file}: found feature {names[0]!r} first, expected {FIRST!r}")
    knots = [np.array(_numbers(entry, "knots", KNOTS, f"{file}, feature {entry['name']}")) for entry in entries]
    if any((np.diff(of) < 0).any() for of in knots):
        raise ConfigError(f"{file}: found knots that fall, expected quantiles in increasing order")
    weights = [_number(entry, field, f"{file}, feature {entry['name']}")
               for field in ("weight", "weight_of_product") for entry in entries]
    about = content.get("data")
    return Classifier(
        tuple(names), tuple(map(scale_of, knots)), frozen(np.array(weights)), _number(content, "intercept", file),
        about if isinstance(about, str) else "",
    )


def _number(content: Mapping[str, Any], field: str, where: str) -> float:
    value = content.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise ConfigError(f"{where}: found {field}={value!r}, expected a number")
    return float(value)


def _numbers(content: Mapping[str, Any], field: str, count: int, where: str) -> list[float]:
    values = content.get(field)
    if not isinstance(values, list) or len(values) != count:
        raise ConfigError(f"{where}: found {field} that are not {count} numbers")
    return [_number({field: value}, field, where) for value in values]
