"""Nodes without jobs sleep, and a job that is given one waits until it is awake; known answers and rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.events import Event, Kind
from brim.core.saved import state_bytes, state_of
from brim.core.trace import NONE, JobClass
from brim.engine.journal import Journal, recover
from brim.engine.scheduler import Scheduler
from brim.errors import ConfigError, InvariantError
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads
from brim.sim.sleepers import Sleep
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace, state_with

FREE = ReplaySettings(overheads=Overheads(save_ms=0, restart_ms=0), gap_ms=0, sleep=Sleep())
SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))


def sleeps_s(outcome):
    found = outcome.sleeps
    columns = (found.node, found.start_ms // 1000, found.end_ms // 1000, found.awake_ms // 1000)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_start_waits_until_the_node_is_awake():
    trace = small_trace(job(run=10), *(job(at=at, run=10) for at in (400, 420, 500)))
    outcome = replay(trace, parse_cluster("2x2xT4"), SKIP, FREE)
    assert (outcome.first_start_ms // 1000).tolist() == [0, 460, 460, 500]  # the second is beside the first
    assert (outcome.finish_ms // 1000).tolist() == [10, 470, 470, 510]
    assert sleeps_s(outcome) == [(1, 300, 510, 510), (0, 310, 400, 460)]
    assert any(said.startswith("A node sleeps when it has had no jobs for 5 min") for said in outcome.assumptions)


def test_a_node_falls_asleep_again_and_no_node_sleeps_without_the_option():
    trace = small_trace(job(run=10), job(at=1000, run=10))
    outcome = replay(trace, parse_cluster("1x1xT4"), SKIP, FREE)
    assert sleeps_s(outcome) == [(0, 310, 1000, 1060)]
    assert outcome.finish_ms.tolist() == [10_000, 1_070_000]
    awake = replay(trace, parse_cluster("1x1xT4"), SKIP, replace(FREE, sleep=None))
    assert (sleeps_s(awake), awake.finish_ms.tolist()) == ([], [10_000, 1_010_000])


@pytest.mark.slow
def test_under_an_objective_of_energy_a_padding_job_wakes_a_node_when_it_has_waited_for_a_day():
    day_s = 86_400
    trace = small_trace(job(run=10), *(job(at=1000, run=60, job_class=JobClass.PADDING) for _ in range(2)),
                        job(at=1000 + day_s // 2, run=60, job_class=JobClass.PADDING))
    waited_s = {}
    for name in ("brim-energy", "brim-balanced"):
        outcome = replay(trace, parse_cluster("2x2xT4"), PRESETS[name], FREE)
        waited_s[name] = (outcome.first_start_ms[1:] // 1000 - trace.submit_ms[1:] // 1000).tolist()
    first, second, later = waited_s["brim-energy"]
    assert first == second
    assert day_s <= first <= day_s + 120
    assert later < day_s, "what others woke is filled"
    assert max(waited_s["brim-balanced"]) <= 120


def test_a_lost_node_is_awake_when_it_is_back():
    faults = Faults(drains=(Drain(nodes=(0,), start_ms=100_000, end_ms=700_000),))
    trace = small_trace(job(run=10), job(at=400, run=10))
    outcome = replay(trace, parse_cluster("1x1xT4"), SKIP, replace(FREE, faults=faults))
    assert outcome.finish_ms.tolist() == [10_000, 770_000]
    assert sleeps_s(outcome) == [(0, 310, 700, 760)]  # a drained one sleeps
    state = state_with("2x1xT4", job())
    state.apply(Event(5, Kind.NODE_SLEEP, node=1))
    assert state.freeze(5).nodes.asleep.tolist() == [False, True]
    back, _ = state_of(state_bytes(state), state.cluster)
    assert back.freeze(5).nodes.asleep.tolist() == [False, True]
    state.apply(Event(6, Kind.NODE_DOWN, node=1))
    assert not state.freeze(6).nodes.asleep.size
    with pytest.raises(InvariantError, match="NODE_SLEEP of node 1, which is not up"):
        state.apply(Event(7, Kind.NODE_SLEEP, node=1))


def test_a_node_with_jobs_never_falls_asleep():
    state = state_with("2x1xT4", job(on=[(1, 0)]))
    with pytest.raises(InvariantError, match="node 1 falls asleep with jobs on it"):
        state.apply(Event(5, Kind.NODE_SLEEP, node=1))


@dataclass(frozen=True)
class Watching(Consolidate):
    """Notes which nodes sleep."""

    seen: list[list[bool]] = field(default_factory=list)

    def __call__(self, snapshot, beliefs, order, sizes):
        self.seen.append(snapshot.nodes.asleep.tolist())
        return super().__call__(snapshot, beliefs, order, sizes)


def test_policies_see_which_nodes_sleep_and_the_journal_brings_it_back():
    trace = small_trace(job(run=10), job(at=1000, run=100), job(at=1001, run=1))
    journal, place = Journal(), Watching("skip")
    replay(trace, parse_cluster("2x1xT4"), replace(SKIP, place=place), FREE, journal=journal)
    assert place.seen == [[], [True, True], [False, True]]
    scheduler = Scheduler(parse_cluster("2x1xT4"), SKIP, Beliefs(), users=("",), gap_ms=0)
    recover(journal.lines, scheduler)
    assert not scheduler.state.freeze(2_000_000).nodes.asleep.size


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 300), st.integers(1, 3)), min_size=1, max_size=8),
    st.sampled_from((0, 10, 300)), st.sampled_from((0, 60)), st.sampled_from((0, 900_000)),
)
def test_nobody_runs_on_a_node_that_sleeps_or_wakes(jobs, after_s, wake_s, node_mtbf_ms):
    trace = small_trace(*(job(at=at, run=run, gpus=gpus) for at, run, gpus in sorted(jobs)))
    cluster = parse_cluster("3x2xT4")
    settings = ReplaySettings(
        sleep=Sleep(after_ms=1000 * after_s, wake_ms=1000 * wake_s), gap_ms=0,
        faults=Faults(node_mtbf_ms=node_mtbf_ms, repair_ms=60_000),
    )
    outcome = replay(trace, cluster, SKIP, settings)
    assert (outcome.finish_ms != NONE).all()
    runs, sleeps = outcome.runs, outcome.sleeps
    node_of_run = [set((gpus // 2).tolist()) for gpus in np.split(runs.gpu, runs.first_gpu[1:-1])]
    for node, start_ms, awake_ms in zip(
        sleeps.node.tolist(), sleeps.start_ms.tolist(), sleeps.awake_ms.tolist(), strict=True
    ):
        for nodes, begin_ms, end_ms in zip(node_of_run, runs.start_ms.tolist(), runs.end_ms.tolist(), strict=True):
            assert node not in nodes or end_ms <= start_ms or begin_ms >= awake_ms
    assert (sleeps.awake_ms - sleeps.end_ms <= 1000 * wake_s).all()
    assert (sleeps.start_ms <= sleeps.end_ms).all()


def test_times_below_zero_are_refused():
    with pytest.raises(ConfigError, match="wake_ms=-1, expected at least 0"):
        Sleep(wake_ms=-1)
