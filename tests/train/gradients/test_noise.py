"""Gradient noise and learning-rate rules."""

import math

import pytest
import torch

from brim.errors import ConfigError
from brim.train.gradients.noise import RULES, Noise, rule_for


def sampled(signal, sigma, dimension, workers, batch, steps, seed=0):
    """Gradients with known noise: the mean over batch/workers samples with variance sigma^2 per coordinate."""
    generator = torch.Generator().manual_seed(seed)
    noise = Noise(batch)
    for _ in range(steps):
        each = batch // workers
        means = signal + torch.randn(workers, dimension, generator=generator) * sigma / math.sqrt(each)
        noise.add(workers, batch, float(means.square().sum(1).mean()), float(means.mean(0).square().sum()))
    return noise


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_known_noise_is_found(workers):
    dimension, sigma, batch = 200, 3.0, 64
    signal = torch.full((dimension,), 0.2)
    noise = sampled(signal, sigma, dimension, workers, batch, 3000)
    assert noise.sqr == pytest.approx(float(signal.square().sum()), rel=0.1)
    assert noise.var == pytest.approx(dimension * sigma**2 / batch, rel=0.1)
    assert noise.scale_samples == pytest.approx(dimension * sigma**2 / float(signal.square().sum()), rel=0.2)


def test_the_gain_is_between_one_and_the_scale():
    noise = sampled(torch.full((50,), 0.1), 2.0, 50, 4, 64, 500)
    for scale in (1, 2, 8, 64):
        assert 1 <= noise.gain(scale) <= scale
    assert noise.gain(8) > noise.gain(2)
    phi = noise.scale_samples
    assert noise.gain(4) == pytest.approx((phi / 64 + 1) / (phi / 256 + 1))
    assert noise.gain(4) / 4 == pytest.approx((phi + 64) / (phi + 256))  # Pollux' efficiency of a batch of 256


def test_without_noise_a_larger_batch_gains_nothing():
    noise = sampled(torch.ones(10), 0.0, 10, 4, 64, 5)
    assert noise.gain(8) == pytest.approx(1.0)


def test_one_worker_and_numbers_that_are_not_finite_say_nothing():
    noise = Noise(8)
    noise.add(1, 8, 1.0, 1.0)
    noise.add(4, 8, math.inf, 1.0)
    assert (noise.steps, noise.gain(4), noise.scale_samples) == (0, 1.0, None)


def test_the_state_comes_back():
    noise, other = sampled(torch.ones(10), 1.0, 10, 4, 64, 5), Noise(1)
    other.load_state_dict(noise.state_dict())
    assert other.state_dict() == noise.state_dict()


@pytest.mark.parametrize(
    ("optimizer", "rule", "factor"), [("SGD", "auto", 4.0), ("AdamW", "auto", 2.0), ("RMSprop", "auto", 2.0),
    ("SGD", "sqrt", 2.0), ("SGD", "none", 1.0), ("AdamW", "linear", 4.0)],
)  # fmt: skip
def test_rules(optimizer, rule, factor):
    made = getattr(torch.optim, optimizer)([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert rule_for(made, rule)(Noise(8), 4.0) == factor


def test_a_rule_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="adascale"):
        rule_for(None, "cubic")
    assert set(RULES) == {"none", "linear", "sqrt", "adascale"}
