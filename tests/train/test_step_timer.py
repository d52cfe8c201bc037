"""What a rank reports of the times of its steps."""

import pytest

from brim.gang.messages import MEASURED_EVERY_S
from brim.train import step
from brim.train.step import MEASURED_FIRST_S, SETTLING_STEPS, StepTimer


@pytest.fixture
def clock(monkeypatch):
    """Seconds on the clock of the timer, in a list of one."""
    now = [0.0]
    monkeypatch.setattr(step.time, "perf_counter", lambda: now[0])
    return now


def train(timer, clock, took_s, *, steps, ranks=1, samples=64, is_whole=True):
    """Make steps that take so long, and return all reports."""
    found = []
    for _ in range(steps):
        timer.begin()
        clock[0] += took_s
        timer.end(ranks, samples, 0.0, is_whole=is_whole)
        found.append(timer.due())
    return [each for each in found if each is not None]


def test_the_first_report_of_a_configuration_comes_soon_and_others_regularly(clock):
    timer = StepTimer()
    reports = train(timer, clock, 0.125, steps=SETTLING_STEPS + int((MEASURED_FIRST_S + 2 * MEASURED_EVERY_S) / 0.125))
    assert [report["step_s"] for report in reports] == [0.125] * 3
    assert (reports[0]["ranks"], reports[0]["global_batch"], reports[0]["local_batch"]) == (1, 64, 64)


def test_a_report_never_mixes_two_configurations(clock):
    timer = StepTimer()
    train(timer, clock, 1.0, steps=SETTLING_STEPS + 5)
    reports = train(timer, clock, 0.25, steps=SETTLING_STEPS + 8, ranks=4)
    assert [(each["ranks"], each["local_batch"], each["step_s"]) for each in reports] == [(4, 16, 0.25)]


def test_the_first_steps_and_the_smaller_last_step_of_an_epoch_are_not_measured(clock):
    timer = StepTimer()
    assert not train(timer, clock, 60.0, steps=SETTLING_STEPS)
    assert not train(timer, clock, 0.5, steps=1, samples=29, is_whole=False)
    reports = train(timer, clock, 1.0, steps=2)
    assert [each["step_s"] for each in reports] == [1.0]


def test_waits_for_the_loader_are_those_since_its_workers_changed(clock):
    timer, waited_s = StepTimer(), 0.0
    for done in range(SETTLING_STEPS + 8):
        timer.begin()
        clock[0] += 0.25
        waited_s += 0.25 if done < SETTLING_STEPS + 4 else 0.125
        timer.end(1, 64, waited_s, is_whole=True)
        if done == SETTLING_STEPS + 3:
            timer.forget_waits()
    clock[0] += MEASURED_EVERY_S
    found = timer.due()
    assert found is not None
    assert (found["step_s"], found["loader_wait_s"]) == (0.25, 0.125)
