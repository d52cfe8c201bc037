"""Preempted jobs hold their GPUs while they save; whoever gets them next begins when they are gone."""

from __future__ import annotations

from unittest.mock import patch

from brim.sim.faults import Faults
from brim.sim.overheads import Overheads
from brim.testing import job, small_trace
from brim.testing.rules import check_never_shared

from .exact import ends, run, starts, stretches

SLOW = Overheads(start_ms=2_000, save_ms=5_000, restart_ms=7_000)


def test_every_cost_is_charged_once():
    """One GPU, SRTF: start 2 s, save 5 s, restart 7 s.

    ::

        j0 (100 s)  s s r r r r r r r r S S S S S . . . . . . . R R R R R R R r ... r
                    0   2               10        15        (19) 20           27    119
        j1 (3 s)                        .  .  .   s s r r r
                                        10        15  17    20

    j0 starts at 0, makes progress from 2, is preempted at 10 with 92 s left, saves until 15. j1 was granted the GPU at
    10, begins at 15, makes progress from 17 and ends at 20. j0 is back at 20, loads until 27 and ends at 119.
    """
    outcome = run(small_trace(job(run=100), job(at=10, run=3)), "1x1xT4", "srtf-oracle", overheads=SLOW)
    assert stretches(outcome, 0) == [(0, 15), (20, 119)]
    assert stretches(outcome, 1) == [(15, 20)]
    assert starts(outcome) == [0, 15]
    assert ends(outcome) == [119, 20]
    assert outcome.preemptions.tolist() == [1, 0]
    assert outcome.restarts.tolist() == [1, 0]
    assert outcome.useful_gpu_ms.tolist() == [100_000, 3_000]
    assert outcome.service_gpu_ms.tolist() == [114_000, 5_000]
    assert outcome.lost_gpu_ms.tolist() == [0, 0]


def test_a_job_that_made_no_progress_has_nothing_to_save():
    """j0 is still starting (until 2 s) when j1 takes its GPU at 1 s: no save, and j0's next start is a restart."""
    outcome = run(small_trace(job(run=100), job(at=1, run=3)), "1x1xT4", "srtf-oracle", overheads=SLOW)
    assert stretches(outcome, 0) == [(0, 1), (6, 113)]
    assert stretches(outcome, 1) == [(1, 6)]


def test_two_shares_that_leave_a_gpu_keep_both_newcomers_waiting():
    """Two halves save until 15 s; the two halves that replace them begin at 15 s, neither sooner."""
    trace = small_trace(
        job(run=100, share=500), job(run=100, share=500), job(at=10, run=3, share=500), job(at=10, run=3, share=500),
    )
    outcome = run(trace, "1x1xT4", "srtf-oracle", overheads=SLOW)
    assert starts(outcome) == [0, 0, 15, 15]
    check_never_shared(outcome)


def test_a_job_preempted_before_it_got_its_gpus_never_started():
    """j1 is granted the GPU at 10 while j0 saves until 15; j2 takes it over at 12: the first start of j1 is at 20.

    ::

        j0  r r r S S S S S                        then j0 again
        j1        10 granted, 12 taken away         20 s s ...
        j2              12 granted    15 s s r 18... 20
    """
    trace = small_trace(job(run=1000), job(at=10, run=50), job(at=12, run=3))
    outcome = run(trace, "1x1xT4", "srtf-oracle", overheads=SLOW)
    assert starts(outcome) == [0, 20, 15]
    assert stretches(outcome, 1) == [(20, 72)]
    assert outcome.restarts.tolist() == [1, 0, 0]
    assert outcome.preemptions.tolist() == [1, 1, 0]


def test_a_node_lost_while_a_newcomer_waits_for_its_gpus():
    """j1 would begin at 15 on a node that is lost at 12: it is back in the queue at 12 and starts at 22."""
    trace = small_trace(job(run=1000), job(at=10, run=50), job(at=13, run=70))
    once = patch("brim.sim.fault_injector.node_failure_ms", lambda f, seed, node, count: 12_000 if not count else 10**9)
    with once:
        outcome = run(
            trace, "1x1xT4", "srtf-oracle", overheads=SLOW, faults=Faults(node_mtbf_ms=1, repair_ms=10_000),
        )
    assert starts(outcome) == [0, 22, 74]
    assert stretches(outcome, 1) == [(22, 74)]
    assert outcome.restarts.tolist() == [1, 0, 0]
