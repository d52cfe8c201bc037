"""The compiled loop with queues and the general loop are one twin: the same columns, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.beliefs.runtime import UserLimits
from brim.core.cluster import parse_cluster
from brim.core.replay import Replay
from brim.core.trace import NONE
from brim.engine.journal import Journal
from brim.errors import ConfigError, PlanError
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate, Fragmentation, Spread
from brim.policies.presets import PRESETS
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy
from brim.sim.compiled.eligible import eligible_loop
from brim.sim.compiled.queues import run_queues
from brim.sim.compiled.replay import run_loop
from brim.sim.compiled.scenario import Scenario
from brim.sim.overheads import Overheads
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace
from brim.testing.strategies import clusters, jobs_of
from tests.golden.cases import CLUSTERS, TRACES, load
from tests.sampling import sample

from .exact import FREE, ends, run, starts

COLUMNS = ("first_start_ms", "finish_ms", "service_gpu_ms", "useful_gpu_ms", "lost_gpu_ms", "preemptions", "restarts",
           "failed")


def assert_equal(one: Replay, other: Replay) -> None:
    for name in COLUMNS:
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    for name in ("job", "start_ms", "end_ms", "first_gpu", "gpu"):
        assert getattr(one.runs, name).tolist() == getattr(other.runs, name).tolist(), name
    assert (one.end_ms, one.partial, one.rounds) == (other.end_ms, other.partial, other.rounds)


def loop_of(policy, trace, believed=UserLimits()):  # noqa: B008 - frozen
    return eligible_loop(Scenario(
        trace=trace, cluster=parse_cluster("1x1xT4"), policy=policy, truth=Rigid(trace), run_times=believed,
        overheads=FREE, gap_ms=0,
    ))


@pytest.mark.slow
@settings(max_examples=sample(200, 70))
@given(st.data())
def test_the_loop_with_queues_decides_as_the_general_loop_does(data):
    cluster = data.draw(clusters())
    jobs = data.draw(jobs_of(cluster, dependencies=False, jobs_max=14))
    if data.draw(st.booleans()):
        jobs = [replace(one, limit=one.limit or 1) for one in jobs]
    trace = small_trace(*jobs)
    policy = PRESETS[data.draw(st.sampled_from(("fifo", "backfill", "sjf", "sjf-oracle")))]
    if data.draw(st.booleans()):
        policy = replace(policy, place=Spread(policy.place.misfit))
    if data.draw(st.booleans()):
        policy = replace(policy, oracle=True)
    settings = ReplaySettings(gap_ms=data.draw(st.sampled_from((0, 1_000, 7_000))),
                        overheads=Overheads(start_ms=data.draw(st.sampled_from((0, 3_000)))))
    assert_equal(replay(trace, cluster, policy, settings), replay(trace, cluster, policy, settings, journal=Journal()))


def test_a_compiled_loop_runs_where_it_may():
    trace = small_trace(job(run=5))
    outcome = run(trace, "1x1xT4", "fifo")
    assert len(outcome.round_s) == 0  # compiled loops do not time their rounds
    assert len(run(trace, "1x1xT4", "fifo", compiled=False).round_s) == 1


def test_dependencies_need_whole_rounds():
    trace = small_trace(job(run=5), job(run=5, after="j0"))
    assert loop_of(PRESETS["fifo"], trace) is run_loop


@dataclass(frozen=True, slots=True)
class Lifo(Arrival):
    """Running jobs first, then the latest submission."""

    def __call__(self, snapshot, beliefs):
        return np.lexsort((-np.arange(len(snapshot.jobs)), ~snapshot.jobs.holds))


class Broken(Consolidate):
    """Does not place anything."""

    def __call__(self, snapshot, beliefs, order, sizes):
        raise ZeroDivisionError("no GPUs today")


class Robbing(NoFill):
    """Takes everything away again."""

    def __call__(self, snapshot, beliefs, grants):
        raise ZeroDivisionError("no filling today")


class Hungry(Even):
    """Fails while it counts cores."""

    def __call__(self, snapshot, beliefs, grants):
        raise ZeroDivisionError("no cores today")


class Remembering(Arrival):
    """Remembers how often it was asked: only the general loop asks."""

    def remember(self, snapshot):
        return snapshot.jobs.memo + 1


class Slow(Policy):
    """A policy of its own kind."""

    @property
    def asks_run_times(self):
        return False


@dataclass(frozen=True, slots=True)
class Longest(UserLimits):
    """Believes the opposite of the limits."""

    def total_ms(self, snapshot):
        return 10_000_000.0 - snapshot.jobs.time_limit_ms


THREE = small_trace(*(job(at=at, run=10, limit=20) for at in (0, 1, 2)))
FIFO = PRESETS["fifo"]


def test_an_order_that_is_overridden_decides():
    assert starts(run(THREE, "1x1xT4", replace(FIFO, order=Lifo()))) == [0, 20, 10]


@pytest.mark.parametrize(("parts", "socket"), [
    ({"place": Broken("stop")}, "place"), ({"fill": Robbing()}, "fill"), ({"feed": Hungry()}, "feed"),
])
def test_a_part_that_is_overridden_runs(parts, socket):
    with pytest.raises(PlanError, match=f"policy 'fifo', {socket}: ZeroDivisionError: no .* today"):
        run(THREE, "1x1xT4", replace(FIFO, **parts))


@pytest.mark.parametrize("policy", [
    replace(FIFO, order=Remembering()),
    Slow(**{column.name: getattr(FIFO, column.name) for column in fields(FIFO) if column.init}),
    replace(FIFO, size=type("Mine", (AsAsked,), {})()), replace(FIFO, place=type("Mine", (Fragmentation,), {})("stop")),
])
def test_subclasses_run_in_the_general_loop(policy):
    assert len(run(THREE, "1x1xT4", policy).round_s) > 0


def test_estimates_that_are_overridden_are_asked():
    assert loop_of(PRESETS["sjf"], THREE) is run_queues
    assert loop_of(PRESETS["sjf"], THREE, Longest()) is None


def test_a_truth_that_is_overridden_is_asked():
    class Double(Rigid):
        """Everything takes twice as long."""

        def pace(self, job, done, nodes, batch, colocation):
            return super().pace(job, done, nodes, batch, colocation)._replace(per_ms=0.5)

    outcome = replay(THREE, parse_cluster("1x1xT4"), FIFO, truth=Double(THREE))
    assert ends(outcome) == [20, 40, 60]
    assert len(outcome.round_s) > 0


def test_the_constants_of_a_part_are_what_its_class_says():
    """The loop reads rule and misfit of the instance: nothing else may be set on one."""
    with pytest.raises(AttributeError):
        object.__setattr__(Consolidate("stop"), "rule", 1)
    with pytest.raises(ConfigError, match="misfit 'wait': expected one of stop, skip, reserve"):
        Consolidate("wait")


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", ["fifo", "backfill", "sjf", "sjf-oracle"])
@pytest.mark.parametrize("golden", TRACES)
def test_the_golden_traces_are_the_same_in_both(name, golden):
    """Without dependencies, and with limits on every job: so the loop with queues runs them all."""
    trace = load(golden)
    limits = np.where(trace.time_limit_ms == NONE, trace.run_ms * 2, trace.time_limit_ms)
    trace = replace(trace, after=np.full(len(trace), NONE), after_ms=np.zeros(len(trace), dtype=np.int64),
                    time_limit_ms=limits)
    outcome = run(trace, CLUSTERS[golden], name)
    assert len(outcome.round_s) == 0
    assert_equal(outcome, run(trace, CLUSTERS[golden], name, compiled=False))


def test_a_busy_cluster_of_400_jobs_is_the_same_in_both():
    rng = np.random.default_rng(3)
    jobs = [job(at=int(at), run=int(length), gpus=int(gpus)) for at, length, gpus in zip(
        np.sort(rng.integers(0, 3_000, 400)), rng.integers(1, 120, 400), 2 ** rng.integers(0, 4, 400), strict=True)]
    trace = small_trace(*jobs)
    for name in ("fifo", "backfill", "sjf-oracle"):
        policy = replace(PRESETS[name], oracle=True)
        assert_equal(run(trace, "4x4xT4", policy), run(trace, "4x4xT4", policy, compiled=False))


@pytest.mark.slow
@settings(max_examples=sample(100, 35), deadline=None)
@given(st.data())
def test_a_deep_queue_of_few_requests_is_the_same_in_both(data):
    """The loop has a queue for each request; jobs with equal requests differ in their limits and in when they end."""
    cluster = data.draw(clusters(nodes_max=3))
    asks = data.draw(jobs_of(cluster, dependencies=False, jobs_max=3).filter(lambda found: len(found) > 0))
    jobs = [
        replace(data.draw(st.sampled_from(asks)), at=data.draw(st.integers(0, 20)), run=data.draw(st.integers(1, 40)),
                limit=data.draw(st.integers(1, 60)))
        for _ in range(data.draw(st.integers(1, 40)))
    ]
    trace = small_trace(*jobs)
    policy = PRESETS[data.draw(st.sampled_from(("backfill", "sjf")))]
    if data.draw(st.booleans()):
        policy = replace(policy, order=Arrival(), place=Consolidate(policy.place.misfit))
    settings = ReplaySettings(gap_ms=data.draw(st.sampled_from((0, 3_000))),
                        overheads=Overheads(start_ms=data.draw(st.sampled_from((0, 3_000)))))
    outcome = replay(trace, cluster, policy, settings)
    assert len(outcome.round_s) == 0
    assert_equal(outcome, replay(trace, cluster, policy, settings, journal=Journal()))


def latest_first(self, snapshot, beliefs):
    return np.lexsort((-snapshot.jobs.submit_ms, ~snapshot.jobs.holds))


def test_a_function_that_a_policy_file_replaced_on_a_shipped_class_is_called(monkeypatch):
    trace = small_trace(job(run=10), job(at=1, run=10), job(at=2, run=10))
    policy = replace(PRESETS["sjf"], order=Arrival())
    assert loop_of(policy, trace) is run_queues
    monkeypatch.setattr(Arrival, "__call__", latest_first)
    assert loop_of(policy, trace) is None
    assert replay(trace, parse_cluster("1x1xT4"), policy).finish_ms.tolist() == [10_000, 30_000, 20_000]
