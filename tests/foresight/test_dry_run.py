"""Where jobs would run, or behind whom they would wait, if they were submitted now."""

from __future__ import annotations

import pytest

from brim.agent.protocol import RUNNING
from brim.core.cluster import parse_cluster
from brim.errors import ConfigError
from brim.foresight.answers import DryRun
from brim.foresight.dry_run import Sender, dry_run
from brim.live.holds import why_impossible
from brim.live.requests import JobRequest
from brim.live.situation import situation_of
from brim.policies.presets import find_policy
from tests.live.controller.desk import Desk
from tests.live.virtual import request


def tried(desk: Desk, *requests: JobRequest, ends=None) -> DryRun:
    before = desk.controller.save()
    at = situation_of(desk.controller, desk.now_ms)
    result = dry_run(at, Sender(uid=1, user="u1", wall_s=1_000_000), requests, ends or {})
    assert desk.controller.save() == before
    return result


def test_a_job_that_would_start_is_told_its_devices_and_then_gets_them():
    desk = Desk(devices=4)
    desk.submit(gpus=1)
    found = tried(desk, request(gpus=2))
    assert (found.devices, found.text) == (((1, 2),), "it would start now, on devices 1 and 2")
    [order] = desk.submit(gpus=2)
    assert order.devices == found.devices[0]


def test_a_job_that_would_wait_is_told_behind_whom():
    desk = Desk(devices=4, users=(1, 2))
    desk.submit(gpus=3)
    desk.saw(1, RUNNING)
    desk.submit(uid=2, gpus=4)
    found = tried(desk, request(gpus=1))
    assert found.devices == ((),)
    assert found.text.splitlines()[:2] == [
        "it would wait:", "  it is behind job 2 of u2, which needs 4 GPUs and does not fit yet",
    ]


def test_a_job_that_is_too_large_for_what_is_free_is_told_who_is_ahead_of_it():
    """Under the default policy, too, which lets smaller jobs pass."""
    desk = Desk(find_policy("backfill"), devices=4, users=(1, 2))
    desk.submit(gpus=3)
    desk.saw(1, RUNNING)
    desk.submit(uid=2, gpus=4)
    lines = tried(desk, request(gpus=2)).text.splitlines()
    assert lines[1].startswith("  job 2 of u2, which needs 4 GPUs, is ahead of it")
    assert lines[2].startswith("  devices 0-2 of 4: job 1 of u1")


def test_an_array_is_told_how_many_would_start():
    found = tried(Desk(devices=4), *(request(gpus=3, array_index=number) for number in range(3)))
    assert found.devices == ((0, 1, 2), (), ())
    assert found.text.splitlines()[:3] == [
        "1 job would start now, on devices 0-2", "2 jobs would wait, the first of them:",
        "  devices 0-2 of 4: another job of this submission, which starts",
    ]


def test_an_array_with_a_limit_starts_no_more():
    found = tried(Desk(devices=4), *(request(array_index=number, array_limit=2) for number in range(4)))
    assert found.devices == ((0,), (1,), (), ())
    assert "of its array may run at a time (--array %" in found.text


def test_a_quota_holds_what_does_not_fit_it():
    desk = Desk(devices=4, user_gpus=2)
    desk.submit()
    found = tried(desk, *(request(array_index=number) for number in range(2)))
    assert found.devices == ((1,), ())
    assert "  jobs of u1 may have 2 GPUs at the same time" in found.text


def test_who_would_be_preempted_is_told():
    desk = Desk(find_policy("srtf"), devices=2)
    desk.submit(gpus=2, time_limit_s=7200)
    desk.saw(1, RUNNING)
    found = tried(desk, request(gpus=2, time_limit_s=60))
    assert (found.devices, found.preempts) == (((0, 1),), (1,))
    assert found.text.endswith("this would preempt job 1")


@pytest.mark.parametrize(("asked", "ends", "said"), [
    ({"hold": True}, {}, "it is held until it is released"),
    ({"after": (1,)}, {1: None}, "it waits for job 1 to finish, which is starting"),
    ({"after": (1,)}, {1: "failed"}, "it waits for job 1 to finish, which has ended: failed"),
    ({"begin_s": 1_000_600}, {}, "it must not start for another 10 min"),
])  # fmt: skip
def test_what_would_hold_it_is_told(asked, ends, said):
    desk = Desk()
    desk.submit()
    found = tried(desk, request(**asked), ends=ends)
    assert found.text.splitlines()[1] == f"  {said}"
    assert tried(Desk(), request(after=(1,)), ends={1: "finished"}).devices == ((0,),)


def test_what_could_never_run_is_refused():
    with pytest.raises(ConfigError, match="job job could never run: it needs 9 GPUs, the cluster has 2"):
        tried(Desk(), request(), request(gpus=9))


@pytest.mark.parametrize(("asked", "said"), [
    ({"cpus_per_gpu": 200.0, "gpus": 2}, "it needs 400 cores, a node has 8 cores and 24 GiB of memory"),
    ({"cpus_per_gpu": 1.0, "mem_mib_per_gpu": 9000 << 10},
     "it needs 1 core and 9,000 GiB of memory, a node has 8 cores and 24 GiB of memory"),
])  # fmt: skip
def test_cores_and_memory_that_no_node_has_are_said_as_they_were_asked_for(asked, said):
    assert why_impossible(request(**asked), parse_cluster("1x4xcpu:cpus=8,mem=24GB")) == said


def test_an_id_that_was_used_before_is_not_used_again():
    desk = Desk()
    desk.submit()
    desk.submit()
    desk.saw(2, "ended", outcome="finished", exit_code=0)
    assert tried(desk, request()).devices == ((1,),)
