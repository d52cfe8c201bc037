"""Curves through losses: known answers, reports that are not as they should be, and intervals that cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.convergence import POINTS_MAX, CannotSay, Convergence, cleaned, convergence


def curve(samples, b0: float, b1: float, b2: float):
    return 1 / (b0 * np.asarray(samples) + b1) + b2


def fitted(samples, loss) -> Convergence:
    found = convergence(np.asarray(samples, dtype=float), np.asarray(loss, dtype=float))
    assert isinstance(found, Convergence), found
    return found


def test_the_curve_of_the_papers_is_found_again_and_says_when_a_loss_is_reached() -> None:
    """l(k) = 1 / (0.002 k + 0.5) + 0.3: 0.8 at k = 750, 0.5 at k = 2250."""
    samples = np.arange(1, 101) * 10.0
    found = fitted(samples, curve(samples, 0.002, 0.5, 0.3))
    assert found.loss_at(2250.0).value == pytest.approx(0.5, rel=0.01)
    assert found.samples_left(0.5).value == pytest.approx(1250, rel=0.03)
    assert found.samples_left(0.8).value == 0.0  # it was reached at 750
    b0, b1, b2 = found.parameters
    assert (b0, b1, b2) == pytest.approx((0.002, 0.5, 0.3), rel=0.05)


def test_a_loss_that_the_curve_never_reaches_takes_for_ever() -> None:
    samples = np.arange(1, 101) * 10.0
    assert fitted(samples, curve(samples, 0.002, 0.5, 0.3)).samples_left(0.25).value == math.inf


@given(
    b0=st.floats(1e-4, 1.0), b1=st.floats(0.0, 2.0), b2=st.floats(0.0, 3.0), scale=st.floats(1e-3, 1e6),
    height=st.floats(1e-3, 1e3), noise=st.floats(0.0, 0.2), seed=st.integers(0, 10_000), count=st.integers(4, 40),
)
def test_parameters_are_not_negative_answers_do_not_rise_and_units_do_not_matter(
    b0, b1, b2, scale, height, noise, seed, count
) -> None:
    samples = np.arange(1, count + 1) * 7.0
    off = 1 + noise * np.random.default_rng(seed).normal(size=count)
    loss = np.maximum(curve(samples, b0, b1 + 0.1, b2) * off, 0)
    one, other = convergence(samples, loss), convergence(samples * scale, loss * height)
    if isinstance(one, CannotSay) or isinstance(other, CannotSay):
        return
    assert min(one.parameters) >= 0
    ahead = [one.loss_at(k).value for k in (samples[-1], samples[-1] * 2, samples[-1] * 10)]
    assert sorted(ahead, reverse=True) == ahead
    low, high = ahead[-1], ahead[0]
    for target in (low, (low + high) / 2, high):
        left = one.samples_left(target)
        assert 0 <= left.low <= left.value <= left.high
    assert other.loss_at(samples[-1] * 2 * scale).value == pytest.approx(ahead[1] * height, rel=1e-6)


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([], CannotSay.TOO_FEW), ([3.0, 2.0, 1.0], CannotSay.TOO_FEW), ([math.nan] * 3, CannotSay.TOO_FEW),
        ([2.0] * 30, CannotSay.DOES_NOT_FALL), (list(range(1, 30)), CannotSay.DOES_NOT_FALL),
        ([0.0] * 10, CannotSay.DOES_NOT_FALL),
        ([3.0, 2.0, 1.5, 1.2, 1.0] + [math.nan] * 4, CannotSay.NOT_FINITE),
        ([3.0, 2.0, 1.5, 1.2, 1.0] + [math.inf] * 9, CannotSay.NOT_FINITE),
    ],
)
def test_what_cannot_be_said_has_a_reason(losses, why) -> None:
    assert convergence(np.arange(1.0, len(losses) + 1), np.array(losses, dtype=float)) is why


def test_single_reports_that_are_not_finite_or_far_off_change_nothing() -> None:
    samples = np.arange(1, 101) * 10.0
    loss = curve(samples, 0.002, 0.5, 0.3)
    spoilt = loss.copy()
    spoilt[[5, 60]], spoilt[80], spoilt[90] = math.nan, math.inf, 1e9
    found, clean = (fitted(samples, one).loss_at(2000).value for one in (spoilt, loss))
    assert found == pytest.approx(clean, rel=0.01)


def test_reports_after_a_checkpoint_replace_those_that_were_made_again() -> None:
    """The job goes back from 600 to 300 samples, with other losses."""
    first, again = np.arange(1, 61) * 10.0, np.arange(31, 101) * 10.0
    samples = np.concatenate((first, again))
    loss = np.concatenate((curve(first, 0.002, 0.5, 5.0), curve(again, 0.002, 0.5, 0.3)))
    reports = cleaned(samples, loss)
    assert not isinstance(reports, CannotSay)
    assert reports.samples.tolist() == (np.arange(1, 101) * 10.0).tolist()
    assert reports.loss[31:].max() < 2.0


def test_many_reports_are_averaged_down() -> None:
    samples = np.arange(1, 100_001) * 1.0
    reports = cleaned(samples, curve(samples, 1e-4, 0.5, 0.3))
    assert not isinstance(reports, CannotSay)
    assert len(reports.samples) <= POINTS_MAX
    assert fitted(samples, curve(samples, 1e-4, 0.5, 0.3)).loss_at(2e5).value == pytest.approx(
        1 / (20 + 0.5) + 0.3, rel=0.01)


def test_the_interval_covers_the_curve_about_as_often_as_it_says() -> None:
    """200 curves with noise of 2 %: the loss that the curve has 20 % ahead lies in the interval of 80 %."""
    rng, samples, covered = np.random.default_rng(0), np.arange(1, 61) * 10.0, 0
    for _ in range(200):
        b0, b1, b2 = rng.uniform(0.001, 0.02), rng.uniform(0.2, 1.0), rng.uniform(0.1, 1.0)
        clean = curve(samples, b0, b1, b2)
        found = fitted(samples, clean * (1 + 0.02 * rng.normal(size=60))).loss_at(720.0)
        covered += found.low <= curve(720.0, b0, b1, b2) <= found.high
    assert 0.6 <= covered / 200 <= 0.95
