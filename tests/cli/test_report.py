"""What ``brim report --fidelity`` compares, of what a cluster recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brim.agent.protocol import ON_CPU
from brim.cli.report import _chosen, _setup_of, _was_on_cpu
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
        _setup_of(history, found, frozenset(range(5)), None, "the later half of the jobs")
    assert str(caught.value) == (
        "the later half of the jobs: srtf on 1x4xT4 took the place of fifo on 1x4xT4 while they ran, expected jobs "
        "under one policy on one cluster, such as --jobs 3-4"
    )


def test_a_job_that_was_on_cpu_for_a_time_is_known():
    assert [_was_on_cpu(recorded(1, 0, *devices)) for devices in ((0,), (ON_CPU,), (0, ON_CPU, 1))] == [
        False, True, True,
    ]


def test_the_jobs_that_a_refusal_names_ran_under_one_policy_themselves():
    fifo, srtf, las = (SimpleNamespace(policy=name, cluster="1x4xT4") for name in ("fifo", "srtf", "las"))
    history = SimpleNamespace(settings=[(0, fifo), (100, srtf), (310, las), (310, las), (400, fifo)])
    found = [recorded(job, 10 + 70 * job, 0) for job in range(7)]  # jobs 2 and 3 begin and end under srtf
    with pytest.raises(ConfigError, match=r"srtf on 1x4xT4 took the place of fifo on 1x4xT4 .*, such as --jobs 2-3$"):
        _setup_of(history, found, frozenset({0, 1, 2}), None, "--jobs")


def test_a_range_of_jobs_on_cpu_alone_is_refused_with_the_reason():
    found = [recorded(1, 0, 0), recorded(4, 0, 0)]
    with pytest.raises(ConfigError) as caught:
        _chosen(found, frozenset({2, 3}), "2-3", None)
    assert str(caught.value) == (
        "--jobs: found 2-3, of which no job has finished undisturbed; 2 jobs from 2 to 3 ran on CPU, where the replay "
        "has no ranks"
    )
    with pytest.raises(ConfigError, match=r"--learn: found 3, of which .* undisturbed; job 3 ran on CPU, where"):
        _chosen(found, frozenset({2, 3}), "1", "3")
