"""The frozen view is a pure read: how often, and for which times, somebody looks changes no later decision."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import Cluster, parse_cluster
from brim.core.events import Event, Kind
from brim.core.trace import JobClass, Trace
from brim.engine.journal import Journal, decision_record, read_event
from brim.engine.scheduler import Scheduler
from brim.policies.presets import PRESETS
from brim.sim.overheads import Overheads
from brim.sim.specs import specs_of, user_names
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace, state_with
from brim.testing.strategies import clusters, traces
from brim.units import MS_PER_DAY, MS_PER_H
from tests.sampling import sample


def journal_of(trace: Trace, cluster: Cluster, policy: str) -> list[str]:
    journal = Journal()
    replay(trace, cluster, PRESETS[policy], ReplaySettings(overheads=Overheads(start_ms=1_000)), journal=journal)
    return journal.lines


@settings(max_examples=sample(40, 13))
@given(st.data(), st.sampled_from(("fair", "las", "gittins", "tiresias")))
def test_extra_freezes_never_change_a_replay(data, policy):
    cluster = data.draw(clusters(groups_max=1))
    trace = data.draw(traces(cluster))
    looks = data.draw(st.lists(st.integers(0, 30 * MS_PER_DAY), min_size=1, max_size=3))
    scheduler, quiet = (Scheduler(cluster, PRESETS[policy], Beliefs(), users=user_names(trace)) for _ in range(2))
    for line in journal_of(trace, cluster, policy):
        record = json.loads(line)
        for ahead_ms in looks:
            scheduler.state.freeze(record["t"] + ahead_ms)
        if "e" in record:
            scheduler.observe(read_event(record))
            quiet.observe(read_event(record))
            continue
        looked, not_looked = (one.state.freeze(record["t"]).users.usage_gpu_ms for one in (scheduler, quiet))
        assert looked.tolist() == not_looked.tolist()
        again = decision_record(scheduler.decide(record["t"]))
        assert json.dumps(again, separators=(",", ":"), sort_keys=True) == line
        quiet.decide(record["t"])


@example([MS_PER_H, 3 * MS_PER_H])
@given(st.lists(st.integers(0, 30 * MS_PER_DAY), max_size=5))
def test_usage_does_not_depend_on_earlier_looks(looks):
    jobs = (job(on=[(0, 0)], user="ann"), job(at=3, user="bob"))
    once, often = state_with("1x2xT4", *jobs, now=10), state_with("1x2xT4", *jobs, now=10)
    for state in (once, often):
        state.apply(Event(3_600_000, Kind.FINISHED, 0))
    for ahead_ms in looks:
        often.freeze(3_600_000 + ahead_ms)
    later_ms = 3_600_000 + 40 * MS_PER_DAY
    assert often.freeze(later_ms).users.usage_gpu_ms.tolist() == once.freeze(later_ms).users.usage_gpu_ms.tolist()


def test_the_shape_of_a_column_of_nodes_that_a_part_has_changed_is_not_that_of_the_next_snapshot():
    state = state_with(parse_cluster("1x1xT4"))
    spoilt = state.freeze(0).nodes.is_open
    expected = spoilt.dtype
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 has deprecated it
        spoilt.dtype = "u1"
    assert state.freeze(1).nodes.is_open.dtype == expected


def test_whether_a_job_is_elastic_follows_jobs_that_come_and_go():
    state = state_with("1x2xT4", job(on=[(0, 0)]), job(on=[(0, 1)], gpus_min=1, gpus_max=2))
    assert state.has_elastic
    state.apply(Event(10_000, Kind.FINISHED, 1))
    assert not state.has_elastic
    padding = small_trace(job(job_class=JobClass.PADDING))
    [spec] = specs_of(padding, state.cluster, Rigid(padding))
    state.apply(Event(20_000, Kind.SUBMITTED, 2, spec=replace(spec, id=2, gpus_max=2)))
    assert state.has_elastic
    state.keep_apart(padding_apart=True)
    assert not state.has_elastic
