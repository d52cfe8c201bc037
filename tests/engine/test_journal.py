"""A journal replayed decides the same bytes and leaves the same state."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.runtime import TrueRunTimes
from brim.core.checks import check_snapshot
from brim.core.cluster import parse_cluster
from brim.core.events import Event, Kind
from brim.engine.journal import Journal, event_record, read_event, replay
from brim.engine.scheduler import Scheduler
from brim.errors import InvariantError
from brim.policies.presets import PRESETS
from brim.sim import twin
from brim.sim.truth import Rigid, specs_of, user_names
from brim.sim.twin import Settings
from brim.testing import job, small_trace
from brim.testing.strategies import clusters, faults, overheads, traces


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
    settings = Settings(overheads=data.draw(overheads()), faults=data.draw(faults(cluster)),
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
def test_every_event_survives_being_written_down(data):
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    for spec in specs_of(trace, cluster, Rigid(trace)):
        event = Event(spec.submit_ms, Kind.SUBMITTED, spec.id, spec=spec, held=data.draw(st.booleans()))
        assert read_event(json.loads(json.dumps(event_record(event)))) == event
    for kind in set(Kind) - {Kind.SUBMITTED, Kind.START}:
        for event in (Event(3, kind, job=4), Event(3, kind, node=2)):
            assert read_event(json.loads(json.dumps(event_record(event)))) == event


def test_the_sink_gets_each_line_as_it_is_made():
    sink = io.StringIO()
    journal = Journal(sink)
    twin.replay(small_trace(job(run=1)), parse_cluster("1x1xT4"), PRESETS["fifo"], journal=journal)
    assert sink.getvalue().splitlines() == journal.lines
    assert len(journal.lines) >= 4


def test_a_line_that_is_neither_event_nor_decision_is_refused():
    scheduler = Scheduler(parse_cluster("1x1xT4"), PRESETS["fifo"], Beliefs())
    with pytest.raises(InvariantError, match="neither"):
        list(replay(['{"x":1}'], scheduler))
