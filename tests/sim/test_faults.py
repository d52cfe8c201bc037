"""What breaks: nodes, jobs, and planned maintenance."""

from __future__ import annotations

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import ConfigError
from brim.sim.faults import Drain, Faults, job_failure_ms, node_failure_ms
from brim.sim.overheads import Overheads
from brim.testing import job, small_trace
from brim.testing.rules import check_never_shared
from brim.testing.strategies import clusters, faults, overheads, traces

from .exact import FREE, ends, run, starts, stretches

EVERY_10_S = Overheads(start_ms=0, save_ms=0, restart_ms=0, checkpoint_ms=10_000)
NEVER_MS = 10**12
INJECTOR = "brim.sim.fault_injector"


def _fails(times: dict[tuple[int, int], int]):
    """Nodes fail when told: (node, count) -> ms after being up."""
    return patch(f"{INJECTOR}.node_failure_ms", lambda f, s, node, count: times.get((node, count), NEVER_MS))


def _dies(times: dict[tuple[int, int], int]):
    """Jobs fail when told: (job, attempt) -> ms of running."""
    return patch(f"{INJECTOR}.job_failure_ms", lambda f, s, item, attempt: times.get((item, attempt), NEVER_MS))


def test_a_lost_node_rolls_its_job_back_to_the_last_checkpoint():
    """Checkpoints every 10 s; lost at 37, back at 57, restart 7 s: 30 s are kept, 7 s lost, 70 s still to go.

    ::

        j0  |r...10...20...30...37x      57 R R R 64 r ... 134
    """
    costs = Overheads(start_ms=0, save_ms=5_000, restart_ms=7_000, checkpoint_ms=10_000)
    with _fails({(0, 0): 37_000}):
        outcome = run(small_trace(job(run=100)), "1x1xT4", overheads=costs,
                      faults=Faults(node_mtbf_ms=1, repair_ms=20_000))
    assert stretches(outcome, 0) == [(0, 37), (57, 134)]
    assert outcome.lost_gpu_ms.tolist() == [7_000]
    assert outcome.useful_gpu_ms.tolist() == [100_000]
    assert outcome.preemptions.tolist() == [0]
    assert outcome.restarts.tolist() == [1]


def test_only_the_jobs_of_the_lost_node_are_evicted():
    trace = small_trace(job(run=100), job(run=100), job(run=100, gpus=2))
    with _fails({(0, 0): 50_000}):
        outcome = run(trace, "4x1xT4", overheads=EVERY_10_S, faults=Faults(node_mtbf_ms=1, repair_ms=20_000))
    assert ends(outcome) == [120, 100, 100]


def test_a_gang_on_two_nodes_loses_all_its_gpus_with_one_of_them():
    trace = small_trace(job(run=100, gpus=2))
    with _fails({(1, 0): 45_000}):
        outcome = run(trace, "2x1xT4", overheads=EVERY_10_S, faults=Faults(node_mtbf_ms=1, repair_ms=20_000))
    assert stretches(outcome, 0) == [(0, 45), (65, 125)]


def test_a_repaired_node_takes_jobs_again():
    with _fails({(0, 0): 1_000}):
        outcome = run(small_trace(job(at=0, run=100), job(at=2, run=5)), "1x1xT4", "srtf-oracle",
                      overheads=EVERY_10_S, faults=Faults(node_mtbf_ms=1, repair_ms=9_000))
    assert starts(outcome) == [0, 10]


def test_a_job_fails_back_to_its_checkpoint_and_tries_again():
    with _dies({(0, 1): 25_000}):
        outcome = run(small_trace(job(run=100)), "1x1xT4", overheads=EVERY_10_S, faults=Faults(job_mtbf_ms=1))
    assert ends(outcome) == [105]
    assert outcome.lost_gpu_ms.tolist() == [5_000]
    assert outcome.failed.tolist() == [0]


def test_the_last_attempt_that_fails_ends_the_job():
    """Three attempts, each 25 s to its failure and 20 s to its last checkpoint: given up at 75 s."""
    dead = dict.fromkeys([(0, 1), (0, 2), (0, 3), (0, 4)], 25_000)
    with _dies(dead):
        outcome = run(small_trace(job(run=100), job(run=1)), "1x1xT4", overheads=EVERY_10_S,
                      faults=Faults(job_mtbf_ms=1, attempts_max=3))
    assert ends(outcome) == [75, 76]
    assert outcome.failed.tolist() == [1, 0]
    assert outcome.useful_gpu_ms.tolist() == [60_000, 1_000]
    assert outcome.lost_gpu_ms.tolist() == [15_000, 0]


def test_preemption_and_node_loss_do_not_count_as_failed_attempts():
    with _fails({(0, 0): 10_000, (0, 1): 10_000, (0, 2): 10_000}), _dies({(0, 4): 5_000}):
        outcome = run(small_trace(job(run=100)), "1x1xT4", overheads=EVERY_10_S,
                      faults=Faults(node_mtbf_ms=1, repair_ms=1_000, job_mtbf_ms=1, attempts_max=2))
    assert outcome.failed.tolist() == [0]


# -- drains -------------------------------------------------------------------------------------------------------


def test_a_draining_node_lets_its_job_end_and_takes_no_other():
    drain = Drain(nodes=(0,), start_ms=5_000, end_ms=60_000)
    outcome = run(small_trace(job(run=20), job(at=1, run=5)), "1x1xT4", faults=Faults(drains=(drain,)))
    assert stretches(outcome, 0) == [(0, 20)]
    assert starts(outcome) == [0, 60]


def test_other_nodes_go_on_while_one_drains():
    drain = Drain(nodes=(0,), start_ms=0, end_ms=60_000)
    outcome = run(small_trace(job(at=0, run=1), job(at=1, run=20), job(at=2, run=5)), "2x1xT4",
                  faults=Faults(drains=(drain,)))
    assert starts(outcome) == [0, 1, 21]


def test_a_node_repaired_during_its_drain_stays_closed_until_the_drain_ends():
    drain = Drain(nodes=(0,), start_ms=5_000, end_ms=60_000)
    with _fails({(0, 0): 10_000}):
        outcome = run(small_trace(job(run=20)), "1x1xT4", overheads=EVERY_10_S,
                      faults=Faults(drains=(drain,), node_mtbf_ms=1, repair_ms=10_000))
    assert stretches(outcome, 0) == [(0, 10), (60, 70)]


def test_the_end_of_a_drain_does_not_raise_a_lost_node():
    drain = Drain(nodes=(0,), start_ms=5_000, end_ms=15_000)
    with _fails({(0, 0): 10_000}):
        outcome = run(small_trace(job(run=20)), "1x1xT4", overheads=EVERY_10_S,
                      faults=Faults(drains=(drain,), node_mtbf_ms=1, repair_ms=50_000))
    assert stretches(outcome, 0) == [(0, 10), (60, 70)]


def test_a_drain_that_begins_on_a_lost_node_keeps_it_closed_after_the_repair():
    drain = Drain(nodes=(0,), start_ms=12_000, end_ms=90_000)
    with _fails({(0, 0): 10_000}):
        outcome = run(small_trace(job(run=20)), "1x1xT4", overheads=EVERY_10_S,
                      faults=Faults(drains=(drain,), node_mtbf_ms=1, repair_ms=50_000))
    assert stretches(outcome, 0) == [(0, 10), (90, 100)]


def test_two_drains_of_one_node_that_overlap_keep_it_closed_until_the_later_end():
    drains = (Drain(nodes=(0,), start_ms=5_000, end_ms=30_000), Drain(nodes=(0,), start_ms=10_000, end_ms=50_000))
    outcome = run(small_trace(job(run=20), job(at=1, run=5)), "1x1xT4", faults=Faults(drains=drains))
    assert starts(outcome)[1] == 50


# -- draws and properties -----------------------------------------------------------------------------------------


def test_draws_depend_on_seed_item_and_count_and_on_nothing_else():
    some = Faults(job_mtbf_ms=1_000_000, node_mtbf_ms=1_000_000)
    seen = {draw(some, *which) for draw in (job_failure_ms, node_failure_ms) for which in product(range(3), repeat=3)}
    assert len(seen) == 2 * 27
    assert job_failure_ms(some, 1, 2, 3) == job_failure_ms(some, 1, 2, 3)


def test_draws_have_the_mean_asked_for():
    some = Faults(job_mtbf_ms=60_000)
    drawn = [job_failure_ms(some, 0, item, 1) for item in range(4_000)]
    assert np.mean(drawn) == pytest.approx(60_000, rel=4 / np.sqrt(4_000))


def test_a_checkpoint_interval_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="checkpoint"):
        Overheads(checkpoint_ms=0)


def test_costs_below_zero_are_refused():
    with pytest.raises(ConfigError, match="restart"):
        Overheads(restart_ms=-1)


@given(st.data())
def test_books_balance_whatever_breaks(data):
    """Every job ends or is given up; work is conserved; no GPU is held twice; nobody starts on a closed node."""
    cluster = data.draw(clusters(nodes_max=2))
    trace = data.draw(traces(cluster, run_s_max=200))
    costs, broken = data.draw(overheads()), data.draw(faults(cluster))
    policy = data.draw(st.sampled_from(("fifo", "backfill", "srtf-oracle", "las", "tiresias", "fair")))
    outcome = run(trace, cluster, policy, overheads=costs, faults=broken, seed=data.draw(st.integers(0, 3)))
    check_never_shared(outcome)
    assert (outcome.finish_ms >= 0).all()
    weight = trace.gpus * trace.share_milli
    full = trace.run_ms * weight // 1000
    slack = (outcome.restarts + 1) * 1  # each attempt's GPU time is rounded down
    done = outcome.failed == 0
    assert (outcome.useful_gpu_ms <= full).all()
    assert (outcome.useful_gpu_ms[done] >= full[done] - slack[done]).all()
    assert (outcome.service_gpu_ms >= outcome.useful_gpu_ms + outcome.lost_gpu_ms - slack).all()
    assert (outcome.finish_ms - trace.submit_ms >= np.where(done, trace.run_ms, 0)).all()
    runs = outcome.runs
    assert (runs.end_ms > runs.start_ms).all()
    first = outcome.first_start_ms.copy()
    first[runs.job[::-1]] = runs.start_ms[::-1]
    assert (outcome.first_start_ms <= first).all()
    assert (outcome.first_start_ms == first)[(trace.run_ms > 0) & (costs.start_ms == costs.restart_ms == 0)].all()
    if not costs.save_ms:  # a grant may precede the start by the save of whoever leaves
        for drain in broken.drains:
            for row in range(len(runs.job)):
                nodes = np.searchsorted(cluster.gpu_offset_N, runs.gpu[runs.first_gpu[row] : runs.first_gpu[row + 1]],
                                        side="right") - 1
                if set(nodes.tolist()) & set(drain.nodes):
                    assert not drain.start_ms <= runs.start_ms[row] < drain.end_ms


@given(st.data())
def test_faults_that_never_come_change_nothing(data):
    cluster = data.draw(clusters(nodes_max=2))
    trace = data.draw(traces(cluster))
    never = Faults(node_mtbf_ms=10**15, job_mtbf_ms=10**15)
    calm, watched = run(trace, cluster, "srtf-oracle"), run(trace, cluster, "srtf-oracle", faults=never)
    assert calm.finish_ms.tolist() == watched.finish_ms.tolist()
    assert calm.runs.gpu.tolist() == watched.runs.gpu.tolist()
    assert FREE.times(2).restart_ms == 0
