"""What the store knows, read through a connection of its own that cannot write and waits for no writer."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from brim.errors import NotFoundError
from brim.live.inputs import JobInput
from brim.live.records import AttemptRecord, ControllerSetting, JobRecord, PastForecast, TokenRecord
from brim.live.requests import NONE
from brim.live.store.cluster_time import Anchor
from brim.live.store.migrations import version_of
from brim.live.store.opening import connect
from brim.live.store.rows import ATTEMPT_COLUMNS, INBOX_COLUMNS, JOB_COLUMNS, read_attempt, read_input, read_job
from brim.live.store.soundness import unsound
from brim.live.store.transactions import CONTROLLER, SETTING_VERB

_IS_SETTING: Final = f"verb = '{SETTING_VERB}' AND user = '{CONTROLLER}' AND job = {NONE}"
_TOKEN: Final = ", ".join(field.name for field in fields(TokenRecord))


def _read_token(row: tuple[Any, ...]) -> TokenRecord:
    number, uid, user, label, made_s, expires_s = row
    return TokenRecord(id=number, uid=uid, user=user, label=label, made_s=made_s, expires_s=expires_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """All that a controller needs to go on where the last one ended.

    Attributes:
        snapshot: The newest snapshot; None before the first.
        lines: Lines of the journal after it, in order.
        jobs: Jobs that have not ended, by id.
        attempts: Newest attempts of these jobs, and all that have not ended; by job, then number.
        inputs: Commands that were accepted and not done, in the order of their acceptance.
    """

    snapshot: bytes | None
    lines: tuple[str, ...]
    jobs: tuple[JobRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    inputs: tuple[JobInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that the store has of jobs, for reports.

    Attributes:
        jobs: All jobs, by id.
        attempts: All attempts, by job, then number.
        lines: The journal, as far as it goes back.
        settings: Under what controllers decided: (from when, setting), oldest first.
        seen_ms: Cluster time of the newest transaction.
        since_ms: Time of the first line, if a snapshot has taken the place of others; else 0.
    """

    jobs: tuple[JobRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    lines: tuple[str, ...]
    settings: tuple[tuple[int, ControllerSetting], ...]
    seen_ms: int
    since_ms: int


class Records(NamedTuple):
    """All records of the store.

    Attributes:
        submitted: Jobs that the audit says were submitted.
        jobs: All jobs, by id.
        attempts: All attempts, by job, then number.
        seen_ms: Cluster time of the newest transaction.
    """

    submitted: frozenset[int]
    jobs: tuple[JobRecord, ...]
    attempts: tuple[AttemptRecord, ...]
    seen_ms: int


class Reader:
    """Reads in short transactions, from any thread."""

    def __init__(self, database: Path) -> None:
        self._connection = connect(database)
        self._connection.execute("PRAGMA query_only = ON")
        self._lock = threading.Lock()

    @contextmanager
    def _at_once(self) -> Iterator[sqlite3.Connection]:
        """All statements inside see the same state."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")

    def recovered(self) -> Recovered:
        """Return what a controller needs to go on."""
        with self._at_once() as connection:
            snapshot = connection.execute("SELECT line, data FROM snapshots").fetchone()
            after = snapshot[0] if snapshot else 0
            lines = connection.execute("SELECT line FROM journal WHERE id > ? ORDER BY id", (after,)).fetchall()
            jobs = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE ended_ms < 0 ORDER BY id").fetchall()
            attempts = connection.execute(
                f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE state <> 'ended' UNION SELECT {ATTEMPT_COLUMNS} "
                "FROM attempts WHERE (job, number) IN (SELECT id, attempt FROM jobs WHERE ended_ms < 0) "
                "ORDER BY job, number"
            ).fetchall()
            inbox = connection.execute(f"SELECT {INBOX_COLUMNS} FROM inbox ORDER BY id").fetchall()
            ended = connection.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs WHERE ended_ms >= 0 AND id IN (SELECT job FROM inbox)"
            ).fetchall()
        records = {job.id: job for job in map(read_job, jobs)}
        named = records | {job.id: job for job in map(read_job, ended)}
        return Recovered(
            snapshot=bytes(snapshot[1]) if snapshot else None, lines=tuple(line for (line,) in lines),
            jobs=tuple(records.values()), attempts=tuple(map(read_attempt, attempts)),
            inputs=tuple(read_input(row, named[row[3]]) for row in inbox),
        )  # fmt: skip

    def history(self) -> History:
        """Return all that is known of jobs, at one moment."""
        with self._at_once() as connection:
            jobs = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY id").fetchall()
            attempts = connection.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts ORDER BY job, number").fetchall()
            lines = connection.execute("SELECT line FROM journal ORDER BY id").fetchall()
            settings = connection.execute(
                f"SELECT at_ms, detail FROM audit WHERE {_IS_SETTING} ORDER BY id"
            ).fetchall()
            seen_ms = connection.execute("SELECT at_ms FROM last_group").fetchone()[0]
            is_cut = connection.execute("SELECT line FROM snapshots WHERE line > 0").fetchone() is not None
        since_ms = (int(json.loads(lines[0][0])["t"]) if lines else seen_ms) if is_cut else 0
        return History(
            jobs=tuple(map(read_job, jobs)), attempts=tuple(map(read_attempt, attempts)),
            lines=tuple(line for (line,) in lines), seen_ms=seen_ms, since_ms=since_ms,
            settings=tuple((at_ms, ControllerSetting.of(text)) for at_ms, text in settings),
        )

    def records(self) -> Records:
        """Return what must agree with itself, at one moment."""
        with self._at_once() as connection:
            submitted = connection.execute("SELECT job FROM audit WHERE verb = 'submit'").fetchall()
            jobs = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY id").fetchall()
            attempts = connection.execute(f"SELECT {ATTEMPT_COLUMNS} FROM attempts ORDER BY job, number").fetchall()
            seen_ms = connection.execute("SELECT at_ms FROM last_group").fetchone()[0]
        return Records(
            submitted=frozenset(job for (job,) in submitted), jobs=tuple(map(read_job, jobs)),
            attempts=tuple(map(read_attempt, attempts)), seen_ms=seen_ms,
        )  # fmt: skip

    def setting(self) -> ControllerSetting | None:
        """Return under what the newest controller decides; None before the first."""
        with self._at_once() as connection:
            select = f"SELECT detail FROM audit WHERE {_IS_SETTING} ORDER BY id DESC LIMIT 1"
            row = connection.execute(select).fetchone()
        return None if row is None else ControllerSetting.of(row[0])

    def version(self) -> int:
        """Return the version of the tables."""
        return version_of(self._connection)

    def unsound(self) -> tuple[str, ...]:
        """Return what is wrong with the database itself; see ``soundness.unsound``."""
        with self._at_once() as connection:
            return tuple(unsound(connection))

    def finished(self, limit: int) -> tuple[tuple[JobRecord, ...], tuple[AttemptRecord, ...]]:
        """Return the jobs that finished last, and their attempts, by id."""
        newest = "SELECT id FROM jobs WHERE state = 'finished' ORDER BY ended_ms DESC, id DESC LIMIT ?"
        with self._at_once() as connection:
            jobs = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id IN ({newest}) ORDER BY id", (limit,))
            found = tuple(map(read_job, jobs.fetchall()))
            attempts = connection.execute(
                f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE job IN ({newest}) ORDER BY job, number", (limit,)
            )
            return found, tuple(map(read_attempt, attempts.fetchall()))

    def forecasts(self, policy: str, limit: int) -> tuple[PastForecast, ...]:
        """Return the newest first forecasts under a policy, without those of before ``first_ms`` was kept."""
        with self._at_once() as connection:
            rows = connection.execute(
                "SELECT made_ms, expected_ms, first_ms, last_ms, first_start_ms, ended_ms FROM forecasts JOIN jobs ON "
                "jobs.id = forecasts.job WHERE policy = ? AND first_ms >= 0 ORDER BY made_ms DESC, job DESC LIMIT ?",
                (policy, limit),
            ).fetchall()
        return tuple(PastForecast(*row) for row in rows)

    def forecasts_hit(self) -> tuple[int, int]:
        """Return how many jobs have started after a forecast, and how many of them within it."""
        with self._at_once() as connection:
            jobs, hits = connection.execute(
                "SELECT count(*), coalesce(sum(first_start_ms BETWEEN low_ms AND high_ms), 0) FROM forecasts JOIN jobs "
                "ON jobs.id = forecasts.job WHERE first_start_ms >= 0"
            ).fetchone()
        return int(jobs), int(hits)

    def job(self, number: int) -> JobRecord:
        """Return a job.

        Raises:
            NotFoundError: there never was one with this id.
        """
        with self._at_once() as connection:
            row = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise NotFoundError(f"job {number} does not exist")
        return read_job(row)

    def named(self, numbers: Sequence[int]) -> dict[int, JobRecord]:
        """Return the jobs that there are of these ids."""
        select = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
        with self._at_once() as connection:
            rows = connection.execute(select, (json.dumps(numbers),)).fetchall()
        return {job.id: job for job in map(read_job, rows)}

    def newest_jobs(self, limit: int) -> tuple[JobRecord, ...]:
        """Return the newest jobs, newest first."""
        with self._at_once() as connection:
            rows = connection.execute(f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return tuple(map(read_job, rows))

    def attempts(self, job: int) -> tuple[AttemptRecord, ...]:
        """Return all attempts of a job, the first first."""
        select = f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE job = ? ORDER BY number"
        with self._at_once() as connection:
            rows = connection.execute(select, (job,)).fetchall()
        return tuple(map(read_attempt, rows))

    def token(self, digest: str) -> TokenRecord | None:
        """Return the token whose secret has this digest; None if there is none. Whether it has expired is in it."""
        with self._at_once() as connection:
            row = connection.execute(f"SELECT {_TOKEN} FROM tokens WHERE digest = ?", (digest,)).fetchone()
        return _read_token(row) if row else None

    def tokens(self, uid: int) -> tuple[TokenRecord, ...]:
        """Return the tokens of a user, the oldest first."""
        with self._at_once() as connection:
            rows = connection.execute(f"SELECT {_TOKEN} FROM tokens WHERE uid = ? ORDER BY id", (uid,)).fetchall()
        return tuple(map(_read_token, rows))

    def anchors(self) -> tuple[Anchor, ...]:
        """Return what ties cluster time to the boots of the machine, oldest first."""
        with self._at_once() as connection:
            rows = connection.execute("SELECT boot_id, boottime_ms, cluster_ms FROM boots ORDER BY id").fetchall()
        return tuple(Anchor(*row) for row in rows)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()
