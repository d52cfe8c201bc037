"""What is written, as statements inside a transaction that the writer has begun and will commit.

Each function is one request's part of a group: if it raises, nothing of that part stays.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from brim.errors import ConfigError, InvariantError, NotFoundError
from brim.live.inputs import VERBS, JobInput, Submit
from brim.live.records import AttemptRecord, Changes, JobRecord, StartForecast, TokenRecord
from brim.live.requests import JOBS_MAX, NONE, JobRequest
from brim.live.store.errors import KeyReusedError, TooManyJobsError
from brim.live.store.rows import (
    INSERT_JOB,
    UPDATE_JOB,
    UPSERT_ATTEMPT,
    attempt_row,
    job_changes,
    job_row,
    request_text,
)

CONTROLLER: Final = "controller"
"""Who the audit names where no user decided."""
SETTING_VERB: Final = "begin"
"""In the audit: a controller began to decide; the detail is its setting."""
_KEY: Final = re.compile(r"[!-~]{1,128}")
_AUDIT: Final = "INSERT INTO audit (at_ms, wall_s, uid, user, verb, job, detail) VALUES (?, ?, ?, ?, ?, ?, ?)"
_AUDIT_CHANGE: Final = (
    "INSERT INTO audit (at_ms, wall_s, uid, user, verb, job, detail) SELECT ?, ?, ?, ?, ?, id, ? FROM jobs "
    "WHERE id = ? AND state <> ?"
)
_INBOX: Final = "INSERT INTO inbox (id, at_ms, verb, job, user) VALUES (?, ?, ?, ?, ?)"

Verb: TypeAlias = Literal["cancel", "hold", "release", "requeue"]


class Moment(NamedTuple):
    """When a transaction is written: cluster time, and the wall clock for display."""

    at_ms: int
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Jobs that a user submits together: all are accepted, or none.

    Attributes:
        uid: Kernel's number of the user.
        user: Name of the user.
        key: Idempotency key, 1 to 128 printable ASCII characters without spaces: the same key of the same user stands
            for the same submission for ever.
        requests: What is asked for, at least one.
        jobs_max: Most jobs of a user that may not have ended; NONE for no limit.
    """

    uid: int
    user: str
    key: str
    requests: tuple[JobRequest, ...]
    jobs_max: int = NONE

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ConfigError(f"key: found {self.key[:140]!a}, expected 1 to 128 printable characters, no spaces")
        if not 1 <= len(self.requests) <= JOBS_MAX:
            raise ConfigError(f"jobs: found {len(self.requests)}, expected 1 to {JOBS_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """What a user asks of jobs, at least one, each named once. Whether this user may is decided before."""

    uid: int
    user: str
    verb: Verb
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was written for a submission or a command.

    Attributes:
        ids: The jobs, in the order of the requests.
        inputs: What the controller is given; empty for a submission that had been accepted before.
    """

    ids: tuple[int, ...]
    inputs: tuple[JobInput, ...]


def accept(connection: sqlite3.Connection, moment: Moment, item: Submission | JobCommand) -> Accepted:
    """Write a submission or a command, with its rows in the inbox and in the audit.

    Raises:
        KeyReusedError: the key stands for another submission.
        TooManyJobsError: its user would have too many jobs.
        NotFoundError: a job that it names does not exist.
    """
    return _submit(connection, moment, item) if isinstance(item, Submission) else _command(connection, moment, item)


def _submit(connection: sqlite3.Connection, moment: Moment, item: Submission) -> Accepted:
    texts = list(map(request_text, item.requests))
    select = "SELECT id, request FROM jobs WHERE uid = ? AND key = ? ORDER BY part"
    known = connection.execute(select, (item.uid, item.key)).fetchall()
    if known:
        if [text for _, text in known] != texts:
            raise KeyReusedError(f"key {item.key} was used for job {known[0][0]}, which was asked for in other words")
        return Accepted(tuple(job for job, _ in known), ())
    _check_number(connection, item)
    for job in sorted({job for request in item.requests for job in request.before}):
        _check_exists(connection, job, "after")
    first, inbox = _next_id(connection, "jobs"), _next_id(connection, "inbox")
    inputs = tuple(
        Submit(inbox=inbox + part, at_ms=moment.at_ms, job=_new_job(item, moment, first, part))
        for part in range(len(texts))
    )
    connection.executemany(INSERT_JOB, [job_row(given.job, part) for part, given in enumerate(inputs)])
    connection.executemany(
        _INBOX, [(given.inbox, given.at_ms, "submit", given.job.id, item.user) for given in inputs]
    )
    connection.executemany(_AUDIT, [
        (*moment, item.uid, item.user, "submit", given.job.id, given.job.request.name) for given in inputs
    ])
    return Accepted(tuple(given.job.id for given in inputs), inputs)


def _check_number(connection: sqlite3.Connection, item: Submission) -> None:
    if item.jobs_max == NONE:
        return
    select = "SELECT count(*) FROM jobs WHERE ended_ms < 0 AND uid = ?"
    found = int(connection.execute(select, (item.uid,)).fetchone()[0])
    if found + len(item.requests) > item.jobs_max:
        raise TooManyJobsError(
            f"{item.user} has {found} jobs that have not ended and submits {len(item.requests)}, and a user may have "
            f"{item.jobs_max}: nothing was accepted, try again when some have ended"
        )


def _new_job(item: Submission, moment: Moment, first: int, part: int) -> JobRecord:
    request = item.requests[part]
    return JobRecord(
        id=first + part, uid=item.uid, user=item.user, key=item.key, request=request,
        array=first if request.array_index != NONE else NONE, submitted_s=moment.wall_s, submit_ms=moment.at_ms,
        state="held" if request.hold else "pending", holds=("user",) if request.hold else (),
    )  # fmt: skip


def _command(connection: sqlite3.Connection, moment: Moment, item: JobCommand) -> Accepted:
    for job in item.jobs:
        _check_exists(connection, job, item.verb)
    kind, first = VERBS[item.verb], _next_id(connection, "inbox")
    inputs = tuple(
        kind(inbox=inbox, at_ms=moment.at_ms, job=job, user=item.user) for inbox, job in enumerate(item.jobs, first)
    )
    connection.executemany(_INBOX, [(given.inbox, given.at_ms, item.verb, given.job, item.user) for given in inputs])
    connection.executemany(_AUDIT, [(*moment, item.uid, item.user, item.verb, job, "") for job in item.jobs])
    return Accepted(item.jobs, inputs)


def add_token(
    connection: sqlite3.Connection, moment: Moment, *, uid: int, user: str, label: str, digest: str, expires_s: float
) -> TokenRecord:
    """Write a token, with its row in the audit."""
    token = TokenRecord(
        id=_next_id(connection, "tokens"), uid=uid, user=user, label=label, made_s=moment.wall_s, expires_s=expires_s
    )
    connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)", (*astuple(token), digest))
    connection.execute(_AUDIT, (*moment, uid, user, "make token", NONE, f"{token.id} {label}"))
    return token


def revoke_token(connection: sqlite3.Connection, moment: Moment, *, uid: int, user: str, number: int) -> None:
    """Remove a token of this user, with a row in the audit.

    Raises:
        NotFoundError: this user has no such token.
    """
    if not connection.execute("DELETE FROM tokens WHERE id = ? AND uid = ?", (number, uid)).rowcount:
        raise NotFoundError(f"token {number} does not exist")
    connection.execute(_AUDIT, (*moment, uid, user, "revoke token", NONE, str(number)))


def note_setting(connection: sqlite3.Connection, moment: Moment, *, setting: str) -> None:
    """Write in the audit under which setting, as text, a controller decides from now on."""
    connection.execute(_AUDIT, (*moment, NONE, CONTROLLER, SETTING_VERB, NONE, setting))


def _next_id(connection: sqlite3.Connection, table: str) -> int:
    """The id after every one that this table ever had."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return int(row[0]) + 1 if row else 1


def _check_exists(connection: sqlite3.Connection, job: int, what: str) -> None:
    if connection.execute("SELECT 1 FROM jobs WHERE id = ?", (job,)).fetchone() is None:
        raise NotFoundError(f"{what}: found job {job}, expected one that exists")


def commit(connection: sqlite3.Connection, moment: Moment, changes: Changes, snapshot: bytes | None) -> None:
    """Write what a step of the controller changed; with a snapshot, the journal up to here is no longer needed.

    Raises:
        InvariantError: the changes contradict what is stored.
    """
    _update_jobs(connection, moment, changes)
    connection.executemany(UPSERT_ATTEMPT, map(attempt_row, changes.attempts))
    _hold_devices(connection, changes)
    lines = [(changes.at_ms, line) for line in changes.lines]
    connection.executemany("INSERT INTO journal (at_ms, line) VALUES (?, ?)", lines)
    connection.executemany("DELETE FROM inbox WHERE id = ?", [(number,) for number in changes.inbox_done])
    if snapshot is not None:
        line = _next_id(connection, "journal") - 1
        connection.execute("INSERT OR REPLACE INTO snapshots VALUES (1, ?, ?, ?)", (changes.at_ms, line, snapshot))
        connection.execute("DELETE FROM journal WHERE id <= ?", (line,))


def _update_jobs(connection: sqlite3.Connection, moment: Moment, changes: Changes) -> None:
    """The audit of a state that changes is written before the change, which is how it is seen to be one."""
    connection.executemany(_AUDIT_CHANGE, [
        (changes.at_ms, moment.wall_s, NONE, CONTROLLER, job.state, job.reason, job.id, job.state)
        for job in changes.jobs
    ])
    updated = connection.executemany(UPDATE_JOB, map(job_changes, changes.jobs)).rowcount if changes.jobs else 0
    if updated != len(changes.jobs):
        raise InvariantError(f"a step changed {len(changes.jobs)} jobs, and the store has {updated} of them")


def _hold_devices(connection: sqlite3.Connection, changes: Changes) -> None:
    ours: list[tuple[Any, ...]] = [(attempt.job, attempt.number) for attempt in changes.attempts]
    connection.executemany("DELETE FROM device_holds WHERE job = ? AND number = ?", ours)
    for attempt in changes.attempts:
        for device in attempt.own_devices:
            _hold(connection, device, attempt)


def _hold(connection: sqlite3.Connection, device: int, attempt: AttemptRecord) -> None:
    try:
        connection.execute(
            "INSERT INTO device_holds VALUES (?, ?, ?, ?)", (device, attempt.job, attempt.number, attempt.share_milli)
        )
    except sqlite3.IntegrityError:
        select = "SELECT job, number FROM device_holds WHERE device = ?"
        holder = connection.execute(select, (device,)).fetchone()
        raise InvariantError(
            f"device {device} is given to attempt {attempt.number} of job {attempt.job} while attempt {holder[1]} of "
            f"job {holder[0]} holds it"
        ) from None


def note_forecasts(
    connection: sqlite3.Connection, moment: Moment, *, starts: Mapping[int, StartForecast], policy: str
) -> None:
    """Write when jobs are expected to start; the first forecast of one that waits counts."""
    connection.executemany(
        "INSERT OR IGNORE INTO forecasts (job, made_ms, expected_ms, low_ms, high_ms, first_ms, last_ms, policy) "
        "SELECT id, ?, ?, ?, ?, ?, ?, ? FROM jobs WHERE id = ? AND first_start_ms < 0 AND ended_ms < 0",
        [(moment.at_ms, *start, policy, job) for job, start in starts.items()],
    )
