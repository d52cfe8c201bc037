"""A bill as a table."""

from dataclasses import replace

import pytest

from brim.cli.bill_table import MANY, bill_lines, check_by
from brim.errors import ConfigError
from brim.reports.bill import Amounts, Bill, BilledJob, Taken

ONE = Taken(job="1", at_ms=0, gpus=2, thrown_away_gpu_s=30, gained=("2",))


def lines(**changes):
    jobs = [
        BilledJob(job="1", user="ann", tier="padding", amounts=Amounts(gpu_h=2, kwh=0.5, co2_kg=0.2, cost=1.25)),
        BilledJob(job="2", user="bob", tier="reserved", amounts=Amounts(gpu_h=3, kwh=1.0, co2_kg=0.4, cost=6)),
    ]
    return list(bill_lines(Bill(jobs=jobs, idle_kwh=0.25, idle_co2_kg=0.1, **changes), "user"))


def test_idle_energy_has_a_row_and_the_last_row_is_what_the_nodes_used():
    rows = [line.split() for line in lines()[0].splitlines()]

    assert rows[0] == ["USER", "GPU-H", "LOST", "GPU-H", "KWH", "CO2", "KG", "COST"]
    assert rows[1] == ["bob", "3.000", "0.000", "1.000", "0.400", "6.00"]
    assert rows[3] == ["(idle)", "0.250", "0.100"]
    assert rows[4] == ["(all)", "5.000", "0.000", "1.750", "0.700", "7.25"]


def test_measured_energy_has_a_column_where_any_was_measured():
    one = BilledJob(job="1", user="ann", tier="reserved", amounts=Amounts(gpu_h=2, kwh=0.5, gpu_kwh=0.4, cost=1))
    two = BilledJob(job="2", user="bob", tier="reserved", amounts=Amounts(gpu_h=1, kwh=0.5, cost=1))
    rows = [line.split() for line in next(bill_lines(Bill(jobs=[one, two], idle_kwh=0.25), "user")).splitlines()]

    assert rows[0] == ["USER", "GPU-H", "LOST", "GPU-H", "KWH", "GPU", "KWH", "CO2", "KG", "COST"]
    assert rows[1:3] == [["ann", "2.000", "0.000", "0.500", "0.400", "-", "1.00"],
                         ["bob", "1.000", "0.000", "0.500", "-", "-", "1.00"]]
    assert rows[4] == ["(all)", "3.000", "0.000", "1.250", "0.400", "-", "2.00"]


@pytest.mark.parametrize(("taken", "words"), [
    (ONE, "Job 1 was preempted on 2 GPUs, for job 2: 30.0 GPU-s thrown away"),
    (replace(ONE, gpus=1, gained=()), "Job 1 was preempted on 1 GPU: 30.0 GPU-s thrown away"),
    (replace(ONE, times=3, gained=("2", "3")), "Job 1 was preempted 3 times, for jobs 2 and 3: 30.0 GPU-s thrown away"),
    (replace(ONE, gained=tuple("23456")), "for jobs 2, 3, 4, 5 and 1 other: 30.0 GPU-s"),
])
def test_a_preemption_in_words(taken, words):
    assert words in lines(taken=[taken])[1]


def test_of_many_preemptions_the_costliest_are_shown():
    said = lines(taken=[replace(ONE, job=str(row), thrown_away_gpu_s=row) for row in range(MANY + 2)])

    assert len(said) == 1 + MANY + 1
    assert said[1].startswith("Job 2 ")
    assert said[-1] == "2 other jobs preempted: 1.0 GPU-s; -o json has them all"


def test_a_bill_by_something_else():
    with pytest.raises(ConfigError, match="--bill: found 'group', expected user or job"):
        check_by("--bill", "group")
