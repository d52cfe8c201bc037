"""How many samples a training job needs until a loss, or until it hardly learns: a falling curve through its losses.

    loss(k) = 1 / (b0 k + b1) + b2,    b0, b1, b2 >= 0,    k in samples

An answer has an interval, and where the reports carry none there is none: ``CannotSay`` names the reason.

Shapes: N reports; R curves, of which the first is the fit, and the others say how far it can be off.

Source: the curve and its non-negative fit are those of Peng et al., Optimus, EuroSys 2018, and of AITurbo, HPDC 2021.
Ours: what is done with reports first, the exact fit, the interval, and that the first third of the run does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from brim.core.arrays import FloatArray, frozen

POINTS_MIN: Final = 4
"""Fewest reports of which a curve with three parameters says more than they do themselves."""
POINTS_MAX: Final = 300
"""Neighbours are averaged until no more are left (AITurbo's slides)."""
SKIPPED: Final = 1 / 3
"""Part of the samples so far, from the first on, of which reports do not count. Ours: docs/decisions/0023."""
_SHIFTS: Final[FloatArray] = frozen(np.concatenate((np.zeros(1), np.geomspace(1e-3, 30.0, 40))))
"""``b1 / b0`` over the samples so far. With the largest, the curve is a straight line."""
_LEVELS: Final = (0.1, 0.9)


class CannotSay(StrEnum):
    """Why nothing is believed of a job's losses."""

    TOO_FEW = "fewer than 4 losses"
    NOT_FINITE = "the newest losses are not finite"
    DOES_NOT_FALL = "the loss does not fall"


class Estimate(NamedTuple):
    """A number and the interval that covers it with probability 0.8 if the curve has the right form.

    Attributes:
        value: The answer; infinite for what is never reached.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


class Losses(NamedTuple):
    """Reports in increasing order of samples.

    Attributes:
        samples: Samples by then (N,).
        loss: Loss at that moment (N,).
    """

    samples: FloatArray
    loss: FloatArray


def cleaned(samples: FloatArray, loss: FloatArray) -> Losses | CannotSay:
    """Return the reports from which a curve can be fitted, or why there is none.

    Where a job goes back to a checkpoint, its newer reports replace those that it had made from there on. Numbers that
    are not finite are left out, and the median of a report and its two neighbours takes its place.

    Args:
        samples: Samples by each report, in the order of the reports (N,).
        loss: The losses (N,).
    """
    known = np.isfinite(samples) & np.isfinite(loss) & (samples > 0)
    if len(loss) >= POINTS_MIN and not known[-POINTS_MIN:].any():
        return CannotSay.NOT_FINITE
    samples, loss = samples[known], loss[known]
    later = np.minimum.accumulate(samples[::-1])[::-1]  # the least that a report from then on stands for
    kept = np.append(samples[:-1] < later[1:], True) if len(samples) else np.zeros(0, dtype=bool)
    samples, loss = samples[kept], loss[kept]
    if len(samples) < POINTS_MIN:
        return CannotSay.TOO_FEW
    loss = _of_three(np.append(loss[:1], loss[:-1]), loss, np.append(loss[1:], loss[-1:]))
    groups = -(-len(loss) // POINTS_MAX)
    if groups > 1:
        starts = np.arange(0, len(loss), groups)
        count = np.diff(np.append(starts, len(loss)))
        samples, loss = np.add.reduceat(samples, starts) / count, np.add.reduceat(loss, starts) / count
    return Losses(samples, loss)


def _of_three(one: FloatArray, other: FloatArray, third: FloatArray) -> FloatArray:
    """The median of each three (N,)."""
    return np.maximum(np.minimum(one, other), np.minimum(np.maximum(one, other), third))


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Falling curves through the losses of one job: ``height / (k / scale + shift) + floor``.

    Attributes:
        samples: Samples by the newest report.
        scale: Samples that are 1 in the curves.
        height: Of each curve, > 0 (R,).
        shift: Of each curve, >= 0 (R,).
        floor: What each curve falls to, >= 0 (R,).
        deviation: Standard deviation of the reports around the first curve.
    """

    samples: float
    scale: float
    height: FloatArray
    shift: FloatArray
    floor: FloatArray
    deviation: float

    @property
    def parameters(self) -> tuple[float, float, float]:
        """``b0``, ``b1`` and ``b2`` of the fit."""
        height, shift = float(self.height[0]), float(self.shift[0])
        return 1 / (height * self.scale), shift / height, float(self.floor[0])

    def loss_at(self, samples: float) -> Estimate:
        """The loss after so many samples."""
        return _estimate(self.height / (samples / self.scale + self.shift) + self.floor)

    def samples_left(self, loss: float) -> Estimate:
        """Samples until this loss; infinite if it is not above what the curve falls to, 0 if it is reached."""
        above = loss - self.floor
        reached = np.divide(self.height, above, out=np.full(len(above), np.inf), where=above > 0) - self.shift
        return self._left(reached)

    def _left(self, reached: FloatArray) -> Estimate:
        return _estimate(np.maximum(reached * self.scale - self.samples, 0.0))


def _estimate(answers: FloatArray) -> Estimate:
    ordered, value = np.sort(answers), float(answers[0])
    low, high = (float(ordered[round(level * (len(answers) - 1))]) for level in _LEVELS)
    return Estimate(value, min(low, value), max(high, value))


def fit(reports: Losses, *, interval: bool = True) -> Convergence | CannotSay:
    """Fit the curve to the reports after the first third of the samples, at least four.

    The shift is searched on a grid; for each, the other two parameters are the exact non-negative least squares. The
    other curves are fitted to the fit plus its residuals, moved around the series by each number of places: that keeps
    how residuals of neighbours go together, and draws nothing.

    Args:
        reports: What ``cleaned`` returned.
        interval: Whether to fit the other curves; without them, every interval is a point.
    """
    samples, loss = reports
    scale = float(samples[-1])
    first = min(int(np.searchsorted(samples, SKIPPED * scale)), len(samples) - POINTS_MIN)
    place, loss = samples[first:] / scale, loss[first:]
    largest = float(np.abs(loss).max()) or 1.0
    grid = _grid(1.0 / (place + _SHIFTS[:, None]))
    height, shift, floor = _least_squares(grid, loss[None] / largest)
    if not height[0] > 0:
        return CannotSay.DOES_NOT_FALL
    fitted = height[0] / (place + shift[0]) + floor[0]
    residual = loss / largest - fitted
    if interval:
        places = np.arange(len(residual))
        others = _least_squares(grid, fitted + residual[places - places[1:, None]])
        height, shift, floor = (
            np.concatenate((one, other)) for one, other in zip((height, shift, floor), others, strict=True)
        )
    return Convergence(
        samples=scale, scale=scale, height=height * largest, shift=shift, floor=floor * largest,
        deviation=float(residual.std()) * largest,
    )


class _Grid(NamedTuple):
    """What all series have in common: the curve with height 1 and floor 0 at each report, for each shift.

    Attributes:
        rise: The curve (Q, N).
        middle: Its mean over the reports (Q,).
        centred: What it differs from that (Q, N).
        square: Sum of squares of the latter (Q,).
        whole_square: Sum of squares of the former (Q,).
    """

    rise: FloatArray
    middle: FloatArray
    centred: FloatArray
    square: FloatArray
    whole_square: FloatArray


def _grid(rise: FloatArray) -> _Grid:
    middle = rise.sum(axis=1) / rise.shape[1]
    centred = rise - middle[:, None]
    return _Grid(rise, middle, centred, (centred**2).sum(axis=1), (rise**2).sum(axis=1))


def _least_squares(grid: _Grid, loss: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Height, shift and floor, >= 0, of the best curve through each series (R, N)."""
    count = loss.shape[1]
    mean = loss.sum(axis=1, keepdims=True) / count
    product = (loss - mean) @ grid.centred.T
    height = np.maximum(product / grid.square, 0.0)
    floor = mean - height * grid.middle
    if (floor < 0).any():
        through_zero = np.maximum(loss @ grid.rise.T / grid.whole_square, 0.0)
        height, floor = np.where(floor < 0, through_zero, height), np.maximum(floor, 0.0)
    off = height**2 * grid.square - 2 * height * product + count * (mean - height * grid.middle - floor) ** 2
    best = off.argmin(axis=1)
    rows = np.arange(len(loss))
    return height[rows, best], _SHIFTS[best], floor[rows, best]


def convergence(samples: FloatArray, loss: FloatArray) -> Convergence | CannotSay:
    """Return the curve through the losses that a job has reported, or why nothing can be said.

    Args:
        samples: Samples by each report, in the order of the reports (N,).
        loss: The losses (N,).
    """
    reports = cleaned(samples, loss)
    return reports if isinstance(reports, CannotSay) else fit(reports)
