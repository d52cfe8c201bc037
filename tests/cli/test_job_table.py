"""What the tables of jobs say of jobs in each state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.cli.job_table import history_rows, queue_rows, ranges
from brim.live.records import JobRecord
from tests.live.virtual import request


@pytest.mark.parametrize(("fields", "said"), [
    ({"state": "pending"}, "(waits for devices)"),
    ({"state": "pending", "reason": "preempted"}, "(preempted)"),
    ({"state": "held", "reason": "held: user"}, "(held: user)"),
    ({"state": "running", "devices": (0, 2)}, "0,2"),
])  # fmt: skip
def test_a_job_without_devices_has_a_reason(fields, said):
    job = JobRecord(id=1, uid=1, user="u1", key="k", request=request(), submitted_s=1.0, submit_ms=0, **fields)
    assert queue_rows([job], 0)[1][-1] == said


def test_of_another_users_job_that_was_started_again_only_its_attempts_are_shown():
    job = JobRecord(id=9, uid=1, user="u1", key="", request=request(), submitted_s=1.0, submit_ms=0, state="finished",
                    attempt=2, ended_ms=9)
    assert history_rows([job], 9)[1][-2:] == ("2", "-")
    assert history_rows([replace(job, reason="finished")], 9)[1][-1] == "finished in attempt 2: see brim explain 9"


def test_the_time_of_a_job_that_waits_again_does_not_grow():
    job = JobRecord(id=1, uid=1, user="u1", key="k", request=request(), submitted_s=1.0, submit_ms=0, state="pending",
                    first_start_ms=0)
    assert queue_rows([job], 60_000)[1][5] == "0:00"
    assert queue_rows([replace(job, state="running", devices=(0,))], 60_000)[1][5] == "1:00"


def test_ids_are_shown_as_words_of_a_command_line():
    assert ranges([3, 1, 2, 7, 9, 10]) == ["1-3", "7", "9-10"]
    assert ranges([]) == []
