"""How the controller resizes jobs, and what it is told of their progress."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest

from brim.agent.protocol import ENDED, RUNNING, AttemptProgress, AttemptSeen, ResizeAttempt, StartAttempt, StopAttempt
from brim.core.lifecycle import Phase
from brim.live.inputs import Progress
from brim.live.recording import recorded_jobs
from brim.policies.fill.padding import Padding
from brim.policies.presets import find_policy
from tests.live.controller.desk import EQUAL, Desk, kinds


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


@pytest.mark.parametrize("round_ms", [0, 2])
def test_all_devices_that_a_resized_job_had_are_recorded_however_long_rounds_take(monkeypatch, round_ms):
    monkeypatch.setattr(Desk, "clock", staticmethod(partial(next, count(step=round_ms))))
    desk, _, resize = with_an_elastic_job()
    desk.saw(1, RUNNING, sequence=2, devices=resize.devices, ranks=2)
    records = desk.stored.values(), desk.attempts.values()
    [found] = recorded_jobs(*records, desk.lines, desk.now_ms + 60_000)
    [tried] = found.attempts
    assert [len(one.devices) for one in tried.holdings] == [4, 2]
    assert tried.holdings[0].from_ms == tried.granted_ms == desk.attempts[1, 1].decided_ms


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


def test_lost_work_is_counted_once_an_attempt_has_a_speed():
    """Its first reports have none: they come after its first step. Attempts that end before are counted, too."""
    desk = Desk()
    desk.submit(gpus=2, ranks="per-gpu")
    desk.saw(1, RUNNING)

    def says(samples: float, attempt: int, speed: float | None = None) -> tuple[float, float]:
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
            job=1, attempt=attempt, ranks=2, samples=samples, samples_per_s=speed,
        )))
        return desk.stored[1].lost_gpu_s, desk.stored[1].samples_again

    def again(attempt: int) -> None:
        desk.saw(1, ENDED, attempt=attempt, outcome="lost")
        desk.saw(1, RUNNING, attempt=attempt + 1)

    assert says(16.0, 1) == says(900.0, 1, 10.0) == (0, 0)
    again(1)
    assert says(16.0, 2) == (0, 884)
    assert says(96.0, 2) == (0, 884), "another report is no other loss"
    again(2)
    assert says(16.0, 3) == (0, 884 + 80)
    before, desk = desk, Desk(users=())  # another controller goes on
    jobs, attempts = before.stored.values(), [one for one in before.attempts.values() if one.state != "ended"]
    desk.controller.recover(before.controller.save(), (), jobs, attempts, before.now_ms)
    desk.now_ms, desk.stored, desk.attempts = before.now_ms, before.stored, before.attempts
    desk.join(seen=AttemptSeen(job=1, attempt=3, sequence=99, state=RUNNING))
    assert says(32.0, 3) == (0, 964)
    assert says(500.0, 3, 20.0) == (964 / 20 * 2, 0)
    assert says(600.0, 3) == says(700.0, 3, 10.0) == (964 / 20 * 2, 0), "a resize: its speed is measured anew"
    again(3)
    assert says(716.0, 4) == says(800.0, 4, 10.0) == (964 / 20 * 2, 0), "it goes on at a checkpoint"


@pytest.mark.parametrize("speed", [1e-308, 1e-7, 0.0])
@pytest.mark.parametrize("has_devices", [True, False])
def test_a_speed_near_nothing_makes_no_loss_without_end(speed, has_devices):
    desk = Desk()
    desk.submit(gpus=2, ranks="per-gpu")

    def says(samples: float, attempt: int, speed: float) -> float:
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(
            job=1, attempt=attempt, ranks=2, samples=samples, samples_per_s=speed,
        )))
        return desk.stored[1].lost_gpu_s

    desk.saw(1, RUNNING)
    says(100.0, 1, 10.0)
    desk.saw(1, ENDED, outcome="lost")
    desk.saw(1, RUNNING, attempt=2)
    if not has_devices:  # they were given on while its agent was away
        books = desk.controller.books
        books.put_attempt(replace(books.ledger.of(1), devices=()))
    assert says(0.0, 2, speed) == 0
    assert says(1.0, 2, 10.0) == (100 / 10 * 2 if has_devices else 0)


LIES = (
    {"step_s": 1e-200}, {"step_s": 1e-11}, {"step_s": 5e-324}, {"step_s": 1e15}, {"step_s": 1.0, "sync_s": 1 - 2**-53},
    {"step_s": 1.0, "local_batch": 2**40},
)


@pytest.mark.parametrize("lie", LIES)
def test_step_times_that_cannot_be_are_not_told_and_rounds_go_on(lie):
    desk = Desk(replace(find_policy("elastic"), gap_ms=0, period_ms=0), devices=4)
    [start] = desk.submit(gpus_min=1, gpus_max=4, ranks="per-gpu")
    desk.saw(1, RUNNING, sequence=1, devices=start.devices, ranks=4)
    said = {"samples": 64.0, "samples_per_s": 64.0, "local_batch": 16, "global_batch": 64} | lie
    for ranks in (4, 3, 2):
        desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=AttemptProgress(job=1, attempt=1, ranks=ranks, **said)))
    desk.submit(gpus=1)
    assert not len(desk.controller.scheduler.state.freeze(desk.now_ms).seen.step_s)
    assert desk.state(2) == "starting"


@pytest.mark.parametrize(("batch", "known"), [(64, 64), (2**40, -1)])
def test_a_batch_that_cannot_be_is_not_told(batch, known):
    desk = Desk()
    desk.submit(ranks="per-gpu")
    desk.saw(1, RUNNING)
    said = AttemptProgress(job=1, attempt=1, ranks=1, samples=1.0, step_s=1.0, local_batch=8, global_batch=batch)
    desk.give(Progress(at_ms=desk.now_ms, uid=1, progress=said))
    assert desk.controller.scheduler.state.freeze(desk.now_ms).jobs.batch.tolist() == [known]


def test_a_job_is_told_how_many_loader_workers_it_has():
    desk = Desk(devices=4, cores=16)
    [order] = desk.submit(gpus=2, ranks="per-gpu")
    assert order.loader_workers == 3


def padded_on_three() -> Desk:
    """A padding job with a grace of a minute that runs on three devices, and has something to save on each."""
    desk = Desk(replace(find_policy("fifo+padding"), fill=Padding(join_ratio=0.0)), devices=3)
    [start] = desk.submit(gpus_min=1, gpus_max=3, ranks="per-gpu", grace_s=60.0, job_class="padding")
    assert start.devices == (0, 1, 2)
    desk.saw(1, RUNNING, sequence=1, devices=start.devices, ranks=3)
    return desk


def leaves(desk: Desk, order: ResizeAttempt) -> list:
    """A job has obeyed an order to leave some of its devices."""
    return desk.saw(1, RUNNING, sequence=order.sequence, devices=order.devices, ranks=order.ranks)


def test_a_padding_job_has_its_whole_grace_for_each_device_that_is_taken_from_it():
    desk = padded_on_three()
    [shrinks] = desk.submit()
    [start] = leaves(desk, shrinks)
    desk.saw(start.job, RUNNING, devices=start.devices)
    desk.give(later_ms=57_000)
    orders = desk.submit()
    revoked_ms = desk.now_ms
    assert [(type(order), len(order.devices)) for order in orders] == [(ResizeAttempt, 1)]
    assert StopAttempt not in kinds(desk.give(later_ms=59_000))
    stop = next(order for order in desk.give(later_ms=2_000) if isinstance(order, StopAttempt))
    assert (stop.job, stop.grace_s, desk.now_ms - revoked_ms) == (1, 0.0, 61_000)


def test_what_an_attempt_did_not_leave_in_time_shortens_no_grace_of_the_next_one():
    """The first is lost when half the grace is over; the next has not even begun when another device is taken."""
    desk = padded_on_three()
    desk.submit()
    desk.give(later_ms=30_000)
    desk.saw(1, ENDED, outcome="lost")
    desk.give(later_ms=25_000)
    assert (desk.attempts[1, 2].state, len(desk.attempts[1, 2].devices)) == ("starting", 2)
    desk.submit()
    assert StopAttempt not in kinds(desk.give(later_ms=59_000))


def test_a_restart_of_the_controller_shortens_no_grace():
    before = padded_on_three()
    desk = Desk(before.controller.scheduler.policy, devices=3, users=())
    living = [one for one in before.attempts.values() if one.state != "ended"]
    desk.controller.recover(None, before.lines, before.stored.values(), living, before.now_ms)
    desk.now_ms, desk.next_id, desk.stored, desk.attempts = before.now_ms, 2, before.stored, before.attempts
    desk.join(seen=AttemptSeen(job=1, attempt=1, sequence=1, state=RUNNING, devices=(0, 1, 2), ranks=3))
    desk.give(later_ms=50_000)
    [shrinks] = desk.submit()
    assert isinstance(shrinks, ResizeAttempt)
    assert StopAttempt not in kinds(desk.give(later_ms=59_000))
