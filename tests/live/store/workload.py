"""A little of everything that a controller writes, a note of what was acknowledged, and the check of what is left."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from brim.live.records import Changes
from brim.live.store import transactions
from brim.live.store.group_writer import Write
from brim.live.store.store import Store
from brim.live.store.transactions import JobCommand
from tests.live.store.stores import Opened, StoppedClock, asked, running, submission

STEPS = {"start": ("running", 1), "preempt": ("stopping", 1), "again": ("running", 2), "end": ("finished", 2)}
"""The state and the newest attempt of a job after each step."""
Ack = Callable[[str], None]
Told = Callable[[Future[Any]], None]


def in_this_thread(store: Store, item: Any, snapshot: bytes | None = None, told: Told = lambda _: None) -> Any:
    """The result of a request that this thread writes, as the thread of the store would."""
    if isinstance(item, Changes):
        write = Write(partial(transactions.commit, changes=item, snapshot=snapshot), lambda _: None, keep=True)
    else:
        write = Write(partial(transactions.accept, item=item), store._deliver_inputs)
    write.future.add_done_callback(told)
    store._writer.write([write])
    return write.future.result(timeout=0)


def as_a_caller(store: Store, item: Any, snapshot: bytes | None = None, told: Told = lambda _: None) -> Any:
    """The result of a request that the thread of the store writes."""
    future: Future[Any] = store.commit(item, snapshot) if isinstance(item, Changes) else store.accept(item)
    future.add_done_callback(told)
    return future.result()


def work(
    store: Store, ack: Ack, rounds: int = 1, write: Callable[..., Any] = in_this_thread, *, snapshots: bool = False
) -> None:
    """Submit, start, preempt, start again, cancel, end, snapshot; ``ack`` hears of each step once it is durable."""

    def telling(line: str) -> Told:
        def told(done: Future[Any]) -> None:
            if done.exception() is None:
                ack(line.format(done.result()))

        return told

    for number in range(rounds):
        key = f"k{number}"
        accepted = write(store, submission(key, asked("a"), asked("b")), None, telling(key + " {0.ids[0]}"))
        first, second = (given.job for given in accepted.inputs)
        attempt = running(first.id, 1, 0)
        write(store, Changes(
            at_ms=number, lines=(f"start {number}",), attempts=(attempt,), inbox_done=(accepted.inputs[0].inbox,),
            jobs=(replace(first, state="running", attempt=1, devices=(0,)),),
        ), None, telling(f"start {number}"))  # fmt: skip
        write(store, Changes(
            at_ms=number, lines=(f"preempt {number}",),
            jobs=(replace(first, state="stopping", attempt=1, devices=(0,)),),
            attempts=(replace(attempt, state="stopping", stop_ms=number, stop_reason="preempted"),),
        ), None, telling(f"preempt {number}"))  # fmt: skip
        again = running(first.id, 2, 0)
        write(store, Changes(
            at_ms=number, lines=(f"again {number}",), jobs=(replace(first, state="running", attempt=2, devices=(0,)),),
            attempts=(replace(attempt, state="ended", end_ms=number, outcome="stopped"), again),
        ), None, telling(f"again {number}"))  # fmt: skip
        command = JobCommand(uid=1, user="ann", verb="cancel", jobs=(second.id,))
        write(store, command, None, telling(f"cancel {second.id}"))
        write(store, Changes(
            at_ms=number, lines=(f"end {number}",), inbox_done=(accepted.inputs[1].inbox,),
            attempts=(replace(again, state="ended", outcome="finished"),),
            jobs=(replace(first, state="finished", ended_ms=number), replace(second, state="cancelled", ended_ms=1)),
        ), f"until {number}".encode() if snapshots or number % 3 == 2 else None, telling(f"end {number}"))  # fmt: skip


def check_rows(connection: sqlite3.Connection, acked: list[str]) -> None:
    """The database is sound, and has what was acknowledged, once, and whole steps only."""
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    jobs = connection.execute("SELECT id, key, part, state FROM jobs ORDER BY id").fetchall()
    by_key: dict[str, list[int]] = {}
    for job, key, _, _ in jobs:
        by_key.setdefault(key, []).append(job)
    assert all(len(ids) == 2 for ids in by_key.values()), "a submission is there whole or not at all"
    state = {job: state for job, _, _, state in jobs}
    lines = steps(connection)
    cancels = [job for (job,) in connection.execute("SELECT job FROM audit WHERE verb = 'cancel'")]
    for line in acked:
        word, number = line.split()
        if word in STEPS:
            assert line in lines, f"{line} was acknowledged and is lost"
        elif word == "cancel":
            assert cancels.count(int(number)) == 1, f"{line} was acknowledged and is not there once"
        else:
            assert by_key.get(word, [0])[0] == int(number), f"{line} was acknowledged and is not there"
    for number, ids in enumerate(by_key.values()):
        done = [word for word in STEPS if f"{word} {number}" in lines]
        assert done == [*STEPS][: len(done)], "no step without those before it"
        wanted, newest = STEPS[done[-1]] if done else ("pending", 0)
        assert state[ids[0]] == wanted, "a step is there whole or not at all"
        select = "SELECT number FROM attempts WHERE job = ? ORDER BY number"
        assert [row for (row,) in connection.execute(select, (ids[0],))] == [*range(1, newest + 1)]
    held = connection.execute("SELECT count(*) FROM device_holds").fetchone()[0]
    assert held == sum(value in ("running", "stopping") for value in state.values())


def steps(connection: sqlite3.Connection) -> list[str]:
    """The steps that are there: those that a snapshot stands for, then the lines of the journal."""
    row = connection.execute("SELECT data FROM snapshots").fetchone()
    until = int(row[0].split()[1]) + 1 if row else 0
    lines = [line for (line,) in connection.execute("SELECT line FROM journal ORDER BY id")]
    return [f"{word} {number}" for number in range(until) for word in STEPS] + lines


def check_reopened(folder: Any, acked: list[str]) -> None:
    """The store opens, has what was acknowledged, and the same keys give the same ids again."""
    with Opened(folder, StoppedClock()) as opened:
        check_rows(opened.store.reads._connection, acked)
        known = dict(line.split() for line in acked if line.startswith("k"))
        for key in {**known, "k0": ""}:
            accepted = opened.submit(key, asked("a"), asked("b"))
            assert not known.get(key) or accepted.ids[0] == int(known[key])
        keys = opened.store.reads._connection.execute("SELECT key, count(*) FROM jobs GROUP BY key").fetchall()
        assert all(count == 2 for _, count in keys), "a retry makes no second job"
        loaded = opened.store.load()
        assert len({given.inbox for given in loaded.inputs}) == len(loaded.inputs)
