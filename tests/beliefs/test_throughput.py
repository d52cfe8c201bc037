"""The step-time model: known answers, and a fit that finds what it was generated from and stays modest elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs import throughput
from brim.beliefs.throughput import (
    ALPHA_N,
    ALPHA_R,
    BETA_N,
    BETA_R,
    GAMMA,
    PARAMETERS,
    Observations,
    fit,
    fit_all,
    grad_s,
    spread,
    step_s,
    sync_s,
)
from brim.errors import ConfigError

BERT = np.array([0.18, 0.058, 0.23, 0.05, 1.15, 0.18, 1.9])
"""Of the size of Pollux's bert on T4 GPUs."""


@st.composite
def parameters(draw):
    exponents = st.floats(-3, 0)
    computing, across = 10 ** draw(exponents), 10 ** draw(exponents)
    share = draw(st.floats(0.1, 0.9))
    inside = across * draw(st.floats(0.05, 1))
    growth = draw(st.floats(0.05, 0.5))
    gamma = draw(st.floats(1, 5))
    return np.array([
        computing * share, computing * (1 - share) / 32, inside, inside * growth, across, across * growth, gamma,
    ])


def observe(truth, nodes, gpus, local_batch):
    nodes, gpus, batch = (np.asarray(column) for column in (nodes, gpus, local_batch))
    step = step_s(truth, nodes, gpus, batch)
    return Observations(nodes=nodes, gpus=gpus, local_batch=batch.astype(float), step_s=step,
                        sync_s=np.maximum(step - grad_s(truth, batch), 0.0))


def grid(truth, sizes=((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (3, 3), (4, 8))):
    cells = [(nodes, gpus, batch) for nodes, gpus in sizes for batch in (8, 16, 32, 64)]
    return observe(truth, *map(np.array, zip(*cells, strict=True)))


def test_known_answers():
    p = np.array([0.1, 0.01, 0.05, 0.02, 0.4, 0.1, 2.0])
    assert grad_s(p, 20) == pytest.approx(0.3)
    assert step_s(p, 1, 1, 20) == pytest.approx(0.3)
    assert sync_s(p, 1, 5) == pytest.approx(0.05 + 0.02 * 2)
    assert step_s(p, 2, 2, 20) == pytest.approx(0.5)  # 3, 4, 5
    assert step_s(p, 2, 2, 20, accumulation=3) == pytest.approx(0.5 + 3 * 0.3)
    p[GAMMA] = 1.0
    assert step_s(p, 2, 2, 20) == pytest.approx(0.7)


def test_jobs_broadcast_against_configurations():
    both = np.stack([BERT, BERT * 2])
    both[:, GAMMA] = 1.9
    steps = step_s(both[:, None, :], np.array([1, 1, 2]), np.array([1, 2, 8]), np.array([4, 4, 8]))
    assert steps.shape == (2, 3)
    assert steps[1] == pytest.approx(2 * steps[0])
    assert step_s(BERT, 2, 8, 8) == pytest.approx(steps[0, 2])


@given(parameters(), st.integers(1, 64), st.integers(1, 256), st.integers(1, 8), st.integers(0, 4))
def test_more_samples_more_peers_and_more_micro_steps_never_take_less_time(p, gpus, batch, nodes, extra):
    nodes = min(nodes, gpus)
    step = step_s(p, nodes, gpus, batch, extra)
    assert step >= grad_s(p, batch) * (extra + 1) * (1 - 1e-12)
    assert step >= sync_s(p, nodes, gpus)
    assert step_s(p, nodes, gpus, batch + 1, extra) >= step
    assert step_s(p, nodes, gpus + 1, batch, extra) >= step * (1 - 1e-12)
    assert step_s(p, nodes, gpus, batch, extra + 1) > step


@given(parameters())
def test_the_fit_predicts_what_it_was_generated_from(truth):
    seen = grid(truth)
    fitted = fit(seen)
    assert fitted.ok, fitted.status
    assert fitted.residual < 0.02
    assert (fitted.parameters >= 0).all()
    assert 1 <= fitted.parameters[GAMMA] <= 10
    beyond = step_s(fitted.parameters, 4, np.array([8, 16, 32]), np.array([24, 64, 16]))
    assert beyond == pytest.approx(step_s(truth, 4, np.array([8, 16, 32]), np.array([24, 64, 16])), rel=0.15)


def test_the_fit_recovers_parameters_that_show():
    slow = np.array([0.18, 0.02, 0.6, 0.15, 1.15, 0.3, 1.5])
    assert fit(grid(slow)).parameters == pytest.approx(slow, rel=0.1)


@given(parameters(), st.floats(0.01, 0.3), st.integers(0, 2**32 - 1))
def test_the_residual_is_the_noise(truth, noise, seed):
    seen = grid(truth)
    factors = np.exp(np.random.default_rng(seed).normal(0, noise, len(seen)))
    noisy = Observations(nodes=seen.nodes, gpus=seen.gpus, local_batch=seen.local_batch,
                         step_s=seen.step_s * factors, sync_s=seen.sync_s * factors)
    fitted = fit(noisy)
    assert fitted.ok, fitted.status
    assert fitted.residual < 1.6 * noise + 0.02


def test_the_fit_is_quick_because_its_derivatives_are_right(monkeypatch):
    calls, ours = [], throughput._residuals

    def counted(data, theta, center, width):
        residuals, jacobian = ours(data, theta, center, width)
        steps = 1e-6 * np.eye(theta.shape[-1])
        numeric = [(ours(data, theta + step, center, width)[0] - ours(data, theta - step, center, width)[0]) / 2e-6
                   for step in steps]
        assert jacobian == pytest.approx(np.moveaxis(np.array(numeric), 0, -1), abs=1e-4)
        calls.append(theta)
        return residuals, jacobian

    monkeypatch.setattr(throughput, "_residuals", counted)
    assert fit(grid(BERT)).ok
    assert len(calls) < 10


@given(st.lists(st.tuples(parameters(), st.integers(1, 6), st.floats(0, 0.1), st.booleans()), min_size=1, max_size=6))
def test_jobs_that_are_fitted_together_are_fitted_as_if_alone(jobs):
    cells = [(1, 1, 8), (1, 1, 16), (1, 2, 8), (2, 2, 8), (1, 4, 32), (2, 16, 8)]
    seen = []
    for truth, count, noise, _ in jobs:
        exact = observe(truth, *map(np.array, zip(*cells[:count], strict=True)))
        factor = 1.0 + noise * np.cos(np.arange(count))
        seen.append(Observations(nodes=exact.nodes, gpus=exact.gpus, local_batch=exact.local_batch,
                                 step_s=exact.step_s * factor, sync_s=exact.sync_s * factor))
    priors = [BERT * 2 if has_prior else None for *_, has_prior in jobs]
    together, alone = fit_all(seen, priors), [fit(*each) for each in zip(seen, priors, strict=True)]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.parameters.tolist() == theirs.parameters.tolist()
        assert (ours.ok, ours.status, ours.residual) == (theirs.ok, theirs.status, theirs.residual)


def test_a_fit_ends_where_it_begins_if_that_meets_the_observations(monkeypatch):
    steps, ours = [], throughput._step
    monkeypatch.setattr(throughput, "_step", lambda *given: steps.append(len(given[0])) or ours(*given))
    for cells in ([(1, 1, 8)], [(1, 1, 8), (1, 1, 16)], [(1, 2, 8)]):
        assert fit(observe(BERT, *zip(*cells, strict=True))).residual < 1e-12
    assert not steps
    fit(grid(BERT))
    assert steps


def drawn(num_jobs, count, seed):
    """Jobs with as many noisy observations each; exchange may take any part of their steps, also where none is seen."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(num_jobs):
        truth = 10 ** rng.uniform([-3, -4, -3, -3, -3, -3, 0], [0, -1, 0.5, 0, 0.5, 0, 1])
        gpus = 2 ** rng.integers(0, 6, count)
        exact = observe(truth, np.minimum(gpus, rng.integers(1, 4, count)), gpus, rng.choice([4.0, 8, 16, 64], count))
        factor = np.exp(rng.normal(0, rng.choice([0, 0.02, 0.1]), count))
        found.append(Observations(nodes=exact.nodes, gpus=exact.gpus, local_batch=exact.local_batch,
                                  step_s=exact.step_s * factor, sync_s=exact.sync_s * factor))
    return found


@pytest.mark.cases(2)
@pytest.mark.parametrize("count", [2, 6, 14])
@pytest.mark.parametrize("prior", [None, BERT])
def test_no_parameters_nearby_meet_the_observations_better(monkeypatch, count, prior):
    ends, descend = [], throughput._descend

    def watched(data, theta, center, width):
        theta, converged = descend(data, theta, center, width)
        ends.append((data, theta.copy(), center, width))
        return theta, converged

    monkeypatch.setattr(throughput, "_descend", watched)
    seen = drawn(150, count, seed=0)
    together = fit_all(seen, [prior] * len(seen))
    (data, theta, center, width), = ends
    assert all(fitted.ok for fitted in together)

    def squared_error(at):
        return np.square(throughput._residuals(data, at, center, width)[0]).sum(axis=-1)

    high = np.append(np.full(GAMMA, np.inf), np.log(10))
    assert (theta >= data.floor).all()
    assert (theta <= high).all()
    for away in (*np.eye(len(high)), *np.random.default_rng(1).normal(0, 1, (30, len(high)))):
        for step in (0.01, -0.01, 0.1, -0.1):
            near = np.clip(np.where(data.frozen, theta, theta + step * away), data.floor, high)
            assert (squared_error(near) > squared_error(theta) * 0.999 - 1e-9).all()
    for ours, own in zip(together, seen, strict=True):
        assert ours.parameters.tolist() == fit(own, prior).parameters.tolist()


def test_a_fit_that_finds_no_optimum_in_time_says_so(monkeypatch):
    monkeypatch.setattr(throughput, "STEPS_MAX", 2)
    fitted = fit(grid(BERT))
    assert not fitted.ok
    assert fitted.status == "no optimum within 2 steps"


def test_a_fit_that_creeps_towards_its_optimum_has_converged(monkeypatch):
    """Observations that contradict each other, found by chance: all 100 steps gain a little."""
    nodes, gpus = np.array([2, 2, 1, 3]), np.array([2, 16, 16, 32])
    seen = Observations(
        nodes=nodes, gpus=gpus, local_batch=np.array([64.0, 64, 16, 64]),
        step_s=np.array([0.08002836177921374, 0.0771925200305373, 2.2709429810838886, 0.06639923156547013]),
        sync_s=np.array([1.3821713819933375e-13, 6.013248671606073e-11, 1.5911500183852385, 1.0335243968486543e-10]),
    )
    fitted = fit(seen, BERT)
    assert fitted.ok
    monkeypatch.setattr(throughput, "STEPS_MAX", 3_000)
    settled = fit(seen, BERT)
    assert fitted.residual == pytest.approx(settled.residual, rel=1e-3)
    ours, theirs = (step_s(each.parameters, nodes, gpus, 64) for each in (fitted, settled))
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize(("column", "value"), [(GAMMA, -1.0), (GAMMA, 0.0), (ALPHA_R, -0.1), (BETA_N, np.inf)])
def test_a_prior_that_no_job_can_have_is_none(column, value):
    prior = BERT.copy()
    prior[column] = value
    assert fit(grid(BERT), prior).parameters.tolist() == fit(grid(BERT)).parameters.tolist()


def test_one_observation_splits_computing_evenly_and_makes_growth_look_free():
    fitted = fit(observe(BERT, [1], [1], [10]))
    half = grad_s(BERT, 10) / 2
    assert fitted.ok
    assert fitted.points == 1
    assert fitted.parameters[:2] == pytest.approx([half, half / 10], rel=0.01)
    assert fitted.parameters[ALPHA_R:GAMMA].tolist() == [0, 0, 0, 0]
    assert step_s(fitted.parameters, 8, 64, 10) == pytest.approx(step_s(BERT, 1, 1, 10), rel=0.01)


def test_what_was_not_tried_costs_what_the_level_below_costs():
    fitted = fit(grid(BERT, sizes=((1, 1), (1, 2), (1, 4))))
    assert fitted.parameters[ALPHA_N] == fitted.parameters[ALPHA_R] > 0
    assert fitted.parameters[BETA_N] == fitted.parameters[BETA_R] > 0
    two = fit(grid(BERT, sizes=((1, 1), (1, 2))))
    assert two.parameters[BETA_R] == two.parameters[BETA_N] == 0
    apart = fit(grid(BERT, sizes=((1, 1), (2, 2), (2, 4))))
    assert apart.parameters[ALPHA_R] == apart.parameters[BETA_R] == 0
    assert apart.parameters[ALPHA_N] == pytest.approx(BERT[ALPHA_N], rel=0.25)


def test_a_prior_stands_for_what_was_not_seen_and_gives_way_to_what_was():
    prior = BERT * 1.5
    prior[GAMMA] = 3.0
    fitted = fit(observe(BERT, [1, 1], [1, 1], [4, 12]), prior)
    assert fitted.parameters[ALPHA_R:GAMMA].tolist() == prior[ALPHA_R:GAMMA].tolist()
    assert grad_s(fitted.parameters, 8) == pytest.approx(grad_s(BERT, 8), rel=0.03)
    assert fit(grid(BERT), prior).parameters == pytest.approx(BERT, rel=0.3)
    single = fit(observe(BERT, [1], [1], [10]), BERT).parameters
    assert single == pytest.approx(BERT, rel=0.05)  # the prior splits computing where one batch size cannot


@given(parameters(), st.sampled_from([(1, 1), (1, 4), (2, 8)]))
def test_the_spread_is_the_residual_at_the_data_and_widens_away_from_it(truth, size):
    seen = grid(truth, sizes=((1, 1), (1, 2), (2, 4)))
    fitted = fit(seen)
    at = spread(fitted, seen, seen.nodes, seen.gpus, seen.local_batch)
    assert at == pytest.approx(fitted.residual)
    batches = 64 * 2 ** np.arange(6)
    away = spread(fitted, seen, *size, batches)
    assert (np.diff(away) > 0).all()
    growing = spread(fitted, seen, 2, 4 * 2 ** np.arange(5), 16)
    assert (np.diff(growing) > 0).all()


def test_an_exchange_never_tried_is_very_uncertain():
    seen = grid(BERT, sizes=((1, 1), (1, 2)))
    inside, across = spread(fit(seen), seen, np.array([1, 2]), 2, 16)
    assert across > inside + 0.5
    nothing = fit(rows_of(seen, 0))
    assert np.isinf(spread(nothing, rows_of(seen, 0), 1, 1, 16))


def rows_of(seen, count):
    return Observations(**{name: getattr(seen, name)[:count] for name in Observations.__slots__})


@pytest.mark.parametrize(("column", "value", "word"), [
    ("step_s", np.nan, "not finite"), ("sync_s", np.inf, "not finite"), ("step_s", 0.0, "no time"),
    ("sync_s", 1e9, "no longer than its exchange"), ("sync_s", -1.0, "no time"), ("local_batch", 0.0, "no samples"),
    ("nodes", 100, "fewer GPUs than nodes"), ("step_s", 1e7, "or takes over 1e+06 s"),
])  # fmt: skip
@pytest.mark.parametrize("prior", [None, BERT])
def test_data_that_cannot_be_is_a_status_not_an_exception(column, value, word, prior):
    seen = grid(BERT)
    broken = {name: getattr(seen, name).copy() for name in Observations.__slots__}
    broken[column][3] = value
    fitted = fit(Observations(**broken), prior)
    assert not fitted.ok
    assert word in fitted.status
    assert fitted.residual == np.inf
    assert np.isnan(fitted.parameters).all() if prior is None else fitted.parameters.tolist() == BERT.tolist()


def test_a_step_shorter_than_any_computer_makes_is_a_status_too():
    """Its ratio to others to the tenth power is no double any more."""
    seen = grid(BERT)
    seen.step_s[3], seen.sync_s[3] = 1e-200, 0.0
    assert "computes for less than 1e-10 s" in fit(seen).status


def test_nothing_observed_is_a_status_too():
    assert fit(rows_of(grid(BERT), 0)).status == "nothing observed"


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(1, 999), st.floats(1e-6, 1e6),
                          st.floats(0, 0.9998)), min_size=1, max_size=12))
def test_whatever_was_timed_the_answer_is_finite_and_not_negative(rows):
    nodes, gpus, batch, step, hidden = (np.array(column) for column in zip(*rows, strict=True))
    fitted = fit(Observations(nodes=np.minimum(nodes, gpus), gpus=gpus, local_batch=batch.astype(float), step_s=step,
                              sync_s=step * hidden))
    assert np.isfinite(fitted.parameters).all()
    assert (fitted.parameters >= 0).all()
    assert len(fitted.parameters) == len(PARAMETERS)
    assert np.isfinite(fitted.residual)


def test_columns_of_different_length_are_refused():
    with pytest.raises(ConfigError, match=r"expected equal shapes \(M,\)"):
        Observations(nodes=np.ones(2), gpus=np.ones(2), local_batch=np.ones(3), step_s=np.ones(2), sync_s=np.ones(2))
