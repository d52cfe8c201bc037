"""A journal replayed decides the same bytes and leaves the same state."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import TrueRunTimes
from brim.core.actions import ACTIONS, Preempt, Reject
from brim.core.checks import check_snapshot
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.engine.explain import explain
from brim.engine.journal import (
    Journal,
    action_record,
    event_record,
    read_action,
    read_event,
    recover,
    replay,
)
from brim.engine.scheduler import Scheduler
from brim.errors import InvariantError
from brim.policies.order.tiresias import ServiceQueues, TwoQueues
from brim.policies.presets import PRESETS
from brim.sim import twin
from brim.sim.faults import Faults
from brim.sim.overheads import Overheads
from brim.sim.specs import specs_of, user_names
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ReplaySettings
from brim.testing import job, rules, small_trace
from brim.testing.elastic import ToyTruth, restless
from brim.testing.strategies import clusters, elastic_jobs_of, faults, overheads, reports, traces

from .plans import resize, start, tune


def fields_of(value) -> list[object]:
    """Every leaf of nested dataclasses, arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return [fields_of(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value


@given(st.data())
def test_a_replayed_journal_is_byte_equal_and_ends_in_the_same_state(data):
    cluster = data.draw(clusters(nodes_max=2))
    trace = data.draw(traces(cluster))
    policy = PRESETS[data.draw(st.sampled_from(sorted(PRESETS)))]
    seen = []

    class Kept(Scheduler):
        def __init__(self, *rest, **more):
            super().__init__(*rest, **more)
            seen.append(self)

    journal = Journal()
    settings = ReplaySettings(overheads=data.draw(overheads()), faults=data.draw(faults(cluster)),
                        gap_ms=data.draw(st.sampled_from((0, 1_000))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin, "Scheduler", Kept)
        twin.replay(trace, cluster, policy, settings, journal=journal)
    beliefs = Beliefs(run_times=TrueRunTimes(trace.run_ms)) if policy.oracle else Beliefs()
    again = Scheduler(cluster, policy, beliefs, users=user_names(trace), gap_ms=settings.gap_ms, journal=Journal())
    for line, now in replay(journal.lines, again):
        assert line == now
        check_snapshot(again.state.freeze(again.state.now_ms))
    assert again.journal.lines == journal.lines
    assert again.state.now_ms == seen[0].state.now_ms
    assert fields_of(again.state.freeze(10**9)) == fields_of(seen[0].state.freeze(10**9))


@given(st.data())
def test_a_replayed_journal_of_elastic_jobs_is_byte_equal_and_ends_in_the_same_state(data):
    cluster = data.draw(clusters(groups_max=2, nodes_max=2, gpus_max=3))
    jobs = data.draw(elastic_jobs_of(cluster, jobs_max=5, run_s_max=40, at_s_max=30, per_s=10))
    trace = small_trace(*jobs)
    truth = ToyTruth(trace, {f"j{row}": one for row, one in enumerate(jobs)})
    policy = restless(calm_ms=4_000, seed=data.draw(st.integers(0, 9)))
    costs = Overheads(start_ms=10, save_ms=data.draw(st.sampled_from((0, 80))), restart_ms=30, checkpoint_ms=500)
    broken = Faults(job_mtbf_ms=data.draw(st.sampled_from((0, 2_000))), node_mtbf_ms=5_000, repair_ms=100)
    journal, states = Journal(), []
    settings = ReplaySettings(overheads=costs, faults=broken, gap_ms=0)
    watch = rules.watched(policy, lambda snapshot, grants: states.append(fields_of(snapshot)))
    twin.replay(trace, cluster, watch, settings, truth=truth, journal=journal)
    again, others = Journal(), []
    watch = rules.watched(policy, lambda snapshot, grants: others.append(fields_of(snapshot)))
    scheduler = Scheduler(cluster, watch, Beliefs(), users=user_names(trace), gap_ms=0, journal=again)
    for line, now in replay(journal.lines, scheduler):
        assert line == now
    assert again.lines == journal.lines
    assert repr(others) == repr(states)  # NaN is not equal to itself


def event_of_record(event):
    return read_event(json.loads(json.dumps(event_record(event))))


@given(st.data())
def test_every_report_survives_being_written_down(data):
    report = data.draw(reports(4))
    back = event_of_record(Event(3, Kind.REPORTED, 4, report=report)).report
    assert repr(back) == repr(report)
    assert all(type(sample) is Sample for sample in back.seen)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(
    ("gpus_min", "gpus_max", "batch", "batch_min", "batch_max", "local_batch_min", "local_batch_max", "profile"),
    st.integers(-1, 70),
)))
def test_every_limit_of_a_submission_survives_being_written_down(limits):
    event = Event(2, Kind.SUBMITTED, 1, spec=JobSpec(id=1, user=0, submit_ms=2, gpus=3, **limits))
    assert event_of_record(event) == event


def test_every_kind_of_action_is_written_down_with_all_it_carries():
    actions = (
        Preempt(0, 1), Reject(1, 0), resize(2, 3, ((0, 1), (1, 0)), 64, 2), start(3, 1, ((0, 0),), 1, 8, True),
        start(4, 1, ((0, -1), (1, 1)), share=500), tune(5, 2, ((0, 0),), 16, revocable=True),
    )
    assert {type(action) for action in actions} == set(ACTIONS)
    records = [action_record(action) for action in actions]
    assert records == [
        {"do": "preempt", "job": 0, "attempt": 1},
        {"do": "reject", "job": 1, "attempt": 0},
        {"do": "resize", "job": 2, "attempt": 2, "sequence": 3,
         "setting": {"ranks": [[0, 1, 1000, 2], [1, 0, 1000, 2]], "batch": 64}},
        {"do": "start", "job": 3, "attempt": 1, "sequence": 1, "setting": {"ranks": [[0, 0, 1000, 1]], "batch": 8},
         "analyse": True},
        {"do": "start", "job": 4, "attempt": 1, "sequence": 1, "setting": {"ranks": [[0, -1, 0, 0], [1, 1, 500, 0]]}},
        {"do": "tune", "job": 5, "attempt": 2, "sequence": 3,
         "setting": {"ranks": [[0, 0, 1000, 0]], "batch": 16, "revocable": True}},
    ]
    assert tuple(read_action(json.loads(json.dumps(record))) for record in records) == actions


@given(st.data())
def test_every_event_survives_being_written_down(data):
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    for spec in specs_of(trace, cluster, Rigid(trace)):
        event = Event(spec.submit_ms, Kind.SUBMITTED, spec.id, spec=spec, held=data.draw(st.booleans()))
        assert read_event(json.loads(json.dumps(event_record(event)))) == event
    for kind in set(Kind) - {Kind.SUBMITTED, Kind.START}:
        for event in (Event(3, kind, job=4), Event(3, kind, node=2)):
            assert read_event(json.loads(json.dumps(event_record(event)))) == event


def test_the_sink_gets_each_line_and_the_journal_keeps_none():
    sink, kept = io.StringIO(), Journal()
    for journal in (Journal(sink), kept):
        twin.replay(small_trace(job(run=1)), parse_cluster("1x1xT4"), PRESETS["fifo"], journal=journal)
        assert journal.lines == (kept.lines if journal is kept else [])
    assert sink.getvalue().splitlines() == kept.lines
    assert len(kept.lines) >= 4


@pytest.mark.slow
@given(st.data())
def test_a_recovered_scheduler_goes_on_as_the_one_that_was_lost(data):
    """It has the same state and the same next round as one that was fed, at any point of the journal.

    Most jobs come into the second queue, which is remembered and not seen from their state.
    """
    cluster = data.draw(clusters(groups_max=2, nodes_max=2, gpus_max=3))
    jobs = data.draw(elastic_jobs_of(cluster, jobs_max=5, run_s_max=40, at_s_max=30, per_s=10))
    trace = small_trace(*jobs)
    truth = ToyTruth(trace, {f"j{row}": one for row, one in enumerate(jobs)})
    policy = replace(restless(calm_ms=4_000), order=TwoQueues(1_000))
    journal = Journal()
    settings = ReplaySettings(overheads=Overheads(start_ms=10, save_ms=80, restart_ms=30, checkpoint_ms=500), gap_ms=0)
    twin.replay(trace, cluster, policy, settings, truth=truth, journal=journal)

    def fresh(journal=None):
        return Scheduler(cluster, policy, Beliefs(), users=user_names(trace), gap_ms=0, journal=journal)

    at = data.draw(st.integers(0, len(journal.lines)))
    fed, recovered, rest = fresh(), fresh(), Journal()
    for line, now in replay(journal.lines[:at], fed):
        assert line == now
    torn = [journal.lines[at][:-1]] if at < len(journal.lines) and data.draw(st.booleans()) else []
    assert recover(journal.lines[:at] + torn, recovered) == at
    assert recovered.due_ms() == fed.due_ms()
    assert repr(fields_of(recovered.state.freeze(10**9))) == repr(fields_of(fed.state.freeze(10**9)))
    recovered.journal = rest
    for line, now in replay(journal.lines[at:], recovered):
        assert line == now
    assert rest.lines == journal.lines[at:]


@pytest.mark.slow
@given(st.data())
def test_a_scheduler_restored_from_bytes_goes_on_as_the_one_that_was_saved(data):
    cluster = data.draw(clusters(groups_max=2, nodes_max=2, gpus_max=3))
    jobs = data.draw(elastic_jobs_of(cluster, jobs_max=5, run_s_max=40, at_s_max=30, per_s=10))
    trace, journal = small_trace(*jobs), Journal()
    truth = ToyTruth(trace, {f"j{row}": one for row, one in enumerate(jobs)})
    policy = replace(restless(calm_ms=4_000), order=ServiceQueues((2_000, 9_000), promote_ratio=1.0))
    settings = ReplaySettings(overheads=Overheads(start_ms=10, save_ms=80, restart_ms=30, checkpoint_ms=500), gap_ms=0)
    twin.replay(trace, cluster, policy, settings, truth=truth, journal=journal)
    at = data.draw(st.integers(0, len(journal.lines)))
    fed = Scheduler(cluster, policy, Beliefs(), users=user_names(trace), gap_ms=0)
    for line, now in replay(journal.lines[:at], fed):
        assert line == now
    restored = Scheduler(cluster, policy, Beliefs(), gap_ms=0, journal=Journal())
    restored.restore(fed.save())
    assert (restored.due_ms(), restored.horizon_ms) == (fed.due_ms(), fed.horizon_ms)
    for line, now in replay(journal.lines[at:], restored):
        assert line == now
    assert restored.journal.lines == journal.lines[at:]


def test_a_job_that_is_held_makes_room_for_the_one_behind_it():
    scheduler = Scheduler(parse_cluster("1x2xT4"), PRESETS["fifo"], Beliefs(), users=("ann",))
    for number, gpus in enumerate((1, 2, 1)):
        scheduler.observe(
            Event(0, Kind.SUBMITTED, number, spec=JobSpec(id=number, user=0, submit_ms=0, gpus=gpus))
        )
    assert [action.job for action in scheduler.decide(0).plan.actions] == [0]
    scheduler.observe(Event(5, Kind.HELD, 1))
    result = scheduler.decide(scheduler.due_ms())
    assert [action.job for action in result.plan.actions] == [2]
    assert explain(result.snapshot, result, 1) == "job 1 is held; it can run once nothing holds it any more."


def test_a_journal_with_a_damaged_line_before_its_last_is_refused():
    journal = Journal()
    twin.replay(small_trace(job(run=1)), parse_cluster("1x1xT4"), PRESETS["fifo"], journal=journal)
    lines = [journal.lines[0], journal.lines[1][:-3], *journal.lines[2:]]
    scheduler = Scheduler(parse_cluster("1x1xT4"), PRESETS["fifo"], Beliefs(), users=("user",))
    with pytest.raises(InvariantError, match="journal line 2 cannot be read"):
        recover(lines, scheduler)
    with pytest.raises(InvariantError, match="neither an event nor a decision"):
        recover(["{}"], scheduler)


def recorded(journal):
    twin.replay(small_trace(job(run=1), job(run=2)), parse_cluster("1x1xT4"), PRESETS["fifo"], journal=journal)


def one_gpu(journal=None):
    return Scheduler(parse_cluster("1x1xT4"), PRESETS["fifo"], Beliefs(), users=("user",), journal=journal)


def test_a_scheduler_that_recovers_does_not_record_the_recovery():
    first, second = Journal(), Journal()
    recorded(first)
    scheduler = one_gpu(second)
    at = len(first.lines) - 2
    recover(first.lines[:at], scheduler)
    assert second.lines == []
    for _ in replay(first.lines[at:], scheduler):
        pass
    assert second.lines == first.lines[at:]


@pytest.mark.parametrize("line", [
    "1", "[]", "null", '{"x":1}', '{"e":"NOBODY","t":1}', '{"e":"FINISHED"}', '{"e":"SUBMITTED","t":1,"spec":{"z":1}}',
    '{"d":[{"do":"dance"}],"t":1}', '{"d":[1],"t":1}', '{"d":[],"t":1,"memory":{"order":{"x":1}}}',
    '{"d":[],"t":1,"memory":[]}', '{"e":"START","job":0,"setting":{},"t":1}',
])
@pytest.mark.parametrize("read", [recover, lambda lines, scheduler: list(replay(lines, scheduler))])
def test_every_line_that_means_nothing_is_named(line, read):
    with pytest.raises(InvariantError, match=r"^journal line 1 (cannot be read|is neither)"):
        read([line], one_gpu())


def test_a_replay_leaves_out_a_torn_last_line_too():
    journal = Journal()
    recorded(journal)
    whole = list(replay(journal.lines, one_gpu()))
    assert list(replay([*journal.lines, '{"e":"FIN'], one_gpu())) == whole
    with pytest.raises(InvariantError, match="journal line 1 cannot be read"):
        list(replay(['{"e":"FIN', *journal.lines], one_gpu()))


def test_a_line_that_is_neither_event_nor_decision_is_refused():
    scheduler = Scheduler(parse_cluster("1x1xT4"), PRESETS["fifo"], Beliefs())
    with pytest.raises(InvariantError, match="neither"):
        list(replay(['{"x":1}'], scheduler))


def test_a_report_that_says_nothing_of_progress_can_be_read_back():
    event = Event(5, Kind.REPORTED, 3, report=Report(samples_done=float("nan"), samples_per_s=2.0))
    again = read_event(json.loads(json.dumps(event_record(event))))
    assert np.isnan(again.report.samples_done)
    assert again.report.samples_per_s == 2.0
