"""The compiled loop with whole rounds and the general loop are one twin: the same columns, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.replay import Replay
from brim.engine.journal import Journal
from brim.errors import PlanError
from brim.policies.feed.even import Even
from brim.policies.order import attained, shortest
from brim.policies.order.arrival import Arrival
from brim.policies.order.attained import Gittins, LeastAttained
from brim.policies.order.fair import MaxMin
from brim.policies.order.shortest import ShortestRemaining
from brim.policies.order.tiresias import ServiceQueues, TwoQueues
from brim.policies.place import parts
from brim.policies.place.parts import MISFIT, Consolidate, Fragmentation, Spread, WorstFit
from brim.policies.presets import PRESETS
from brim.policies.size.as_asked import AsAsked
from brim.sim import stall_detector
from brim.sim.compiled import eligible
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads
from brim.sim.truths.categories import drawn_jobs
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import ALONE
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace
from brim.testing.elastic import ToyTruth
from brim.testing.strategies import clusters, elastic_jobs_of, jobs_of, overheads
from brim.traces import synthesize
from tests import sampling
from tests.golden.cases import CLUSTERS, TRACES, load

from .exact import run
from .test_colocation import Divided

PLACES = (Consolidate, Spread, Fragmentation, WorstFit)
RIGID = tuple(
    name for name, policy in PRESETS.items()
    if type(policy.size) is AsAsked and type(policy.place) in PLACES and type(policy.feed) is Even
)
OWN = ("trace", "cluster", "wall_s", "round_s", "runs", "sleeps", "assumptions")


def assert_equal(one: Replay, other: Replay) -> None:
    """Every column of the compiled loop, which times no rounds, is that of the general loop, which does."""
    assert len(one.round_s) == 0
    assert len(other.round_s) == other.rounds
    for column in fields(Replay):
        if column.name not in OWN:
            assert np.array_equal(getattr(one, column.name), getattr(other, column.name)), column.name
    for part in ("runs", "sleeps"):
        for column in fields(getattr(one, part)):
            assert np.array_equal(*(getattr(getattr(each, part), column.name) for each in (one, other))), column.name


def both(trace, cluster, policy, settings, truth=None):
    """Both replays, stopped at the first report of progress: some of these policies let no job finish."""
    def stop(ended, now_ms):
        return False

    return tuple(
        replay(trace, cluster, policy, settings, truth=truth, journal=journal, on_progress=stop)
        for journal in (None, Journal())
    )


class Thirds(ToyTruth):
    """A truth whose paces change with nodes and progress, and are no binary fractions: work is rounded."""

    def pace(self, job, done, nodes, batch, colocation=ALONE):
        pace = super().pace(job, done, nodes, batch, colocation)
        return pace._replace(per_ms=pace.per_ms / 3)


@st.composite
def policies(draw):
    """A rigid preset, or one with other parts, constants that matter for short jobs, and other periods."""
    policy = PRESETS[draw(st.sampled_from(RIGID))]
    order = draw(st.sampled_from((
        policy.order, LeastAttained(draw(st.sampled_from((1, 1_000, 20_000)))), Gittins(draw(st.integers(0, 4))),
        ServiceQueues((5_000, 5_000, 30_000), draw(st.sampled_from((0, 0.3, 1, 2.5)))),
        TwoQueues(draw(st.sampled_from((0, 10_000)))),
        MaxMin((("ann", 2.5), ("bob", 0.3)), draw(st.sampled_from((0, 7_000))), draw(st.sampled_from((0, 9_000)))),
    )))
    if draw(st.booleans()):
        place = draw(st.sampled_from(PLACES))(draw(st.sampled_from(sorted(MISFIT))))
        policy = replace(policy, place=place)
    if draw(st.booleans()):
        period = draw(st.sampled_from((0, 1_000, 7_000)))
        policy = replace(policy, period_ms=period, gap_ms=draw(st.sampled_from((0, 2_500))),
                         fixed_rounds=period > 0 and draw(st.booleans()))
    return replace(policy, order=order, oracle=draw(st.booleans()))


@settings(max_examples=sampling.sample(200, 30), deadline=None)
@given(st.data())
def test_the_compiled_loop_decides_as_the_general_loop_does(data):
    cluster = data.draw(clusters())
    trace = small_trace(*data.draw(jobs_of(cluster, jobs_max=14)))
    settings = ReplaySettings(gap_ms=data.draw(st.sampled_from((0, 1_000, 7_000))), overheads=data.draw(overheads()),
                        estimates=data.draw(st.sampled_from(("limits", "history"))))
    assert_equal(*both(trace, cluster, data.draw(policies()), settings))


@pytest.mark.slow
@settings(max_examples=sampling.sample(200, 30), deadline=None)
@given(st.data())
def test_jobs_whose_pace_depends_on_nodes_and_progress_run_alike_in_both(data):
    cluster = data.draw(clusters())
    jobs = data.draw(elastic_jobs_of(cluster, jobs_max=14))
    trace = small_trace(*jobs)
    truth = Thirds(trace, dict(zip(trace.job_id, jobs, strict=True)))
    settings = ReplaySettings(gap_ms=data.draw(st.sampled_from((0, 1_000, 7_000))), overheads=data.draw(overheads()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eligible, "_TRUTHS", (Thirds,))
        assert_equal(*both(trace, cluster, data.draw(policies()), settings, truth))


@pytest.mark.slow
@settings(max_examples=sampling.sample(100, 15), deadline=None)
@given(st.data())
def test_a_deep_queue_is_the_same_in_both(data):
    cluster = data.draw(clusters(nodes_max=3))
    asks = data.draw(jobs_of(cluster, dependencies=False, jobs_max=3).filter(len))
    jobs = [
        replace(data.draw(st.sampled_from(asks)), at=data.draw(st.integers(0, 20)), run=data.draw(st.integers(1, 40)),
                limit=data.draw(st.integers(1, 60)))
        for _ in range(data.draw(st.integers(1, 40)))
    ]
    settings = ReplaySettings(gap_ms=data.draw(st.sampled_from((0, 3_000))), overheads=data.draw(overheads()))
    assert_equal(*both(small_trace(*jobs), cluster, data.draw(policies()), settings))


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", RIGID)
@pytest.mark.parametrize("golden", TRACES)
def test_the_golden_traces_are_the_same_in_both(name, golden):
    trace = load(golden)
    assert_equal(run(trace, CLUSTERS[golden], name), run(trace, CLUSTERS[golden], name, compiled=False))


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", [name for name in RIGID if name not in ("fifo", "sjf", "sjf-oracle", "backfill")])
def test_a_busy_cluster_of_200_jobs_is_the_same_in_both(name):
    rng = np.random.default_rng(3)
    jobs = [job(at=int(at), run=int(length), gpus=int(gpus), user=f"u{gpus}") for at, length, gpus in zip(
        np.sort(rng.integers(0, 9_000, 200)), rng.integers(1, 4_000, 200), 2 ** rng.integers(0, 4, 200), strict=True)]
    trace, cluster, settings = small_trace(*jobs), parse_cluster("4x4xT4"), ReplaySettings(gap_ms=30_000)
    outcome = replay(trace, cluster, PRESETS[name], settings)
    assert_equal(outcome, replay(trace, cluster, PRESETS[name], settings, journal=Journal()))
    assert outcome.preemptions.sum() > 20


TWO = small_trace(job(run=7200), job(run=7200))
EQUALS = replace(PRESETS["las"], order=LeastAttained(1), period_ms=1_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["las", "tiresias-pollux"])
def test_elastic_jobs_at_the_size_asked_are_the_same_in_both(name):
    cluster = parse_cluster("4x4xT4")
    trace = synthesize("philly", jobs=200, seed=3, cluster=cluster, load=2.0)
    truth = drawn_jobs(trace, cluster, 0.5)
    outcome = replay(trace, cluster, PRESETS[name], truth=truth)
    assert_equal(outcome, replay(trace, cluster, PRESETS[name], truth=truth, journal=Journal()))
    assert outcome.preemptions.sum() > 20


@pytest.mark.slow
def test_both_give_up_with_the_same_words(monkeypatch):
    """Two equal jobs take one GPU from each other in every round; both loops are less patient than users need."""
    monkeypatch.setattr(stall_detector, "STUCK_EVENTS", 2 * 1024)
    monkeypatch.setattr(stall_detector, "FUTILE_ROUNDS", 1024)
    said = []
    for journal in (None, Journal()):
        with pytest.raises(PlanError, match=r"policy 'las': job j0 has made no lasting progress .* starts of") as one:
            replay(TWO, parse_cluster("1x1xT4"), EQUALS, ReplaySettings(overheads=Overheads(start_ms=30_000)),
                   journal=journal)
        said.append(str(one.value))
    assert said[0] == said[1]


def is_compiled(policy, **settings):
    return len(replay(TWO, parse_cluster("2x1xT4"), policy, ReplaySettings(**settings)).round_s) == 0


@pytest.mark.parametrize("cluster", ["1x1xT4:cpus=8192", "1x1xT4:cpus=8192+1x1xT4"])
def test_a_node_may_have_more_cores_than_machines_of_today(cluster):
    trace = small_trace(job(run=60), job(run=60))
    assert_equal(*both(trace, parse_cluster(cluster), PRESETS["fifo"], ReplaySettings()))


def test_it_runs_whatever_it_implements():
    assert all(is_compiled(PRESETS[name], estimates=source) for name in RIGID for source in ("limits", "history"))
    assert not is_compiled(PRESETS["las"], faults=Faults(drains=(Drain(nodes=(1,), start_ms=0, end_ms=1),)))


@pytest.mark.parametrize("order", [
    type("Mine", (LeastAttained,), {})(), LeastAttained(0.5), Gittins(2.5), ServiceQueues((2, 1)),
    MaxMin(horizon_ms=0.5), ServiceQueues(promote_ratio=-1.0), TwoQueues(1e6),
])
def test_what_it_does_not_implement_runs_in_the_general_loop(order):
    assert not is_compiled(replace(PRESETS["las"], order=order))


def test_parts_of_its_own_kind_run_in_the_general_loop():
    for place in PLACES:
        assert is_compiled(replace(PRESETS["las"], place=place()))
        assert not is_compiled(replace(PRESETS["las"], place=type("Mine", (place,), {})()))


@pytest.mark.parametrize("truth", [Divided(TWO), type("Mine", (Rigid,), {})(TWO)])
def test_a_truth_that_is_not_a_shipped_one_runs_in_the_general_loop(truth):
    assert len(replay(TWO, parse_cluster("2x1xT4"), PRESETS["las"], truth=truth).round_s) > 0


@pytest.mark.parametrize("name", ["srtf", "las", "gittins", "tiresias", "tiresias-pollux", "fair"])
def test_a_function_that_was_replaced_on_a_shipped_class_is_called(monkeypatch, name):
    monkeypatch.setattr(type(PRESETS[name].order), "__call__", Arrival.__call__)
    assert not is_compiled(PRESETS[name])


@pytest.mark.parametrize(("name", "module", "function"), [
    ("srtf", shortest, "remaining_ms"), ("gittins", attained, "gittins_index"), ("las", parts, "_place"),
])
def test_a_name_that_was_replaced_in_a_module_of_a_shipped_class_is_used(monkeypatch, name, module, function):
    assert is_compiled(PRESETS[name])
    monkeypatch.setattr(module, function, partial(getattr(module, function)))
    assert not is_compiled(PRESETS[name])


def test_code_that_was_replaced_within_a_function_is_called(monkeypatch):
    monkeypatch.setattr(ShortestRemaining.__call__, "__code__", (lambda self, snapshot, beliefs: None).__code__)
    with pytest.raises(PlanError, match="expected an array of 2 signed integers, one per job"):
        is_compiled(PRESETS["srtf"])


PATCHED_FIRST = """
from brim.policies.order.attained import LeastAttained
LeastAttained.__call__ = lambda self, snapshot, beliefs: snapshot.jobs.id.argsort()[::-1]
from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.sim.twin import replay
from brim.testing import job, small_trace
print(len(replay(small_trace(job(run=5), job(run=5)), parse_cluster("1x1xT4"), PRESETS["las"]).round_s) > 0)
"""


@pytest.mark.slow
def test_a_function_that_was_replaced_before_the_twin_was_imported_is_called():
    done = subprocess.run([sys.executable, "-c", PATCHED_FIRST], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_service_beyond_64_bits_is_counted_in_python():
    trace = small_trace(job(run=315_000_000, gpus=32_000))
    outcome = replay(trace, parse_cluster("4000x8xT4"), PRESETS["las"])
    assert outcome.service_gpu_ms.tolist() == [315_000_000_000 * 32_000]


@pytest.mark.skipif(not sampling.full, reason="compiles everything again: part of make test-all")
def test_compiled_loops_do_not_leave_their_arrays():
    """The random replays of this file in a process whose compiled code checks every index."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "decides or deep or golden"],
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
