"""How far apart the rounds of a live cluster are: at once while few jobs wait, and seldom while thousands do."""

from __future__ import annotations

import json

import pytest

from brim.agent.protocol import RUNNING, VERSION, AgentHello, AttemptSeen
from brim.core.events import Kind
from brim.live.controller import Controller
from brim.live.inputs import AgentJoined, AgentSynced, AttemptReported, Submit
from brim.live.machine import machine_controller
from brim.live.records import ControllerSetting, JobRecord
from tests.live.test_parity import COSTS, UID, Node
from tests.live.virtual import request


def ready(policy: str = "backfill") -> Controller:
    """A controller as ``brim up --devices 4`` makes it, with an agent."""
    controller = machine_controller("4xcpu-slot", policy)
    hello = AgentHello(version=VERSION, user="u", boot_id="b", devices=("0", "1", "2", "3"))
    controller.step((AgentJoined(at_ms=0, uid=UID, hello=hello), AgentSynced(at_ms=0, uid=UID)), 0)
    return controller


def submit(job: int, at_ms: int, **more: object) -> Submit:
    record = JobRecord(id=job, uid=UID, user="u", key=str(job), request=request(**more), submitted_s=0.0,
                       submit_ms=at_ms, state="pending")  # fmt: skip
    return Submit(inbox=job, at_ms=at_ms, job=record)


def rounds_ms(lines: list[str]) -> list[int]:
    """When there were rounds."""
    return [line["t"] for line in map(json.loads, lines) if "d" in line]


@pytest.mark.parametrize("policy", ["backfill", "srtf", "goodput"])
def test_100_short_jobs_on_four_devices_take_little_longer_than_themselves(policy: str) -> None:
    run_ms = 10
    node = Node(ready(policy), dict.fromkeys(range(100), run_ms))
    for job in range(100):
        node.later(0, Kind.SUBMITTED, submit(job, 0))
    node.run()
    ends_ms = [line["t"] for line in map(json.loads, node.lines) if line.get("e") == "FINISHED"]
    assert len(ends_ms) == 100
    assert max(ends_ms) <= 25 * (COSTS.start_ms + run_ms + 20)


def test_what_is_submitted_just_after_a_round_starts_within_the_blink_of_an_eye() -> None:
    controller = ready()
    assert rounds_ms(list(controller.step((submit(0, 1_000),), 1_001).changes.lines)) == [1_000]
    after = controller.step((submit(1, 1_003),), 1_100)
    assert rounds_ms(list(after.changes.lines)) == [1_010]


@pytest.mark.slow
def test_10_000_waiting_jobs_are_looked_at_once_a_second() -> None:
    controller = ready()
    begin = controller.step([submit(job, 0) for job in range(10_004)], 10)
    assert rounds_ms(list(begin.changes.lines)) == [0]
    after = controller.step((submit(10_004, 20),), 2_000)
    assert rounds_ms(list(after.changes.lines)) == [1_000]


def test_a_restarted_controller_asks_again_whether_its_policy_is_settled() -> None:
    """The policy, its beliefs or the cores of the machine may be others than before."""
    controller = ready("adloader")
    began = controller.step((submit(0, 1_000),), 1_001).changes
    seen = AttemptSeen(job=0, attempt=1, sequence=1, state=RUNNING)
    later = controller.step((AttemptReported(at_ms=1_100, uid=UID, seen=seen),), 1_000_000)
    assert later.wake_ms is None
    again = machine_controller("4xcpu-slot", "adloader")
    lines, jobs, attempts = began.lines + later.changes.lines, later.changes.jobs, later.changes.attempts
    again.recover(None, lines, jobs or began.jobs, attempts or began.attempts, 1_000_001)
    rounds = rounds_ms(list(again.step((), 1_000_002).changes.lines))
    assert len(rounds) == 1, "the last was more than a period ago"


def test_a_setting_of_an_earlier_brim_has_a_fixed_gap() -> None:
    old = '{"cluster":"1x4xcpu","gap_ms":1000,"policy":"fifo"}'
    assert ControllerSetting.of(old).gap_job_us == 0
    new = ready().setting
    assert new.gap_job_us > 0
    assert ControllerSetting.of(new.text()) == new
