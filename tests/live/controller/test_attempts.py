"""How the controller starts, stops and ends attempts of jobs, one rule at a time; storms are in test_storms.py."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from brim.agent.protocol import (
    ENDED,
    RUNNING,
    STOPPING,
    VERSION,
    AgentHello,
    AttemptProgress,
    AttemptSeen,
    ForgetAttempt,
    StartAttempt,
    StopAttempt,
)
from brim.live.back_off import PAUSE_MS
from brim.live.controller import Controller
from brim.live.ends import CRASH_MS
from brim.live.inputs import (
    AgentJoined,
    AgentLost,
    AgentSynced,
    AttemptReported,
    Cancel,
    Progress,
    Release,
    Requeue,
    Submit,
)
from brim.live.records import JobRecord
from brim.policies.presets import find_policy
from tests.live.controller.desk import FIFO, Desk, kinds
from tests.live.virtual import request


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
        AgentJoined(at_ms=desk.now_ms, uid=1, hello=hello), AttemptReported(at_ms=desk.now_ms, uid=1, seen=seen),
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


@pytest.mark.parametrize(("unread_ms", "ran_ms"), [(0, 60_000), (45_000, 15_000), (90_000, 0)])
def test_what_was_told_to_a_suspended_controller_was_so_when_it_was_told(unread_ms, ran_ms):
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING, started_ms_ago=0)
    began_ms = desk.attempts[1, 1].begin_ms
    desk.now_ms = began_ms + 60_000
    seen = AttemptSeen(job=1, attempt=1, sequence=99, state=ENDED, outcome="finished", exit_code=0, ended_ms_ago=900)
    desk.give(AttemptReported(at_ms=desk.now_ms, uid=1, seen=seen, unread_ms=unread_ms))
    assert desk.stored[1].ended_ms == desk.attempts[1, 1].end_ms == began_ms + ran_ms


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
        desk.give(later_ms=PAUSE_MS)
        desk.saw(1, ENDED, attempt=number, outcome="failed", exit_code=75)
        assert (desk.state(1), desk.stored[1].attempt) == ("starting", number + 1)


def test_a_job_that_asks_again_and_again_waits_longer_each_time_until_an_attempt_has_worked_for_as_long():
    desk = Desk()
    desk.submit()

    def asks(number: int, ran_ms: int) -> None:
        desk.saw(1, RUNNING, attempt=number, started_ms_ago=0)
        desk.give(later_ms=ran_ms)
        desk.saw(1, ENDED, attempt=number, outcome="failed", exit_code=75)

    asks(1, 2 * CRASH_MS)  # as long as it takes to import torch
    asks(2, 2 * CRASH_MS)
    for number, minutes in enumerate((1, 2, 4, 8, 16, 16), start=3):
        asks(number, 2 * CRASH_MS if number < 7 else 7 * PAUSE_MS)  # less than it has waited for
        assert desk.state(1) == "held"
        assert desk.stored[1].reason == (
            f"asked to be started again with exit code 75; {number} attempts in a row were short, and the next one "
            f"waits {'60 s' if minutes == 1 else f'{minutes} min'}; held: back-off"
        )
        assert not desk.give(later_ms=minutes * PAUSE_MS - 20)
        assert kinds(desk.give(later_ms=20)) == [StartAttempt]
    asks(9, 16 * PAUSE_MS)
    assert (desk.state(1), desk.stored[1].reason) == ("starting", "")
    asks(10, 0)
    asks(11, 0)
    assert desk.state(1) == "starting"


def test_a_pause_that_was_released_does_not_shorten_the_next_one():
    desk = Desk()
    desk.submit()
    for number in (1, 2, 3):
        desk.saw(1, ENDED, attempt=number, outcome="failed", exit_code=75)
    desk.command(Release, 1)
    desk.saw(1, ENDED, attempt=4, outcome="failed", exit_code=75)
    assert not desk.give(later_ms=2 * PAUSE_MS - 20)
    assert kinds(desk.give(later_ms=20)) == [StartAttempt]


def test_faults_of_a_node_count_for_nobody_but_make_a_pause():
    desk = Desk()
    desk.submit(attempts_max=1)
    for number in (1, 2):
        desk.saw(1, ENDED, attempt=number, outcome="failed", blame="node", detail="no room for a process")
        assert (desk.state(1), desk.stored[1].attempt, desk.stored[1].failures) == ("starting", number + 1, 0)
    desk.saw(1, ENDED, attempt=3, outcome="failed", blame="neighbour", detail="job 2 took its memory")
    assert (desk.state(1), desk.stored[1].holds) == ("held", ("back-off",))
    assert desk.stored[1].reason == (
        "attempt 3 was evicted by neighbour, which does not count: job 2 took its memory; 3 attempts in a row were "
        "short, and the next one waits 60 s; held: back-off"
    )
    assert kinds(desk.give(later_ms=PAUSE_MS)) == [StartAttempt]
    desk.saw(1, ENDED, attempt=4, outcome="failed", exit_code=3)  # its own failure ends the series


def ends_unseen(desk: Desk, numbers: Iterable[int], blame: str = "") -> None:
    """Attempts run, and end by a kill of their supervisors; after each pause the job goes on."""
    for number in numbers:
        desk.saw(1, RUNNING, attempt=number)
        desk.saw(1, ENDED, attempt=number, outcome="lost", blame=blame, detail="its supervisor was killed")
        wait_for_it(desk)


def wait_for_it(desk: Desk) -> None:
    while desk.stored[1].holds == ("back-off",):
        desk.give(later_ms=PAUSE_MS)


def test_a_job_whose_supervisor_is_killed_again_and_again_fails():
    desk = Desk()
    desk.submit(attempts_max=2)
    ends_unseen(desk, (1, 2, 3))
    assert (desk.state(1), desk.stored[1].failures) == ("starting", 0)
    ends_unseen(desk, [4])
    assert (desk.state(1), desk.stored[1].failures) == ("starting", 1)
    ends_unseen(desk, [5])
    assert (desk.state(1), desk.stored[1].failures, desk.stored[1].attempt) == ("failed", 2, 5)
    assert desk.stored[1].reason == (
        "attempt 5 was lost: its supervisor was killed; 5 attempts in a row ended so, which counts as a failure of the "
        "job"
    )
    assert not desk.controller._back_off._unseen, "of a job that has ended nothing is kept"


def test_only_lost_attempts_in_a_row_count_and_none_whose_node_is_at_fault():
    desk = Desk()
    desk.submit(attempts_max=2)
    ends_unseen(desk, range(1, 11), blame="node")
    ends_unseen(desk, (11, 12, 13))
    desk.saw(1, RUNNING, attempt=14)
    desk.saw(1, ENDED, attempt=14, outcome="failed", exit_code=75)
    wait_for_it(desk)
    ends_unseen(desk, (15, 16, 17))
    desk.saw(1, RUNNING, attempt=18)
    desk.command(Requeue, 1)
    desk.saw(1, ENDED, attempt=18, outcome="lost")
    ends_unseen(desk, (19, 20, 21))
    assert (desk.state(1), desk.stored[1].failures, desk.stored[1].attempt) == ("starting", 0, 22)


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


def test_a_job_starts_when_its_policy_has_decided_and_what_comes_meanwhile_happens_then():
    desk, times = Desk(devices=1), iter(range(0, 10_000_000, 7_000))
    desk.clock = lambda: next(times)
    [start] = desk.submit(grace_s=5.0)
    decided_ms = desk.stored[1].first_start_ms
    assert decided_ms == desk.attempts[1, 1].decided_ms
    assert 7_000 <= decided_ms - desk.stored[1].submit_ms < 7_100
    assert isinstance(start, StartAttempt)
    del desk.clock
    desk.command(Cancel, 1)
    desk.submit()
    desk.saw(1, ENDED, outcome="killed", exit_code=143)
    assert desk.attempts[1, 1].stop_ms >= decided_ms
    assert desk.stored[2].first_start_ms >= decided_ms
    assert desk.stored[1].ended_ms >= decided_ms


def test_a_job_that_was_submitted_before_the_controller_ended_starts_after_it_has_come_back():
    desk = Desk(devices=1)
    saved, began_ms, back_ms = desk.controller.save(), desk.now_ms, desk.now_ms + 3_600_000
    desk.controller = Controller(desk.controller.scheduler.state.cluster, FIFO, gap_ms=0)
    desk.controller.recover(saved, (), (), (), back_ms)
    desk.join()  # its inputs are as old as the job, which waited in the inbox
    desk.submit()
    assert desk.stored[1].submit_ms < began_ms + 1_000
    assert desk.stored[1].first_start_ms >= back_ms


@pytest.mark.parametrize(("stop", "end", "lost_s"), [
    (True, {"outcome": "stopped", "exit_code": 143}, 2 * 20), (True, {"outcome": "stopped", "exit_code": 75}, 0),
    (False, {"outcome": "failed", "exit_code": 1}, 2 * 20), (False, {"outcome": "failed", "exit_code": 99}, 0),
    (False, {"outcome": "lost"}, 2 * 20),
])  # fmt: skip
def test_a_job_that_reports_nothing_has_lost_the_run_after_which_it_starts_over(stop, end, lost_s):
    desk = Desk()
    desk.submit(gpus=2, attempts_max=2)
    desk.saw(1, RUNNING, started_ms_ago=0)
    began_ms = desk.attempts[1, 1].start_ms
    desk.give(later_ms=began_ms + 20_000 - desk.now_ms - 10)
    if stop:
        desk.command(Requeue, 1)
    desk.now_ms = began_ms + 20_000
    desk.saw(1, ENDED, **end)
    assert desk.stored[1].attempt == 2
    assert desk.stored[1].lost_gpu_s == pytest.approx(lost_s, abs=0.1)
    desk.saw(1, RUNNING, attempt=2)
    desk.saw(1, ENDED, attempt=2, outcome="finished", exit_code=0)
    assert desk.stored[1].lost_gpu_s == pytest.approx(lost_s, abs=0.1)
