"""The bill of a replay: a case computed by hand, and sums that equal the meter and the summary's cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.energy import J_PER_KWH, energy_of
from brim.core.power import PowerCurve
from brim.core.prices import Prices
from brim.core.trace import JobClass, trace_of
from brim.reports.files import packed_jobs, write_jobs
from brim.reports.replay_bill import bill_of_replay
from brim.reports.summary import results_json, summarise
from tests.reports.fakes import replay_of, runs_of

H = 3_600_000
PRICES = Prices(gpu_hour=2.0, kwh=0.5, co2_g_per_kwh=400)
CURVE = PowerCurve(gpu_type="V100", gpus=2, idle_w=100, full_w=300)


def three_jobs():
    """Job a (padding) holds GPU 0 for an hour, gives it to b for half an hour, and comes back for an hour.

    Of its time, 30 s were lost. Job c may run on 1 or 2 GPUs and has GPU 1 from 0.5 h on, for two hours.
    """
    trace = trace_of(
        name="toy", format="own", job_id=["a", "b", "c"], users=("ann", "bob"), user=[0, 1, 0],
        submit_ms=[0, H // 4, H // 2], gpus=[1, 1, 1], run_ms=[2 * H, H // 2, 2 * H],
        job_class=[JobClass.PADDING, JobClass.REGULAR, JobClass.REGULAR],
    )
    runs = runs_of([
        (0, 0, H, [0]), (2, H // 2, H * 5 // 2, [1]), (1, H, H * 3 // 2, [0]), (0, H * 3 // 2, H * 5 // 2, [0]),
    ])
    one = replay_of(trace, "1x2xV100", runs, [H * 5 // 2, H * 3 // 2, H * 5 // 2])
    return dataclasses.replace(
        one, power=(CURVE,), preemptions=np.array([1, 0, 0]), restarts=np.array([1, 0, 0]),
        useful_gpu_ms=one.useful_gpu_ms - np.array([30_000, 0, 0]), gpus_max=np.array([1, 1, 2]),
    )


def test_every_job_pays_by_tier_for_what_it_held_and_used():
    bill = bill_of_replay(three_jobs(), PRICES)

    a, b, c = bill.jobs
    assert [(one.user, one.tier) for one in bill.jobs] == [("ann", "padding"), ("bob", "reserved"), ("ann", "elastic")]
    assert [one.amounts.gpu_h for one in bill.jobs] == [2.0, 0.5, 2.0]
    # a GPU of two that is busy uses half of the idle 100 W, and half of the 200 W between idle and full
    assert [one.amounts.kwh for one in bill.jobs] == pytest.approx([0.3, 0.075, 0.3])
    assert a.amounts.cost == pytest.approx(2 * 2.0 * 0.13 + 0.3 * 0.5)
    assert b.amounts.cost == pytest.approx(0.5 * 2.0 + 0.075 * 0.5)
    assert c.amounts.cost == pytest.approx(2 * 2.0 * 0.6 + 0.3 * 0.5)
    assert c.amounts.co2_kg == pytest.approx(0.3 * 0.4)
    assert bill.idle_kwh == pytest.approx(0.5 * 50 / 1000)
    assert a.amounts.lost_gpu_h == pytest.approx(30 / 3600)


def test_a_preemption_says_what_it_threw_away_and_who_gained():
    (taken,) = bill_of_replay(three_jobs()).taken

    assert (taken.job, taken.at_ms, taken.gpus, taken.times, taken.gained) == ("a", H, 1, 1, ("b",))
    assert taken.thrown_away_gpu_s == 30


def test_who_is_preempted_and_never_comes_back_lost_its_gpus_too():
    one = three_jobs()
    cut = dataclasses.replace(
        one, runs=runs_of([(0, 0, H, [0]), (1, H, H * 3 // 2, [0])]), finish_ms=np.array([-1, H * 3 // 2, -1]),
        partial=True,
    )

    assert [taken.gained for taken in bill_of_replay(cut).taken] == [("b",)]


def test_the_summary_costs_what_the_bill_sums_to():
    replay = three_jobs()

    (summary,) = summarise([replay], prices=PRICES)
    (row,) = results_json(replay, [summary])["results"]

    bill = bill_of_replay(replay, PRICES)
    assert row["cost"] == pytest.approx(bill.total.cost, rel=1e-12)
    assert row["energy_kwh"] == pytest.approx(bill.total.kwh + bill.idle_kwh, rel=1e-12)
    assert row["energy_idle_kwh"] == bill.idle_kwh
    assert row["co2_kg"] == pytest.approx(0.4 * row["energy_kwh"])
    assert "times 1 (reserved), 0.6 (elastic) or 0.13 (padding)" in row["assumptions"][-1]
    assert "the energy of jobs, at 0.5 per kWh" in row["assumptions"][-1]


def test_energy_without_power_is_in_no_cost_and_the_summary_says_so():
    replay = dataclasses.replace(three_jobs(), power=())

    (summary,) = summarise([replay], prices=PRICES)
    bill = bill_of_replay(replay, PRICES)

    assert summary.cost == bill.total.cost == pytest.approx(2 * 0.26 + 0.5 * 2 + 2 * 1.2)
    assert (summary.co2_kg, bill.total.kwh) == (None, None)
    assert "Energy is not in it." in results_json(replay, [summary])["results"][0]["assumptions"][-1]


def test_the_file_of_jobs_has_what_each_job_is_billed(tmp_path):
    write_jobs([packed_jobs(three_jobs(), PRICES)], tmp_path / "a.parquet")
    write_jobs([packed_jobs(dataclasses.replace(three_jobs(), power=()))], tmp_path / "b.parquet")

    rows, plain = pl.read_parquet(tmp_path / "a.parquet"), pl.read_parquet(tmp_path / "b.parquet")

    bill = bill_of_replay(three_jobs(), PRICES)
    assert rows["tier"].to_list() == [one.tier for one in bill.jobs]
    assert rows["cost"].to_list() == [one.amounts.cost for one in bill.jobs]
    assert rows["energy_kwh"].to_list() == [one.amounts.kwh for one in bill.jobs]
    assert plain["energy_kwh"].null_count() == plain["cost"].null_count() == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from([(0,), (1,), (0, 1)])), max_size=6))
def test_jobs_and_idle_gpus_sum_to_what_the_node_used(rows):
    rows = sorted(rows)
    end_ms = [1000 * (begin + length) for begin, length, _ in rows]
    trace = trace_of(
        name="drawn", format="own", job_id=[str(row) for row in range(len(rows))], users=("ann",), user=[0] * len(rows),
        submit_ms=[1000 * begin for begin, _, _ in rows], gpus=[len(gpus) for *_, gpus in rows],
        run_ms=[1000 * length for _, length, _ in rows], gpu_util_milli=[130 * row for row in range(len(rows))],
    )
    runs = runs_of([(row, 1000 * begin, end_ms[row], gpus) for row, (begin, _, gpus) in enumerate(rows)])
    replay = dataclasses.replace(replay_of(trace, "1x2xV100", runs, end_ms), power=(CURVE,))

    bill, energy = bill_of_replay(replay, PRICES), energy_of(replay)

    assert bill.total.kwh + bill.idle_kwh == pytest.approx(energy.total_j / J_PER_KWH, rel=1e-9)
    assert sum(one.kwh for one in bill.by_user().values()) == pytest.approx(bill.total.kwh, rel=1e-9)
