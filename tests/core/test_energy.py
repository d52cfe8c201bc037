"""The meter: known answers, and energy that conserves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.energy import least_energy_j, meter
from brim.core.power import PowerCurve
from brim.core.replay import Sleeps
from brim.errors import ConfigError
from brim.testing import job, small_trace
from tests.reports.fakes import replay_of, runs_of

CURVE = PowerCurve(gpu_type="V100", gpus=2, idle_w=100, full_w=300)


def metered(rows, utilisation, *, cluster="1x2xV100", end_ms=10_000, curve=CURVE, sleeps=None):
    extra = {} if sleeps is None else {"sleeps": sleeps}
    return meter(runs_of(rows), parse_cluster(cluster), np.array(utilisation), end_ms, (curve,), **extra)


def test_an_idle_node_uses_idle_power_that_no_job_has():
    energy = metered([], [])

    assert (energy.total_j, energy.unattributed_j) == (1_000, 1_000)
    assert energy.active_ms.tolist() == [0]


def test_a_job_has_the_idle_power_of_its_gpus_and_what_it_adds():
    # one of two GPUs, half busy, for 4 of 10 s: u = 0.25, so that it adds 50 W
    energy = metered([(0, 2_000, 6_000, [0])], [0.5])

    assert energy.job_j.tolist() == [4 * (50 + 50)]
    assert energy.unattributed_j == 6 * 100 + 4 * 50
    assert energy.active_ms.tolist() == [4_000]


def test_residents_of_a_gpu_share_idle_power_equally_and_the_rest_by_utilisation():
    # GPU 0: 0.3 and 0.1, both for 10 s; GPU 1 is idle. u = 0.2, which adds 40 W
    energy = metered([(0, 0, 10_000, [0]), (1, 0, 10_000, [0])], [0.3, 0.1])

    assert energy.job_j == pytest.approx([10 * (25 + 30), 10 * (25 + 10)])
    assert energy.unattributed_j == pytest.approx(500)


def test_two_busy_jobs_on_a_gpu_reach_97_percent_together_and_one_alone_its_own():
    together = metered([(0, 0, 10_000, [0, 1]), (1, 0, 10_000, [0, 1])], [0.9, 0.9])
    alone = metered([(0, 0, 10_000, [0, 1])], [1.0])

    assert together.total_j == pytest.approx(10 * (100 + 200 * 0.97))
    assert alone.total_j == pytest.approx(10 * 300)


def test_a_sleeping_node_uses_the_power_of_sleep():
    asleep = PowerCurve(gpu_type="V100", gpus=2, idle_w=100, full_w=300, asleep_w=10)
    sleeps = Sleeps(
        node=np.array([0]), start_ms=np.array([3_000]), end_ms=np.array([8_000]), awake_ms=np.array([9_000]),
    )

    energy = metered([(0, 9_000, 10_000, [0])], [0.0], curve=asleep, sleeps=sleeps)

    assert energy.total_j == 5 * 10 + 5 * 100
    assert energy.asleep_ms.tolist() == [5_000]
    assert energy.job_j.tolist() == [50]


def test_a_node_with_more_gpus_than_the_measured_one_uses_more():
    energy = metered([(0, 0, 10_000, [0, 1, 2, 3])], [1.0], cluster="1x4xV100")

    assert energy.total_j == 2 * 10 * 300


@st.composite
def records(draw):
    """Runs on a cluster of two types, open ends and empty runs among them."""
    rows = []
    for one in range(draw(st.integers(0, 8))):
        begin = draw(st.integers(0, 9_000))
        gpus = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4)))
        rows.append((one, begin, draw(st.sampled_from((-1, begin, begin + 1, 9_500, 20_000))), gpus))
    rows = [(one, begin, max(begin, end) if end >= 0 else -1, gpus) for one, begin, end, gpus in rows]
    return rows, [draw(st.floats(0, 1)) for _ in rows]


@given(records(), st.floats(0.2, 2))
def test_energy_of_jobs_and_idle_gpus_sums_to_that_of_nodes(record, exponent):
    rows, utilisation = record
    curves = (
        PowerCurve(gpu_type="V100", gpus=8, idle_w=560, full_w=2004, exponent=exponent),
        PowerCurve(gpu_type="A100", gpus=4, idle_w=300, full_w=300),
    )

    energy = meter(runs_of(rows), parse_cluster("2x3xV100+1x4xA100"), np.array(utilisation), 10_000, curves)

    assert energy.job_j.sum() + energy.unattributed_j == pytest.approx(energy.total_j, rel=1e-9)
    assert (energy.job_j >= 0).all()
    assert energy.unattributed_j >= 0
    lasted = [min(end if end >= 0 else 10_000, 10_000) > begin for _, begin, end, _ in rows]
    assert (energy.active_ms > 0).any() == any(lasted)


@given(records(), st.floats(0.2, 3))
def test_no_packing_uses_less_than_the_bound(record, exponent):
    rows, utilisation = record
    curve = PowerCurve(gpu_type="V100", gpus=8, idle_w=560, full_w=2004, exponent=exponent)
    rows = [(one, begin, begin + 3_000, gpus[:1]) for one, begin, _, gpus in rows]
    alone = {gpus[0]: (one, begin, end, gpus) for one, begin, end, gpus in rows}  # the last job of each GPU
    rows = [(number, *row[1:]) for number, row in enumerate(alone.values())]
    utils = [int(1000 * utilisation[row[0]]) for row in alone.values()]
    trace = small_trace(*(job(run=3, gpu_util=util) for util in utils))
    replay = replay_of(
        trace, "1x10xV100", runs_of(rows), [end for _, _, end, _ in rows], power=(curve,), end_ms=12_000
    )

    energy = meter(replay.runs, replay.cluster, np.array(utils) / 1000, 12_000, (curve,))

    assert energy.total_j >= least_energy_j(replay) * (1 - 1e-9)


@pytest.mark.parametrize(("changes", "words"), [
    ({"gpus": 0}, "found gpus=0"),
    ({"idle_w": -1}, "idle_w=-1"),
    ({"full_w": 99}, "found full_w=99, expected at least idle_w=100: power cannot fall"),
    ({"asleep_w": 101}, "found asleep_w=101 and idle_w=100"),
    ({"exponent": 0}, "found exponent=0, expected a number above 0"),
    ({"full_w": float("nan")}, "found full_w=nan"),
])
def test_an_impossible_curve_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        PowerCurve(**{"gpu_type": "V100", "gpus": 2, "idle_w": 100, "full_w": 300} | changes)
