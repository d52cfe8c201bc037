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
