"""Jobs whose GPUs and batch change while they run, against a slow simulation, whatever is decided and breaks."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.core.checks import check_snapshot
from brim.core.trace import trace_of
from brim.engine.journal import Journal
from brim.policies.presets import PRESETS
from brim.sim.faults import Drain, Faults, job_failure_ms
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import rules
from brim.testing.builders import small_trace
from brim.testing.elastic import ToyTruth, restless
from brim.testing.strategies import clusters, elastic_jobs_of

from .slow import Slow
from .test_elastic_scripts import ends_soon

COST_MS = st.sampled_from((0, 1, 7, 90, 350))


@st.composite
def cases(draw, *, breaks=True):
    """A cluster, jobs that last some seconds, and costs and faults of some hundred milliseconds."""
    cluster = draw(clusters(groups_max=2, nodes_max=2, gpus_max=3))
    jobs = draw(elastic_jobs_of(cluster, jobs_max=6, run_s_max=40, at_s_max=30, per_s=10))
    costs = Overheads(
        start_ms=draw(COST_MS), save_ms=draw(COST_MS), restart_ms=draw(COST_MS),
        checkpoint_ms=draw(st.sampled_from((10, 100, 700))),
    )
    broken = Faults()
    if breaks and draw(st.booleans()):
        broken = Faults(
            job_mtbf_ms=draw(st.sampled_from((0, 3_000))), attempts_max=draw(st.integers(1, 3)),
            node_mtbf_ms=draw(st.sampled_from((0, 6_000))), repair_ms=draw(st.sampled_from((50, 400))),
            drains=tuple(
                Drain(nodes=(node,), start_ms=start * 100, end_ms=(start + span) * 100)
                for node, start, span in draw(st.lists(
                    st.tuples(st.integers(0, cluster.num_nodes - 1), st.integers(0, 40), st.integers(1, 30)),
                    max_size=2,
                ))
            ),
        )
    policy = restless(
        calm_ms=draw(st.sampled_from((0, 2_000, 6_000))), seed=draw(st.integers(0, 9)),
        period_ms=draw(st.sampled_from((50, 300, 1_000))),
    )
    return cluster, jobs, costs, broken, policy


def limits(jobs):
    return {f"j{row}": one for row, one in enumerate(jobs)}


def replayed(cluster, jobs, costs, broken, policy, note=None, *, trace=None):
    trace = small_trace(*jobs) if trace is None else trace
    truth, journal = ToyTruth(trace, limits(jobs)), Journal()
    outcome = replay(
        trace, cluster, rules.watched(policy, note) if note else policy,
        ReplaySettings(overheads=costs, faults=broken, gap_ms=0), truth=truth, journal=journal, on_progress=ends_soon,
    )
    return outcome, truth, journal


@given(cases())
def test_the_twin_agrees_with_a_slow_simulation_in_every_column_and_every_round(case):
    cluster, jobs, costs, broken, policy = case
    snapshots = []

    def note(snapshot, grants):
        check_snapshot(snapshot)
        rules.check_grants(snapshot, grants, resizes=True)
        snapshots.append(snapshot)

    outcome, truth, journal = replayed(cluster, jobs, costs, broken, policy, note)
    slow = Slow(outcome.trace, cluster, truth, costs, journal.lines).run()
    assert slow.wrong == []
    for column, name in (
        ("finish_ms", "finish"), ("first_start_ms", "first_start"), ("service_gpu_ms", "service"),
        ("useful_gpu_ms", "useful"), ("lost_gpu_ms", "lost"), ("preemptions", "preemptions"),
        ("restarts", "restarts"), ("rejected", "rejected"), ("failed", "given_up"),
    ):
        assert getattr(outcome, column).tolist() == [getattr(life, name) for life in slow.jobs], column
    for job, life in enumerate(slow.jobs):
        for attempt, (ran_ms, failed) in enumerate(zip(life.ran, life.failed, strict=True), start=1):
            lives_ms = job_failure_ms(broken, 0, job, attempt) if broken.job_mtbf_ms else math.inf
            assert ran_ms == lives_ms if failed else ran_ms <= lives_ms
    runs = outcome.runs
    assert [
        (int(job), int(start), int(end), tuple(runs.gpu[first:stop].tolist()))
        for job, start, end, first, stop in zip(
            runs.job, runs.start_ms, runs.end_ms, runs.first_gpu[:-1], runs.first_gpu[1:], strict=True,
        )
    ] == sorted(slow.runs, key=lambda run: (run[1], run[0]))
    assert len(snapshots) == len(slow.told) == outcome.rounds
    for snapshot, told in zip(snapshots, slow.told, strict=True):
        for row, job in enumerate(snapshot.jobs.id.tolist()):
            one = snapshot.jobs[row]
            done, pace, gpus, batch, service, run_ms = told[job]
            assert one.samples_done == done
            assert pace is None or one.samples_per_s == pace
            assert one.gpus_now == gpus
            assert batch is None or one.batch_now == batch
            assert abs(one.service_gpu_ms - service) <= one.placements
            assert one.run_ms == run_ms


@given(cases())
def test_work_is_conserved_and_no_gpu_or_job_is_in_two_places(case):
    cluster, jobs, costs, broken, policy = case
    outcome, _, _ = replayed(cluster, jobs, costs, broken, policy)
    rules.check_never_shared(outcome)
    rules.check_one_place(outcome)
    over = (outcome.finish_ms >= 0) | (outcome.rejected > 0)
    assert over.all()
    assert ((outcome.finish_ms >= 0) != (outcome.rejected > 0)).all()
    slack = outcome.restarts + 1
    assert (outcome.service_gpu_ms >= outcome.useful_gpu_ms + outcome.lost_gpu_ms - slack).all()


@given(cases())
def test_two_equal_replays_give_equal_bytes(case):
    first, second = replayed(*case), replayed(*case)
    assert first[2].lines == second[2].lines
    rules.check_same(rules.SAME_SEED, "replayed twice", first[0], second[0])


@given(cases(breaks=False))
def test_the_order_of_the_input_rows_does_not_matter(case):
    cluster, jobs, costs, broken, policy = case
    first, _, _ = replayed(*case)
    other = trace_of(**rules.permuted(first.trace, seed=3))
    again, _, _ = replayed(cluster, jobs, costs, broken, policy, trace=other)
    rules.check_same(rules.ORDER_FREE, "with the rows in another order", first, again)


@given(cases(), st.sampled_from(("fifo", "backfill", "las", "tiresias", "fair")))
def test_policies_that_do_not_resize_run_elastic_jobs_as_asked(case, name):
    cluster, jobs, costs, broken, _ = case
    outcome, truth, journal = replayed(cluster, jobs, costs, broken, PRESETS[name])
    slow = Slow(outcome.trace, cluster, truth, costs, journal.lines).run()
    assert slow.wrong == []
    assert outcome.finish_ms.tolist() == [life.finish for life in slow.jobs]
    counts = np.diff(outcome.runs.first_gpu)
    assert counts.tolist() == outcome.trace.gpus[outcome.runs.job].tolist()
