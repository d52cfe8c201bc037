"""How often to save: the formula against trying all intervals, and the helper's bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brim.train.checkpoint.checkpointer import PendingSave
from brim.train.checkpoint.intervals import LONGEST_S, PRIOR_S, SHORTEST_S, Autosave, interval_s


def time_per_useful_second(interval: float, cost: float, mtbf: float) -> float:
    """Expected wall time for each second of kept work, stops coming as a Poisson process (Daly 2006, restart 0)."""
    return mtbf * math.expm1((interval + cost) / mtbf) / interval


@pytest.mark.parametrize("cost", [0.01, 0.5, 5.0, 60.0])
@pytest.mark.parametrize("mtbf", [600.0, 3600.0, 86_400.0])
def test_the_interval_loses_within_a_thousandth_of_the_best(cost, mtbf):
    tried = np.geomspace(0.1, 10 * mtbf, 20_000)
    best = min(time_per_useful_second(float(interval), cost, mtbf) for interval in tried[(tried + cost) / mtbf < 500])
    assert time_per_useful_second(interval_s(cost, mtbf), cost, mtbf) <= best * 1.001


def test_the_interval_at_its_edges():
    assert interval_s(0.0, 100.0) == 0.0
    assert interval_s(1.0, math.inf) == math.inf
    assert interval_s(0.0, math.inf) == 0.0
    assert interval_s(300.0, 100.0) == 100.0
    for cost, mtbf in ((-1.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="expected cost_s >= 0 and mtbf_s > 0"):
            interval_s(cost, mtbf)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ended(*, stall_s: float, total_s: float, error: Exception | None = None) -> PendingSave:
    saving = PendingSave(1, stall_s=stall_s, total_s=total_s, error=error)
    saving._done.set()
    return saving


def test_the_first_save_comes_after_the_shortest_interval():
    clock = Clock()
    auto = Autosave(clock=clock)
    assert not auto.due()
    clock.now = SHORTEST_S
    assert auto.due()


def test_the_interval_follows_the_measured_cost():
    clock = Clock()
    auto = Autosave(clock=clock)
    auto.began(ended(stall_s=0.5, total_s=4.0))
    assert auto.interval_s == pytest.approx(interval_s(0.5, PRIOR_S))
    auto.began(ended(stall_s=1.5, total_s=4.0))
    assert auto.interval_s == pytest.approx(interval_s(1.0, PRIOR_S))
    auto.began(ended(stall_s=99.0, total_s=99.0, error=OSError()))
    assert auto.interval_s == pytest.approx(interval_s(1.0, PRIOR_S)), "a failed save teaches nothing"


def test_the_disk_is_busy_for_a_quarter_of_the_time_at_most_and_half_an_hour_is_never_exceeded():
    clock = Clock()
    auto = Autosave(clock=clock)
    auto.began(ended(stall_s=0.001, total_s=50.0))
    assert auto.interval_s == 200.0
    auto.began(ended(stall_s=900.0, total_s=5000.0))
    auto.began(ended(stall_s=900.0, total_s=5000.0))
    assert auto.interval_s == LONGEST_S


def test_nothing_is_due_while_one_is_being_written():
    clock = Clock()
    auto = Autosave(clock=clock)
    saving = PendingSave(1)
    auto.began(saving)
    clock.now = 1e6
    assert not auto.due()
    saving._done.set()
    assert auto.due()


def test_more_stops_without_notice_mean_shorter_intervals_and_are_remembered_across_them():
    clock, seen, intervals = Clock(), None, []
    for life in range(5):
        auto = Autosave(seen, stopped=life > 0, clock=clock)
        auto.began(ended(stall_s=0.4, total_s=1.0))
        clock.now += 600.0
        seen = auto.state()
        intervals.append(auto.interval_s)
    assert intervals == sorted(intervals, reverse=True)
    assert seen["ran_s"] == 3000.0
    assert seen["stops"] == 4
    assert auto.mtbf_s == (PRIOR_S + 3000.0) / 5


def test_bounds_that_cannot_be_meant_are_refused():
    with pytest.raises(ValueError, match="bounds are 60 s and 10 s"):
        Autosave(shortest_s=60, longest_s=10)
