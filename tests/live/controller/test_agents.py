"""What the controller believes of agents, what it says to them again, and what it does when one is away."""

from __future__ import annotations

import pytest

from brim.agent.protocol import (
    ENDED,
    RUNNING,
    VERSION,
    AgentHello,
    AttemptProgress,
    AttemptSeen,
    DeviceSeen,
    ForgetAttempt,
    StartAttempt,
    StopAttempt,
)
from brim.live.controller import PATIENCE_MS
from brim.live.inputs import AgentJoined, AgentLost, AgentSynced, AttemptReported, Device, Progress, Vacated
from brim.live.reconciliation import REPEAT_MS
from tests.live.controller.desk import Desk, kinds


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
    assert (desk.attempts[1, 1].outcome, desk.attempts[1, 1].blame) == ("lost", "node")


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
        AgentJoined(at_ms=desk.now_ms, uid=1, hello=hello), AttemptReported(at_ms=desk.now_ms, uid=1, seen=seen),
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
