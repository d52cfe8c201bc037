"""Supply of loader workers: known answers, fits, and what is believed of jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.library import load, parse
from brim.beliefs.loading import (
    CORRECTED,
    CPU,
    CPU_BOUND,
    GPU_BOUND,
    IO_BOUND,
    NOTHING,
    PROFILE,
    RATE,
    REPORTS,
    SERIAL,
    SERIAL_BOUND,
    Loading,
    bound_by,
    fit_supply,
    fit_training,
    rates,
    supply_from_wait,
    waits,
)
from brim.errors import ConfigError
from brim.testing import job, snapshot_of


def row(rate=1000.0, cpu=0.004, serial=0.0, sample=0.0, dataset=0.0, knee=20.0):
    return np.array((rate, cpu, serial, sample, dataset, knee))


def speed(parameters, workers, bytes_per_s=np.inf):
    return float(rates(parameters[None], np.array([float(workers)]), np.array([float(bytes_per_s)]))[0])


@pytest.mark.parametrize(("parameters", "workers", "bytes_per_s", "expected", "bound"), [
    (row(), 1, np.inf, 250, CPU_BOUND),
    (row(), 2, np.inf, 500, CPU_BOUND),
    (row(), 40, np.inf, 1000, GPU_BOUND),
    (row(serial=0.005), 40, np.inf, 200, SERIAL_BOUND),
    (row(sample=1e5), 40, 1e7, 100, IO_BOUND),
    (row(), 0.5, np.inf, 125, CPU_BOUND),  # a worker with half a core
])
def test_the_smallest_limit_is_the_speed(parameters, workers, bytes_per_s, expected, bound):
    assert speed(parameters, workers, bytes_per_s) == pytest.approx(expected, rel=1e-5)
    assert bound_by(parameters, workers, bytes_per_s) == bound


def test_without_workers_loading_and_computing_take_turns():
    assert speed(row(rate=100, cpu=0.02, serial=0.01), 0) == pytest.approx(1 / (0.01 + 0.02 + 0.01))


def test_where_supply_equals_demand_the_knee_costs_what_its_exponent_says():
    assert speed(row(rate=250, knee=2), 1) == pytest.approx(250 * 2**-0.5)
    assert speed(row(rate=250, knee=6), 1) == pytest.approx(250 * 2 ** (-1 / 6))


@given(
    rate=st.floats(1, 1e5), cpu=st.floats(1e-5, 1), serial=st.floats(0, 0.1), knee=st.floats(2, 20),
    io=st.floats(1, 1e9),
)
def test_more_workers_never_slow_down_and_each_helps_less_than_the_one_before(rate, cpu, serial, knee, io):
    each = row(rate, cpu, serial, 100.0, 0.0, knee)
    found = np.array([speed(each, workers, io) for workers in range(1, 20)])
    gains = np.diff(found)
    assert (gains >= -1e-9 * rate).all()
    assert (np.diff(gains) <= 1e-9 * rate).all()
    assert (found <= rate).all()


@given(wait=st.floats(0.03, 0.99), knee=st.floats(2, 20))
def test_a_supply_is_found_again_from_the_wait_it_causes(wait, knee):
    supply = float(supply_from_wait(np.array([100.0]), np.array([wait]), np.array([knee]))[0])
    assert waits(row(100, 1 / supply, knee=knee)[None], np.ones(1))[0] == pytest.approx(wait, rel=1e-6)


@pytest.mark.parametrize("knee", [3.0, 6.0, 12.0])
def test_a_fit_finds_the_parameters_that_made_the_speeds(knee):
    made = row(rate=900, cpu=0.0035, knee=knee)
    workers = np.array([1.0, 2, 3, 4, 6, 12])
    fitted = fit_training(workers, np.array([speed(made, each) for each in workers]))
    assert fitted.residual < 1e-5
    assert fitted.parameters[[RATE, CPU]] == pytest.approx([900, 0.0035], rel=0.01)


def test_a_loader_measured_alone_tells_cpu_time_and_serial_part():
    fitted = fit_supply(np.array([0.0, 1, 2, 4, 8]), np.array([1 / 0.012, 100, 200, 400, 500]), 450)
    assert fitted.parameters[[RATE, CPU, SERIAL]] == pytest.approx([450, 0.01, 0.002])
    assert fitted.residual < 1e-9
    assert fit_supply(np.array([0.0, 1]), np.array([90.0, 100]), 450).parameters[SERIAL] == pytest.approx(1 / 90 - 0.01)


@pytest.mark.parametrize(("workers", "per_s"), [([1, 1], [2, 2]), ([1, 2], [0, 2]), ([1, 2], [float("nan"), 2])])
def test_a_fit_refuses_what_says_nothing(workers, per_s):
    with pytest.raises(ConfigError, match="loader speeds: found"):
        fit_training(np.array(workers, dtype=float), np.array(per_s, dtype=float))


def test_what_is_believed_names_what_it_rests_on():
    """Jobs 0 to 2 are of a model with a profile, 3 and 4 are not; 1, 2 and 4 report with two workers."""
    models = ("known", "known", "known", "other", "other")
    held = snapshot_of("1x8xT4", *(job(model=model, on=[(0, gpu)]) for gpu, model in enumerate(models)))
    profile = row(rate=500, cpu=0.002)
    workers = np.array([0, 2, 2, 0, 2])
    expected = float(waits(profile[None], np.array([2.0]))[0])
    wait = np.array([np.nan, expected, 0.75, np.nan, 0.5])
    found = Loading({int(held.jobs.profile[0]): profile}).of_jobs(held, workers, wait)
    assert found.basis.tolist() == [PROFILE, PROFILE, CORRECTED, NOTHING, REPORTS]
    assert found.parameters[2][CPU] == pytest.approx(2 / 125, rel=1e-3)  # a quarter of 500 samples/s with two workers
    assert np.isnan(found.parameters[3]).all()
    assert waits(found.parameters[4:], np.array([2.0]))[0] == pytest.approx(0.5)


def test_a_profile_whose_serial_part_binds_is_corrected_there():
    held = snapshot_of("1x8xT4", job(model="known"))
    found = Loading({0: row(rate=500, serial=0.004)}).of_jobs(held, np.array([8]), np.array([0.8]))
    assert found.parameters[0][[CPU, SERIAL]] == pytest.approx([0.004, 0.01], rel=1e-3)


def test_synergys_vision_models_need_cores_and_its_language_models_none():
    models = load("synergy").loading
    assert {"alexnet", "res18", "res50", "bert", "gnmt"} <= set(models)
    needs = {name: each.parameters[RATE] * each.parameters[CPU] for name, each in models.items()}
    assert needs["alexnet"] > 8 > needs["res50"] > 2
    assert needs["bert"] < 0.1
    assert all(0 <= each.residual < 0.1 for each in models.values())


ENTRY = """
source = "made up"
licence = "none"
fitted = "no"
[[loading]]
name = "a"
gpu_type = "T4"
rate_per_s = 10.0
cpu_s = 0.1
serial_s = 0.0
sample_bytes = 0.0
dataset_bytes = 0.0
knee = 6.0
residual = 0.0
points = 2
"""


@pytest.mark.parametrize(("line", "instead", "expected"), [
    ("cpu_s = 0.1", "cpu_s = -0.1", "mine.toml, loading 1: found cpu_s=-0.1, expected a number from 0 up"),
    ("rate_per_s = 10.0", "rate_per_s = 0.0", "loading 1: found rate_per_s=0.0, expected"),
    ("knee = 6.0", "", "loading 1: found no 'knee', expected a number from 2 to 20"),
])
def test_a_broken_profile_names_file_entry_and_field(line, instead, expected):
    assert parse(ENTRY, "mine.toml").loading["a"].points == 2
    with pytest.raises(ConfigError) as error:
        parse(ENTRY.replace(line, instead), "mine.toml")
    assert expected in str(error.value)
