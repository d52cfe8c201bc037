"""The least time of a measured job: equal to trying everything on small tables, and never above what happens."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.trace import trace_of
from brim.errors import ConfigError
from brim.sim.truths.least import PlacementLimits, Ranges, divisions, least
from brim.sim.truths.measured import Measured
from brim.sim.truths.profiles import read_applications
from tests.sim.test_profiles import written


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return read_applications(written(tmp_path_factory.mktemp("profiles")))["toy"]


def placements(gpus: int, limits: PlacementLimits):
    """All placements of a gang, whatever their order."""
    return (
        parts for nodes in range(1, limits.nodes + 1)
        for parts in itertools.combinations_with_replacement(range(1, limits.width + 1), nodes) if sum(parts) == gpus
    )


def tried(app, ranges: Ranges, limits: PlacementLimits) -> tuple[float, float]:
    """The same by asking for the rate of every batch on every placement in every epoch."""
    best = np.zeros((2, app.epochs))
    for gpus in range(ranges.gpus_min, ranges.gpus_max + 1):
        for placement, batch in itertools.product(
            placements(gpus, limits), range(ranges.batch_min, ranges.batch_max + 1)
        ):
            for epoch in range(app.epochs):
                try:
                    rate = app.rate(placement, *app.split(gpus, batch), epoch)
                except ConfigError:
                    continue
                best[:, epoch] = np.maximum(best[:, epoch], (rate, rate / gpus))
    work = np.diff(app.progress_E, prepend=0.0)
    run_s, gpu_s = (work / best).sum(axis=1)
    return run_s, gpu_s


@pytest.mark.parametrize(
    ("ranges", "limits"),
    [
        (Ranges(1, 4, 8, 32), PlacementLimits(2, 2)), (Ranges(1, 8, 8, 32), PlacementLimits(4, 2)),
        (Ranges(2, 2, 16, 16), PlacementLimits(2, 2)), (Ranges(1, 1, 9, 9), PlacementLimits(1, 1)),
        (Ranges(1, 2, 8, 20), PlacementLimits(2, 1)),
    ],
)  # fmt: skip
def test_it_is_what_trying_everything_finds(toy, ranges, limits):
    assert least(toy, ranges, limits) == pytest.approx(tried(toy, ranges, limits), rel=1e-5)


@given(gpus=st.integers(1, 8), low=st.integers(8, 32), more=st.integers(0, 24))
def test_every_division_of_a_batch_is_tried(toy, gpus, low, more):
    high = min(low + more, 32)
    local, extra = divisions(toy, gpus, low, high)
    assert set(zip(local.tolist(), extra.tolist(), strict=True)) == {
        toy.split(gpus, batch) for batch in range(low, high + 1)
    }


@settings(deadline=None)
@given(nodes=st.lists(st.integers(1, 16), min_size=1), gpus=st.integers(1, 8),
       local=st.lists(st.integers(1, 20), min_size=1, unique=True))
def test_interpolating_many_local_batches_at_once_equals_one_by_one(toy, nodes, gpus, local):
    """Except on the hull itself, where which side a point is taken to be on is rounding."""
    times = toy.step_times
    together = np.array(times.between(np.array(nodes), gpus, np.array(sorted(local), dtype=np.float64)))
    between = times._interpolator(nodes[0], gpus)
    alone = np.array([[between([[on, gpus, one]])[0] for one in sorted(local)] for on in nodes]).transpose(2, 0, 1)
    known = ~np.isnan(alone)
    assert together[known] == pytest.approx(alone[known])


def test_a_job_nothing_was_measured_for_is_bounded_by_nothing(toy):
    flat = replace(toy, step_times=replace(toy.step_times, curves={(1,): {4: (1.0, 0.0)}}, points={(1, 1, 4): (1, 0)},
                                             _kept={}, _between=[], _fitted=[]))
    assert least(flat, Ranges(2, 2, 8, 8), PlacementLimits(1, 2)) == (0.0, 0.0)


def test_as_asked_is_never_below_the_least(toy):
    asked = [(gpus, batch) for gpus in (1, 2, 4) for batch in (8, 12, 16)]
    trace = trace_of(
        name="t", format="test", job_id=[str(row) for row in range(len(asked))], submit_ms=[0] * len(asked),
        gpus=[gpus for gpus, _ in asked], batch=[batch for _, batch in asked], profile=[0] * len(asked),
        profiles=("toy",),
    )
    truth = Measured(trace, parse_cluster("2x2xT4"), {"toy": toy})
    assert (truth.run_ms >= truth.shortest_ms).all()
    assert (truth.run_ms * trace.gpus >= truth.least_gpu_ms).all()
    assert (truth.shortest_ms > 0).all()
