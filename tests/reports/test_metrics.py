from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from brim.core.trace import trace_of
from brim.reports.metrics import active_owners, measure, size_class

from .fakes import drawn_replay, drawn_trace, replay_of, runs_of

S = 1000


def two_gpus():
    """Two GPUs; c is preempted at 6 s and resumes at 8 s, losing nothing.

    gpu 0  |a a a a|b b|b b|c c|
    gpu 1  |c c . .|b b|b b|. .|      seconds 0..10, b has both GPUs
            0   2   4   6   8   10
    """
    trace = trace_of(
        name="t", format="test", job_id=["a", "b", "c"], submit_ms=[0, 0, 0], gpus=[1, 2, 1],
        run_ms=[4 * S, 4 * S, 4 * S], cpu_milli=[2000, 1000, 0], users=["x", "y"], user=[0, 1, 1],
    )
    runs = runs_of([(0, 0, 4 * S, [0]), (2, 0, 2 * S, [1]), (1, 4 * S, 8 * S, [0, 1]), (2, 8 * S, 10 * S, [0])])
    preempted = np.array([0, 0, 1])
    return replay_of(
        trace, "1x2xT4:cpus=8", runs, [4 * S, 8 * S, 10 * S], preemptions=preempted, restarts=preempted,
        lost_gpu_ms=np.array([0, 0, 500]), useful_gpu_ms=np.array([4 * S, 8 * S, 3500]),
    )


def test_figures_of_a_hand_drawn_replay():
    m = measure(two_gpus())
    assert (m.jobs, m.finished, m.failed, m.unfinished) == (3, 3, 0, 0)
    assert m.jct_mean_s == pytest.approx((4 + 8 + 10) / 3)
    assert m.jct_p50_s == 8.0
    assert m.jct_p99_s == pytest.approx(8 + 0.98 * 2)
    assert m.queue_mean_s == pytest.approx(4 / 3)
    assert m.wait_mean_s == pytest.approx((0 + 4 + 6) / 3)
    assert m.makespan_s == 10.0
    assert m.gpu_allocated_fraction == pytest.approx(16 / 20)
    assert m.gpu_busy_fraction == pytest.approx(15.5 / 20)
    assert m.cpu_busy_fraction == pytest.approx((4 * 2 + 4 * 2 * 1) / 80)
    assert (m.preemptions, m.restarts, m.lost_gpu_s) == (1, 1, 0.5)
    assert m.round_p99_ms == pytest.approx(2.0)
    assert m.rounds_per_s == pytest.approx(6.0)


def test_fairness_measures_against_an_equal_share_of_the_cluster():
    """Two users are active, so a share is one GPU: a and c are ideal in 4 s, b takes turns and is ideal in 8 s."""
    m = measure(two_gpus())
    assert m.ftf_rho_mean == pytest.approx((4 / 4 + 8 / 8 + 10 / 4) / 3)
    assert m.ftf_rho_max == pytest.approx(2.5)


def test_owners_are_active_while_their_jobs_would_run_alone():
    """x has [0, 10) and [5, 7); y has [8, 9); z arrives as x ends."""
    trace = trace_of(
        name="t", format="test", job_id=list("abcd"), submit_ms=[0, 5, 8, 10], gpus=[1] * 4, run_ms=[10, 2, 1, 5],
        users=["x", "y", "z"], user=[0, 0, 1, 2],
    )
    assert active_owners(trace, trace.run_ms).tolist() == [1, 1, 2, 1]


def test_unfinished_and_failed_jobs_are_counted_and_left_out():
    whole = two_gpus()
    cut = dataclasses.replace(whole, finish_ms=np.array([4 * S, -1, -1]), failed=np.array([0, 0, 1]), partial=True)
    m = measure(cut)
    assert (m.finished, m.failed, m.unfinished) == (1, 1, 1)
    assert m.jct_mean_s == 4.0
    assert m.makespan_s is None


def test_nothing_is_defined_on_an_empty_replay_and_nothing_is_nan():
    empty = trace_of(name="t", format="test", job_id=[], submit_ms=[], gpus=[])
    m = measure(replay_of(empty, "1x1xT4", runs_of([]), [], round_s=np.zeros(0), wall_s=0.0))
    for name, value in dataclasses.asdict(m).items():
        assert value is None or value == 0, name


def test_every_figure_of_a_drawn_replay_is_finite():
    m = measure(drawn_replay(drawn_trace(500, seed=1, load_gpus=16), "2x8xT4", "fifo"))
    assert all(value is None or math.isfinite(value) for value in dataclasses.asdict(m).values())
    assert m.ftf_rho_mean is not None
    assert m.cpu_busy_fraction is None


def test_size_classes_start_and_end_where_their_names_say():
    gpus = [1, 2, 4, 5, 8, 9, 16, 17, 64, 65]
    trace = trace_of(name="t", format="test", job_id=[f"j{i}" for i in range(10)], submit_ms=range(10), gpus=gpus)
    assert size_class(trace).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
