"""What the controller holds jobs back for: holds, dependencies, arrays, quotas, times, and what never fits."""

from __future__ import annotations

import json

import pytest

from brim.agent.protocol import ENDED, RUNNING, VERSION, AgentHello, AttemptProgress, StartAttempt, StopAttempt
from brim.core.cluster import parse_cluster
from brim.live.controller import Controller
from brim.live.inputs import AgentJoined, AgentLost, AgentSynced, Cancel, Hold, Progress, Release, Requeue
from brim.live.requests import COUNT_MAX
from brim.policies.presets import find_policy
from tests.live.controller.desk import EQUAL, FIFO, Desk, kinds

AITURBO = find_policy("aiturbo")


def test_a_held_job_waits_until_it_is_released():
    desk = Desk(devices=1)
    desk.submit()
    desk.submit()
    desk.command(Hold, 2)
    assert (desk.state(2), desk.stored[2].holds) == ("held", ("user",))
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert desk.state(2) == "held"
    assert kinds(desk.command(Release, 2)) == [StartAttempt]


def test_a_hold_of_a_running_job_takes_effect_when_it_has_stopped():
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING)
    desk.command(Hold, 1)
    assert desk.state(1) == "running"
    desk.command(Requeue, 1)
    desk.saw(1, ENDED, outcome="stopped", exit_code=75)
    assert desk.state(1) == "held"
    assert desk.stored[1].reason == "requeued, and waits to continue; held: user"


def test_a_job_waits_for_others_and_for_good_if_one_does_not_finish():
    desk = Desk()
    desk.submit()
    desk.submit(after=(1,))
    desk.submit(after=(1, 2))
    desk.submit(after=(9,))
    assert [desk.stored[job].holds for job in (2, 3, 4)] == [
        ("after 1",), ("after 1", "after 2"), ("impossible: it waits for job 9, which does not exist",),
    ]
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert (desk.state(2), desk.stored[3].holds) == ("starting", ("after 2",))
    desk.saw(2, ENDED, outcome="unusable")
    assert desk.stored[3].holds == ("after 2 failed",)
    desk.submit(after=(1,))
    desk.submit(after=(2,))
    assert (desk.state(5), desk.stored[6].holds) == ("starting", ("after 2 failed",))


@pytest.mark.parametrize(("field", "end", "holds"), [
    ("after_any", {"outcome": "finished", "exit_code": 0}, ()), ("after_any", {"outcome": "unusable"}, ()),
    ("after_not_ok", {"outcome": "unusable"}, ()),
    ("after_not_ok", {"outcome": "finished", "exit_code": 0}, ("after 1 finished",)),
])
def test_a_job_may_wait_for_any_end_of_another_or_for_its_failure(field, end, holds):
    desk = Desk()
    desk.submit()
    desk.submit(**{field: (1,)})
    assert desk.stored[2].holds == ("after 1",)
    desk.saw(1, ENDED, **end)
    assert desk.stored[2].holds == holds
    assert desk.state(2) == ("held" if holds else "starting")
    desk.submit(**{field: (1,)})
    assert desk.stored[3].holds == holds


def test_a_deadline_is_told_to_policies_in_the_clusters_own_time():
    desk = Desk()
    desk.submit(deadline_s=1_000_060)
    assert desk.controller.scheduler.state.freeze(desk.now_ms).jobs.deadline_ms.tolist() == [60_000]


def array_of(desk: Desk, count: int, **fields) -> None:
    for index in range(count):
        desk.submit(array=1, array_index=index, array_limit=2, attempts_max=1, **fields)


def test_an_agent_is_told_of_the_array_of_a_job():
    desk = Desk()
    [order] = desk.submit(array=1, array_index=3)
    assert order.array == 1


def with_an_attempt(desk: Desk) -> list[int]:
    return [job.id for job in desk.stored.values() if job.state in ("starting", "running", "stopping")]


def test_no_more_jobs_of_an_array_run_at_the_same_time_than_its_limit():
    desk = Desk(devices=4)
    array_of(desk, 5)
    assert with_an_attempt(desk) == [1, 2]
    assert [desk.stored[job].reason for job in (3, 4, 5)] == ["held: array limit"] * 3
    desk.saw(2, ENDED, outcome="finished", exit_code=0)
    assert with_an_attempt(desk) == [1, 3]
    desk.command(Cancel, 4)
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert with_an_attempt(desk) == [3, 5]


def sizes_of(controller: Controller) -> tuple[tuple[int, ...], int]:
    """The sizes of the only job, and the number of devices that count as asked for."""
    jobs = controller.scheduler.state.freeze(controller.scheduler.state.now_ms).jobs
    return jobs.sizes_of(0), int(jobs.gpus[0])


def test_a_job_is_granted_only_as_many_devices_as_its_ranks_can_use():
    desk = Desk(devices=4)
    desk.submit(ranks="per-gpu", gpus=3, gpus_min=1, gpus_max=3)
    desk.saw(1, RUNNING, devices=(0, 1), ranks=2)
    assert len(desk.attempts[1, 1].devices) == 3
    for sizes in ((), (1, 2, 4), (1, 2, 4), (-5, 7, 10**30), (1, 2, 3)):
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
            job=1, attempt=1, ranks=2, samples=64.0, sizes=sizes,
        )))
    told = [json.loads(line)["report"].get("sizes") for line in desk.lines if "REPORTED" in line]
    assert told == [None, [1, 2], None, None, None]  # only what is new, and possible
    assert sizes_of(desk.controller) == ((1, 2), 2)
    desk.command(Requeue, 1)
    desk.saw(1, ENDED, outcome="stopped")
    assert (desk.stored[1].attempt, len(desk.attempts[1, 2].devices)) == (2, 2)
    living = [one for one in desk.attempts.values() if one.state != "ended"]
    for saved, lines in ((None, desk.lines), (desk.controller.save(), ())):  # after a restart, with a snapshot or not
        again = Controller(parse_cluster("1x4xT4"), FIFO, gap_ms=0)
        again.recover(saved, lines, desk.stored.values(), living, desk.now_ms)
        assert sizes_of(again) == ((1, 2), 2)


def test_a_job_that_may_have_more_devices_than_there_are_is_told_of_all_of_them_at_once():
    """All numbers up to the largest that it may ask for are a minute of counting."""
    desk = Desk(devices=4)
    desk.submit(ranks="per-gpu", gpus=COUNT_MAX, gpus_min=1, gpus_max=COUNT_MAX)
    assert len(desk.stored[1].devices) == 4


def test_a_job_that_asked_for_one_number_of_devices_keeps_it():
    desk = Desk(devices=4)
    desk.submit(ranks="per-gpu", gpus=3)
    desk.saw(1, RUNNING, devices=(0, 1), ranks=2)
    desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
        job=1, attempt=1, ranks=2, samples=64.0, sizes=(1, 2, 4),
    )))
    assert sizes_of(desk.controller) == ((3,), 3)


def test_a_job_that_is_held_for_another_reason_takes_no_place_of_its_array():
    desk = Desk(devices=1)
    array_of(desk, 4)
    desk.command(Hold, 2)
    desk.command(Hold, 3)
    assert (desk.stored[3].holds, desk.stored[4].holds) == (("user",), ())
    desk.command(Release, 2)
    assert [desk.stored[job].holds for job in (1, 2, 3, 4)] == [(), (), ("user",), ("array limit",)]
    desk.command(Requeue, 1)
    desk.command(Hold, 1)
    desk.saw(1, ENDED, outcome="stopped")
    assert [desk.stored[job].holds for job in (1, 2, 3, 4)] == [("user",), (), ("user",), ()]
    assert with_an_attempt(desk) == [2]


def test_the_limit_of_an_array_holds_after_a_restart():
    desk = Desk(devices=4)
    array_of(desk, 4)
    again = Controller(parse_cluster("1x4xT4"), FIFO, gap_ms=0)
    again.recover(None, desk.lines, desk.stored.values(), [
        attempt for attempt in desk.attempts.values() if attempt.state != "ended"
    ], desk.now_ms)
    desk.controller = again
    desk.join()
    for job in (1, 2):
        desk.saw(job, RUNNING, sequence=1)
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert with_an_attempt(desk) == [2, 3]


def test_jobs_of_a_user_have_no_more_gpus_than_its_quota():
    desk = Desk(devices=8, users=(1, 2), user_gpus=3)
    for uid, gpus in ((1, 2), (1, 2), (1, 1), (2, 3), (1, 4)):
        desk.submit(uid=uid, gpus=gpus)
    assert with_an_attempt(desk) == [1, 3, 4]
    assert desk.stored[2].reason == "held: quota: jobs of u1 may have 3 GPUs at the same time, and it needs 2"
    assert desk.stored[5].holds == ("quota",)
    desk.saw(3, ENDED, outcome="finished", exit_code=0)
    assert with_an_attempt(desk) == [1, 4]
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert with_an_attempt(desk) == [2, 4]
    desk.saw(2, ENDED, outcome="finished", exit_code=0)
    assert desk.stored[5].holds == ("quota",), "it can never run, and is not lost"


def test_a_job_that_can_be_resized_gets_no_more_than_the_quota():
    desk = Desk(EQUAL, devices=4, user_gpus=3)
    desk.submit(gpus_min=1, gpus_max=4, ranks="per-gpu", batch=64)
    assert len(desk.stored[1].devices) == 3
    desk.submit(sizes=(1, 2, 4), ranks="per-gpu", batch=64)
    assert desk.stored[2].holds == ("quota",)
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert len(desk.stored[2].devices) == 2


def test_a_restart_without_a_quota_lets_the_jobs_that_it_held_wait_for_devices():
    desk = Desk(devices=2, user_gpus=1)
    desk.submit(hold=True)
    desk.submit(gpus=2)
    assert [desk.stored[job].holds for job in (1, 2)] == [("user", "quota"), ("quota",)]
    desk.controller = Controller(parse_cluster("1x2xT4"), FIFO, gap_ms=0)
    desk.controller.recover(None, desk.lines, desk.stored.values(), (), desk.now_ms)
    desk.give()
    assert [desk.stored[job].reason for job in (1, 2)] == ["held: user", ""]
    assert kinds(desk.join()) == [StartAttempt]


def test_a_job_on_cpu_is_not_held_by_a_quota_that_is_below_what_runs():
    desk = Desk(AITURBO, devices=2, cores=8, user_gpus=2)
    desk.submit(gpus=2)
    living = tuple(desk.attempts.values())
    desk.controller = Controller(parse_cluster("1x2xT4:cpus=8"), AITURBO, gap_ms=0, user_gpus=1)
    desk.controller.recover(None, desk.lines, desk.stored.values(), living, desk.now_ms)
    desk.join()
    desk.submit(devices=("cpu",), ranks="per-gpu")
    assert (desk.stored[2].holds, with_an_attempt(desk)) == ((), [1, 2])


def test_a_job_that_stays_held_for_its_quota_is_not_written_again(monkeypatch):
    desk = Desk(user_gpus=1)
    for _ in range(3):
        desk.submit()
    put, written = desk.controller.books.put, set()
    monkeypatch.setattr(desk.controller.books, "put", lambda job, **to: (written.add(job), put(job, **to))[1])
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert (with_an_attempt(desk), written) == ([2], {1, 2})


def test_a_quota_and_the_limit_of_an_array_hold_together():
    desk = Desk(devices=4, user_gpus=1)
    array_of(desk, 4)
    assert with_an_attempt(desk) == [1]
    assert [desk.stored[job].holds for job in (2, 3)] == [("quota",), ("array limit", "quota")]
    for job in (1, 2, 3, 4):
        assert with_an_attempt(desk) == [job]
        desk.saw(job, ENDED, outcome="finished", exit_code=0)
    assert {record.state for record in desk.stored.values()} == {"finished"}


def test_a_job_that_never_fits_its_quota_says_so_and_takes_no_place_in_its_array():
    desk = Desk(devices=4, user_gpus=2)
    for index, fields in enumerate(({"gpus_min": 3, "gpus": 3, "gpus_max": 4, "ranks": "per-gpu"}, {"gpus": 2})):
        desk.submit(array=1, array_index=index, array_limit=1, **fields)
    assert with_an_attempt(desk) == [2]
    assert desk.stored[1].reason == "held: quota: jobs of u1 may have 2 GPUs at the same time, and it needs 3"


def test_a_job_does_not_begin_before_its_time():
    desk = Desk()
    desk.submit(begin_s=1_000_060)
    assert desk.stored[1].holds == ("begin",)
    desk.give(later_ms=59_000)
    assert desk.state(1) == "held"
    assert kinds(desk.give(later_ms=2_000)) == [StartAttempt]


@pytest.mark.parametrize(("fields", "reason"), [
    ({"gpus": 3}, "it needs 3 GPUs, the cluster has 2"),
    ({"gpu_type": "H100"}, "it needs GPUs of type H100, the cluster has T4"),
])
def test_what_can_never_run_is_held_with_the_reason(fields, reason):
    desk = Desk()
    assert desk.submit(**fields) == []
    assert desk.stored[1].holds == (f"impossible: {reason}",)
    assert kinds(desk.submit()) == [StartAttempt]


@pytest.mark.parametrize(("asked", "runs"), [("A100", True), ("nvidia_a100_80gb", True), ("A10", False)])
def test_a_type_of_gpu_is_asked_for_by_its_name(asked, runs):
    desk = Desk(cluster="1x2xA100-SXM4-80GB")
    assert kinds(desk.submit(gpu_type=asked)) == [StartAttempt] * runs
    assert desk.stored[1].holds == (() if runs else (
        f"impossible: it needs GPUs of type {asked}, the cluster has A100-SXM4-80GB",
    ))


@pytest.mark.parametrize("later_ms", [10_100, 100])
def test_a_time_limit_that_passes_while_an_agent_is_away_waits_for_what_it_says(later_ms):
    """The attempt may have ended long before: then it has failed, and has not run into its limit."""
    for said, state, reason in (
        ({"state": RUNNING}, "stopping", "time limit"),
        ({"state": ENDED, "outcome": "failed", "exit_code": 1}, "starting", ""),
    ):
        desk = Desk()
        desk.submit(time_limit_s=10)
        desk.saw(1, RUNNING, started_ms_ago=0)
        desk.give(AgentLost(at_ms=desk.now_ms, uid=1))
        desk.give(later_ms=later_ms)
        hello = AgentHello(version=VERSION, user="u1", boot_id="b", devices=("T4", "T4"))
        desk.give(AgentJoined(at_ms=desk.now_ms, uid=1, hello=hello), later_ms=10_200 - later_ms)
        desk.saw(1, **said)
        orders = [*desk.give(AgentSynced(at_ms=desk.now_ms, uid=1)), *desk.give()]
        assert (desk.state(1), desk.attempts[1, 1].stop_reason) == (state, reason)
        assert StopAttempt in kinds(orders) or state == "starting"


def test_a_time_limit_begins_anew_with_each_attempt():
    """As in Slurm: a script that does not save does all its work again."""
    desk = Desk()
    desk.submit(time_limit_s=10)
    desk.saw(1, RUNNING)
    desk.give(later_ms=6_000)
    desk.command(Requeue, 1)
    desk.saw(1, ENDED, outcome="stopped", exit_code=75)
    desk.give(later_ms=60_000)
    desk.saw(1, RUNNING, attempt=2)
    assert desk.give(later_ms=9_000) == []
    orders = desk.give(later_ms=1_500)
    assert [order.reason for order in orders] == ["time limit"]
    desk.saw(1, ENDED, attempt=2, outcome="stopped", exit_code=143)
    assert desk.state(1) == "timeout"


def test_a_job_of_an_array_that_dies_at_once_holds_the_rest():
    desk = Desk(devices=1)
    for _ in range(3):
        desk.submit(array=1, attempts_max=1)
    desk.saw(1, RUNNING)
    desk.saw(1, ENDED, outcome="failed", exit_code=1)
    assert [desk.stored[job].holds for job in (2, 3)] == [("crash guard",)] * 2
    assert desk.stored[3].reason == "job 1 of its array failed at once; release it to try again"
    assert kinds(desk.command(Release, 3)) == [StartAttempt]
