"""``brim doctor`` looks at what is stored and at processes, and names what does not hold."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
from dataclasses import replace

import pytest

from brim.agent.adoption import note_processes
from brim.agent.attempt_files import FORGOTTEN
from brim.agent.boot_clock import boot_id
from brim.agent.cgroups import CgroupTree, note_tree
from brim.agent.folders import agent_folder, attempt_folder
from brim.agent.leftovers import known
from brim.agent.sockets import folder_id
from brim.cli import doctor
from brim.core.cluster import parse_cluster
from brim.gang.messages import GANG_VARIABLE
from brim.live.controller import Controller
from brim.live.store.schema import MIGRATIONS
from brim.policies.presets import find_policy
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
        "CREATE TEMP TABLE second AS SELECT * FROM attempts WHERE job = 1",
        "UPDATE second SET number = 2, devices = '[]', share_milli = 1000",
        "INSERT INTO attempts SELECT * FROM second",
        "UPDATE jobs SET attempt = 2 WHERE id = 1",
    ),
    "device 0 is given to jobs 1 and 4": ("UPDATE attempts SET devices = '[0]' WHERE job = 4",),
    "job 2 is finished, and an exit code 0 was not seen": ("UPDATE attempts SET exit_code = 1 WHERE job = 2",),
    "job 3 is stored, and nobody has submitted it": (
        "DROP TRIGGER audit_is_not_cut", "DELETE FROM audit WHERE job = 3 AND verb = 'submit'",
    ),
    "job 2 was submitted at 9000 ms and seen at 0 ms": ("UPDATE jobs SET submit_ms = 9000 WHERE id = 2",),
    "attempt 1 of job 2 was decided at 9000 ms and ended at 5 ms": (
        "UPDATE attempts SET decided_ms = 9000 WHERE job = 2",
    ),
    "attempt 1 of job 1 was begun at 9000000 ms and seen at 0 ms": (
        "UPDATE attempts SET begin_ms = 9000000 WHERE job = 1",
    ),
    "trigger audit_is_not_edited is missing": ("DROP TRIGGER audit_is_not_edited",),
    "index jobs_open is not as brim made it": (
        "DROP INDEX jobs_open", "CREATE INDEX jobs_open ON jobs (id) WHERE ended_ms < -1",
    ),
    "device 0 has no hold of attempt 1 of job 1, against what its attempt says": (
        "DELETE FROM device_holds WHERE device = 0",
    ),
    "device 3 has a hold of attempt 1 of job 2, against what its attempt says": (
        "INSERT INTO device_holds VALUES (3, 2, 1, 1000)",
    ),
    "row 3 of forecasts names one of jobs that does not exist": (
        "PRAGMA foreign_keys = OFF", "INSERT INTO forecasts (job, made_ms, low_ms, high_ms) VALUES (3, 0, 0, 0)",
        "DELETE FROM jobs WHERE id = 3",
    ),
    "SQLite finds CHECK constraint failed in jobs": (
        "PRAGMA ignore_check_constraints = ON", "UPDATE jobs SET state = 'gone' WHERE id = 3",
    ),
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


@pytest.mark.parametrize(("log", "level", "said"), [
    ("brim controller: policy 'mine', order: KeyError: 7\n", "wrong",
     " (the last one ended: policy 'mine', order: KeyError: 7): start one with `brim up`, or `brim join USER`"),
    ("brim controller has ended: process 7\n", "note", ": start one with `brim up`, or `brim join USER`"),
])  # fmt: skip
def test_the_error_that_ended_the_last_controller_is_named(tmp_path, monkeypatch, log, level, said):
    monkeypatch.setenv("BRIM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("BRIM_RUNTIME", str(tmp_path / "run"))
    (tmp_path / "state" / "controller").mkdir(parents=True)
    (tmp_path / "state" / "controller" / "log").write_text(log, encoding="utf-8")
    assert list(doctor._service()) == [(level, f"no controller runs at {tmp_path / 'run'}{said}")]


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


@pytest.mark.parametrize(("statement", "said"), [
    ("DELETE FROM journal", "job 1 is in neither the journal nor the inbox: it will never be decided on"),
    ("UPDATE jobs SET state = 'pending', holds = '[]'",
     "a controller cannot go on from here: job 1 is pending, and HELD in the engine"),
])  # fmt: skip
def test_a_journal_that_is_not_that_of_the_jobs_is_named(tmp_path, monkeypatch, statement, said):
    """A job that was accepted and not handled is no fault."""
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    controller = Controller(parse_cluster("1x4xcpu"), find_policy("fifo"))
    with Opened(tmp_path) as opened:
        opened.store.note_setting(controller.setting).result()
        given = opened.submit("k", asked(gpus=2)).inputs
        assert [one.level for one in doctor._stored()] == ["ok"]
        opened.store.commit(controller.step(given, 10).changes, None).result()
        assert [one.level for one in doctor._stored()] == ["ok"]
    connection = sqlite3.connect(tmp_path / "controller" / "brim.db")
    with connection:
        connection.execute(statement)
    connection.close()
    assert [one.text.partition("brim.db: ")[2] for one in doctor._stored()] == [said]


def test_processes_that_have_outlived_their_attempt_are_named(tmp_path, monkeypatch):
    """One that carries the mark of an attempt, one that is named; of an attempt that the controller has let go."""
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    monkeypatch.setattr(doctor, "LOOK_AGAIN_S", 0.0)
    folder = attempt_folder(agent_folder(), 7, 2)
    folder.mkdir(parents=True)
    children = [
        subprocess.Popen(["sleep", "1000"], env={GANG_VARIABLE: mark}) for mark in (folder_id(folder), "another's")
    ]
    try:
        assert list(doctor._left()) == [], "the attempt may live"
        (folder / FORGOTTEN).touch()
        said = "process {} of attempt 2 of job 7 lives, and that attempt has ended"
        assert list(doctor._left()) == [("wrong", said.format(children[0].pid))]
        note_processes(folder, boot_id(), known([children[1].pid]))
        assert list(doctor._left()) == [("wrong", said.format(child.pid)) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert list(doctor._left()) == []


@pytest.mark.parametrize(("step", "level", "said"), [(-1, "note", "an older brim wrote"), (1, "wrong", "a newer brim")])
def test_a_store_of_another_brim_is_one_line(stored, step, level, said):
    connection = sqlite3.connect(stored, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + step}")
    connection.execute("ALTER TABLE jobs DROP COLUMN lost_gpu_s")
    connection.close()
    (found,) = doctor._stored()
    assert (found.level, said in found.text) == (level, True)


def test_a_file_that_is_no_store_is_named(stored):
    stored.write_bytes(b"no database" * 1_000)
    (found,) = doctor._stored()
    assert found.level == "wrong"
    assert "cannot be read" in found.text


def test_without_a_store_there_is_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    assert list(doctor._stored()) == []


@pytest.mark.parametrize(("tree", "said"), [
    (CgroupTree(missing="why not"), [("note", "jobs have no cgroups: why not; units"), ("note", "processes of a job")]),
    (CgroupTree(path="/sys/x", missing="no memory"), [("ok", "each job has a cgroup in /sys/x"), ("note", "the mem")]),
    (CgroupTree(path="/sys/x"), [("ok", "each job has a cgroup in /sys/x: the kernel ends all its processes")]),
])  # fmt: skip
def test_doctor_says_what_holds_the_processes_of_a_job_together(tmp_path, monkeypatch, tree, said):
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    folder = agent_folder()
    folder.mkdir()
    note_tree(folder, tree)
    assert list(doctor._containers()) == [], "no agent runs"
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = list(doctor._containers())
    finally:
        os.close(lock)
    assert [(one.level, one.text[: len(text)]) for one, (_, text) in zip(found, said, strict=True)] == said
