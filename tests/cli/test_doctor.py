"""``brim doctor`` reads what is stored, and names what does not hold."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest

from brim.cli import doctor
from tests.live.store.stores import Opened, asked, running

BREAKS = {
    "job 3 was accepted and is not stored": ("PRAGMA foreign_keys = OFF", "DELETE FROM jobs WHERE id = 3"),
    "job 1 is running with an end at 9 ms": (
        "PRAGMA ignore_check_constraints = ON", "UPDATE jobs SET ended_ms = 9 WHERE id = 1",
    ),
    "job 2 has ended with holds () and devices (1,)": ("UPDATE jobs SET devices = '[1]' WHERE id = 2",),
    "job 1 is pending, and has a living attempt": ("UPDATE jobs SET state = 'pending' WHERE id = 1",),
    "job 2 is finished, and has a living attempt": (
        "DROP TRIGGER an_attempt_ends_once", "UPDATE attempts SET state = 'running' WHERE job = 2",
    ),
    "job 1 says that its newest attempt is 2, and it is 1": ("UPDATE jobs SET attempt = 2 WHERE id = 1",),
    "job 3 is held with holds ()": ("UPDATE jobs SET state = 'held' WHERE id = 3",),
    "job 1 has attempt 2, and 1 has not ended": (
        "INSERT INTO attempts SELECT job, 2, uid, state, sequence, '[]', ranks, batch, loader_workers, decided_ms, "
        "begin_ms, start_ms, stop_ms, stop_reason, end_ms, outcome, exit_code, blame, detail, samples_first, "
        "samples_first_ms, processes FROM attempts WHERE job = 1",
        "UPDATE jobs SET attempt = 2 WHERE id = 1",
    ),
    "device 0 is given to jobs 1 and 4": ("UPDATE attempts SET devices = '[0]' WHERE job = 4",),
    "job 2 is finished, and an exit code 0 was not seen": ("UPDATE attempts SET exit_code = 1 WHERE job = 2",),
}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A store, closed: jobs 1 and 4 run, 2 has finished, 3 waits."""
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    with Opened(tmp_path) as opened:
        opened.submit("k", *[asked() for _ in range(4)])
        opened.start(1, 0)
        opened.start(4, 2)
        opened.start(2, 1)
        opened.commit(
            at_ms=5, jobs=(replace(opened.job(2), state="finished", devices=(), ended_ms=5, exit_code=0),),
            attempts=(replace(running(2, 1, 1), state="ended", end_ms=5, outcome="finished", exit_code=0),),
        )
        found = [one._asdict() for one in doctor._stored()]
    assert found == [{"level": "ok", "text": "what is stored holds: 4 jobs, 3 attempts"}], "while it is open"
    return tmp_path / "controller" / "brim.db"


def test_a_whole_store_is_one_line_and_not_changed(stored):
    before = json.dumps(list(sqlite3.connect(stored).iterdump()))
    assert [tuple(one) for one in doctor._stored()] == [("ok", "what is stored holds: 4 jobs, 3 attempts")]
    assert json.dumps(list(sqlite3.connect(stored).iterdump())) == before


@pytest.mark.parametrize("said", BREAKS)
def test_what_is_broken_is_named(stored, said):
    connection = sqlite3.connect(stored, isolation_level=None)
    for statement in BREAKS[said]:
        connection.execute(statement)
    connection.close()
    found = list(doctor._stored())
    assert {one.level for one in found} == {"wrong"}
    assert f"{stored}: {said}" in [one.text for one in found]


def test_a_file_that_is_no_store_is_named(stored):
    stored.write_bytes(b"no database" * 1_000)
    (found,) = doctor._stored()
    assert found.level == "wrong"
    assert "cannot be read" in found.text


def test_without_a_store_there_is_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    assert list(doctor._stored()) == []
