"""What the controller does with commands, plans and reports, one rule at a time; storms are in test_storms.py."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from brim.agent.protocol import (
    ENDED,
    RUNNING,
    STOPPING,
    VERSION,
    AgentHello,
    AttemptProgress,
    AttemptSeen,
    DeviceSeen,
    ForgetAttempt,
    ResizeAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.core.cluster import parse_cluster
from brim.core.lifecycle import Phase
from brim.errors import RefusedError
from brim.live.back_off import PAUSE_MS
from brim.live.controller import PATIENCE_MS, Controller
from brim.live.ends import CRASH_MS
from brim.live.inputs import (
    AgentJoined,
    AgentLost,
    AgentSynced,
    Cancel,
    Device,
    Hold,
    Progress,
    Release,
    Requeue,
    Saw,
    Submit,
    Vacated,
)
from brim.live.invariants import check_controller
from brim.live.reconciliation import REPEAT_MS
from brim.live.records import AttemptRecord, JobRecord
from brim.live.slowdowns import settled_ms
from brim.policies.place.parts import Consolidate
from brim.policies.presets import find_policy
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Policy, Sizes
from tests.live.sharing import Together
from tests.live.virtual import request

FIFO = find_policy("fifo")
SETTLED_MS = round(settled_ms(1.0))
"""Time in which steps of up to a second settle."""


class Desk:
    """A controller of one machine, what it ordered, and what it stored."""

    def __init__(
        self, policy: Policy = FIFO, devices: int = 2, users: tuple[int, ...] = (1,), cores: int | None = None,
        cluster: str = "1x{}xT4", user_gpus: int = -1,
    ) -> None:
        more = "" if cores is None else f":cpus={cores}"
        machine = parse_cluster(cluster.format(devices) + more)
        self.controller = Controller(machine, policy, gap_ms=0, user_gpus=user_gpus)
        self.now_ms, self.next_id = 0, 1
        self.stored: dict[int, JobRecord] = {}
        self.attempts: dict[tuple[int, int], AttemptRecord] = {}
        self.lines: list[str] = []
        for uid in users:
            self.join(uid)

    def give(self, *inputs, later_ms: int = 10) -> list:
        """Let the controller handle inputs, and return its orders."""
        self.now_ms += later_ms
        result = self.controller.step(inputs, self.now_ms)
        self.stored |= {job.id: job for job in result.changes.jobs}
        self.attempts |= {(one.job, one.number): one for one in result.changes.attempts}
        self.lines += result.changes.lines
        check_controller(self.controller)
        return [dispatch.order for dispatch in result.orders]

    def join(self, uid: int = 1) -> list:
        hello = AgentHello(version=VERSION, user=f"u{uid}", boot_id="b", devices=("T4", "T4"))
        return self.give(
            AgentJoined(at_ms=self.now_ms, uid=uid, hello=hello), AgentSynced(at_ms=self.now_ms, uid=uid)
        )

    def submit(self, *, uid: int = 1, array: int = -1, **fields) -> list:
        job = JobRecord(
            id=self.next_id, uid=uid, user=f"u{uid}", key=str(self.next_id), request=request(**fields), array=array,
            submitted_s=1_000_000 + self.now_ms / 1000, submit_ms=self.now_ms, state="pending",
        )
        self.next_id += 1
        return self.give(Submit(inbox=job.id, at_ms=self.now_ms, job=job))

    def saw(self, job: int, state: str, *, attempt: int = 1, uid: int = 1, sequence: int = 99, **more) -> list:
        return self.give(Saw(at_ms=self.now_ms, uid=uid, seen=AttemptSeen(
            job=job, attempt=attempt, sequence=sequence, state=state, **more
        )))

    def command(self, kind, job: int) -> list:
        return self.give(kind(inbox=1000 + self.now_ms, at_ms=self.now_ms, job=job, user="u1"))

    def state(self, job: int) -> str:
        return self.stored[job].state


def kinds(orders: list) -> list[type]:
    return [type(order) for order in orders]


@pytest.mark.parametrize(("ended_ms_ago", "ended_ms"), [
    (10_000, 21_000),  # while the agent was away
    (60_000, 1_000),  # no: until its connection ended, it would have said so
    (-1, 31_000),  # unknown
])  # fmt: skip
def test_a_job_that_ended_while_its_agent_was_away_is_not_charged_for_the_time_after(ended_ms_ago, ended_ms):
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING, started_ms_ago=0)
    desk.now_ms = 1_000
    desk.give(AgentLost(at_ms=desk.now_ms, uid=1))
    desk.now_ms = 31_000
    hello = AgentHello(version=VERSION, user="u1", boot_id="b", devices=("T4", "T4"))
    seen = AttemptSeen(
        job=1, attempt=1, sequence=99, state=ENDED, outcome="finished", exit_code=0, ended_ms_ago=ended_ms_ago
    )
    desk.give(*(
        AgentJoined(at_ms=desk.now_ms, uid=1, hello=hello), Saw(at_ms=desk.now_ms, uid=1, seen=seen),
        AgentSynced(at_ms=desk.now_ms, uid=1),
    ))
    assert (desk.state(1), desk.stored[1].ended_ms, desk.attempts[1, 1].end_ms) == ("finished", ended_ms, ended_ms)


def test_an_agent_that_is_there_does_not_say_when_a_job_ended():
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING, started_ms_ago=0)
    desk.now_ms = 1_000
    desk.saw(1, ENDED, outcome="finished", exit_code=0, ended_ms_ago=900)
    assert desk.stored[1].ended_ms == desk.attempts[1, 1].end_ms == 1_000


def test_a_job_is_started_with_what_it_was_granted_and_ends_when_its_exit_code_is_seen():
    desk = Desk()
    [order] = desk.submit(gpus=2, grace_s=3.0)
    assert order == StartAttempt(
        job=1, attempt=1, sequence=1, capture="0" * 32, digest="0" * 64, devices=(0, 1), grace_s=3.0, name="job"
    )
    assert desk.state(1) == "starting"
    desk.saw(1, RUNNING, started_ms_ago=5)
    assert desk.state(1) == "running"
    assert kinds(desk.saw(1, ENDED, outcome="finished", exit_code=0)) == [ForgetAttempt]
    assert (desk.state(1), desk.stored[1].exit_code, desk.stored[1].devices) == ("finished", 0, ())
    assert desk.attempts[1, 1].state == "ended"


def test_a_gang_starts_with_its_first_step_and_its_time_limit_with_its_processes():
    desk = Desk()
    desk.submit(ranks="per-gpu", time_limit_s=10)
    desk.saw(1, RUNNING, started_ms_ago=0, has_begun=False)
    assert desk.state(1) == "starting"
    began_ms = desk.now_ms
    desk.give(later_ms=6_000)
    desk.saw(1, RUNNING, started_ms_ago=6_000, has_begun=True)
    assert desk.state(1) == "running"
    assert desk.attempts[1, 1].start_ms - desk.attempts[1, 1].begin_ms >= 6_000
    assert not desk.give(later_ms=began_ms + 9_900 - desk.now_ms)
    [order] = desk.give(later_ms=200)
    assert (type(order), order.reason) == (StopAttempt, "time limit")


def test_a_gang_that_never_begins_is_stopped_at_its_time_limit():
    desk = Desk()
    desk.submit(ranks="per-gpu", time_limit_s=10)
    desk.saw(1, RUNNING, started_ms_ago=0, has_begun=False)
    [order] = desk.give(later_ms=10_100)
    assert (type(order), order.reason) == (StopAttempt, "time limit")


def test_step_times_are_told_to_the_engine_once():
    desk = Desk()
    desk.submit(ranks="per-gpu")
    desk.saw(1, RUNNING)
    times = {"step_s": 0.5, "local_batch": 64, "global_batch": 64, "samples_per_s": 128.0}
    for step_s in (0.5, 0.5, 0.25):
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
            job=1, attempt=1, ranks=1, samples=64.0, **times | {"step_s": step_s},
        )))
    seen = [json.loads(line)["report"]["seen"] for line in desk.lines if "REPORTED" in line]
    assert seen == [[[1, 1, 64, 0.5, 0.0]], [], [[1, 1, 64, 0.25, 0.0]]]
    jobs = desk.controller.scheduler.state.freeze(desk.now_ms).jobs
    assert (jobs.batch[0], jobs.batch_max[0], jobs.local_batch_max[0]) == (64, 64, 64)


def test_an_end_is_said_again_until_the_agent_may_forget_it():
    desk = Desk()
    desk.submit()
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert kinds(desk.saw(1, ENDED, outcome="finished", exit_code=0)) == [ForgetAttempt]
    assert desk.state(1) == "finished"


@pytest.mark.parametrize(("end", "state", "failures"), [
    ({"outcome": "finished", "exit_code": 0}, "finished", 0),
    ({"outcome": "finished", "exit_code": -1}, "starting", 0),  # a success that nobody collected is none
    ({"outcome": "failed", "exit_code": 1}, "starting", 1),
    ({"outcome": "failed", "exit_code": 75}, "starting", 0),
    ({"outcome": "failed", "exit_code": 85}, "starting", 0),
    ({"outcome": "failed", "exit_code": 99}, "starting", 0),
    ({"outcome": "failed", "exit_code": 1, "blame": "node"}, "starting", 0),
    ({"outcome": "failed", "exit_code": 1, "blame": "neighbour"}, "starting", 0),
    ({"outcome": "lost"}, "starting", 0),
    ({"outcome": "stopped", "exit_code": 143}, "starting", 0),
    ({"outcome": "nonsense", "exit_code": 0}, "starting", 0),
    ({"outcome": "unusable", "detail": "no such capture"}, "failed", 1),
])
def test_the_end_of_an_attempt_that_was_not_stopped(end, state, failures):
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING)
    desk.saw(1, ENDED, **end)
    assert (desk.state(1), desk.stored[1].failures) == (state, failures)
    assert desk.stored[1].attempt == (2 if state == "starting" else 1)


def test_a_job_that_must_not_be_started_again_is_not():
    for end, state in (({"outcome": "lost"}, "lost"), ({"outcome": "failed", "exit_code": 75}, "failed")):
        desk = Desk()
        desk.submit(requeue=False)
        desk.saw(1, ENDED, **end)
        assert desk.state(1) == state


def test_a_job_fails_after_its_attempts():
    desk = Desk()
    desk.submit(attempts_max=2)
    desk.saw(1, ENDED, outcome="failed", exit_code=3)
    assert desk.state(1) == "starting"
    desk.saw(1, ENDED, attempt=2, outcome="failed", exit_code=4, detail="out of memory")
    assert (desk.state(1), desk.stored[1].exit_code) == ("failed", 4)
    assert desk.stored[1].reason == "attempt 2 failed with exit code 4: out of memory"


def test_a_job_that_asks_at_once_to_be_started_again_has_to_wait():
    desk = Desk()
    desk.submit()
    for number in (1, 2, 3):
        assert (desk.state(1), desk.stored[1].attempt) == ("starting", number)
        desk.saw(1, RUNNING, attempt=number)
        desk.saw(1, ENDED, attempt=number, outcome="failed", exit_code=75)
    assert (desk.state(1), desk.stored[1].holds, desk.stored[1].failures) == ("held", ("back-off",), 0)
    assert kinds(desk.give(later_ms=PAUSE_MS)) == [StartAttempt]
    for number in (4, 5, 6, 7):  # those that have worked in between are none of a series
        desk.saw(1, RUNNING, attempt=number)
        desk.give(later_ms=CRASH_MS)
        desk.saw(1, ENDED, attempt=number, outcome="failed", exit_code=75)
        assert (desk.state(1), desk.stored[1].attempt) == ("starting", number + 1)


def test_faults_of_a_node_count_for_nobody_but_make_a_pause():
    desk = Desk()
    desk.submit(attempts_max=1)
    for number in (1, 2):
        desk.saw(1, ENDED, attempt=number, outcome="failed", blame="node", detail="no room for a process")
        assert (desk.state(1), desk.stored[1].attempt, desk.stored[1].failures) == ("starting", number + 1, 0)
    desk.saw(1, ENDED, attempt=3, outcome="failed", blame="neighbour", detail="job 2 took its memory")
    assert (desk.state(1), desk.stored[1].holds) == ("held", ("back-off",))
    assert desk.stored[1].reason == (
        "attempt 3 was evicted by neighbour, which does not count: job 2 took its memory; held: back-off"
    )
    assert kinds(desk.give(later_ms=PAUSE_MS)) == [StartAttempt]
    desk.saw(1, ENDED, attempt=4, outcome="failed", blame="node")  # the series begins anew
    assert (desk.state(1), desk.stored[1].attempt) == ("starting", 5)


def test_a_pause_outlives_the_controller_and_can_be_released():
    for resume in (Release, None):
        desk = Desk()
        desk.submit()
        for number in (1, 2, 3):
            desk.saw(1, ENDED, attempt=number, outcome="failed", blame="node")
        again = Desk()
        jobs, attempts = desk.stored.values(), desk.attempts.values()
        again.controller.recover(desk.controller.save(), (), jobs, attempts, desk.now_ms)
        again.now_ms, again.stored, again.attempts = desk.now_ms, desk.stored, desk.attempts
        desk = again
        desk.join()
        if resume is None:
            assert desk.give() == []
            assert kinds(desk.give(later_ms=PAUSE_MS)) == [StartAttempt]
        else:
            assert kinds(desk.command(resume, 1)) == [StartAttempt]


def test_an_exit_code_is_told_once():
    desk = Desk()
    desk.submit(attempts_max=1)
    desk.saw(1, ENDED, outcome="failed", exit_code=3, detail="exited with 3")
    assert desk.stored[1].reason == "attempt 1 exited with 3"


@pytest.mark.parametrize(("command", "state"), [(Cancel, "cancelled"), (Requeue, "starting")])
def test_a_running_job_is_told_to_stop_first(command, state):
    desk = Desk()
    desk.submit(grace_s=7)
    desk.saw(1, RUNNING)
    [order] = desk.command(command, 1)
    assert (type(order), order.grace_s) == (StopAttempt, 7)
    assert desk.state(1) == "stopping"
    desk.saw(1, STOPPING)
    assert desk.state(1) == "stopping"
    desk.saw(1, ENDED, outcome="failed", exit_code=1)
    assert desk.state(1) == state
    assert desk.stored[1].failures == 0


def test_a_job_that_finished_although_it_was_cancelled_has_finished():
    desk = Desk()
    desk.submit()
    desk.command(Cancel, 1)
    desk.saw(1, ENDED, outcome="finished", exit_code=0)
    assert desk.state(1) == "finished"


def test_devices_are_given_on_when_they_have_been_left_whoever_owns_the_leaving_job():
    desk = Desk(find_policy("srtf"), users=(1, 2))
    desk.submit(gpus=2, time_limit_s=1_000)
    desk.saw(1, RUNNING)
    orders = desk.submit(uid=2, gpus=1, time_limit_s=10)
    assert kinds(orders) == [StopAttempt]
    assert [job.state for job in desk.stored.values()] == ["stopping", "starting"]
    assert desk.attempts[2, 1].state == "waiting"
    assert "waits for job 1 to leave them" in desk.controller.explain(2)
    orders = desk.saw(1, ENDED, outcome="stopped", exit_code=143)
    assert kinds(orders) == [ForgetAttempt, StartAttempt]
    assert (desk.state(1), desk.stored[1].preemptions, desk.stored[1].failures) == ("pending", 1, 0)


def test_a_start_that_was_never_ordered_needs_no_end():
    desk = Desk(find_policy("srtf"), users=(1, 2))
    desk.submit(gpus=2, time_limit_s=1_000)
    desk.saw(1, RUNNING)
    desk.submit(uid=2, gpus=2, time_limit_s=10)
    assert desk.command(Cancel, 2) == []
    desk.give()
    assert desk.state(2) == "cancelled"
    assert desk.attempts[2, 1].outcome == "stopped"


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


def test_a_time_limit_counts_running_time_over_all_attempts():
    desk = Desk()
    desk.submit(time_limit_s=10)
    desk.saw(1, RUNNING)
    desk.give(later_ms=6_000)
    desk.command(Requeue, 1)
    desk.saw(1, ENDED, outcome="stopped", exit_code=75)
    desk.give(later_ms=60_000)
    desk.saw(1, RUNNING, attempt=2)
    assert desk.give(later_ms=3_000) == []
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


def test_nothing_is_ordered_from_an_agent_that_is_not_there_and_its_jobs_are_held_after_a_while():
    desk = Desk()
    desk.submit(gpus=2)
    desk.submit(gpus=1)
    desk.give(AgentLost(at_ms=desk.now_ms, uid=1))
    desk.saw(1, ENDED, outcome="finished", exit_code=0)  # said before it went
    desk.give(later_ms=PATIENCE_MS + 1_000)
    desk.give()
    assert (desk.state(2), desk.stored[2].holds) == ("held", ("agent",))
    desk.submit()
    assert desk.stored[3].holds == ("agent",)
    assert kinds(desk.join()) == [StartAttempt, StartAttempt]


def test_how_long_an_agent_is_away_counts_from_its_last_connection():
    """Not from an earlier one that had ended less than the patience before: an agent may be killed twice."""
    desk = Desk()
    desk.submit(gpus=2)
    desk.submit()
    desk.give(AgentLost(at_ms=desk.now_ms, uid=1))
    desk.join()
    desk.give(AgentLost(at_ms=desk.now_ms + PATIENCE_MS - 1_000, uid=1), later_ms=PATIENCE_MS - 1_000)
    desk.give(later_ms=PATIENCE_MS - 1_000)
    assert desk.state(2) == "pending"
    desk.give(later_ms=2_000)
    assert (desk.state(2), desk.stored[2].holds) == ("held", ("agent",))


def test_orders_are_repeated_until_they_hold():
    desk = Desk()
    [order] = desk.submit()
    assert desk.give(later_ms=REPEAT_MS - 100) == []
    assert desk.give(later_ms=200) == [order]
    desk.saw(1, RUNNING)
    assert desk.give(later_ms=2 * REPEAT_MS) == []


def test_nobody_speaks_for_the_attempt_of_another_user():
    desk = Desk(users=(1, 2))
    desk.submit()
    desk.saw(1, RUNNING)
    orders = desk.saw(1, ENDED, uid=2, outcome="finished", exit_code=0)
    assert (kinds(orders), desk.state(1)) == ([ForgetAttempt], "running")
    progress = AttemptProgress(job=1, attempt=1, ranks=1, samples=5.0)
    desk.give(Progress(at_ms=desk.now_ms, uid=2, progress=progress))
    assert desk.stored[1].samples_done == 0


def test_an_attempt_that_should_not_live_is_stopped():
    desk = Desk()
    [order] = desk.saw(7, RUNNING, attempt=2)
    assert (type(order), order.job, order.attempt) == (StopAttempt, 7, 2)


def test_a_running_attempt_that_its_agent_does_not_know_is_lost_and_one_that_it_was_not_told_of_is_ordered_again():
    desk = Desk()
    desk.submit()
    desk.submit()
    desk.saw(1, RUNNING)
    desk.give(AgentLost(at_ms=desk.now_ms, uid=1))
    orders = desk.join()
    assert [(order.job, order.attempt) for order in orders if isinstance(order, StartAttempt)] == [(2, 1), (1, 2)]
    assert desk.attempts[1, 1].outcome == "lost"


def test_a_device_takes_no_jobs_while_it_is_foreign_or_in_quarantine():
    desk = Desk()
    for device, state in ((0, "foreign"), (1, "quarantined")):
        desk.give(Device(at_ms=desk.now_ms, uid=1, device=DeviceSeen(device=device, state=state)))
    assert desk.submit() == []
    [order] = desk.give(Device(at_ms=desk.now_ms, uid=1, device=DeviceSeen(device=1, state="open")))
    assert order.devices == (1,)


def test_processes_of_a_job_are_not_foreign_to_the_cluster():
    desk = Desk(users=(1, 2))
    desk.submit(gpus=2)
    desk.give(Device(at_ms=desk.now_ms, uid=2, device=DeviceSeen(device=0, state="foreign")))
    assert not desk.controller.scheduler.state.freeze(desk.now_ms).nodes.withheld.any()


@dataclass(frozen=True)
class InEqualParts:
    """As many of four devices for each job as for every other, as far as its limits allow."""

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        return Sizes(gpus=np.clip(4 // max(len(jobs), 1), jobs.gpus_min, jobs.gpus_max))


EQUAL = replace(find_policy("elastic"), name="equal", size=InEqualParts(), gap_ms=0, period_ms=0)


def with_an_elastic_job() -> tuple[Desk, StartAttempt, ResizeAttempt]:
    """A job that runs on four devices and was told to shrink to two, because another came."""
    desk = Desk(EQUAL, devices=4)
    limits = {"gpus_min": 1, "gpus_max": 4, "ranks": "per-gpu", "batch": 64}
    [start] = desk.submit(**limits)
    assert (start.devices, start.ranks, start.batch) == ((0, 1, 2, 3), 4, 64)
    desk.saw(1, RUNNING, sequence=1, devices=start.devices, ranks=4)
    [resize] = desk.submit(gpus=2)
    return desk, start, resize


def test_a_job_that_shrinks_leaves_its_devices_before_they_are_given_on():
    desk, start, resize = with_an_elastic_job()
    assert isinstance(resize, ResizeAttempt)
    assert (resize.job, resize.attempt, resize.sequence, resize.ranks, len(resize.devices)) == (1, 1, 2, 2, 2)
    assert (desk.state(1), desk.stored[1].devices) == ("starting", start.devices)
    [order] = desk.saw(1, RUNNING, sequence=2, devices=resize.devices, ranks=2)
    assert (order.job, set(order.devices)) == (2, set(start.devices) - set(resize.devices))
    assert (desk.state(1), desk.stored[1].devices, desk.stored[1].attempt) == ("running", resize.devices, 1)


def test_a_job_grows_onto_devices_that_have_been_left():
    desk, start, resize = with_an_elastic_job()
    desk.saw(1, RUNNING, sequence=2, devices=resize.devices, ranks=2)
    desk.saw(2, RUNNING)
    orders = desk.saw(2, ENDED, outcome="finished", exit_code=0)
    orders += desk.give()
    grows = orders[-1]
    assert (type(grows), grows.sequence, grows.devices) == (ResizeAttempt, 3, start.devices)
    assert desk.stored[1].devices == start.devices


def test_a_resize_that_could_not_be_done_ends_in_a_new_attempt():
    desk, start, _ = with_an_elastic_job()
    orders = desk.saw(1, RUNNING, sequence=2, devices=start.devices, ranks=4)
    assert kinds(orders) == [StopAttempt]
    assert desk.controller.scheduler.state.phase(1) is Phase.STOPPING


def test_progress_reaches_the_beliefs_and_lies_do_not():
    desk = Desk(devices=2)
    desk.submit(gpus=2, ranks="per-gpu", batch=32)
    desk.saw(1, RUNNING)
    said = {"ranks": 2, "samples": 640.0, "total": 6_400.0, "samples_per_s": 64.0, "step_s": 0.5, "sync_s": 0.1,
            "local_batch": 16, "gradient_noise": 64.0, "loss": 2.5}
    for lie in ({"samples": -1.0}, {"samples": float("nan")}, {"samples": 1e300}, {"samples": None}):
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(job=1, attempt=1, **said | lie)))
    assert desk.stored[1].samples_done == 0
    desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(job=1, attempt=1, **said)))
    assert (desk.stored[1].samples_done, desk.stored[1].samples_total) == (640, 6_400)
    snapshot = desk.controller.scheduler.state.freeze(desk.now_ms)
    assert (snapshot.seen.gpus.tolist(), snapshot.seen.step_s.tolist()) == ([2], [0.5])
    assert (snapshot.jobs.grad_var.tolist(), snapshot.jobs.loss.tolist()) == ([2.0], [2.5])


def test_a_wait_for_data_is_told_of_the_loader_workers_that_a_job_has_by_now():
    desk = Desk(devices=2, cores=8)
    [order] = desk.submit(gpus=2, ranks="per-gpu")
    assert order.loader_workers == 3
    desk.saw(1, RUNNING)
    told = []
    for most, ratio in ((3, 0.5), (4, 0.25), (None, 0.125), (3, 1.5), (3, float("nan")), (3, 0.0)):
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
            job=1, attempt=1, ranks=2, samples=5.0, loader_wait_ratio=ratio, loader_workers_max=most,
        )))
        waits = desk.controller.scheduler.state.freeze(desk.now_ms).jobs.loader_wait_ratio
        told.append((float(np.nan_to_num(waits, nan=-1)[0]), desk.stored[1].loader_wait_ratio))
    assert told == [(0.5, 0.5), (-1, None), (0.125, 0.125), (-1, None), (-1, None), (0.0, 0.0)]
    desk.saw(1, ENDED, outcome="lost")
    assert desk.stored[1].loader_wait_ratio is None


def test_samples_that_are_done_again_are_lost_work():
    desk = Desk()
    desk.submit(gpus=2, ranks="per-gpu")
    desk.saw(1, RUNNING)

    def says(samples: float, attempt: int) -> None:
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
            job=1, attempt=attempt, ranks=2, samples=samples, samples_per_s=10.0,
        )))

    says(900.0, 1)
    desk.saw(1, ENDED, outcome="lost")
    desk.saw(1, RUNNING, attempt=2)
    says(700.0, 2)
    says(650.0, 2)  # within an attempt nothing is lost
    assert desk.stored[1].lost_gpu_s == 200 / 10 * 2


def test_what_an_agent_says_can_always_be_stored():
    desk, huge = Desk(), 10**400
    desk.submit(gpus=2, ranks="per-gpu", attempts_max=1)
    desk.saw(1, RUNNING, sequence=huge, devices=(huge,), ranks=huge, started_ms_ago=-huge)
    said = AttemptProgress(job=1, attempt=1, ranks=huge, samples=5.0, step_s=1.0, local_batch=huge)
    desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=said))
    assert desk.stored[1].samples_done == 5
    desk.saw(huge, RUNNING, attempt=-huge)
    desk.give(Device(at_ms=desk.now_ms, uid=1, device=DeviceSeen(device=huge, state="open")))
    desk.saw(1, ENDED, attempt=desk.stored[1].attempt, outcome="failed", exit_code=huge, blame="\ud800",
             detail="\ud800\x00\n\x1b[2J" * 1000)
    ended = desk.attempts[1, 1]
    assert (ended.exit_code, ended.blame, len(ended.detail)) == (-1, "", 500)
    assert ended.detail.isprintable()


def test_a_round_sees_nothing_that_was_accepted_after_it():
    desk = Desk(devices=1)
    jobs = [
        JobRecord(id=number, uid=1, user="u1", key=str(number), request=request(priority=number), submitted_s=0.0,
                  submit_ms=at_ms, state="pending") for number, at_ms in ((1, 100), (2, 200))
    ]
    desk.now_ms = 1_000
    desk.give(*(Submit(inbox=job.id, at_ms=job.submit_ms, job=job) for job in jobs))
    records = [json.loads(line) for line in desk.lines]
    assert [(record["t"], record.get("e", "round")) for record in records if "e" not in record or record["e"]][:3] == [
        (100, "SUBMITTED"), (100, "round"), (200, "SUBMITTED"),
    ]


def moved(desk: Desk, cluster: str, policy: Policy = FIFO) -> Desk:
    """The same books under a controller of another cluster, or with another policy."""
    new = Desk(users=())
    new.controller = Controller(parse_cluster(cluster), policy, gap_ms=0)
    jobs = [job for job in desk.stored.values() if not job.has_ended]
    new.controller.recover(desk.controller.save(), (), jobs, desk.attempts.values(), desk.now_ms)
    new.stored, new.now_ms, new.next_id = dict(desk.stored), desk.now_ms, desk.next_id
    new.give()
    return new


def test_a_cluster_that_has_grown_takes_the_jobs_of_before():
    desk = Desk()
    desk.submit(gpus=3)
    desk.submit(gpus=1, gpu_type="T4", hold=True)
    desk.submit()
    desk.saw(3, RUNNING)
    desk.command(Requeue, 3)
    desk.command(Hold, 3)
    desk.saw(3, ENDED, outcome="stopped", exit_code=75)
    new = moved(desk, "1x4xV100")
    assert [new.stored[job].holds for job in (1, 2, 3)] == [
        (), ("user", "impossible: it needs GPUs of type T4, the cluster has V100"), ("user",),
    ]
    [order] = new.join()
    assert (order.job, order.attempt, len(order.devices)) == (1, 1, 3)
    [order] = new.command(Release, 3)
    assert (order.job, order.attempt) == (3, 2)
    assert new.command(Release, 2) == []
    back = moved(desk, "1x2xT4")
    assert [order.job for order in (*back.join(), *back.command(Release, 2))] == [2]


def test_a_policy_that_runs_jobs_on_cpu_takes_those_that_the_one_before_did_not():
    desk = Desk(cores=4)
    desk.submit(devices=("cpu",))
    assert desk.stored[1].holds == ("impossible: policy fifo runs no job on CPU",)
    new = moved(desk, "1x2xT4:cpus=4", find_policy("aiturbo"))
    assert [order.job for order in new.join()] == [1]


def test_the_devices_of_a_running_job_cannot_be_changed():
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING)
    with pytest.raises(RefusedError, match="the cluster was 1x2xT4 and is 1x4xT4 now, but job 1 still runs"):
        moved(desk, "1x4xT4")


def test_the_same_devices_by_another_name_keep_their_running_jobs():
    desk = Desk()
    desk.submit(mem_mib_per_gpu=1024)
    desk.saw(1, RUNNING)
    new = moved(desk, "1x2xV100").controller
    assert (new.scheduler.state.phase(1), new.ledger.of(1).devices) == (Phase.RUNNING, (0,))
    with pytest.raises(RefusedError, match="but job 1 still runs"):
        moved(desk, "1x2xV100:mem=1000MB")


def test_policies_that_need_true_run_times_are_refused():
    with pytest.raises(RefusedError, match="needs true run times"):
        Controller(parse_cluster("1x1xT4"), find_policy("srtf-oracle"))


# -- what plans may hold besides starts ----------------------------------------------------------------------------


def test_a_job_is_told_how_many_loader_workers_it_has():
    desk = Desk(devices=4, cores=16)
    [order] = desk.submit(gpus=2, ranks="per-gpu")
    assert order.loader_workers == 3


@dataclass(frozen=True)
class Picky(AsAsked):
    """Rejects jobs of more than one device."""

    def __call__(self, snapshot, beliefs, order):
        asked = snapshot.jobs.gpus
        return replace(super().__call__(snapshot, beliefs, order), gpus=np.where(asked > 1, 0, 1), reject=asked > 1)


def test_a_job_that_the_policy_rejects_has_failed():
    desk = Desk(replace(FIFO, name="picky", size=Picky()))
    assert desk.submit(gpus=2) == []
    assert (desk.state(1), desk.stored[1].reason) == ("failed", "policy picky has rejected it")
    assert len(desk.submit()) == 1


def holders(desk: Desk) -> dict[int, tuple[tuple[int, ...], int, str]]:
    """Devices, share and state of the attempt of each job that has one."""
    return {one.job: (one.devices, one.share_milli, one.state) for one in desk.controller.ledger}


def test_jobs_that_share_a_device_start_beside_each_other_and_no_process_leaves_for_it():
    desk = Desk(replace(FIFO, place=Together()), users=(1, 2))
    [first] = desk.submit()
    assert (first.devices, first.shares, holders(desk)[1][:2]) == ((0,), False, ((0,), 1000))
    desk.saw(1, RUNNING, sequence=1, devices=(0,))
    orders = desk.submit(uid=2)
    assert [(type(order), order.job) for order in orders] == [(TuneAttempt, 1), (StartAttempt, 2)]
    assert (orders[1].devices, orders[1].shares) == ((0,), True)
    assert {job: has[:2] for job, has in holders(desk).items()} == {1: ((0,), 500), 2: ((0,), 500)}
    desk.saw(1, RUNNING, sequence=2, devices=(0,))
    desk.saw(2, RUNNING, uid=2, devices=(0,))
    assert (desk.state(1), desk.state(2), desk.stored[1].attempt) == ("running", "running", 1)
    desk.submit()
    assert desk.state(3) == "pending"
    living = [one for one in desk.attempts.values() if one.state != "ended"]
    again = Controller(parse_cluster("1x2xT4"), replace(FIFO, place=Together()), gap_ms=0)
    again.recover(None, desk.lines, desk.stored.values(), living, desk.now_ms)
    check_controller(again)
    assert {one.job: one.share_milli for one in again.ledger} == {1: 500, 2: 500}


def test_the_slowdown_of_a_job_is_its_step_time_beside_another_relative_to_that_alone():
    desk = Desk(replace(FIFO, place=Together()))

    def says(job: int, step_s: float, later_ms: int) -> float:
        trains(desk, job, step_s, later_ms)
        jobs = desk.controller.scheduler.state.freeze(desk.now_ms).jobs
        return float(np.nan_to_num(jobs.slowdown_ratio[jobs.id.tolist().index(job)], nan=0.0))

    desk.submit(name="a")
    desk.saw(1, RUNNING, devices=(0,))
    assert [says(1, 0.5, SETTLED_MS) for _ in range(3)] == [0, 0, 0]
    desk.submit(name="b")
    desk.saw(2, RUNNING, devices=(0,))
    assert "It shares devices with job 2." in desk.controller.explain(1)
    assert says(1, 0.6, 1_000) == 0, "a mean of both companies"
    assert says(1, 0.9, SETTLED_MS) == 1.8
    assert says(2, 0.9, SETTLED_MS) == says(2, 0.9, SETTLED_MS) == 0, "nobody knows how long its steps take alone"
    assert desk.stored[1].slowdown_ratio == 1.8
    assert "shares devices with job 2, and its steps take 1.80 times as long as alone" in desk.controller.explain(1)
    desk.saw(2, ENDED, outcome="finished", exit_code=0)
    assert says(1, 0.9, 1_000) == 0
    assert desk.stored[1].slowdown_ratio is None
    assert says(1, 0.5, SETTLED_MS) == 0
    desk.submit(name="a")  # of the same model as the first
    desk.saw(3, RUNNING, devices=(0,))
    says(3, 0.75, 1_000)
    assert says(3, 0.75, SETTLED_MS) == 1.5


def restarted(desk: Desk, policy: Policy, cluster: str = "1x2xT4") -> None:
    """The controller ends and begins again with what it has stored; the agents come back."""
    desk.controller = Controller(parse_cluster(cluster), policy, gap_ms=0)
    alive = [job for job in desk.stored.values() if not job.has_ended]
    living = [one for one in desk.attempts.values() if one.state != "ended"]
    desk.controller.recover(None, desk.lines, alive, living, desk.now_ms)
    desk.join()


def trains(desk: Desk, job: int, step_s: float, later_ms: int = SETTLED_MS, batch: int = 8) -> list:
    """A job on one device says how long its steps take."""
    orders = desk.give(Progress(at_ms=desk.now_ms + later_ms - 1, uid=1, progress=AttemptProgress(
        job=job, attempt=desk.stored[job].attempt, ranks=1, samples=desk.now_ms * 1.0, step_s=step_s,
        global_batch=batch, local_batch=batch,
    )), later_ms=later_ms)
    return [*orders, *desk.give(later_ms=100)]


def test_step_times_alone_survive_a_restart_of_the_controller():
    policy = replace(FIFO, place=Together())
    desk = Desk(policy)
    desk.submit(name="a")
    desk.saw(1, RUNNING, devices=(0,))
    trains(desk, 1, 0.5)
    restarted(desk, policy)
    desk.saw(1, RUNNING, devices=(0,))
    desk.submit(name="a")
    desk.saw(2, RUNNING, devices=(0,))
    restarted(desk, policy)
    for job in (1, 2):
        desk.saw(job, RUNNING, devices=(0,))
        trains(desk, job, 0.9, 1_000)
        assert desk.stored[job].slowdown_ratio is None, "who knows since when they share"
        trains(desk, job, 0.9)
        assert desk.stored[job].slowdown_ratio == 1.8


def test_steps_that_were_not_all_alone_are_not_told_as_such():
    """A job that came back to its device alone a moment ago reports a mean of both companies."""
    desk = Desk(replace(FIFO, place=Together()))
    for _ in range(2):
        desk.submit()
    for job in (1, 2):
        desk.saw(job, RUNNING, devices=(0,))
        trains(desk, job, 0.9)
    desk.saw(2, ENDED, outcome="finished", exit_code=0)
    state = desk.controller.scheduler.state
    for step_s, later_ms, known in ((0.8, 1_000, []), (0.7, SETTLED_MS // 2, []), (0.5, SETTLED_MS, [0.5])):
        trains(desk, 1, step_s, later_ms)
        assert state.freeze(desk.now_ms).seen.step_s.tolist() == known


def test_what_a_leaving_job_has_is_given_on_when_it_has_left_and_its_neighbour_stays():
    desk = Desk(replace(FIFO, place=Together()))
    for _ in range(3):
        desk.submit()
    for job in (1, 2):
        desk.saw(job, RUNNING, devices=(0,))
    assert kinds(desk.command(Cancel, 2)) == [StopAttempt]
    assert desk.submit() == []  # a reason for a round
    assert (holders(desk)[1][1], holders(desk)[2][1:], holders(desk)[3][2]) == (500, (500, "stopping"), "waiting")
    assert "waits for job 2 to leave them" in desk.controller.explain(3)
    desk.saw(2, STOPPING, devices=(0,))
    assert holders(desk)[3][2] == "waiting"
    orders = desk.saw(2, ENDED, outcome="stopped")
    assert [(type(order), order.job) for order in orders] == [(ForgetAttempt, 2), (StartAttempt, 3)]
    desk.saw(3, RUNNING, devices=(0,))
    desk.command(Cancel, 4)
    desk.command(Cancel, 3)
    assert holders(desk)[1][1] == 500  # it has the whole device when it is alone there
    desk.saw(3, ENDED, outcome="stopped")
    assert holders(desk) == {1: ((0,), 1000, "running")}
    assert (desk.state(1), desk.stored[1].attempt) == ("running", 1)


@dataclass(frozen=True)
class LentAtFirst(Consolidate):
    """Marks the grants of jobs as revocable in the first second after their submission."""

    def __call__(self, snapshot, beliefs, order, sizes):
        grants = super().__call__(snapshot, beliefs, order, sizes)
        return replace(grants, revocable=(snapshot.now_ms - snapshot.jobs.submit_ms < 1_000)[grants.job])


def test_a_grant_that_is_no_longer_revocable_changes_nothing_for_the_job():
    desk = Desk(replace(FIFO, place=LentAtFirst("skip")))
    desk.submit()
    desk.saw(1, RUNNING)
    orders = desk.submit() + desk.give(later_ms=2_000) + desk.submit()
    assert sum('"do":"tune"' in line for line in desk.lines) >= 1
    assert all(order.job != 1 for order in orders if not isinstance(order, TuneAttempt))
    assert (desk.state(1), desk.stored[1].attempt) == ("running", 1)


def orphaned(state: str = RUNNING, *, devices: tuple[str, ...] = ("open", "open")) -> Desk:
    """User 1 has a job on both devices and an agent that has gone for good; user 2 waits, and sees the devices so."""
    desk = Desk(users=(1, 2))
    desk.submit(gpus=2)
    desk.saw(1, state, processes=(77, 5))
    desk.give(*(
        Device(at_ms=desk.now_ms, uid=2, device=DeviceSeen(device=device, state=said))
        for device, said in enumerate(devices)
    ))
    desk.give(AgentLost(at_ms=desk.now_ms, uid=1))
    desk.submit(uid=2, gpus=2)
    return desk


def returned(desk: Desk, state: str, **more) -> list:
    """The agent of user 1 comes back, and says this of its attempt."""
    hello = AgentHello(version=VERSION, user="u1", boot_id="b", devices=("T4", "T4"))
    seen = AttemptSeen(job=1, attempt=1, sequence=99, state=state, **more)
    return desk.give(
        AgentJoined(at_ms=desk.now_ms, uid=1, hello=hello), Saw(at_ms=desk.now_ms, uid=1, seen=seen),
        AgentSynced(at_ms=desk.now_ms, uid=1),
    )


def vacated(desk: Desk, *, later_ms: int = PATIENCE_MS + 1_000) -> list:
    desk.give(later_ms=later_ms)
    orders = desk.give(Vacated(at_ms=desk.now_ms, job=1, attempt=1))
    return orders + desk.give()


def test_devices_of_an_agent_that_never_returns_are_given_on_when_nothing_is_left_there():
    desk = orphaned()
    assert desk.attempts[1, 1].processes == (77, 5)
    assert desk.give(later_ms=100_000) == []
    [order] = vacated(desk)
    assert (type(order), order.job, order.devices) == (StartAttempt, 2, (0, 1))
    assert (desk.state(1), desk.attempts[1, 1].devices) == ("stopping", ())
    returned(desk, ENDED, outcome="finished", exit_code=0)  # as its own process wrote before it ended
    assert desk.state(1) == "finished"


@pytest.mark.parametrize(("devices", "later_ms"), [
    (("open", "foreign"), PATIENCE_MS + 1_000), (("open", "quarantined"), PATIENCE_MS + 1_000),
    (("open",), PATIENCE_MS + 1_000), (("open", "open"), 100),
])  # fmt: skip
def test_they_are_not_while_one_is_not_seen_empty_or_the_agent_may_come_back(devices, later_ms):
    desk = orphaned(devices=devices)
    assert vacated(desk, later_ms=later_ms) == []
    assert desk.attempts[1, 1].devices == (0, 1)


def test_an_attempt_whose_devices_were_given_on_does_not_get_them_back():
    desk = orphaned()
    vacated(desk)
    desk.saw(2, RUNNING, uid=2)
    orders = returned(desk, RUNNING, devices=(0, 1))  # what was gone is there again: the user has lied
    assert kinds(orders) == [StopAttempt]
    assert desk.attempts[1, 1].devices == ()


def test_nothing_is_given_on_when_the_agent_is_there():
    desk = orphaned()
    returned(desk, RUNNING)
    assert vacated(desk) == []
    assert desk.state(1) == "running"


def test_why_an_attempt_does_not_start_is_what_its_agent_says():
    desk = Desk()
    desk.submit()
    desk.saw(1, "starting", detail="cannot write into /x: No space left on device")
    assert desk.stored[1].reason == "cannot write into /x: No space left on device"
    assert desk.controller.explain(1) == (
        "job 1 was given devices 0 and does not start: cannot write into /x: No space left on device."
    )
    desk.saw(1, RUNNING)
    assert (desk.stored[1].state, desk.stored[1].reason, desk.attempts[1, 1].detail) == ("running", "", "")


def test_a_pair_whose_steps_turn_out_slow_is_taken_apart_at_once_and_not_put_together_again():
    """Each keeps the device busy a third of the time as it says; together, steps take 1.8 times as long."""
    desk, uses = Desk(find_policy("eaco")), {"gpu_util_milli": 300, "gpu_mem_mib": 4_000}
    desk.submit(name="train", **uses)
    desk.saw(1, RUNNING, devices=(0,))
    for _ in range(2):
        trains(desk, 1, 0.5)
    desk.submit(name="train", **uses)
    desk.saw(2, RUNNING, devices=(0,))
    assert {job: has[:2] for job, has in holders(desk).items()} == {1: ((0,), 500), 2: ((0,), 500)}
    trains(desk, 2, 0.9, 1_000)
    orders = [order for job in (1, 2, 1) for order in trains(desk, job, 0.9)]
    assert [(type(order), order.job) for order in orders] == [(StopAttempt, 2)]
    desk.saw(2, ENDED, outcome="preempted", exit_code=75)
    desk.give(later_ms=60_000)
    assert holders(desk)[1][:2] == ((0,), 1000)
    assert holders(desk)[2][:2] == ((1,), 1000)
    assert (desk.stored[1].attempt, desk.stored[2].attempt) == (1, 2)


def test_explain_says_on_what_basis_jobs_share_and_of_whom_nothing_is_known():
    desk, uses = Desk(find_policy("eaco"), devices=1), {"gpu_util_milli": 200, "gpu_mem_mib": 4_000}

    def join(name: str, **fields) -> str:
        """Submit a job, let it run if it may, and say why it runs or waits."""
        desk.submit(name=name, **fields)
        job = desk.next_id - 1
        if job in holders(desk):
            desk.saw(job, RUNNING, devices=(0,))
        return desk.controller.explain(job)

    join("train", **uses)
    assert "nobody knows how long steps of it take alone: neither it nor another" in join("train", **uses)
    [order] = trains(desk, 1, 0.5)
    assert (type(order), order.job) == (StartAttempt, 2), "it waited for this"
    desk.saw(2, RUNNING, devices=(0,))
    for job in (1, 2):
        assert "because of how much each job uses them alone; such a set was not" in desk.controller.explain(job)
    for job in (1, 2, 1, 2):
        trains(desk, job, 0.55)
    assert [desk.stored[job].slowdown_ratio for job in (1, 2)] == [1.1, 1.1]
    assert "which it shares because pairs of such jobs did so before" in join("train", **uses)
    for job in (2, 3):
        desk.saw(job, ENDED, outcome="finished", exit_code=0)
    desk.give(later_ms=100)
    assert "which it shares because exactly such jobs did so before" in join("train", **uses)
    assert "nobody knows how much it uses of each GPU: --gpu-mem would say it" in join("other", gpu_util_milli=200)
    desk.command(Cancel, 5)
    for job in (4, 1):
        desk.saw(job, ENDED, outcome="finished", exit_code=0)
    join("other", gpu_util_milli=200)
    assert "nobody knows how much job 6 uses of each GPU: --gpu-mem would say it" in join("train", **uses)


def test_a_set_that_turns_out_to_be_judged_by_nobody_is_undone_at_once():
    """The script of the second has another batch than before: nobody knows how long such steps take alone."""
    desk, uses = Desk(find_policy("eaco")), {"gpu_util_milli": 200, "gpu_mem_mib": 4_000}
    desk.submit(name="train", **uses)
    desk.saw(1, RUNNING, devices=(0,))
    trains(desk, 1, 0.5)
    desk.submit(name="train", **uses)
    desk.saw(2, RUNNING, devices=(0,))
    assert trains(desk, 1, 0.55) == []
    [order] = trains(desk, 2, 0.9, batch=16)
    assert (type(order), order.job) == (StopAttempt, 2)
    desk.saw(2, ENDED, outcome="preempted", exit_code=75)
    desk.give(later_ms=60_000)
    assert {job: has[:2] for job, has in holders(desk).items()} == {1: ((0,), 1000), 2: ((1,), 1000)}
