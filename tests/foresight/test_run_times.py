"""What is believed of run times: which jobs speak for a job, and what is drawn."""

from __future__ import annotations

import math

import numpy as np

from brim.beliefs.kinds import JobKind
from brim.core.trace import NONE
from brim.foresight.run_times import RUNS_MAX, STRANGERS_MIN, Believed, ObservedRun, RunTimesByKind, drawn_ms
from brim.units import CENTURY_MS

MIN = 60_000


def ended(kind: JobKind, *run_min: int) -> list[ObservedRun]:
    return [ObservedRun(kind, run * MIN, 1_000 * MIN + number, True) for number, run in enumerate(run_min)]


def test_the_jobs_that_have_most_in_common_speak_if_enough_of_them_have_ended():
    kind = JobKind("a", "ann", 2)
    others = ended(JobKind("b", "bo", 2), *[5] * (STRANGERS_MIN - 1)), ended(JobKind("c", "cy", 1), 9)
    known = [*others[0], *others[1]]
    for more, words in (
        ([], f"{STRANGERS_MIN} runs of all jobs"),
        (ended(JobKind("x", "xi", 2), 5), f"{STRANGERS_MIN} runs of jobs of the same size"),
        (ended(JobKind("y", "ann", 1), 1, 2, 3), "3 runs of the same user"),
        (ended(JobKind("a", "bo", 1), 1, 2, 3), "3 runs of the same name"),
        (ended(kind, 1, 2, 3), "3 runs of the same name and size"),
    ):
        known += more
        assert RunTimesByKind(known, 0).believed(kind, 0, NONE).words == words
    assert RunTimesByKind(known[: STRANGERS_MIN - 1], 0).believed(kind, 0, NONE).words == "", "too few strangers"
    assert RunTimesByKind([], 0).believed(kind, 0, MIN).words == "its time limit alone"


def test_what_people_ran_before_the_last_runs_does_not_count():
    kind = JobKind("a", "ann", 1)
    before = [ObservedRun(kind, 9 * MIN, (10 + number) * MIN, True) for number in range(RUNS_MAX)]
    since = [ObservedRun(kind, 2 * MIN, (10_000 + number) * MIN, True) for number in range(RUNS_MAX)]
    found = RunTimesByKind([*before, *since], 0).believed(kind, 0, NONE).lifetimes
    assert found is not None
    assert found.run_ms.tolist() == [2 * MIN]


def test_draws_are_longer_than_what_was_run_within_the_limit_and_told_by_losses():
    kind = JobKind("a", "ann", 1)
    three = RunTimesByKind(ended(kind, 10, 20, 30), 0).believed(kind, 15 * MIN, NONE)
    believed = [
        three, Believed(None, 5 * MIN, 20 * MIN, ""), Believed(None, 5 * MIN, NONE, ""),
        Believed(None, 5 * MIN, NONE, "", left_ms=10.0 * MIN, spread=0.05),
        Believed(None, 5 * MIN, 9 * MIN, "", left_ms=math.nan),
    ]
    drawn = drawn_ms(believed, 100, np.random.default_rng(1))
    assert (drawn > [one.ran_ms for one in believed]).all()
    assert np.isin(drawn[:, 0], (20 * MIN, 30 * MIN)).mean() > 0.5
    assert drawn[:, 1].max() <= 20 * MIN
    assert (drawn[:, 2] == CENTURY_MS).sum() == 50
    assert abs(float(np.median(drawn[:, 3])) / (15 * MIN) - 1) < 0.02
    assert (drawn_ms(believed, 100, np.random.default_rng(1)) == drawn).all()
