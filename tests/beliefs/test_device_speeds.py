"""Seconds of a step on each kind of device: what was measured counts before what is guessed."""

import numpy as np
import pytest

from brim.beliefs.device_speeds import CPU, GPU, rank_seconds
from brim.beliefs.parameter_servers import CPU_SLOWER
from brim.core.cluster import parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.setting import setting_of
from brim.core.state import ClusterState

BATCH = 32


def state_with(*jobs):
    """Jobs by their profile, each started on a GPU of its own, with samples that they report."""
    state = ClusterState(parse_cluster("1x4xgpu:cpus=8"), ("ann",))
    for job, (profile, samples) in enumerate(jobs):
        spec = JobSpec(id=job, user=0, submit_ms=0, gpus=1, batch=BATCH, batch_min=BATCH, batch_max=BATCH,
                       profile=profile, cpu_ranks_max=1)
        state.apply(Event(job, Kind.SUBMITTED, job, spec=spec))
        state.apply(Event(job, Kind.START, job, setting=setting_of([(0, job)], batch=BATCH)))
        state.apply(Event(job, Kind.STARTED, job))
        if samples:
            state.apply(Event(job, Kind.REPORTED, job, report=Report(
                samples_done=1.0, samples_per_s=1.0, seen=tuple(samples))))
    return state


def gpu(step_s, ranks=1):
    return Sample(1, ranks, BATCH // ranks, step_s, 0.0)


def cpu(step_s, ranks=1):
    return Sample(1, 0, BATCH // ranks, step_s, 0.0)


@pytest.mark.parametrize(("samples", "expected"), [
    ([], (np.nan, np.nan)),
    ([gpu(0.5)], (0.5, 0.5 * CPU_SLOWER)),
    ([cpu(0.8)], (0.8 / CPU_SLOWER, 0.8)),
    ([gpu(0.5), cpu(0.6)], (0.5, 0.6)),  # measured: eight times was a guess
    ([gpu(0.25, ranks=2)], (0.5, 0.5 * CPU_SLOWER)),
])
def test_measured_steps_beat_the_guess(samples, expected):
    found = rank_seconds(state_with((7, samples)).freeze(10))
    np.testing.assert_allclose(found[0, [GPU, CPU]], expected)


def test_a_new_job_is_believed_like_those_of_its_name_that_have_ended():
    state = state_with((7, [gpu(0.5), cpu(0.6)]), (7, []), (8, []))
    state.apply(Event(5, Kind.FINISHED, 0))
    found = rank_seconds(state.freeze(10))
    np.testing.assert_allclose(found, [(0.5, 0.6), (np.nan, np.nan)])
