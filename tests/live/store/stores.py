"""Stores for tests: jobs with short names, a clock that stands still unless it is told, and what was delivered."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.live.inputs import JobInput
from brim.live.records import AttemptRecord, Changes, JobRecord
from brim.live.requests import JobRequest
from brim.live.store.store import Store
from brim.live.store.transactions import Accepted, JobCommand, Submission


@dataclass
class StoppedClock:
    """A clock that only tests advance."""

    boot_id: str = "first"
    boottime: int = 1_000
    wall: float = 1e9

    def boottime_ms(self) -> int:
        return self.boottime

    def wall_s(self) -> float:
        return self.wall


class Opened:
    """A store in a folder, with what it delivered; a context that closes it."""

    def __init__(self, folder: Path, clock: StoppedClock | None = None) -> None:
        self.delivered: list[JobInput] = []
        self.store = Store(folder / "controller", self.delivered.extend, clock=clock or StoppedClock())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def submit(self, key: str, *requests: JobRequest, uid: int = 1) -> Accepted:
        return self.store.accept(submission(key, *requests, uid=uid)).result()

    def command(self, verb: Any, *jobs: int) -> Accepted:
        return self.store.accept(JobCommand(uid=1, user="ann", verb=verb, jobs=jobs)).result()

    def commit(self, at_ms: int = 0, *, snapshot: bytes | None = None, **changes: Any) -> None:
        self.store.commit(Changes(at_ms=at_ms, **changes), snapshot).result()

    def job(self, number: int) -> JobRecord:
        return self.store.reads.job(number)

    def audit(self, *columns: str) -> list[tuple[Any, ...]]:
        """These columns of the audit, oldest first, as somebody reads them."""
        with contextlib.closing(sqlite3.connect(self.store._folder.database)) as connection:
            return connection.execute(f"SELECT {', '.join(columns)} FROM audit ORDER BY id").fetchall()

    def start(self, number: int, *devices: int, attempt: int = 1, **more: Any) -> None:
        """The job's attempt runs on these devices."""
        job = replace(self.job(number), state="running", attempt=attempt, devices=devices)
        self.commit(jobs=(job,), attempts=(replace(running(number, attempt, *devices), **more),))


def asked(name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name=name, capture="0" * 32, digest="a" * 64, **fields)


def submission(key: str, *requests: JobRequest, uid: int = 1) -> Submission:
    return Submission(uid=uid, user="ann", key=key, requests=requests or (asked(),))


def running(job: int, number: int, *devices: int) -> AttemptRecord:
    return AttemptRecord(job=job, number=number, uid=1, state="running", devices=devices, decided_ms=0)
