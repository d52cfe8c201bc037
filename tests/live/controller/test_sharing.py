"""How the controller lets jobs share a device, watches them and takes them apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.agent.protocol import (
    ENDED,
    RUNNING,
    STOPPING,
    AttemptSeen,
    ForgetAttempt,
    StartAttempt,
    StopAttempt,
    TuneAttempt,
)
from brim.core.cluster import parse_cluster
from brim.live.controller import Controller
from brim.live.inputs import Cancel
from brim.live.invariants import check_controller
from brim.live.measurements import SLOWDOWN_MAX
from brim.live.slowdowns import settled_ms
from brim.policies.place.parts import Consolidate
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from tests.live.controller.desk import FIFO, SETTLED_MS, Desk, kinds, trains
from tests.live.sharing import Together


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


@pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf", "elastic", "brim", "fifo+padding", "aiturbo", "fair"])
def test_another_policy_goes_on_with_jobs_that_share_a_device(policy):
    """It lets no jobs share GPUs, and takes none of theirs from them."""
    desk = Desk(replace(FIFO, place=Together()), cores=8, users=(1, 2))
    for job in (1, 2):
        desk.submit(uid=job)
        desk.saw(job, RUNNING, uid=job, devices=(0,))
    living = [one for one in desk.attempts.values() if one.state != "ended"]
    desk.controller = Controller(parse_cluster("1x2xT4:cpus=8"), find_policy(policy), gap_ms=0)
    desk.controller.recover(None, desk.lines, desk.stored.values(), living, desk.now_ms)
    for job in (1, 2):
        seen = AttemptSeen(job=job, attempt=1, sequence=99, state=RUNNING, devices=(0,))
        desk.join(job, seen=seen)
    desk.submit()
    desk.give(later_ms=60_000)
    assert {1, 2} <= holders(desk).keys()


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


def test_a_slowdown_that_cannot_be_is_no_larger_than_one_that_can():
    desk = Desk(replace(FIFO, place=Together()))
    desk.submit(name="a")
    desk.saw(1, RUNNING, devices=(0,))
    trains(desk, 1, 1e-6)
    desk.submit(name="b")
    desk.saw(2, RUNNING, devices=(0,))
    trains(desk, 1, 1e6, 1_000)
    trains(desk, 1, 1e6, round(settled_ms(1e6)))
    assert desk.stored[1].slowdown_ratio == SLOWDOWN_MAX


def restarted(desk: Desk, policy: Policy, cluster: str = "1x2xT4") -> None:
    """The controller ends and begins again with what it has stored; the agents come back."""
    desk.controller = Controller(parse_cluster(cluster), policy, gap_ms=0)
    alive = [job for job in desk.stored.values() if not job.has_ended]
    living = [one for one in desk.attempts.values() if one.state != "ended"]
    desk.controller.recover(None, desk.lines, alive, living, desk.now_ms)
    desk.join()


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
