"""Run times of kinds of jobs, and costs of changes, learned from recorded ones."""

from __future__ import annotations

import pytest

from brim.beliefs.change_costs import learn_costs, trimmed_mean
from brim.beliefs.kind_speeds import learn_speeds
from brim.beliefs.kinds import BASES, JobKind, learn_run_times

A4, A2, B1 = JobKind("a", "ann", 4), JobKind("a", "ann", 2), JobKind("b", "bo", 1)


def test_a_run_time_rests_on_the_jobs_that_are_most_alike():
    learned = learn_run_times([A4, A4, A2, B1], [100, 200, 600, 1000], [0] * 4)
    found = {
        kind: (learned.run_ms(kind)[0], BASES[learned.run_ms(kind)[1]])
        for kind in (A4, A2, A2._replace(gpus=1), JobKind("c", "bo", 1), JobKind("c", "eve", 1))
    }
    assert list(found.values()) == [
        (150, "name and size"), (600, "name and size"), (300, "name"), (1000, "user"), (400, "all jobs"),
    ]


def test_nothing_recorded_gives_no_run_time():
    with pytest.raises(LookupError):
        learn_run_times([], [], []).run_ms(A4)


def test_what_a_return_repeats_is_told_from_the_run_time_of_a_kind():
    """Kind a runs 100 ms and kind b 1,000 ms; each return adds 30 ms, whether a job of the kind came through or not."""
    learned = learn_run_times([A4, A4, A4, B1, B1], [100, 130, 190, 1030, 1060], [0, 1, 3, 1, 2])
    assert learned.repeat_ms == pytest.approx(30)
    assert (learned.run_ms(A4)[0], learned.run_ms(B1)[0]) == (100, 1000)
    assert learn_run_times([A4, A4], [200, 100], [0, 1]).repeat_ms == 0  # never less for having been stopped
    assert learn_run_times([A4, B1], [200, 100], [2, 1]).repeat_ms == 0  # nothing tells


def test_stalls_do_not_shift_the_mean_of_ten():
    assert trimmed_mean([200] * 8 + [60_000] * 2) == 200
    assert trimmed_mean([100, 300]) == 200


def test_a_cost_of_which_nothing_was_recorded_is_that_of_its_kin():
    costs = learn_costs([100, 300], [], [])
    assert (costs.start_ms, costs.restart_ms, costs.save_ms) == (200, 200, 0)
    assert (costs.starts, costs.restarts, costs.saves) == (2, 0, 0)
    assert learn_costs([], [500], [70]).start_ms == 500


def test_speeds_are_believed_by_name_and_number_of_gpus():
    """Seen on 2 and 8 GPUs: 4 lie between, 1 and 16 beyond. Only a job that told of its work tells how much it is."""
    told = [[(2, 100.0), (2, 120.0)], [(8, 220.0)], [], [(1, 5.0)]]
    learned = learn_speeds(["a", "a", "b", "c"], told, [1000.0, 3000.0, 10.0, 0.0])
    assert set(learned) == {"a"}
    assert learned["a"].samples == 2000
    rates = learned["a"].rates(16)
    assert rates[[0, 1, 3, 7, 15]] == pytest.approx([55, 110, 110 * 2**0.5, 220, 440])
