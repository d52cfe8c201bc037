"""Gradient noise from the logical workers of a step, and learning-rate rules for a changed batch size.

A step has the mean gradients of n workers, over batch/n samples each, and the mean of these. Two norms separate signal
from noise, as in McCandlish et al. 2018, appendix A, and in Pollux: with m the mean of the workers' squared norms and G
the squared norm of the mean,

    sqr = (n G - m) / (n - 1)                 squared norm of the true gradient, unbiased
    var = (m - G) batch / ((n - 1) base)      variance of a gradient over ``base`` samples, unbiased

Both are averaged over steps with exponential weights, corrected for the start, before they are divided. This needs no
additional backward pass or message: the norms are computed while gradients are summed.

Source: Pollux (OSDI'21) and its library's ``GradientNoiseScale``. Differs: workers are logical, so the estimate does
not depend on the number of ranks, and exists on a single one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from brim.errors import ConfigError

SMOOTHING = 0.999
"""Weight of the past after a step of ``base`` samples, from Pollux; after a step of twice as many, it is squared."""

Rule = Callable[["Noise", float], float]
"""Returns the factor on the learning rate for a batch ``scale`` times as large as at the start."""


class Noise:
    """Running estimate of the gradient noise, for choosing a batch size.

    Args:
        base: Global batch at the start, in samples.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self._sqr = self._var = self._weight = 0.0
        self.steps = 0

    def add(self, workers: int, batch: int, leaf_sq: float, total_sq: float) -> None:
        """Add the norms of one step, unless it has one worker only, or a norm is not finite.

        Args:
            workers: Number of workers, whose gradients were averaged.
            batch: Samples of the step.
            leaf_sq: Mean of the workers' squared norms.
            total_sq: Squared norm of their mean.
        """
        if workers < 2 or not (math.isfinite(leaf_sq) and math.isfinite(total_sq)):
            return
        sqr = (workers * total_sq - leaf_sq) / (workers - 1)
        var = (leaf_sq - total_sq) * batch / ((workers - 1) * self.base)
        keep = SMOOTHING ** (batch / self.base)
        self._sqr = keep * self._sqr + (1 - keep) * sqr
        self._var = keep * self._var + (1 - keep) * var
        self._weight = keep * self._weight + (1 - keep)
        self.steps += 1

    @property
    def sqr(self) -> float:
        """Squared norm of the true gradient; 0 before the first step."""
        return max(self._sqr / self._weight, 0.0) if self._weight else 0.0

    @property
    def var(self) -> float:
        """Variance of a gradient over ``base`` samples; 0 before the first step."""
        return max(self._var / self._weight, 0.0) if self._weight else 0.0

    @property
    def scale_samples(self) -> float | None:
        """The noise scale: the batch, in samples, at which noise equals signal; None while no signal is measured."""
        return self.var * self.base / self.sqr if self.sqr > 0 else None

    def gain(self, scale: float) -> float:
        """Return how many steps of ``base`` samples one step of ``scale`` times as many replaces: 1 to ``scale``."""
        if self.var + self.sqr <= 0:
            return 1.0
        return (self.var + self.sqr) / (self.var / scale + self.sqr)

    def state_dict(self) -> dict[str, Any]:
        """Return the estimate as plain numbers."""
        return {
            "base": self.base, "sqr": self._sqr, "var": self._var, "weight": self._weight, "steps": self.steps,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved numbers."""
        self.base, self.steps = state["base"], state["steps"]
        self._sqr, self._var, self._weight = state["sqr"], state["var"], state["weight"]


def unchanged(_: Noise, scale: float) -> float:
    """Keep the learning rate."""
    del scale
    return 1.0


def linear(_: Noise, scale: float) -> float:
    """Scale the rate in proportion to the batch, for SGD (Goyal et al. 2017)."""
    return scale


def square_root(_: Noise, scale: float) -> float:
    """Scale the rate by the square root, for Adam and similar optimizers (Malladi et al. 2022)."""
    return math.sqrt(scale)


def adascale(noise: Noise, scale: float) -> float:
    """Scale the rate by the gain in progress (AdaScale, Johnson et al. 2020)."""
    return noise.gain(scale)


RULES: dict[str, Rule] = {"none": unchanged, "linear": linear, "sqrt": square_root, "adascale": adascale}


def rule_for(optimizer: object, name: str = "auto") -> Rule:
    """Return the rule called ``name``; "auto" is "sqrt" for optimizers that divide by a second moment, else "linear".

    Raises:
        ConfigError: there is no such rule.
    """
    if name != "auto":
        if name not in RULES:
            raise ConfigError(f"lr_rule={name!r}: expected 'auto' or one of {', '.join(RULES)}")
        return RULES[name]
    family = type(optimizer).__name__.lower()
    return square_root if any(word in family for word in ("adam", "rmsprop", "adagrad", "adadelta")) else linear
