"""The padding experiment: which windows are chosen, how they are stretched, and what a replay is summed up to."""

from __future__ import annotations

import numpy as np
import pytest

from brim.beliefs.throughput import step_s
from brim.cli.reproduce_padding import at_ratio, trained
from brim.core.replay import Runs
from brim.core.trace import JobClass
from brim.errors import ConfigError
from brim.sim.reproduce.padding import (
    OURS,
    PROTEINS,
    TRANSFORMER,
    WINDOW_MS,
    Trained,
    Way,
    Window,
    busiest_windows,
    changed,
    jobs_in,
)
from brim.units import MS_PER_H, MS_PER_MIN


def runs_on(*runs: tuple[int, int, int]) -> Runs:
    """Runs of one GPU each: (GPU, start, end)."""
    gpu, start, end = (np.array(column) for column in zip(*runs, strict=True))
    return Runs(
        job=np.arange(len(runs)), start_ms=start, end_ms=end, share_milli=np.full(len(runs), 1000),
        first_gpu=np.arange(len(runs) + 1), gpu=gpu,
    )


def test_the_windows_with_the_most_switches_are_on_different_gpus():
    late = 20 * MS_PER_H
    few = [(0, MS_PER_H, 2 * MS_PER_H)]
    many = [(1, late + at * MS_PER_MIN, late + (at + 5) * MS_PER_MIN) for at in range(0, 60, 10)]
    first, second = busiest_windows(runs_on(*few, *many), 30 * MS_PER_H, count=2)
    assert (first.gpu, first.switches, second.gpu, second.switches) == (1, 12, 0, 2)
    assert first.begin_ms <= late < first.begin_ms + WINDOW_MS
    assert first.idle_share == pytest.approx(1 - 30 / 360)
    with pytest.raises(ConfigError, match=r"tasks on 1 GPUs in 30\.0 h: expected 2 GPUs"):
        busiest_windows(runs_on(*few), 30 * MS_PER_H, count=2)


def test_a_stretched_window_has_the_idle_share_and_the_switch_rate_asked_for():
    window = Window(gpu=0, begin_ms=0, switches=4, busy_ms=np.array([[0, 1], [2, 4]]) * MS_PER_H)
    assert window.idle_share == 0.5
    half = changed(window, 0.2, 2.0)
    assert half.length_ms == WINDOW_MS // 2
    assert half.idle_share == pytest.approx(0.2)
    assert changed(window, None, 1.0).busy_ms.tolist() == window.busy_ms.tolist()


def test_padding_in_one_gap_of_known_length():
    """GPUs 0 to 2 are never used; GPU 3 for the first half of every window: 3.5 of 4 GPUs are idle on average."""
    never = Window(gpu=0, begin_ms=0, switches=0, busy_ms=np.zeros((0, 2), dtype=np.int64))
    half = Window(gpu=3, begin_ms=0, switches=2, busy_ms=np.array([[0, WINDOW_MS // 2]]))
    trace = jobs_in([never, never, never, half])
    assert (trace.job_class == JobClass.PADDING).sum() == 1
    found = trained([never, never, never, half], OURS)
    assert 1.0 < found.time_ratio < 4 / 3, "three GPUs for three hours are faster than three quarters of four"
    assert found.busy_before == pytest.approx(0.25)
    assert found.busy_after == pytest.approx(1.0)
    assert (found.jct_change, found.late_ms_max, found.lost_share) == (0.0, 0, 0.0)
    assert found.cost_ratio(0.1) == pytest.approx(0.1 * 3 * found.time_ratio / 4)


def test_the_example_loses_less_by_a_gpu_than_its_stand_in_since_it_scales_less():
    """On three GPUs for all its time: as many times as long as its step times say."""
    never = Window(gpu=0, begin_ms=0, switches=0, busy_ms=np.zeros((0, 2), dtype=np.int64))
    always = Window(gpu=3, begin_ms=0, switches=2, busy_ms=np.array([[0, WINDOW_MS]]))
    found = []
    for model in (PROTEINS, TRANSFORMER):
        parameters, batch = np.array([model.parameters]), model.batch
        three, four = (float(step_s(parameters, 1, gpus, np.array([batch / gpus]))[0]) for gpus in (3, 4))
        one = trained([never, never, never, always], Way(name="", model=model))
        assert one.time_ratio == pytest.approx(three / four, rel=0.03)
        found.append(one.time_ratio)
    assert found[0] < found[1]


def test_the_point_of_the_paper_is_interpolated_at_one_switch_rate():
    def point(idle, ratio, rate=1.0):
        return Trained(
            way="padding", idle_share=idle, switches_per_h=rate, time_ratio=ratio, overhead=0.1 * ratio, lost_share=0.0,
            changes=0, busy_before=1 - idle, busy_after=1.0, jct_change=0.0, late_ms_max=0,
        )

    grid = [point(0.5, 2.0), point(0.3, 4.0), point(0.3, 9.0, rate=3.0), point(0.5, 8.0, rate=0.2)]
    assert at_ratio(grid, 3.0) == pytest.approx((0.4, 0.3, 40.0))
    assert at_ratio(grid, 5.0) is None
