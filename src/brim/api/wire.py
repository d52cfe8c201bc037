"""Jobs as plain data for JSON, and back: what the server sends and the client reads.

A reader ignores fields that it does not know, and gives those that are missing their default, so that client and server
may be of different versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from brim.live.records import JobRecord
from brim.live.requests import NONE, JobRequest

SCHEMA: Final = 1
"""Version of every answer; it grows when a field changes its meaning."""
TROUBLE_HEADER: Final = "brim-trouble"
"""Header of an answer of a controller that can write nothing at present: why, as a sentence."""
ENDED_BY: Final = "brim controller: "
"""Begins the last line of the log of a controller that an error ended; the error follows."""
HIDDEN_NAME: Final = "-"
"""Stands for the name of another user's job."""
_HIDDEN_CAPTURE: Final = "0" * 32
_HIDDEN_DIGEST: Final = "0" * 64

_RECORD: Final = tuple(field.name for field in fields(JobRecord) if field.name != "request")
_REQUEST: Final = frozenset(field.name for field in fields(JobRequest))
_TUPLES: Final = ("holds", "devices")
_REQUEST_TUPLES: Final = ("sizes", "devices", "after", "after_any", "after_not_ok")


def redacted(job: JobRecord) -> JobRecord:
    """Return what other users may know of a job: whose it is, its state, its devices, and why it waits.

    They may not know what it runs, how it ended, or what its user called it.
    """
    request = replace(
        job.request, name=HIDDEN_NAME, capture=_HIDDEN_CAPTURE, digest=_HIDDEN_DIGEST, after=(), after_any=(),
        after_not_ok=(), target_loss=NONE,
    )  # fmt: skip
    return replace(
        job, key="", request=request, reason=_why_it_waits(job), exit_code=NONE, failures=0,
        samples_done=0.0, samples_total=0.0, lost_gpu_s=0.0, samples_again=0.0,
        loader_wait_ratio=None, slowdown_ratio=None,
    )  # fmt: skip


def _why_it_waits(job: JobRecord) -> str:
    """What other users may know of the reason of a job. After an attempt, the reason says how that ended, too."""
    if job.state not in ("pending", "held"):
        return ""
    if not job.attempt:
        return job.reason
    from brim.live.holds import because  # noqa: PLC0415 - of the engine, which no client loads

    return because(job.holds)


def plain_job(job: JobRecord) -> dict[str, Any]:
    """Return a job as plain data; its request without the fields that have their default."""
    plain = {name: getattr(job, name) for name in _RECORD}
    plain["request"] = job.request.record()
    return plain


def read_job(plain: Mapping[str, Any]) -> JobRecord:
    """Return the job of plain data.

    Raises:
        ConfigError: a field of its request is not valid.
        TypeError: a field without a default is missing.
    """
    values = {name: plain[name] for name in _RECORD if name in plain}
    asked = {name: value for name, value in plain["request"].items() if name in _REQUEST}
    values.update((name, tuple(values[name])) for name in _TUPLES if name in values)
    asked.update((name, tuple(asked[name])) for name in _REQUEST_TUPLES if name in asked)
    return JobRecord(request=JobRequest(**asked), **values)
