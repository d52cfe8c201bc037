"""Resizes worked out by hand: one script of plans each, and what must come of it.

Without limits on batches the toy job does ``toy_pace`` work per ms: 0.75 on one GPU, 1.21875 on two of one node, at
first, 1/32 less in each of the four quarters of its work.
"""

from __future__ import annotations

import json
from itertools import pairwise
from math import ceil

import pytest

from brim.core.cluster import parse_cluster
from brim.core.trace import NONE
from brim.engine.journal import Journal
from brim.errors import PlanError
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace
from brim.testing.elastic import PARTS, Line, ToyTruth, scripted, toy_pace
from brim.testing.rules import check_never_shared, check_one_place

from .exact import gpus_of, starts, stretches
from .test_faults import _dies, _fails

SLOW = Overheads(start_ms=2_000, save_ms=5_000, restart_ms=7_000, checkpoint_ms=10_000)
A, B, C, D = (0, 0), (0, 1), (1, 0), (1, 1)


def elastic(**more):
    return job(**{"run": 40, "gpus": 1, "gpus_min": 1, "gpus_max": 4} | more)


def batched(**more):
    return elastic(batch=32, batch_min=8, batch_max=64, local_batch_max=64, **more)


def play(jobs, *lines, cluster="2x2xT4", costs=SLOW, faults=None, period_ms=1_000):
    trace = small_trace(*jobs)
    truth = ToyTruth(trace, {f"j{row}": one for row, one in enumerate(jobs)})
    journal = Journal()
    outcome = replay(
        trace, parse_cluster(cluster),
        scripted(*lines, period_ms=period_ms), ReplaySettings(overheads=costs, faults=faults or Faults(), gap_ms=0),
        truth=truth, journal=journal, on_progress=ends_soon,
    )
    check_never_shared(outcome)
    check_one_place(outcome)
    return outcome, journal


def ends_soon(ended: int, now_ms: int) -> bool:
    """Rounds that come with the period would go on for ever if a job were forgotten."""
    assert now_ms < 10_000_000
    return True


def has(at, /, *rejected, **jobs):
    """Line of a script: ``j0=[A]`` or ``j0=([A], batch)``."""
    wants = {int(name[1:]): want if isinstance(want, tuple) else (want, NONE) for name, want in jobs.items()}
    return Line(at=at, has=wants, reject=rejected)


def work_after(ms, start_ms, *stretches_of):
    """Work done by ms of progress in (until ms, nodes, batch) stretches from ``start_ms`` on, by ticks of 1 ms."""
    done, total = 0.0, start_ms
    for now in range(ms):
        nodes, batch = next((n, b) for until, n, b in stretches_of if now < until)
        part = min(int(done // (total / PARTS)), PARTS - 1)
        done = min(done + toy_pace(part, nodes, batch), total / PARTS * (part + 1))
    return done


def ends_after(done, total, nodes, batch=NONE):
    """ms from ``done`` work to the end without a change."""
    each, ms = total / PARTS, 0
    while done < total:
        part = min(int(done // each), PARTS - 1)
        ms += ceil((each * (part + 1) - done) / toy_pace(part, nodes, batch))
        done = each * (part + 1)
    return ms


WORK = 40_004
"""Work of a job of 40 s: a whole number of quarters."""


def test_a_job_that_grows_saves_restarts_and_goes_on_faster():
    """Start 0-2, one GPU to 10, save to 15, load to 22 on two: 8 s of work at one GPU's pace, the rest at two's."""
    outcome, _ = play([elastic()], has(0, j0=[A]), has(10, j0=[A, B]))
    done = work_after(8_000, WORK, (8_000, (1,), NONE))
    assert outcome.finish_ms.tolist() == [22_000 + ends_after(done, WORK, (2,))]
    assert stretches(outcome, 0)[0] == (0, 15)
    assert stretches(outcome, 0)[1][0] == 15
    assert gpus_of(outcome, 0) == [[0], [0, 1]]
    assert outcome.restarts.tolist() == [1]
    assert outcome.preemptions.tolist() == [0]
    end_ms = int(outcome.finish_ms[0])
    assert outcome.useful_gpu_ms.tolist() == [8_000 + 2 * (end_ms - 22_000)]
    assert outcome.service_gpu_ms.tolist() == [15_000 + 2 * (end_ms - 15_000)]


def test_a_job_that_moves_where_nobody_leaves_saves_first():
    """From 0.0 to 1.0, which is free: it is in one place at a time, and pays for the save."""
    outcome, _ = play([elastic()], has(0, j0=[A]), has(10, j0=[C]))
    assert stretches(outcome, 0)[0] == (0, 15)
    assert stretches(outcome, 0)[1][0] == 15
    done = work_after(8_000, WORK, (8_000, (1,), NONE))
    assert outcome.finish_ms.tolist() == [22_000 + ends_after(done, WORK, (1,))]


def test_a_job_moved_twice_before_its_first_save_is_done_waits_for_that_save():
    """Moved at 10, saves until 15; moved on at 12: the attempt between never got its GPUs."""
    outcome, _ = play([elastic()], has(0, j0=[A]), has(10, j0=[C]), has(12, j0=[D]))
    assert stretches(outcome, 0)[0] == (0, 15)
    assert stretches(outcome, 0)[1][0] == 15
    assert gpus_of(outcome, 0) == [[0], [3]]
    assert outcome.restarts.tolist() == [1]


def test_a_job_preempted_before_it_moved_is_stopped_when_it_has_saved():
    """Moved at 10, preempted at 12: gone at 15, and back from 16 on."""
    outcome, journal = play([elastic()], has(0, j0=[A]), has(10, j0=[C]), has(12), has(13, j0=[D]))
    assert '{"e":"STOPPED","job":0,"t":15000}' in journal.lines
    assert [begin for begin, _ in stretches(outcome, 0)] == [0, 15]
    assert outcome.restarts.tolist() == [1]
    assert outcome.preemptions.tolist() == [1]


def test_a_job_resized_while_it_starts_has_nothing_to_save_and_starts_again():
    """Granted at 0, would make progress from 2; resized at 1: a restart, 7 s from then."""
    outcome, _ = play([elastic()], has(0, j0=[A]), has(1, j0=[A, B]))
    assert stretches(outcome, 0)[0] == (0, 1)
    assert outcome.finish_ms.tolist() == [8_000 + ends_after(0, WORK, (2,))]
    assert outcome.useful_gpu_ms.tolist() == [2 * (outcome.finish_ms[0] - 8_000)]


def test_a_job_that_waits_for_gpus_another_leaves_and_is_resized_before_never_had_them():
    """j0 leaves 0.0 at 10 and saves until 15. j1, granted it, is resized to 1.0 at 12: its first start is there."""
    outcome, _ = play(
        [elastic(), elastic(at=10)], has(0, j0=[A]), has(10, j1=[A]), has(12, j1=[C]), has(30, j0=[A], j1=[C]),
    )
    assert stretches(outcome, 0)[0] == (0, 15)
    assert starts(outcome) == [0, 12]
    assert stretches(outcome, 1)[0][0] == 12
    assert outcome.restarts.tolist() == [1, 0]
    assert outcome.finish_ms[1] == 14_000 + ends_after(0, WORK, (1,))


def test_two_jobs_that_swap_their_gpus_both_wait_for_both():
    outcome, _ = play([elastic(), elastic()], has(0, j0=[A], j1=[C]), has(10, j0=[C], j1=[A]))
    for row in (0, 1):
        assert stretches(outcome, row)[0] == (0, 15)
        assert stretches(outcome, row)[1][0] == 15
    assert gpus_of(outcome, 0) == [[0], [2]]
    assert gpus_of(outcome, 1) == [[2], [0]]


def test_a_job_with_nothing_to_save_waits_for_the_one_it_swaps_with():
    """j0 still loads at 10 and moves at once; j1, which it swaps with, saves on that GPU until 15."""
    outcome, _ = play([elastic(), elastic()], has(0, j1=[C]), has(9, j0=[A], j1=[C]), has(10, j0=[C], j1=[A]))
    assert gpus_of(outcome, 0) == [[0], [2]]
    assert [begin for begin, _ in stretches(outcome, 0)] == [9, 15]
    assert stretches(outcome, 0)[0] == (9, 10)
    assert [begin for begin, _ in stretches(outcome, 1)] == [0, 15]


def test_one_shrinks_and_another_grows_onto_what_it_leaves_in_one_plan():
    outcome, _ = play(
        [elastic(), elastic()], has(0, j0=[A, B], j1=[C]), has(10, j0=[A], j1=[B, C]),
    )
    assert gpus_of(outcome, 0) == [[0, 1], [0]]
    assert gpus_of(outcome, 1) == [[2], [1, 2]]
    assert [begin for begin, _ in stretches(outcome, 1)] == [0, 15]


def test_a_resize_in_the_millisecond_in_which_a_job_ends_comes_too_late():
    """Its end comes first: the round finds it gone."""
    free = Overheads(start_ms=0, save_ms=5_000, restart_ms=7_000)
    end_ms = ends_after(0, WORK, (1,))
    outcome, journal = play(
        [elastic(), elastic(at=end_ms / 1000)], has(0, j0=[A], j1=[C]), has(end_ms / 1000, j0=[A, B], j1=[C]),
        costs=free,
    )
    assert outcome.finish_ms[0] == end_ms
    assert outcome.restarts.tolist() == [0, 0]
    assert not any('"resize"' in line for line in journal.lines)


def test_a_resize_in_the_last_millisecond_costs_all_it_costs():
    free = Overheads(start_ms=0, save_ms=5_000, restart_ms=7_000)
    end_ms = ends_after(0, WORK, (1,))
    late = (end_ms - 1) / 1000
    outcome, _ = play([elastic(), elastic(at=late)], has(0, j0=[A], j1=[C]), has(late, j0=[A, B], j1=[C]), costs=free)
    assert outcome.finish_ms[0] == end_ms - 1 + 12_000 + 1
    assert outcome.restarts.tolist() == [1, 0]


def test_a_job_tuned_while_it_starts_trains_with_the_new_batch_from_its_first_step():
    outcome, journal = play([batched()], has(0, j0=([A], 32)), has(1, j0=([A], 64)))
    assert outcome.finish_ms.tolist() == [2_000 + ends_after(0, WORK, (1,), 64)]
    assert outcome.restarts.tolist() == [0]
    assert sum('"tune"' in line for line in journal.lines) == 1


def test_a_job_tuned_at_its_first_step_says_how_fast_it_is_from_then_on():
    """The round at 2 s follows STARTED; the next one, at 3 s, must see the pace of the new batch."""
    _, journal = play([batched()], has(0, j0=([A], 32)), has(2, j0=([A], 64)))
    told = [line for line in journal.lines if '"REPORTED"' in line and '"t":2000}' in line]
    rates = [f'"samples_per_s":{toy_pace(0, (1,), batch) * 2000}' for batch in (32, 64)]
    assert len(told) == 2
    for line, rate in zip(told, rates, strict=True):
        assert rate in line


def test_a_job_tuned_while_it_runs_does_not_stop():
    outcome, _ = play([batched()], has(0, j0=([A], 32)), has(10, j0=([A], 8)), has(20, j0=([A], 64)))
    done = work_after(18_000, WORK, (8_000, (1,), 32), (18_000, (1,), 8))
    assert outcome.finish_ms.tolist() == [20_000 + ends_after(done, WORK, (1,), 64)]
    assert stretches(outcome, 0) == [(0, outcome.finish_ms[0] / 1000)]
    assert outcome.useful_gpu_ms.tolist() == [outcome.finish_ms[0] - 2_000]


def test_a_job_may_shrink_onto_a_node_that_drains_and_not_grow_there():
    drain = Faults(drains=(Drain(nodes=(0,), start_ms=5_000, end_ms=10**9),))
    outcome, _ = play([elastic()], has(0, j0=[A, B]), has(10, j0=[B]), faults=drain)
    assert gpus_of(outcome, 0) == [[0, 1], [1]]
    with pytest.raises(PlanError, match="down or draining"):
        play([elastic()], has(0, j0=[A]), has(10, j0=[A, B]), faults=drain)


def test_a_node_lost_while_a_job_moves_to_it_sends_it_back_to_the_queue():
    """Moves from node 0 to node 1 at 10, saves until 15; node 1 is lost at 12: nothing is lost but the time."""
    with _fails({(1, 0): 12_000}):
        outcome, _ = play(
            [elastic()], has(0, j0=[A]), has(10, j0=[C]), has(12), has(13, j0=[B]),
            faults=Faults(node_mtbf_ms=1, repair_ms=10**7),
        )
    assert gpus_of(outcome, 0) == [[0], [1]]
    assert [begin for begin, _ in stretches(outcome, 0)] == [0, 15]
    assert outcome.lost_gpu_ms.tolist() == [0]
    done = work_after(8_000, WORK, (8_000, (1,), NONE))
    assert outcome.finish_ms.tolist() == [22_000 + ends_after(done, WORK, (1,))]


def test_a_job_that_failed_can_start_with_another_size_and_falls_back_to_its_checkpoint():
    """Fails after 29 s of progress, checkpoints every 10 s: restarts on two GPUs with the work of 20 s.

    It was in the third quarter of its work (from 27.25 s on), and falls back into the second.
    """
    with _dies({(0, 1): 29_000}):
        outcome, journal = play(
            [elastic()], has(0, j0=[A]), has(31, j0=[A, B]), faults=Faults(job_mtbf_ms=1),
        )
    kept = work_after(20_000, WORK, (20_000, (1,), NONE))
    assert WORK / PARTS < kept < work_after(29_000, WORK, (29_000, (1,), NONE)) - WORK / PARTS / 2
    assert outcome.finish_ms.tolist() == [38_000 + ends_after(kept, WORK, (2,))]
    assert outcome.lost_gpu_ms.tolist() == [9_000]
    assert outcome.useful_gpu_ms.tolist() == [20_000 + 2 * (outcome.finish_ms[0] - 38_000)]
    back = [line for line in journal.lines if '"REPORTED"' in line and '"t":31000}' in line]
    assert len(back) == 1
    assert f'"samples_done":{kept * 2}' in back[0]
    assert '"seen":[]' in back[0]


def test_a_resize_neither_renews_nor_ends_the_life_of_an_attempt():
    """Fails after 20 s of running: 8 s before its first resize at 10, 3 s from 22 to 25, the other 9 s from 37 on.

    The second attempt is placed at 47, loads for 7 s and fails after 1 s.
    """
    lives = {(0, 1): 20_000, (0, 2): 1_000, (0, 3): 1_000}
    with _dies(lives):
        outcome, journal = play(
            [elastic()], has(0, j0=[A]), has(10, j0=[A, B]), has(25, j0=[A]), has(46), has(47, j0=[A]),
            faults=Faults(job_mtbf_ms=1, attempts_max=2),
        )
    assert outcome.resizes.tolist() == [2]
    assert failures(journal) == [(46_000, "FAILED"), (55_000, "GAVE_UP")]


def test_a_resize_before_the_first_step_takes_nothing_from_the_life_of_an_attempt():
    with _dies({(0, 1): 20_000}):
        _, journal = play(
            [elastic()], has(0, j0=[A]), has(1, j0=[A, B]), has(10, j0=[A]), faults=Faults(job_mtbf_ms=1),
        )
    assert failures(journal)[0] == (22_000 + 18_000, "FAILED")  # on two GPUs from 8 to 10, on one from 22 on


def failures(journal):
    lines = [json.loads(line) for line in journal.lines]
    return [(line["t"], line["e"]) for line in lines if line.get("e") in ("FAILED", "GAVE_UP")]


def test_who_waits_for_a_rejected_job_may_go():
    outcome, _ = play(
        [elastic(), elastic(), elastic(after="j1", delay=3)], has(0, 1, j0=[A], j2=[C]),
    )
    assert outcome.rejected.tolist() == [0, 1, 0]
    assert outcome.finish_ms[1] == NONE
    assert outcome.first_start_ms.tolist() == [0, NONE, 3_000]


def test_a_held_job_can_be_rejected_before_the_one_it_waits_for_has_ended():
    outcome, _ = play([elastic(), elastic(after="j0"), elastic(after="j1")], has(0, 1, j0=[A], j2=[C]))
    assert outcome.rejected.tolist() == [0, 1, 0]
    assert outcome.first_start_ms.tolist() == [0, NONE, 0]


@pytest.mark.cases(1)
@pytest.mark.parametrize("part", ["start_ms", "save_ms", "restart_ms", "all"])
def test_doubled_overheads_never_shorten_anything(part):
    """The same plans at the same times, far enough apart that nobody is resized before it has started.

    Closer together they may: a job that makes no progress yet has nothing to save.
    """
    script = (
        has(0, j0=[A], j1=[C]), has(12, j0=[A, B], j1=[C]), has(24, j0=[A], j1=[B, C]), has(26, j0=[A]),
        has(36, j0=[C], j1=[A]),
    )
    parts = ("start_ms", "save_ms", "restart_ms") if part == "all" else (part,)
    free = {"start_ms": 0, "save_ms": 0, "restart_ms": 0, "checkpoint_ms": 10_000}
    ends = [
        play([elastic(), elastic()], *script, costs=Overheads(**free | dict.fromkeys(parts, cost)))[0].finish_ms
        for cost in (0, 1_000, 2_000, 4_000)
    ]
    for less, more in pairwise(ends):
        assert (more >= less).all()
        assert (more > less).any()


def test_a_round_that_changes_nothing_restarts_nobody():
    outcome, journal = play([elastic(), batched()], has(0, j0=[A, B], j1=([C], 16)))
    assert outcome.restarts.tolist() == [0, 0]
    assert outcome.rounds > 30
    assert sum('"do"' in line for line in journal.lines) == 1


def test_rounds_come_with_the_period_while_somebody_runs_who_could_be_resized():
    outcome, _ = play([elastic(run=10)], has(0, j0=[A]), costs=Overheads(start_ms=0), period_ms=500)
    assert outcome.rounds == 1 + int(outcome.finish_ms[0] - 1) // 500
