"""Records as rows of the tables and back: a column for each field, JSON where a field is more than one value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from brim.live.inputs import VERBS, JobInput, Submit
from brim.live.records import AttemptRecord, JobRecord
from brim.live.requests import JobRequest, read_request

_JOB: Final = tuple(field.name for field in fields(JobRecord))
_ATTEMPT: Final = tuple(field.name for field in fields(AttemptRecord))
_FIXED: Final = ("id", "uid", "user", "key", "request", "array", "submitted_s", "submit_ms")
"""What a job is from its submission on."""
_CHANGING: Final = tuple(name for name in _JOB if name not in _FIXED)
_TUPLES: Final = frozenset({"holds", "devices", "processes"})

JOB_COLUMNS: Final = ", ".join(_JOB)
ATTEMPT_COLUMNS: Final = ", ".join(_ATTEMPT)
INBOX_COLUMNS: Final = "id, at_ms, verb, job, user"
INSERT_JOB: Final = f"INSERT INTO jobs ({JOB_COLUMNS}, part) VALUES ({', '.join('?' * (len(_JOB) + 1))})"
UPDATE_JOB: Final = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _CHANGING)} WHERE id = ?"
UPSERT_ATTEMPT: Final = (
    f"INSERT INTO attempts ({ATTEMPT_COLUMNS}) VALUES ({', '.join('?' * len(_ATTEMPT))}) "
    f"ON CONFLICT (job, number) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _ATTEMPT[2:])}"
)


def request_text(request: JobRequest) -> str:
    """Return a request as the text that is stored, the same for equal requests."""
    return json.dumps(request.record(), separators=(",", ":"), sort_keys=True)


def job_row(job: JobRecord, part: int) -> tuple[Any, ...]:
    """Parameters of ``INSERT_JOB``; ``part`` is the job's place in its submission."""
    return *_values(job, _JOB), part


def job_changes(job: JobRecord) -> tuple[Any, ...]:
    """Parameters of ``UPDATE_JOB``."""
    return *_values(job, _CHANGING), job.id


def attempt_row(attempt: AttemptRecord) -> tuple[Any, ...]:
    """Parameters of ``UPSERT_ATTEMPT``."""
    return _values(attempt, _ATTEMPT)


def _values(record: JobRecord | AttemptRecord, names: Sequence[str]) -> tuple[Any, ...]:
    values: list[Any] = [getattr(record, name) for name in names]
    for place, value in enumerate(values):
        if isinstance(value, JobRequest):
            values[place] = request_text(value)
        elif isinstance(value, tuple):
            values[place] = json.dumps(value, separators=(",", ":"))
    return tuple(values)


def read_job(row: Sequence[Any]) -> JobRecord:
    """Return the job of a row of ``JOB_COLUMNS``."""
    values = _read(_JOB, row)
    values["request"] = read_request(json.loads(values["request"]))
    return JobRecord(**values)


def read_attempt(row: Sequence[Any]) -> AttemptRecord:
    """Return the attempt of a row of ``ATTEMPT_COLUMNS``."""
    return AttemptRecord(**_read(_ATTEMPT, row))


def _read(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    values = dict(zip(names, row, strict=True))
    for name in _TUPLES & values.keys():
        values[name] = tuple(json.loads(values[name])) if values[name] != "[]" else ()
    return values


def read_input(row: Sequence[Any], job: JobRecord) -> JobInput:
    """Return the input of a row of ``INBOX_COLUMNS``; ``job`` is the one that it is about."""
    inbox, at_ms, verb, number, user = row
    if verb == "submit":
        return Submit(inbox=inbox, at_ms=at_ms, job=job)
    return VERBS[verb](inbox=inbox, at_ms=at_ms, job=number, user=user)
