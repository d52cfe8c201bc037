"""Whether the curve through a job's losses says where it ends.

The features of a job at a moment follow from what was known by then: the losses so far. A loss or metric of the end of
a run is in none of them.

Shapes: N reports.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.convergence import CannotSay, Convergence, convergence
from brim.core.arrays import FloatArray

CUT: Final = 0.5
"""Probability from which a job counts as predictable (the public code of AITurbo's successor)."""


class Evidence(NamedTuple):
    """A feature in plain words, and its value."""

    words: str
    value: float


class FallingCurve(NamedTuple):
    """The curve ``height / (k / samples + shift) + floor`` through the losses so far, and what tells how good it is.

    Attributes:
        samples: Samples by the newest report.
        height: > 0.
        shift: >= 0.
        floor: >= 0.
        newest: Loss of the newest reports.
        deviation: Standard deviation of the reports around the curve.
        width: Width of the interval of the loss at twice the samples, over the fall of the curve until now.
    """

    samples: float
    height: float
    shift: float
    floor: float
    newest: float
    deviation: float
    width: float

    def loss_at(self, samples: float) -> float:
        """The loss after so many samples."""
        return self.height / (samples / self.samples + self.shift) + self.floor

    def samples_at(self, loss: float) -> float:
        """Samples at which the curve has this loss; infinite if it is not above what the curve falls to."""
        above = loss - self.floor
        return max(self.height / above - self.shift, 0.0) * self.samples if above > 0 else np.inf


def seen(samples: FloatArray, loss: FloatArray) -> FallingCurve | CannotSay:
    """What the losses so far show, or why nothing can be said.

    Args:
        samples: Samples by each report, in the order of the reports (N,).
        loss: The losses (N,).
    """
    curve = convergence(samples, loss)
    return curve if isinstance(curve, CannotSay) else _seen(curve, loss)


def _seen(curve: Convergence, loss: FloatArray) -> FallingCurve:
    ahead, here = curve.loss_at(2 * curve.samples), curve.loss_at(curve.samples).value
    fall = max(curve.loss_at(curve.samples / 10).value - here, 1e-12)
    known = loss[np.isfinite(loss)]
    return FallingCurve(
        curve.samples, float(curve.height[0]), float(curve.shift[0]), float(curve.floor[0]),
        float(np.median(known[-3:])), curve.deviation, (ahead.high - ahead.low) / fall,
    )


def probability_of(seen: FallingCurve) -> tuple[float, tuple[Evidence, ...]]:
    """Probability that the curve says where the job ends, and the evidence.

    Until a classifier is trained: the narrower the interval, the likelier.
    """
    return 1 / (1 + (seen.width / 0.3) ** 2), (Evidence("width of the interval of the loss ahead", seen.width),)
