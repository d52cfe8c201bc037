"""Jobs that wait for other jobs: ``after`` and ``after_ms``."""

from __future__ import annotations

import pytest

from brim.sim.faults import Faults
from brim.testing import job, small_trace

from .exact import ends, run, starts


@pytest.mark.parametrize("compiled", [True, False])
def test_a_dependent_starts_when_the_other_job_ends_and_the_delay_is_over(compiled):
    trace = small_trace(job(run=10), job(at=1, run=1, after="j0"), job(at=1, run=1, after="j0", delay=5))
    outcome = run(trace, "1x4xT4", compiled=compiled)
    assert starts(outcome) == [0, 10, 15]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_dependent_submitted_after_that_end_starts_at_once(compiled):
    outcome = run(small_trace(job(run=1), job(at=5, run=1, after="j0")), "1x4xT4", compiled=compiled)
    assert starts(outcome) == [0, 5]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_delay_that_outlasts_the_submission_is_kept(compiled):
    outcome = run(small_trace(job(run=1), job(at=5, run=1, after="j0", delay=10)), "1x4xT4", compiled=compiled)
    assert starts(outcome) == [0, 11]


def test_a_dependent_takes_its_place_in_the_queue_by_submission():
    """j1 becomes eligible at 10 and was submitted before j2, so it goes first on the one GPU."""
    outcome = run(small_trace(job(run=10), job(at=1, run=3, after="j0"), job(at=2, run=3)), "1x1xT4")
    assert starts(outcome) == [0, 10, 13]


def test_a_chain_is_run_one_by_one():
    chain = [job(run=2)] + [job(run=2, after=f"j{row}") for row in range(9)]
    assert ends(run(small_trace(*chain), "1x4xT4")) == [2.0 * (row + 1) for row in range(10)]


def test_a_dependent_of_a_job_that_was_given_up_still_runs():
    trace = small_trace(job(run=1000), job(run=1, after="j0"))
    outcome = run(trace, "1x1xT4", faults=Faults(job_mtbf_ms=10, attempts_max=2))
    assert outcome.failed.tolist()[0] == 1
    assert outcome.first_start_ms[1] == outcome.finish_ms[0]


def test_the_assumptions_say_that_the_wait_for_another_job_counts():
    trace = small_trace(job(run=10), job(at=1, run=1, after="j0"), job(at=1, run=1))
    (said,) = (line for line in run(trace, "1x4xT4").assumptions if "another has ended" in line)
    assert "counts in its wait and its completion time (1 of 3 jobs)" in said
    assert not any("another has ended" in line for line in run(small_trace(job(run=10)), "1x4xT4").assumptions)
