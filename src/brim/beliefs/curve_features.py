"""What the losses of a job show by some moment: the curve through them, and how far that can be trusted.

A feature follows from the losses until then and from what the user planned. No loss, metric or length of the end of a
run is in any: ``tests/beliefs/test_predictability.py`` plants one and sees that nothing changes.

Shapes: N reports, F features.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.convergence import POINTS_MIN, SKIPPED, CannotSay, Convergence, Losses, cleaned, fit
from brim.core.arrays import FloatArray

FEATURES: Final = {
    "ahead": "planned samples over those until now (logarithm)",
    "remaining": "part of the fall of the loss that is predicted to come",
    "held_back": "error, in the last fifth of the samples, of a fit without them",
    "held_back_bias": "by how much a fit without the last fifth of the samples is above the loss there",
    "refits_apart": "how far the ends that fits to 60, 80 and 100 % of the samples predict lie apart",
    "refits_trend": "by how much more loss at the end a fit to 60 % of the samples predicts than one to all",
    "width": "width of the interval of the loss at the end",
    "deviation": "deviation of the losses from the curve",
    "falling": "part of the reports whose loss is below that of the report before",
    "noise": "how much a loss differs from its neighbours",
    "last_fall": "fall since half of the samples",
    "fall_before": "fall from a quarter to half of the samples",
    "forms_apart": "by how much less loss at the end than the curve a straight line over log samples predicts",
    "bend": "how early the curve through the losses flattens (logarithm; less is earlier)",
    "floor": "loss that the curve falls to in the end, over the loss now",
    "gap": "by how much the newest loss is below the curve",
    "rise": "by how much the loss is above its least, over its range",
    "misfit": "deviation of the losses from the curve, over how much neighbours differ (logarithm)",
    "wave": "deviation of the losses from a parabola over the logarithm of the samples",
}
"""Names and words. Losses are over the fall from 5 % of the planned samples to the predicted end, unless said."""
SINCE: Final = 0.05
"""Part of the planned samples from which on the fall of the loss counts: most of the fall before says nothing."""
AHEAD: Final = 2.0
"""The end over the samples until now, where nobody planned one. Ours."""
LEAST_AHEAD: Final = 1.05
"""The least end over the samples until now, for a job that goes on after its planned end. Ours."""
LEAST_FALL: Final = 1e-3
"""Least fall that others are compared with, over the range of the losses: no feature is a division by nothing. Ours."""
WHITE: Final = 1.652
"""Median of the absolute second difference of white noise, over its standard deviation: 0.6745 times the root of 6."""
LARGEST: Final = 20.0
"""Largest absolute value of a feature. Ours."""


class FallingCurve(NamedTuple):
    """The curve ``height / (k / samples + shift) + floor`` through the losses so far, and what tells how good it is.

    Attributes:
        samples: Samples by the newest report.
        height: > 0.
        shift: >= 0.
        floor: >= 0.
        newest: Median loss of the three newest reports.
        newest_at: Samples by the middle one: where reports are few, the loss falls by much between it and the last.
        deviation: Standard deviation of the reports around the curve.
        features: In the order of ``FEATURES`` (F,).
    """

    samples: float
    height: float
    shift: float
    floor: float
    newest: float
    newest_at: float
    deviation: float
    features: tuple[float, ...]

    def loss_at(self, samples: float) -> float:
        """The loss after so many samples."""
        return self.height / (samples / self.samples + self.shift) + self.floor

    def samples_at(self, loss: float) -> float:
        """Samples at which the curve has this loss; infinite if it is not above what the curve falls to."""
        above = loss - self.floor
        return max(self.height / above - self.shift, 0.0) * self.samples if above > 0 else np.inf


def seen(samples: FloatArray, loss: FloatArray, planned: float = np.inf) -> FallingCurve | CannotSay:
    """What the losses so far show, or why nothing can be said.

    Args:
        samples: Samples by each report, in the order of the reports (N,).
        loss: The losses (N,).
        planned: Samples at which training ends at the latest, infinite where nobody planned it.
    """
    reports = cleaned(samples, loss)
    if isinstance(reports, CannotSay):
        return reports
    curve = fit(reports)
    if isinstance(curve, CannotSay):
        return curve
    found = _features(reports, curve, planned)
    assert found.keys() == FEATURES.keys()
    return FallingCurve(
        curve.samples, float(curve.height[0]), float(curve.shift[0]), float(curve.floor[0]),
        _median(reports.loss[-3:]), float(reports.samples[-2]), curve.deviation,
        tuple(np.clip(np.array([*found.values()]), -LARGEST, LARGEST).tolist()),
    )


def end_of(now: float, planned: float) -> float:
    """Samples at which the loss is predicted, for a job that has so many now."""
    return max(planned, LEAST_AHEAD * now) if np.isfinite(planned) else AHEAD * now


def _features(reports: Losses, curve: Convergence, planned: float) -> dict[str, float]:
    samples, loss = reports
    now, ahead = samples[-1], end_of(samples[-1], planned) / samples[-1]
    place, span = samples / now, max(float(np.ptp(loss)), 1e-300)
    end, here = curve.loss_at(ahead * now), _loss_at(curve, now)
    base = loss[min(int(np.searchsorted(place, SINCE * ahead)), len(loss) - 1)]
    fall = max(base - end.value, LEAST_FALL * span)
    late = place >= SKIPPED if np.count_nonzero(place >= SKIPPED) >= POINTS_MIN else place >= place[-POINTS_MIN]
    log, recent = np.log(place[late]), loss[late]
    line, wave = _polynomial(log, recent, 1), _polynomial(log, recent, 2)
    older, old = _held_back(reports, 0.8, ahead), _held_back(reports, 0.6, ahead)
    ends = [end.value, *(one.end for one in (older, old) if one is not None)]
    rough = _median(np.abs(np.diff(loss, 2)))
    then, before, earlier = (_around(place, loss, at) for at in (1.0, 0.5, 0.25))
    return {
        "ahead": np.log(ahead),
        "remaining": (here - end.value) / fall,
        "held_back": older.error / fall if older else 1.0,
        "held_back_bias": older.bias / fall if older else 0.0,
        "refits_apart": np.std(ends) / fall if len(ends) > 1 else 1.0,
        "refits_trend": (ends[-1] - ends[0]) / fall,
        "width": (end.high - end.low) / fall,
        "deviation": curve.deviation / fall,
        "falling": np.count_nonzero(np.diff(recent) < 0) / (len(recent) - 1),
        "noise": rough / fall,
        "last_fall": (before - then) / fall,
        "fall_before": (earlier - before) / fall,
        "forms_apart": (end.value - np.polyval(line, np.log(ahead))) / fall,
        "bend": np.log(curve.shift[0] + 1e-3),
        "floor": curve.floor[0] / max(abs(here), 1e-300),
        "gap": (here - loss[-1]) / fall,
        "rise": (then - loss.min()) / span,
        "misfit": np.log((curve.deviation + LEAST_FALL * fall) / (rough / WHITE + LEAST_FALL * fall)),
        "wave": np.std(recent - np.polyval(wave, log)) / fall,
    }


class _HeldBack(NamedTuple):
    """A fit to earlier reports: its root mean square error and bias at later ones, and the loss at the end."""

    error: float
    bias: float
    end: float


def _held_back(reports: Losses, part: float, ahead: float) -> _HeldBack | None:
    samples, loss = reports
    early = samples <= part * samples[-1]
    if np.count_nonzero(early) < POINTS_MIN:
        return None
    curve = fit(Losses(samples[early], loss[early]), interval=False)
    if isinstance(curve, CannotSay):
        return None
    off = curve.height[0] / (samples[~early] / curve.scale + curve.shift[0]) + curve.floor[0] - loss[~early]
    return _HeldBack(float(np.sqrt(np.mean(off**2))), float(np.mean(off)), _loss_at(curve, ahead * samples[-1]))


def _loss_at(curve: Convergence, samples: float) -> float:
    return float(curve.height[0] / (samples / curve.scale + curve.shift[0]) + curve.floor[0])


def _polynomial(log: FloatArray, loss: FloatArray, degree: int) -> FloatArray:
    """Coefficients of the least squares, the highest first, or of a constant where the points do not tell them."""
    powers = np.vander(log, degree + 1)
    return np.asarray(np.linalg.lstsq(powers, loss, rcond=None)[0], dtype=np.float64)


def _around(place: FloatArray, loss: FloatArray, at: float) -> float:
    """The median of the losses within 8 % of a place, or the loss there, on a line between its neighbours."""
    near = loss[np.abs(np.log(place / at)) < 0.08]
    return _median(near) if len(near) else float(np.interp(np.log(at), np.log(place), loss))


def _median(values: FloatArray) -> float:
    """What ``np.median`` says of numbers, in a fifth of its time."""
    ordered, half = np.sort(values), len(values) // 2
    return float(ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2)
