"""Exchanges of gradients are timed once per cluster, before its first job, and believed until they are seen."""

import json
import math

import numpy as np
import pytest

from brim.beliefs.analyser import measure_exchange
from brim.beliefs.speeds import SeenSpeeds
from brim.beliefs.throughput import step_s
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.setting import setting_of
from brim.core.state import ClusterState
from brim.engine.journal import Journal
from brim.policies.presets import PRESETS
from brim.sim.reproduce.elastic import Condition, backlog
from brim.sim.truths.categories import LINKS
from brim.sim.twin import replay

CLUSTER = parse_cluster("4x4xT4")


def one_gpu_snapshot(num_bytes: int):
    """A job of which one-GPU steps are known: 0.1 s and 0.01 s a sample."""
    state = ClusterState(CLUSTER, ("ann",))
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=JobSpec(
        id=0, user=0, submit_ms=0, gpus=1, gpus_max=16, batch=8, batch_min=4, batch_max=64, local_batch_min=1,
        local_batch_max=16, profile=0, gradient_bytes=num_bytes,
    )))
    state.apply(Event(0, Kind.START, 0, setting=setting_of(((0, 0),), batch=8)))
    state.apply(Event(1, Kind.STARTED, 0))
    seen = tuple(Sample(1, 1, size, 0.1 + 0.01 * size, 0.0) for size in (2, 4, 8, 16))
    state.apply(Event(1, Kind.REPORTED, 0, report=Report(samples_done=0.0, samples_per_s=40.0, seen=seen)))
    return state.freeze(2)


@pytest.mark.parametrize(("gpus", "nodes"), [(2, 1), (4, 1), (8, 2), (16, 4)])
def test_what_was_never_seen_is_expected_to_take_what_the_cluster_takes(gpus, nodes):
    table = measure_exchange(LINKS, num_nodes=4, gpus_per_node=4)
    num_bytes = 500_000_000
    speeds = SeenSpeeds()
    told = speeds.of_models(one_gpu_snapshot(num_bytes), table).parameters[0]
    exchange_s = LINKS.all_reduce_s(num_bytes, gpus, nodes)
    computing_s = 0.1 + 0.01 * 16
    gamma = told[-1]
    expected = (computing_s**gamma + exchange_s**gamma) ** (1 / gamma)
    assert step_s(told, nodes, gpus, 16) == pytest.approx(expected, rel=0.05)
    untold = speeds.of_models(one_gpu_snapshot(num_bytes)).parameters[0]
    assert step_s(untold, nodes, gpus, 16) == pytest.approx(computing_s, rel=0.02)


def test_a_model_of_the_library_is_known_before_it_runs_and_corrected_when_it_does():
    state = ClusterState(CLUSTER, ("ann",))
    spec = JobSpec(id=0, user=0, submit_ms=0, gpus=1, gpus_max=16, batch=8, batch_min=4, batch_max=64,
                   local_batch_min=1, local_batch_max=16, profile=3)
    state.apply(Event(0, Kind.SUBMITTED, 0, spec=spec))
    prior = np.array([0.2, 0.01, 0.1, 0.02, 0.3, 0.05, 2.0])
    speeds = SeenSpeeds(library={3: prior})
    told = speeds.of_models(state.freeze(1))
    assert told.known.all()
    np.testing.assert_array_equal(told.parameters[0], prior)
    assert not speeds.of_jobs(state.freeze(1)).known.any()
    state.apply(Event(2, Kind.START, 0, setting=setting_of(((0, 0),), batch=8)))
    state.apply(Event(3, Kind.STARTED, 0))
    seen = tuple(Sample(1, 1, size, 2 * (0.2 + 0.01 * size), 0.0) for size in (2, 4, 8, 16))
    state.apply(Event(3, Kind.REPORTED, 0, report=Report(samples_done=0.0, samples_per_s=40.0, seen=seen)))
    corrected = speeds.of_models(state.freeze(4)).parameters[0]
    assert step_s(corrected, 1, 1, 8) == pytest.approx(2 * step_s(prior, 1, 1, 8), rel=0.05)
    np.testing.assert_allclose(corrected[2:6], prior[2:6])


def test_a_job_that_does_not_say_its_bytes_is_believed_without_the_table():
    table = measure_exchange(LINKS, num_nodes=4, gpus_per_node=4)
    speeds, snapshot = SeenSpeeds(), one_gpu_snapshot(-1)
    np.testing.assert_array_equal(
        speeds.of_models(snapshot, table).parameters, speeds.of_models(snapshot).parameters
    )


def test_nobody_starts_while_the_cluster_is_measured_and_the_report_says_so():
    condition = Condition(gpus=16, category="communication", arrivals="poisson", load=1.0, drop=False)
    trace, jobs = backlog(condition, 1)
    trace = trace.take(np.arange(4))
    truth = jobs.build(*_first(trace, jobs, 4))
    table = measure_exchange(LINKS, num_nodes=4, gpus_per_node=4)
    journal = Journal()
    outcome = replay(trace, condition.cluster, PRESETS["elastic"], truth=truth, journal=journal)
    assert outcome.first_start_ms.min() == math.ceil(table.seconds * 1000)
    assert any("exchanges of gradients are timed" in line for line in outcome.assumptions)
    kinds = [json.loads(line).get("e") for line in journal.lines]
    assert kinds.count("NODE_DRAIN") == kinds.count("NODE_UP") == condition.cluster.num_nodes
    unasked = replay(trace, condition.cluster, PRESETS["goodput"], truth=truth)
    assert unasked.first_start_ms.min() == 0
    assert not any("exchanges of gradients" in line for line in unasked.assumptions)


def _first(trace, jobs, count):
    """The truth's jobs cut to the first rows."""
    from dataclasses import fields, replace

    columns = {
        field.name: getattr(jobs.jobs, field.name)[:count] for field in fields(jobs.jobs)
        if getattr(jobs.jobs, field.name) is not None and field.name != "noise"
    }
    object.__setattr__(jobs, "jobs", replace(jobs.jobs, **columns))
    return trace, parse_cluster("4x4xT4")
