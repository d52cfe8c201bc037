"""How the attempts of a job before its newest one ended, in words."""

from __future__ import annotations

import pytest

from brim.live.reasons import earlier
from brim.live.records import AttemptRecord, JobRecord
from tests.live.virtual import request


@pytest.mark.parametrize(("fields", "said"), [
    ({"outcome": "failed", "detail": "exited with 75"}, "attempt 1 failed: exited with 75"),
    ({"outcome": "failed", "stop_reason": "preempted"}, "attempt 1 was preempted"),
    ({"outcome": "preempted", "stop_reason": "preempted", "detail": "preempted"}, "attempt 1 was preempted"),
    ({"outcome": "lost", "detail": "the machine was started since"},
     "attempt 1 was lost: the machine was started since"),
])  # fmt: skip
def test_an_earlier_attempt_is_told_in_english(fields, said):
    job = JobRecord(id=1, uid=1, user="u1", key="k", request=request(), submitted_s=1.0, submit_ms=0, state="running",
                    attempt=2)
    assert earlier(job, [AttemptRecord(job=1, number=1, uid=1, state="ended", decided_ms=1, **fields)]) == [said]


def test_earlier_attempts_that_ended_alike_are_one_line_with_their_numbers():
    job = JobRecord(id=1, uid=1, user="u1", key="k", request=request(), submitted_s=1.0, submit_ms=0, state="held",
                    attempt=34)
    ends = {1: {"stop_reason": "preempted"}, **{number: {"detail": "exited with 75"} for number in range(2, 35)}}
    past = [AttemptRecord(job=1, number=number, uid=1, state="ended", decided_ms=1, outcome="failed", **end)
            for number, end in ends.items()]  # fmt: skip
    assert earlier(job, past) == ["attempt 1 was preempted", "attempts 2 to 34 failed: exited with 75"]
