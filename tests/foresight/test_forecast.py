"""When jobs start and end: queues whose course is known, and what is not known said to be so."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from brim.agent.protocol import ENDED, QUARANTINED, RUNNING, DeviceSeen
from brim.core.events import Event, Kind, Report, Sample
from brim.foresight.answers import Forecast
from brim.foresight.blockers import ongoing
from brim.foresight.calibration import SPAN_MS, SPANS_ELSEWHERE
from brim.foresight.forecast import forecasts
from brim.live.inputs import Cancel, Device, Hold, Requeue
from brim.live.recording import Holding, RecordedAttempt, RecordedJob
from brim.live.records import JobRecord, PastForecast
from brim.live.situation import situation_of
from brim.policies.presets import find_policy
from tests.live.controller.desk import Desk
from tests.live.virtual import request

S = 1_000


def past(name: str, *runs_s: float, gpus: int = 1, user: str = "u1") -> list[RecordedJob]:
    """Jobs that have finished."""
    found = []
    for number, run_s in enumerate(runs_s):
        run_ms = round(run_s * S)
        job = JobRecord(
            id=1_000 + number, uid=1, user=user, key="k", request=request(name=name, gpus=gpus), submitted_s=1.0,
            submit_ms=0, state="finished", first_start_ms=0, ended_ms=run_ms,
        )
        attempt = RecordedAttempt(
            granted_ms=0, from_ms=0, stop_ms=-1, end_ms=run_ms, preempted=False,
            holdings=(Holding(0, run_ms, tuple(range(gpus))),),
        )
        found.append(RecordedJob(job=job, ready_ms=0, attempts=(attempt,), undisturbed=True,
                                 speeds=(), samples=0.0, batch=-1))
    return found


def ahead(desk: Desk, history: list[RecordedJob], *jobs: int, seed: int = 1, record=()) -> list[Forecast]:
    before = desk.controller.save()
    found = forecasts(situation_of(desk.controller, desk.now_ms), history, jobs, seed, record)
    assert desk.controller.save() == before
    return list(found)


def came(number: int, expected_s: float, wait_s: float, drawn_s: tuple[float, float] | None = None) -> PastForecast:
    """A forecast of an earlier half day, whose job has started."""
    made_ms = -(number + 1) * SPAN_MS
    expected_ms, first_ms, last_ms, start_ms = (
        made_ms + round(at_s * S) for at_s in (expected_s, *(drawn_s or (expected_s, expected_s)), wait_s)
    )
    return PastForecast(made_ms, expected_ms, first_ms, last_ms, start_ms, start_ms)


def queue(policy: str = "fifo", devices: int = 1, **first) -> Desk:
    """A job that has run for ten seconds, and two that wait for its device."""
    desk = Desk(find_policy(policy), devices=devices)
    desk.submit(name="a", **first)
    desk.saw(1, RUNNING)
    desk.submit(name="b")
    desk.submit(name="c")
    desk.give(later_ms=10 * S)
    return desk


@pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf", "las", "fair", "elastic", "goodput"])
def test_one_device_serves_two_jobs_after_the_first(policy):
    """Runs like them took exactly 60, 30 and 5 s; a new one is believed to take half to twice as long."""
    history = past("a", *[60] * 9) + past("b", *[30] * 9) + past("c", *[5] * 9)
    first, second, third = ahead(queue(policy), history, 1, 2, 3)
    assert (first.start_s, first.basis) == (None, "9 runs of the same name and size")
    for (low, high), truth_s in ((first.end_s, 50), (second.start_s, 50), (third.start_s, 80), (second.end_s, 80),
                                 (third.end_s, 85)):
        assert low <= truth_s <= high
        assert 0 < low <= high < 2.5 * truth_s
    assert second.start_s[0] == first.end_s[0], "it waits for nothing else"


@pytest.mark.slow
def test_where_continuations_agree_the_interval_covers_as_many_starts_as_it_says():
    """Run times have one distribution: 17 of 21 start between the second and the nineteenth of 20 draws."""
    draw = random.Random(7)
    hits = 0
    for trial in range(60):
        history = past("a", *(draw.uniform(10, 60) for _ in range(30)))
        truth_s = draw.uniform(10, 60)
        desk = Desk(devices=1)
        desk.submit(name="a")
        desk.saw(1, RUNNING)
        desk.submit(name="b")
        low, high = ahead(desk, history, 2, seed=trial)[0].start_s
        hits += low <= truth_s <= high
    assert 42 <= hits <= 56, "17 of 21 of 60 are 49"


@pytest.mark.slow
def test_with_a_record_the_interval_covers_as_many_starts_as_it_says():
    """Run times have one distribution: forty forecasts tell how far from the expected starts sixty more are."""
    draw = random.Random(7)
    record, hits = [], 0
    for trial in range(100):
        history = past("a", *(draw.lognormvariate(4, 1) for _ in range(30)))
        truth_s = draw.lognormvariate(4, 1)
        desk = Desk(devices=1)
        desk.submit(name="a")
        desk.saw(1, RUNNING)
        desk.submit(name="b")
        found = ahead(desk, history, 2, seed=trial, record=record if trial >= 40 else ())[0]
        hits += found.start_s[0] <= truth_s <= found.start_s[1]
        if trial < 40:
            assert hits == trial + 1, "another cluster's errors are larger than those of one distribution"
            each = SPANS_ELSEWHERE // 40 + 1
            record += [came(each * trial + more, found.expected_s, truth_s, found.drawn_s) for more in range(each)]
    assert 41 <= hits - 40 <= 55, "80 % of 60 are 48"


def test_a_time_limit_alone_is_an_upper_bound():
    (wide,) = ahead(queue(time_limit_s=100), [], 1)
    assert wide.end_s[1] in range(80, 93)
    first, second, third = ahead(queue(time_limit_s=60), [], 1, 2, 3)
    assert first.end_s[1] in range(40, 53)
    assert first.basis == "its time limit of 60 s alone"
    assert second.start_s == first.end_s, "the continuations agree on it within a minute"
    assert (second.end_s, third.start_s) == (None, None)
    assert second.missing.startswith("no basis yet: no run of its name")
    assert third.missing.startswith("no basis yet: no run of its name")


def test_a_job_that_depends_on_one_that_is_not_known_has_no_basis():
    history = past("b", *[30] * 4, user="u2")
    second, third = ahead(queue(), history, 2, 3)
    assert (second.start_s, second.end_s, third.start_s) == (None, None, None)
    assert second.missing == (
        "no basis yet: it depends on job 1 and 1 more, of which no run is known, and no time limit"
    )
    desk = queue(devices=2)
    desk.saw(2, RUNNING)
    second, third = ahead(desk, history, 2, 3)
    assert second.end_s is not None, "it runs, and does not wait for the job that nobody knows"
    assert third.start_s is not None
    assert third.start_s[0] == 0, "either of two jobs may end first"


def test_other_users_runs_and_few_runs_are_no_basis():
    assert ahead(queue(), past("x", 5, 5, 5, user="u2"), 2)[0].start_s is None
    assert ahead(queue(), past("a", 60, 60), 2)[0].start_s is None
    assert ahead(queue(), past("a", 60, 60, 60), 2)[0].start_s is not None
    assert ahead(queue(), past("other", 60, 60, 60), 2)[0].basis == "3 runs of the same user"


def test_a_run_that_is_longer_than_all_before_goes_on_about_as_long_again_and_no_longer_than_its_limit():
    """Of jobs that have run for 10 s when all others took 5, half run for another 10 s (P(T > t) = 1/t)."""
    low, high = ahead(queue(), past("a", 5, 5, 5), 1)[0].end_s
    assert low < 10 < high
    assert ahead(queue(time_limit_s=40), past("a", 5, 5, 5), 1)[0].end_s[1] <= 32


def test_holds_say_that_somebody_has_to_act_and_dependencies_are_followed():
    desk = queue()
    desk.submit(name="d", after=(2,))
    desk.submit(name="e", hold=True)
    desk.submit(name="f", after=(5,))
    history = past("a", *[60] * 5)
    fourth, fifth, sixth = ahead(desk, history, 4, 5, 6)
    assert fourth.start_s is not None
    assert (fifth.start_s, fifth.missing) == (None, "it is held: user")
    assert sixth.missing == "it waits for job 5: it is held: user"
    desk.command(Hold, 3)
    assert ahead(desk, history, 3)[0].missing == "it is held: user"


def test_of_a_long_chain_the_job_that_holds_it_up_is_named_and_none_between():
    desk = queue()
    desk.submit(name="d", hold=True)
    for job in range(4, 50):
        desk.submit(name="e", after=(job,))
    assert ahead(desk, [], 50)[0].missing == "it waits for job 49, which is held up by job 4: it is held: user"
    desk.command(Cancel, 4)
    said = "it waits for job 49, which is held up by job 5: it is held: after 4 cancelled"
    assert ahead(desk, [], 50)[0].missing == said


def test_a_job_that_begins_later_starts_no_sooner():
    desk = Desk(devices=1)
    desk.submit(name="a", begin_s=1_000_000 + 600)
    low, high = ahead(desk, past("a", 5, 5, 5), 1)[0].start_s
    assert 595 <= low <= high <= 605


def test_a_limited_array_runs_a_few_at_once():
    desk = Desk(devices=4)
    for index in range(4):
        desk.submit(name="a", array=1, array_index=index, array_limit=1)
    desk.saw(1, RUNNING)
    found = ahead(desk, past("a", *[60] * 9), 2, 3, 4)
    lows = [one.start_s[0] for one in found]
    assert 25 < lows[0] < lows[1] - 25 < lows[2] - 50


def test_a_job_that_is_stopping_and_one_that_was_preempted_go_on():
    desk = Desk(find_policy("srtf"), devices=1)
    desk.submit(name="a", time_limit_s=3600)
    desk.saw(1, RUNNING)
    desk.submit(name="b", time_limit_s=60)
    history = past("a", *[600] * 5) + past("b", *[30] * 5)
    stopping = ahead(desk, history, 1, 2)
    desk.saw(1, ENDED, outcome="stopped", exit_code=143)
    desk.saw(2, RUNNING)
    waiting = ahead(desk, history, 1, 2)
    for first, second in (stopping, waiting):
        assert second.start_s is None
        assert 14 <= second.end_s[0] <= second.end_s[1] <= 63
        assert 14 <= first.start_s[0] <= first.start_s[1] <= 63


def test_a_job_that_the_cluster_cannot_serve_now_has_no_interval_and_spoils_no_other():
    desk = Desk(find_policy("backfill"), devices=2)
    desk.give(Device(at_ms=desk.now_ms, uid=1, device=DeviceSeen(
        device=1, state=QUARANTINED, detail="", memory_used_mib=9, utilisation_ratio=0.0, power_w=0.0, modelled=False,
    )))
    desk.submit(name="a")
    desk.saw(1, RUNNING)
    desk.submit(name="b", gpus=2)
    desk.submit(name="a")
    first, second, third = ahead(desk, past("a", *[60] * 5) + past("b", *[60] * 5, gpus=2), 1, 2, 3)
    assert second.missing == "no basis yet: it starts too far ahead, or needs devices that are withheld"
    assert first.end_s is not None
    assert third.start_s is not None


def test_the_same_seed_gives_the_same_forecast():
    history = past("a", *range(10, 40))
    assert ahead(queue(), history, 2, 3) == ahead(queue(), history, 2, 3)
    assert ahead(queue(), history, 2, seed=2) != ahead(queue(), history, 2, seed=3)


def test_a_job_that_is_being_cancelled_has_no_forecast_and_leaves_its_devices():
    desk = queue()
    desk.submit(name="b", after=(1,))
    desk.command(Cancel, 1)
    history = past("a", *[600] * 5) + past("b", *[30] * 5) + past("c", *[30] * 5)
    first, second, fourth = ahead(desk, history, 1, 2, 4)
    assert (first.start_s, first.end_s, first.missing) == (None, None, "it is being cancelled")
    assert second.start_s[1] < 15, "a stop takes ten seconds, as long as nothing else is known"
    assert fourth.missing == "it waits for job 1: it is being cancelled"


def test_jobs_held_by_a_quota_start_when_jobs_of_their_user_end():
    desk = Desk(devices=4, user_gpus=2)
    for gpus in (1, 1, 2, 1, 3):
        desk.submit(name="a", gpus=gpus)
    desk.saw(1, RUNNING)
    desk.saw(2, RUNNING)
    third, fourth, fifth = ahead(desk, past("a", *[60] * 9), 3, 4, 5)
    assert desk.stored[3].holds == ("quota",)
    assert 25 < fourth.start_s[0] <= fourth.start_s[1] < 130, "one GPU is left by either of two jobs"
    assert third.start_s[0] > fourth.end_s[0] - 100
    assert third.start_s[0] > 2 * 25
    assert fifth.missing == "it needs 3 GPUs, and jobs of u1 may have 2"


def test_the_limit_of_an_array_and_a_quota_hold_together():
    desk = Desk(devices=4, user_gpus=3)
    for index in range(4):
        desk.submit(name="a", array=1, array_index=index, array_limit=2)
    found = ahead(desk, past("a", *[60] * 9), 3, 4)
    assert all(25 < one.start_s[0] <= one.start_s[1] < 270 for one in found)


def test_of_a_long_queue_the_first_jobs_are_forecast_and_it_is_said_what_was_left_out(monkeypatch):
    monkeypatch.setattr("brim.foresight.forecast.QUEUE_MAX", 2)
    second, third = ahead(queue(), past("a", 60, 60, 60), 2, 3)
    assert second.start_s is not None
    assert second.basis == "3 runs of the same user; 1 job submitted later left out"
    assert third.missing == "no forecast: more than 2 jobs that have not ended were submitted before it"
    monkeypatch.delattr("brim.foresight.forecast.drawn")  # no continuation is needed to say so
    assert ahead(queue(), past("a", 60, 60, 60), 3) == [third]


@pytest.mark.parametrize(("requeued", "limit_s"), [(False, 60), (True, 100)])
def test_the_limit_of_a_job_that_runs_is_that_of_its_present_attempt(requeued, limit_s):
    """It has run 40 s of 60 before it was requeued: only from its second attempt on may it run 60 s."""
    desk = Desk(devices=1)
    desk.submit(name="a", time_limit_s=60)
    desk.saw(1, RUNNING)
    desk.give(later_ms=40_000)
    if requeued:
        desk.command(Requeue, 1)
        desk.saw(1, ENDED, outcome="stopped", exit_code=143)
        desk.give(later_ms=60_000)
        desk.saw(1, RUNNING, attempt=2)
    [one] = ahead(desk, [], 1)
    assert one.basis == "its time limit of 60 s alone"
    left_s = 60 if requeued else 20
    assert ongoing(situation_of(desk.controller, desk.now_ms), desk.controller.ledger.of(1)).endswith(
        f", at most {left_s:.1f} s more")
    ran_s = desk.controller.scheduler.state.run_ms(1, desk.now_ms) // 1_000
    assert limit_s - ran_s - 10 < one.end_s[1] <= limit_s - ran_s + 3


def test_a_job_runs_faster_on_more_gpus_as_far_as_its_speed_is_known():
    """Its steps take 1 s on one GPU and half of that on two, and it asked for one."""
    desk = Desk(find_policy("elastic"), devices=2)
    desk.submit(name="a", gpus=1, gpus_min=1, gpus_max=2, ranks="per-gpu", batch=64, local_batch_max=64)
    desk.saw(1, RUNNING)
    alone = ahead(desk, past("a", *[6_000] * 9), 1)[0].end_s
    assert alone is not None
    scheduler = desk.controller.scheduler
    for sample in (Sample(nodes=1, gpus=1, local_batch=64, step_s=1.0, sync_s=0.0),
                   Sample(nodes=1, gpus=2, local_batch=32, step_s=0.5, sync_s=0.0)):
        report = Report(samples_done=1.0, samples_per_s=64.0, seen=(sample,))
        scheduler.state.apply(Event(desk.now_ms, Kind.REPORTED, 1, report=report))
    assert ahead(desk, past("a", *[6_000] * 9), 1)[0].end_s[1] < 0.8 * alone[1]


def test_a_resize_is_not_forecast_to_cost_what_a_preemption_does():
    """A job that grows keeps its processes, as under the controller; to stop one took 100 s."""
    desk = Desk(find_policy("elastic"), devices=2)
    desk.submit(name="a", gpus=1, gpus_min=1, gpus_max=2, ranks="per-gpu", batch=64, local_batch_max=64)
    desk.saw(1, RUNNING)
    for gpus, step_s in ((1, 1.0), (2, 0.5)):
        sample = Sample(nodes=1, gpus=gpus, local_batch=64 // gpus, step_s=step_s, sync_s=0.0)
        report = Report(samples_done=1.0, samples_per_s=64.0, seen=(sample,))
        desk.controller.scheduler.state.apply(Event(desk.now_ms, Kind.REPORTED, 1, report=report))
    slow = past("b", 60, user="u2")[0]
    stopped = replace(slow.attempts[0], stop_ms=60 * S, end_ms=160 * S, preempted=True)
    cheap, dear = past("a", *[600] * 9), [*past("a", *[600] * 9), replace(slow, attempts=(stopped,))]
    assert ahead(desk, cheap, 1)[0].end_s == ahead(desk, dear, 1)[0].end_s


def test_a_job_whose_losses_tell_its_end_is_forecast_by_them_and_not_by_others():
    """Its loss is 1 + 1/k after step k of 8 samples, 8 samples a second: 1.01 is reached after step 100, at 100 s."""
    desk = queue(target_loss=1.01, ranks="per-gpu", batch=8)
    for step in range(1, 41):
        report = Report(samples_done=8.0 * step, samples_per_s=8.0, loss=1.0 + 1.0 / step)
        desk.controller.scheduler.state.apply(Event(desk.now_ms, Kind.REPORTED, 1, report=report))
    first, second = ahead(desk, past("a", *[5_000] * 9) + past("b", *[30] * 9), 1, 2)
    assert first.basis == "its losses, which tell where it ends"
    assert first.end_s[0] < 60 < first.end_s[1] < 1_000
    assert second.start_s[1] < 1_000


def test_the_record_of_earlier_forecasts_makes_the_interval_and_no_end_is_before_it():
    """Twenty jobs started three times as late as expected."""
    history = past("a", *[60] * 9) + past("b", *[30] * 9)
    desk = queue()
    record = [came(0, 100, 300)] * 20
    situation = situation_of(desk.controller, desk.now_ms)
    (raw,), (second,) = forecasts(situation, history, [2]), forecasts(situation, history, [2], record=record)
    assert second.expected_s == raw.expected_s
    assert second.start_s[0] > 2 * second.expected_s
    assert second.end_s[0] >= second.start_s[0]
    (starts_alone,) = forecasts(situation, history, [2], record=record, asks_ends=False)
    assert (starts_alone.start_s, starts_alone.end_s, starts_alone.missing) == (second.start_s, None, "")
