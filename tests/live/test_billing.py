"""The bill of a live cluster: a case computed by hand, and sums that equal the meter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.core.cluster import parse_cluster
from brim.core.energy import J_PER_KWH
from brim.core.power import PowerCurve
from brim.core.prices import Prices
from brim.core.trace import NONE
from brim.live.billing import bill_of
from brim.live.ends import repeated_gpu_s
from brim.live.recording import recorded_jobs
from tests.live.test_recording import attempt, job

S = 1000
H = 3600 * S
TWO = parse_cluster("1x2xcpu-slot")
CURVE = PowerCurve(gpu_type="cpu-slot", gpus=2, idle_w=100, full_w=300)
PRICES = Prices(gpu_hour=2.0, kwh=0.5, co2_g_per_kwh=400)


def test_a_preempted_job_pays_for_what_it_held_and_the_bill_says_who_gained():
    """Job 1 (padding) holds GPU 0 for an hour, is told to leave, takes 10 s, and comes back for an hour.

    Job 2 has that GPU for half an hour. Coming back takes job 1 20 s.
    """
    first = job(1, 0, ended_ms=3 * H, preemptions=1, lost_gpu_s=36.0)
    first = replace(first, request=replace(first.request, job_class="padding"))
    jobs = recorded_jobs(
        [first, job(2, 1 * H, ended_ms=2 * H)],
        [
            attempt(1, 0, 1, 1, H, stop_ms=H - 10 * S, stop_reason="preempted", outcome="stopped", exit_code=75),
            attempt(2, H - 10 * S, H, H, H + H // 2),
            attempt(1, 2 * H, 2 * H + 1, 2 * H + 20 * S, 3 * H, nth=2),
        ], [], 3 * H,
    )

    bill = bill_of(jobs, TWO, 3 * H, prices=PRICES, curves=(CURVE,))

    one, two = bill.jobs
    assert (one.tier, two.tier) == ("padding", "reserved")
    assert (one.amounts.gpu_h, two.amounts.gpu_h) == (2.0, 0.5)
    # one of two GPUs busy: half of the idle 100 W, and half of the 200 W between idle and full
    assert one.amounts.kwh == pytest.approx(2 * 0.150)
    assert one.amounts.co2_kg == pytest.approx(0.3 * 0.4)
    assert one.amounts.cost == pytest.approx(2 * 2.0 * 0.13 + 0.3 * 0.5)
    assert two.amounts.cost == pytest.approx(0.5 * 2.0 + 0.075 * 0.5)
    assert bill.idle_kwh == pytest.approx((2.5 * 50 + 0.5 * 100) / 1000)
    (taken,) = bill.taken
    assert (taken.job, taken.gpus, taken.gained, taken.at_ms) == ("1", 1, ("2",), H - 10 * S)
    assert taken.thrown_away_gpu_s == 10 + 20
    assert one.amounts.lost_gpu_h * 3600 == pytest.approx(36 + 30)
    assert bill.by_user()["ann"] == bill.total


@pytest.mark.parametrize(("code", "reported_ms", "thrown_s"), [
    (143, NONE, 2 * 3600), (137, NONE, 2 * 3600), (NONE, NONE, 2 * 3600), (85, NONE, 2 * (10 + 20)),
    (143, H // 2, 2 * (10 + 20)),
])  # fmt: skip
def test_of_a_preempted_job_that_does_not_save_all_since_its_grant_is_thrown_away(code, reported_ms, thrown_s):
    """Two GPUs for an hour, under way after 5 s, told to leave 10 s before its end; coming back takes 20 s."""
    first = attempt(
        1, 0, 5 * S, 5 * S, H, (0, 1), stop_ms=H - 10 * S, stop_reason="preempted", outcome="stopped", exit_code=code,
        samples_first_ms=reported_ms,
    )
    again = attempt(1, 2 * H, 2 * H, 2 * H + 20 * S, 3 * H, (0, 1), nth=2)
    record = job(1, 0, 2, ended_ms=3 * H, preemptions=1, lost_gpu_s=repeated_gpu_s(first))

    bill = bill_of(recorded_jobs([record], [first, again], [], 3 * H), TWO, 3 * H)

    assert bill.taken[0].thrown_away_gpu_s == thrown_s
    assert bill.total.lost_gpu_h * 3600 == pytest.approx(thrown_s)
    said = [one for one in bill.basis if one.startswith("1 preemption of jobs that reported no progress")]
    assert bool(said) == (thrown_s == 2 * 3600)


def test_jobs_that_share_a_gpu_have_equal_parts_of_it_and_use_what_they_said():
    """Jobs 1 and 2 share GPU 0 for an hour; job 1 had it alone for an hour before, and uses a quarter of it."""
    light, silent = job(1, 0, ended_ms=2 * H), job(2, H, ended_ms=2 * H)
    light = replace(light, request=replace(light.request, gpu_util_milli=250))
    jobs = recorded_jobs([light, silent], [attempt(1, 0, 0, 0, 2 * H), attempt(2, H, H, H, 2 * H)], [], 2 * H)

    bill = bill_of(jobs, TWO, 2 * H, prices=PRICES, curves=(CURVE,))

    assert [one.amounts.gpu_h for one in bill.jobs] == [1.5, 0.5]
    assert bill.total.gpu_h == 2
    # the second hour: 97 % of one of two GPUs, divided as 1 to 4; and half of the idle 100 W each hour
    assert bill.jobs[0].amounts.kwh == pytest.approx((50 + 25 + 25 + 200 * 0.97 / 2 / 5) / 1000)
    assert any("1 of 2 jobs said none and count as busy" in said for said in bill.basis)


def test_an_attempt_that_held_its_gpu_for_no_time_is_not_billed():
    """Job 1 left at once; job 2 had the GPU before and after."""
    jobs = recorded_jobs(
        [job(1, H, ended_ms=H), job(2, 0, ended_ms=2 * H)],
        [attempt(1, H, H, H, H), attempt(2, 0, 0, 0, 2 * H)], [], 2 * H,
    )
    assert [one.amounts.gpu_h for one in bill_of(jobs, TWO, 2 * H).jobs] == [0, 2]


def test_without_prices_and_curves_there_is_no_money_and_no_energy():
    jobs = recorded_jobs([job(1, 0, ended_ms=H)], [attempt(1, 0, 0, 0, H)], [], H)

    amounts = bill_of(jobs, TWO, H).total

    assert (amounts.gpu_h, amounts.kwh, amounts.co2_kg, amounts.cost) == (1.0, None, None, None)


def test_energy_that_gpus_measured_stands_beside_that_of_nodes():
    """Job 1 was measured in both attempts, job 2 was not."""
    jobs = recorded_jobs(
        [job(1, 0, ended_ms=2 * H), job(2, 0, ended_ms=H)],
        [
            attempt(1, 0, 0, 0, H, gpu_energy_j=1.8e6, outcome="stopped"), attempt(2, 0, 0, 0, H, (1,)),
            attempt(1, H, H, H, 2 * H, nth=2, gpu_energy_j=3.6e6),
        ], [], 2 * H,
    )

    bill = bill_of(jobs, TWO, 2 * H)

    assert [one.amounts.gpu_kwh for one in bill.jobs] == [1.5, None]
    assert bill.total.gpu_kwh == 1.5
    assert bill.basis[-1] == "GPU kWh are of GPUs alone, measured by their driver, of 1 of 2 jobs."


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from([(0,), (1,), (0, 1)])), max_size=6))
def test_what_jobs_and_idle_gpus_are_billed_is_what_the_node_used(rows):
    taken = [(at, gpu) for begin, length, devices in rows for at in range(begin, begin + length) for gpu in devices]
    assume(len(taken) == len(set(taken)))
    jobs = [job(number, begin * S, ended_ms=(begin + length) * S) for number, (begin, length, _) in enumerate(rows, 1)]
    attempts = [
        attempt(number, begin * S, begin * S, begin * S, (begin + length) * S, devices)
        for number, (begin, length, devices) in enumerate(rows, 1)
    ]

    found = recorded_jobs(jobs, attempts, [], 120 * S)
    bill = bill_of(found, TWO, 120 * S, prices=PRICES, curves=(CURVE,))
    assert bill.total.gpu_h * H == pytest.approx(S * len(taken))

    busy = [sum(
        any(one.from_ms <= at * S < one.until_ms and gpu in one.devices for job in found for attempt in job.attempts
            for one in attempt.holdings) for gpu in (0, 1)
    ) for at in range(120)]
    used_kwh = sum(100 + 100 * min(gpus, 2) for gpus in busy) * S / 1000 / J_PER_KWH
    assert sum(one.amounts.kwh for one in bill.jobs) + bill.idle_kwh == pytest.approx(used_kwh, rel=1e-9)
