"""Step times with parameter servers: known answers, the fit, and what never happens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.parameter_servers import (
    SERVER_CURVE,
    Allocation,
    StepModels,
    default_models,
    fitted,
    models_of,
)

CURVES = np.array([(1.2, 1.0), SERVER_CURVE])
TIMES = np.array([0.02, 0.005, 0.16, 0.04, 0.002, 0.003, 0.001])


def one(workers=2, on_gpu=True, worker_cores=4, servers=2, server_cores=2):
    return Allocation(*(np.array([value]) for value in (
        workers, on_gpu, 1000 * worker_cores, servers, 1000 * server_cores,
    )))


def models(times=TIMES):
    return StepModels(np.stack([times, times * np.array([8, 1, 1, 1, 1, 1, 0])])[None], CURVES[None])


def test_a_step_has_the_phases_of_the_paper():
    found = models().phases(np.array([0]), np.array([64]), one(workers=4, servers=2, server_cores=1))
    assert found.compute_s == pytest.approx(0.02 * 16 + 0.005)
    assert found.transfer_s == pytest.approx(0.16 * 4 / 2)
    assert found.update_s == pytest.approx(0.04 * 4 / 2 / (1 - 0.27 * np.exp(-1)))
    assert found.connect_s == pytest.approx(4 * 0.002 + 2 * 0.003 + 4 * 0.001)
    assert found.step_s == pytest.approx(sum(found))


def test_a_worker_on_cpu_is_slower_with_few_cores_and_never_faster_than_many():
    steps = [float(models().phases(np.array([0]), np.array([64]), one(on_gpu=False, worker_cores=c)).compute_s[0])
             for c in (1, 2, 5, 50)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(8 * 0.02 * 32 + 0.005)


def measured(rng, count, server_cores):
    has = Allocation(
        rng.integers(1, 5, count), np.ones(count, dtype=bool), np.full(count, 4000), rng.integers(1, 11, count),
        1000 * rng.choice(server_cores, count),
    )
    batch = rng.choice([32, 64, 128], count)
    return batch, has, models().phases(np.zeros(count, dtype=int), batch, has).step_s


def test_the_fit_finds_the_times_again():
    batch, has, seconds = measured(np.random.default_rng(1), 60, [1, 2, 3])
    found = fitted(batch, has, CURVES, seconds)
    assert found[:4] == pytest.approx(TIMES[:4], rel=1e-6)
    assert found[4] + found[6] == pytest.approx(TIMES[4] + TIMES[6])  # no worker is on CPU: one sum


def test_with_one_number_of_cores_the_update_is_part_of_the_transfer():
    batch, has, seconds = measured(np.random.default_rng(1), 60, [2])
    found = fitted(batch, has, CURVES, seconds)
    assert found[3] == 0
    assert found[2] == pytest.approx(0.16 + 0.04 / (1 - 0.27 * np.exp(-2)), rel=1e-6)


@given(st.integers(0, 1 << 30), st.floats(0.0, 1.0))
def test_times_are_never_negative_whatever_the_noise(seed, noise):
    rng = np.random.default_rng(seed)
    batch, has, seconds = measured(rng, 10, [1, 2, 3])
    found = fitted(batch, has, CURVES, seconds * np.exp(noise * rng.standard_normal(10)))
    assert (found >= 0).all()
    assert found.any()


def test_the_models_that_come_with_brim_are_those_of_the_papers_note():
    known = default_models()
    assert {model.name for model in known} == {
        "vgg11", "vgg16", "vgg19", "lenet", "googlenet", "overfeat", "alexnet", "trivial", "inception3", "inception4",
        "resnet50", "resnet101", "resnet152", "mobilenet",
    }
    for model in known:  # published speeds of a worker with one core: 0.38 to 0.59 of that with many
        assert 0.3 < 1 - model.curves[0, 0] * np.exp(-model.curves[0, 1]) < 0.65
    resnet = next(model for model in known if model.name == "resnet50")
    step = models_of([resnet]).phases(np.array([0]), np.array([64]), one(workers=1, servers=10))
    assert float(step.compute_s[0]) == pytest.approx(64 / 51.9, rel=0.01)
