"""What ``brim report --fidelity`` compares, of what a cluster recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brim.agent.protocol import ON_CPU
from brim.cli.report import _scene, _was_on_cpu
from brim.errors import ConfigError


def recorded(job, submit_ms, *devices):
    attempt = SimpleNamespace(holdings=[SimpleNamespace(devices=(device,)) for device in devices])
    return SimpleNamespace(
        job=SimpleNamespace(id=job, submit_ms=submit_ms), end_ms=submit_ms + 50, undisturbed=True, attempts=[attempt]
    )


def test_jobs_under_two_policies_are_refused_with_those_under_the_last():
    fifo, srtf, las = (SimpleNamespace(policy=name, cluster="1x4xT4") for name in ("fifo", "srtf", "las"))
    history = SimpleNamespace(settings=[(0, fifo), (100, srtf), (200, las)])
    found = [recorded(job, 10 + 70 * job, 0) for job in range(5)]
    with pytest.raises(ConfigError) as caught:
        _scene(history, found, frozenset(range(5)), None, "the later half of the jobs")
    assert str(caught.value) == (
        "the later half of the jobs: srtf on 1x4xT4 took the place of fifo on 1x4xT4 while they ran, expected jobs "
        "under one policy on one cluster, such as --jobs 3-4"
    )


def test_a_job_that_was_on_cpu_for_a_time_is_known():
    assert [_was_on_cpu(recorded(1, 0, *devices)) for devices in ((0,), (ON_CPU,), (0, ON_CPU, 1))] == [
        False, True, True,
    ]
