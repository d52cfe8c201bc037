"""The experiment on cores for data loaders: what can be calculated by hand."""

from __future__ import annotations

import numpy as np
import pytest

from brim.sim.reproduce.adloader import (
    BOUNDS,
    IDEAL_KNEE,
    against_best,
    mixes,
    models,
    node,
    trace,
    truth,
    without_gain,
)


@pytest.mark.slow
def test_an_ideal_pipeline_gains_what_a_perfect_division_gains():
    for one in mixes():
        if one.knee == IDEAL_KNEE:
            bound = BOUNDS[int(one.what.split(":")[0])]
            assert bound - 0.005 < one.gain <= bound
        assert one.short < 1e-9


def test_the_bounds_follow_from_the_ratio():
    assert {a: round(2 / (1 + (1 + a) / (2 * a)) - 1, 3) for a in BOUNDS} == BOUNDS


def test_nothing_is_gained_where_nothing_can_be():
    for one in without_gain():
        assert one.gain == 0 if "alike" in one.what else -0.02 < one.gain <= 0  # cores below 1 % stay free


def test_drawn_sets_are_within_two_hundredths_of_the_best():
    assert max(one.short for one in against_best(sets=20)) < 0.02


def test_a_node_has_cores_for_half_of_its_jobs_hungry():
    assert node(4).cpu_milli_N.tolist() == [48_000]
    jobs = trace(0, 4)
    assert np.bincount(jobs.profile).tolist() == [20, 20]
    assert truth(jobs, 4, 0).run_ms.tolist() == jobs.run_ms.tolist()
    assert models(4, 0)["hungry"][1] == pytest.approx(4 * 0.002, rel=1)
