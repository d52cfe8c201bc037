"""What keeps a job from running and what would let it run, on queues small enough to know the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.agent.protocol import ENDED, FOREIGN, RUNNING, DeviceSeen
from brim.core.events import Event, Kind
from brim.foresight.answers import WhyWaiting
from brim.foresight.explanation import explained
from brim.foresight.remedies import Remedies
from brim.foresight.trials import decided, starts
from brim.live.holds import spec_of
from brim.live.inputs import Cancel, Device
from brim.live.requests import NONE
from brim.live.situation import situation_of
from brim.policies.presets import find_policy
from tests.live.controller.desk import Desk, trains
from tests.live.in_parts import InParts

MIN = 60_000
LEFT = "job 1 of u1, which has run for 10.0 min, at most 50.0 min more"


def why(desk: Desk, job: int) -> WhyWaiting:
    return explained(situation_of(desk.controller, desk.now_ms), desk.controller.jobs[job])


def told(waiting: WhyWaiting) -> list[tuple[str, str]]:
    return [(remedy.kind, remedy.text) for remedy in waiting.remedies]


def busy(policy="fifo", devices=4, gpus=3, **fields) -> Desk:
    """A machine on which the first job has run for ten minutes."""
    desk = Desk(find_policy(policy), devices=devices, users=(1, 2))
    desk.submit(gpus=gpus, **fields)
    desk.saw(1, RUNNING)
    desk.give(later_ms=10 * MIN)
    return desk


def test_devices_are_named_with_who_has_them_and_for_how_long_at_most():
    desk = busy(time_limit_s=3600)
    desk.submit(uid=2, gpus=2)
    waiting = why(desk, 2)
    assert [(blocker.kind, blocker.jobs) for blocker in waiting.blockers] == [("devices", (1,)), ("devices", ())]
    assert waiting.blockers[0].text == f"devices 0-2 of 4: {LEFT}"
    assert told(waiting) == [
        ("gpus", "cancel it and submit it again -g 1"),
        ("wait", f"wait until {LEFT.replace(',', ' ends,', 1)}"),
    ]
    assert [remedy.devices for remedy in waiting.remedies] == [(3,), (0, 1)]
    assert "it would run now, the cheapest change first:\n  cancel it" in waiting.text


def test_the_mildest_number_of_gpus_that_helps_is_told():
    desk = busy(devices=8)
    desk.submit(gpus=8)
    assert told(why(desk, 2))[0] == ("gpus", "cancel it and submit it again -g 5")
    desk = busy(devices=8)
    desk.submit(gpus=8, gpus_min=6, ranks="per-gpu")
    assert told(why(desk, 2))[0] == ("gpus", "cancel it and submit it again -g 5"), "fifo gives what was asked"


@pytest.mark.parametrize(("asked", "said"), [
    ({"gpus_min": 2, "gpus_max": 4}, "-g 1-4"), ({"sizes": (2, 4)}, "-g 1,2,4"),
])  # fmt: skip
def test_a_policy_that_resizes_is_told_a_smaller_least_size(asked, said):
    desk = Desk(replace(find_policy("fifo"), name="equal", size=InParts(2)), devices=2)
    desk.submit(gpus=1)
    desk.saw(1, RUNNING)
    desk.submit(gpus=2, ranks="per-gpu", **asked)
    assert told(why(desk, 2))[0] == ("gpus", f"cancel it and submit it again {said}")


@pytest.mark.parametrize("shorter", [True, False])
def test_a_shorter_limit_is_told_only_where_it_lets_the_job_pass(shorter):
    """The machine is free for 50 minutes before the reservation of job 2: half an hour is the longest limit tried."""
    desk = busy("backfill" if shorter else "fifo", time_limit_s=3600)
    desk.submit(uid=2, gpus=4, time_limit_s=3600)
    desk.submit(gpus=1, time_limit_s=7200)
    waiting = why(desk, 3)
    assert (waiting.blockers[0].kind, waiting.blockers[0].jobs) == ("order", (2,))
    assert told(waiting) == ([("time limit", "cancel it and submit it again -t 30m")] if shorter else [])
    assert ("none would let it run in the next round:\n  cancel it" in waiting.text) is not shorter
    assert waiting.text.endswith("\n  wait until job 1 ends") is not shorter


def test_a_hold_hides_no_other_blocker_and_its_release_is_told_only_if_it_suffices():
    desk = busy()
    desk.submit(hold=True, gpus=1)
    desk.submit(hold=True, gpus=2)
    assert told(why(desk, 2)) == [("release", "release it: brim release 2")]
    waiting = why(desk, 3)
    assert [blocker.kind for blocker in waiting.blockers] == ["hold", "devices", "devices"]
    assert told(waiting) == [
        ("gpus", "cancel it and submit it again -g 1 and without --hold"),
        ("wait+release", "wait until job 1 of u1 ends, which has run for 10.0 min, without a time limit, "
         "and release it: brim release 3"),
    ]


def test_a_dependency_is_tried_by_letting_it_finish():
    desk = busy(gpus=4)
    desk.submit(gpus=4, after=(1,))
    desk.submit(gpus=1, after=(2,))
    waiting = why(desk, 2)
    assert waiting.blockers[0].text == "it waits for job 1 to finish, which is running"
    assert [(one.kind, one.text, one.waits) for one in waiting.remedies] == [
        ("dependency", "wait until job 1 finishes", True)
    ]
    assert (why(desk, 3).remedies, why(desk, 3).tried) == ((), 0), "it waits for one that waits"


def test_of_a_long_chain_the_job_that_holds_it_up_is_named():
    desk = busy()
    desk.submit(hold=True)
    for job in range(2, 151):
        desk.submit(after=(job,))
    reason = "it is held until it is released"
    assert why(desk, 3).blockers[0].text == f"it waits for job 2 to finish, which is held: {reason}"
    [blocker] = [blocker for blocker in why(desk, 151).blockers if blocker.jobs == (150, 2)]
    assert blocker.text == f"it waits for job 150 to finish, which is held up by job 2: {reason}"
    desk.command(Cancel, 2)
    [blocker] = [blocker for blocker in why(desk, 151).blockers if blocker.jobs == (150, 3)]
    said = "it waits for job 2 to finish, which has ended: cancelled"
    assert blocker.text == f"it waits for job 150 to finish, which is held up by job 3: {said}"


def test_a_chain_of_which_a_job_runs_is_held_up_by_none():
    desk = busy()
    desk.submit(after=(1,))
    desk.submit(after=(2,))
    assert why(desk, 3).blockers[0].text == "it waits for job 2 to finish, which is held"


@pytest.mark.parametrize(("condition", "words"), [("after_any", "end"), ("after_not_ok", "fail")])
def test_a_dependency_ends_as_it_has_to(condition, words):
    desk = busy(gpus=4)
    desk.submit(gpus=4, **{condition: (1,)})
    waiting = why(desk, 2)
    assert waiting.blockers[0].text == f"it waits for job 1 to {words}, which is running"
    assert told(waiting) == [("dependency", f"wait until job 1 {words}s")]


def test_a_dependency_that_failed_is_dropped_by_submitting_again():
    desk = busy(gpus=1)
    desk.submit(gpus=1, after=(1,))
    desk.saw(1, ENDED, outcome="unusable", detail="broken")
    waiting = why(desk, 2)
    assert waiting.blockers[0].text == "it waits for job 1 to finish, which has ended: failed"
    assert told(waiting) == [("dependency", "cancel it and submit it again without --depends-on 1")]


def test_what_is_too_large_or_of_another_type_is_told_with_what_would_fit():
    desk = busy(devices=4, gpus=1)
    desk.submit(gpus=9)
    desk.submit(gpus=2, gpu_type="A100")
    assert why(desk, 2).blockers[0].text == "it needs 9 GPUs, the cluster has 4"
    assert told(why(desk, 2)) == [("gpus", "cancel it and submit it again -g 3")]
    assert why(desk, 3).blockers[0].text == "it needs GPUs of type A100, the cluster has T4"
    assert told(why(desk, 3)) == [
        ("type", "cancel it and submit it again -g 2"), ("type", "cancel it and submit it again -g T4:2"),
    ]


def test_a_job_for_cpu_alone_is_told_that_the_policy_runs_none_and_that_devices_would_do():
    desk = Desk(find_policy("backfill"))
    desk.submit(devices=("cpu",))
    waiting = why(desk, 1)
    assert waiting.blockers[0].text == "policy backfill runs no job on CPU"
    assert told(waiting) == [("devices", "cancel it and submit it again --devices gpu")]


def test_an_agent_that_is_away_is_a_blocker_and_its_start_a_remedy():
    desk = Desk(users=(1,))
    desk.submit(uid=7)
    waiting = why(desk, 1)
    assert waiting.blockers[0].text == "the agent of u7 is not running"
    assert [kind for kind, _ in told(waiting)] == ["agent"]


def test_a_quota_is_a_blocker_and_no_change_that_exceeds_it_is_told():
    desk = Desk(devices=4, user_gpus=3)
    desk.submit(gpus=2)
    desk.saw(1, RUNNING)
    desk.submit(gpus=2)
    assert desk.stored[2].holds == ("quota",)
    waiting = why(desk, 2)
    assert waiting.blockers[0].text == "jobs of u1 may have 3 GPUs at the same time"
    assert [kind for kind, _ in told(waiting)] == ["gpus", "wait"]
    assert told(waiting)[0][1].endswith("-g 1")


def test_devices_that_are_withheld_are_not_free():
    desk = Desk(devices=2)
    desk.give(Device(at_ms=desk.now_ms, uid=1, device=DeviceSeen(
        device=1, state=FOREIGN, detail="python", memory_used_mib=9, utilisation_ratio=0.0, power_w=0.0, modelled=False,
    )))
    desk.submit(gpus=2)
    texts = [blocker.text for blocker in why(desk, 1).blockers]
    assert texts == ["device 1 of 2: withheld, see `brim status`", "1 of 2 devices is free"]


def test_a_change_at_the_cost_of_another_job_says_so():
    desk = busy("srtf", devices=2, gpus=2, time_limit_s=3600)
    desk.submit(uid=2, gpus=2, time_limit_s=7200)
    remedy = why(desk, 2).remedies[0]
    assert (remedy.kind, remedy.preempts) == ("time limit", (1,))
    assert "; this would preempt job 1" in why(desk, 2).text


def test_a_job_with_work_behind_it_is_not_told_to_begin_again():
    desk = busy("srtf", devices=2, gpus=2, time_limit_s=3600)
    desk.submit(uid=2, gpus=2, time_limit_s=60)
    desk.saw(1, ENDED, outcome="stopped", exit_code=143)
    assert [one.kind for one in why(desk, 1).remedies] == ["wait"]


def test_nothing_of_this_changes_the_controller():
    desk = busy("backfill", time_limit_s=3600)
    desk.submit(uid=2, gpus=4, time_limit_s=3600)
    desk.submit(gpus=1, time_limit_s=7200)
    before = desk.controller.save()
    why(desk, 3)
    assert desk.controller.save() == before


@pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf", "las", "fair", "elastic", "goodput"])
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_what_is_told_is_what_the_controller_then_does(policy, gpus):
    """Each number of GPUs is tried anew by hand: the answer is the largest that starts."""
    desk = busy(policy, time_limit_s=3600, gpus=2)
    desk.submit(uid=2, gpus=gpus, time_limit_s=3600)
    desk.submit(gpus=4, time_limit_s=3600)
    if 3 not in desk.controller.jobs or 3 in desk.controller.ledger:
        return  # it does not wait
    at = situation_of(desk.controller, desk.now_ms)
    job = at.jobs[3]
    fits = []
    for fewer in (3, 2, 1):
        request = replace(job.request, gpus=fewer, gpus_min=NONE, gpus_max=NONE)
        spec = spec_of(replace(job, id=4, request=request), at.scheduler.state.cluster, 0, at.now_ms)
        events = [Event(at.now_ms, Kind.CANCELLED, 3), Event(at.now_ms, Kind.SUBMITTED, 4, spec=spec)]
        fits += [fewer] * (4 in starts(decided(at, events)))
    said = [remedy.text for remedy in Remedies(at, job).found() if remedy.kind == "gpus"]
    assert said == [f"cancel it and submit it again -g {fewer}" for fewer in fits[:1]]


def test_a_long_queue_is_answered_with_a_bounded_number_of_rounds():
    desk = Desk(find_policy("backfill"), devices=64)
    for _ in range(64):
        desk.submit(gpus=1, time_limit_s=3600)
    for job in range(1, 65):
        desk.saw(job, RUNNING)
    desk.submit(gpus=64, time_limit_s=3600)
    assert why(desk, 65).tried <= 40
    assert why(desk, 65).remedies[-1].text.startswith("wait until jobs 1, 2, 3,")


def test_what_could_not_run_on_the_empty_machine_is_not_blamed_on_who_has_the_devices():
    desk = busy()
    desk.submit(gpus=9)
    waiting = why(desk, 2)
    assert [blocker.text for blocker in waiting.blockers] == ["it needs 9 GPUs, the cluster has 4"]


def test_a_quota_is_no_reason_as_long_as_a_job_waits_for_another():
    desk = Desk(devices=4, user_gpus=2)
    desk.submit(gpus=2)
    desk.submit(gpus=2, after=(1,))
    desk.saw(1, RUNNING)
    assert set(desk.stored[2].holds) == {"after 1", "quota"}
    assert desk.controller.explain(2) == "job 2 is held: after 1."
    assert [blocker.text for blocker in why(desk, 2).blockers if blocker.kind == "hold"] == [
        "it waits for job 1 to finish, which is running"
    ]


def test_after_a_restart_a_job_that_runs_is_said_to_have_run_before():
    desk = Desk()
    desk.submit()
    desk.saw(1, RUNNING)
    desk.controller.scheduler.last_round = None
    assert desk.controller.explain(1) == (
        "job 1 is running on devices 0, which it got before the controller was started."
    )


def test_a_job_that_shares_nothing_is_told_of_whom_too_little_is_known():
    uses = {"gpu_util_milli": 200, "gpu_mem_mib": 4_000}
    desk = busy("eaco", devices=1, gpus=1, **uses)
    for number, fields in enumerate(({}, uses), start=2):
        desk.submit(uid=2, **fields)
        desk.give(later_ms=100)
        [blocker] = [one for one in why(desk, number).blockers if one.kind == "policy"]
        assert (blocker.text, blocker.jobs) == ("it shares no devices, because too little is known of it", ())
        desk.command(Cancel, number)
    desk = busy("eaco", devices=1, gpus=1, name="train")
    trains(desk, 1, 0.5)
    desk.submit(name="train", **uses)
    desk.give(later_ms=100)
    [blocker] = [one for one in why(desk, 2).blockers if one.kind == "policy"]
    assert blocker.text == "it shares no devices, because too little is known of job 1 of u1"
    assert blocker.jobs == (1,)
