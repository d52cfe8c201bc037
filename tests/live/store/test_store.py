"""What the store keeps: ids, keys, inputs, records, snapshots, audit; and what it refuses to keep."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from brim.errors import ConfigError, InvariantError, NotFoundError, RefusedError
from brim.live.inputs import Cancel, Submit
from brim.live.records import ENDED, AttemptRecord, StartForecast, TokenRecord
from brim.live.requests import NONE
from brim.live.store.cluster_time import SystemClock
from brim.live.store.errors import KeyReusedError, NotAcceptedError, TooManyJobsError
from brim.live.store.store import Store
from brim.live.store.transactions import Accepted
from tests.live.store.stores import Opened, StoppedClock, asked, running, submission


@pytest.fixture
def opened(tmp_path):
    with Opened(tmp_path) as opened:
        yield opened


def test_the_same_key_and_requests_are_the_same_jobs(opened):
    first = opened.submit("k", asked("a"), asked("b"))
    assert first.ids == (1, 2)
    assert opened.submit("k", asked("a"), asked("b")) == Accepted((1, 2), ())
    assert opened.submit("other", asked("a")).ids == (3,)
    assert opened.submit("k", uid=2).ids == (4,), "another user's key"
    assert [given.job.id for given in opened.delivered] == [1, 2, 3, 4], "a repetition is not delivered"


@pytest.mark.parametrize("requests", [("a", "c"), ("a",), ("a", "b", "c"), ("b", "a")])
def test_a_key_stands_for_one_submission(opened, requests):
    opened.submit("k", asked("a"), asked("b"))
    with pytest.raises(KeyReusedError, match="key k was used for job 1, which was asked for in other words"):
        opened.submit("k", *map(asked, requests))
    assert [job.id for job in opened.store.reads.newest_jobs(10)] == [2, 1]


@pytest.mark.parametrize("key", ["", "a b", "a\n", "é", "k" * 129])
def test_a_key_is_short_and_printable(key):
    with pytest.raises(ConfigError, match="key: found "):
        submission(key)


def test_a_submission_has_jobs():
    with pytest.raises(ConfigError, match="jobs: found 0, expected 1 to"):
        replace(submission("k"), requests=())


def test_a_submission_is_accepted_whole_or_not_at_all(opened):
    opened.submit("k")
    with pytest.raises(NotFoundError, match="after: found job 7, expected one that exists"):
        opened.submit("l", asked("a"), asked("b", after=(1, 7)))
    assert opened.submit("l", asked("a", after=(1,))).ids == (2,), "neither an id nor the key is used up"


def test_a_user_may_have_so_many_jobs_and_a_repetition_counts_not(opened):
    def submit(key, count, uid=1):
        item = replace(submission(key, *[asked()] * count, uid=uid), jobs_max=3)
        return opened.store.accept(item).result(30).ids

    assert submit("k", 2) == (1, 2)
    with pytest.raises(TooManyJobsError, match=r"ann has 2 jobs .* and submits 2, and a user may have 3"):
        submit("l", 2)
    assert submit("l", 1) == (3,)
    assert submit("k", 2) == (1, 2)
    assert submit("k", 3, uid=2) == (4, 5, 6)


def test_a_job_is_written_as_it_was_asked_for(opened):
    clock_ms = opened.store.now_ms()
    (one, other) = opened.submit("k", asked("a", hold=True, array_index=0), asked("b", array_index=1)).inputs
    assert isinstance(one, Submit)
    assert (one.job.state, one.job.holds, one.job.array) == ("held", ("user",), 1)
    assert (other.job.state, other.job.holds, other.job.array) == ("pending", (), 1)
    assert (one.job.submit_ms, one.job.submitted_s, one.job.user) == (clock_ms, 1e9, "ann")
    assert opened.job(1) == one.job
    assert opened.submit("l").inputs[0].job.array == NONE


def test_a_command_needs_a_job(opened):
    with pytest.raises(NotFoundError, match="cancel: found job 1, expected one that exists"):
        opened.command("cancel", 1)
    with pytest.raises(NotFoundError, match="job 1 does not exist"):
        opened.job(1)


def test_what_is_accepted_is_given_again_until_it_is_done(tmp_path):
    with Opened(tmp_path) as opened:
        opened.submit("k", asked("a"), asked("b"))
        opened.command("cancel", 2)
        opened.commit(inbox_done=(1,))
        assert opened.delivered[2] == Cancel(inbox=3, at_ms=opened.store.now_ms(), job=2, user="ann")
        left = opened.delivered[1:]
    with Opened(tmp_path) as opened:
        assert list(opened.store.load().inputs) == left
        assert opened.submit("l").inputs[0].inbox == 4
        ended = replace(opened.job(2), state="cancelled", ended_ms=5)
        opened.commit(jobs=(ended,))
        assert opened.store.load().inputs[0].job == ended, "an input that is not done names the job as it is now"
        opened.commit(inbox_done=(2, 3, 4))
    with Opened(tmp_path) as opened:
        assert opened.store.load().inputs == ()
        assert opened.submit("m").inputs[0].inbox == 5, "a number is never used twice"


def test_everything_of_a_job_and_of_an_attempt_comes_back(tmp_path):
    with Opened(tmp_path) as opened:
        opened.submit("k")
        job = replace(
            opened.job(1), state="running", holds=("begin", "after 3"), reason="it runs", attempt=2, devices=(0, 3),
            failures=1, preemptions=4, exit_code=137, first_start_ms=7, samples_done=0.1, samples_total=1e12,
            lost_gpu_s=3.5, samples_again=64.0,
        )  # fmt: skip
        attempt = AttemptRecord(
            job=1, number=2, uid=1, state="stopping", sequence=5, devices=(0, 3), ranks=2, batch=64, loader_workers=3,
            decided_ms=1, begin_ms=2, start_ms=3, stop_ms=4, stop_reason="preempted", end_ms=5, outcome="failed",
            exit_code=1, blame="node", detail="é", samples_first=0.5, samples_first_ms=6,
        )  # fmt: skip
        opened.commit(jobs=(job,), attempts=(attempt,))
    with Opened(tmp_path) as opened:
        assert opened.job(1) == job
        assert opened.store.reads.attempts(1) == (attempt,)
        assert opened.store.load().jobs == (job,)
        assert opened.store.load().attempts == (attempt,)


def test_recovery_gets_what_has_not_ended(opened):
    opened.submit("k", *map(asked, "abc"))
    opened.start(1, 0)
    opened.commit(attempts=(replace(running(1, 1), state="ended", outcome="stopped"),))
    opened.start(1, 1, attempt=2)
    opened.commit(attempts=(replace(running(1, 2), state="ended", outcome="failed"),))
    opened.commit(jobs=(replace(opened.job(2), state="finished", ended_ms=9),))
    loaded = opened.store.load()
    assert [job.id for job in loaded.jobs] == [1, 3]
    assert [(attempt.job, attempt.number) for attempt in loaded.attempts] == [(1, 2)], "the newest, which has ended"


def test_a_snapshot_takes_the_place_of_the_journal(opened):
    opened.commit(at_ms=1, lines=("a", "b"))
    assert opened.store.load().snapshot is None
    opened.commit(at_ms=2, lines=("c",), snapshot=b"abc")
    opened.commit(at_ms=3, lines=("d", "e"))
    loaded = opened.store.load()
    assert (loaded.snapshot, loaded.lines) == (b"abc", ("d", "e"))
    opened.commit(at_ms=4, snapshot=b"abcde")
    loaded = opened.store.load()
    assert (loaded.snapshot, loaded.lines) == (b"abcde", ())
    assert opened.store.reads._connection.execute("SELECT count(*) FROM journal").fetchone() == (0,)


def test_the_history_says_since_when_there_is_a_journal(opened):
    opened.commit(lines=('{"t": 5}', '{"t": 7}'))
    assert opened.store.reads.history().since_ms == 0
    opened.commit(lines=('{"t": 9}',), snapshot=b"state")
    assert opened.store.reads.history().since_ms == opened.store.reads.history().seen_ms, "nothing is left of it"
    opened.commit(lines=('{"t": 11}', '{"t": 12}'))
    assert opened.store.reads.history().since_ms == 11


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_end_is_never_overwritten(opened, state):
    opened.submit("k")
    ended = replace(opened.job(1), state=state, ended_ms=5)
    opened.commit(jobs=(ended,))
    with pytest.raises(InvariantError, match="a job that has ended was given another state"):
        opened.commit(jobs=(replace(ended, state="pending", ended_ms=NONE),))
    opened.commit(jobs=(replace(ended, reason="said later"),))
    assert opened.job(1).reason == "said later"


def test_an_end_has_a_time_and_nothing_else_has(opened):
    opened.submit("k")
    for changes in ({"state": "failed"}, {"ended_ms": 5}):
        with pytest.raises(InvariantError, match="the store refuses what contradicts it"):
            opened.commit(jobs=(replace(opened.job(1), **changes),))


def test_a_device_is_held_by_attempts_whose_shares_it_has(opened):
    opened.submit("k", *map(asked, "abc"))
    opened.start(1, 0, share_milli=500)
    opened.start(2, 0, share_milli=500)
    with pytest.raises(InvariantError, match="device 0 is given to attempt 1 of job 3 while attempt 1 of job 1 holds"):
        opened.start(3, 0, share_milli=1)
    assert [one.share_milli for one in opened.store.reads.attempts(2)] == [500]


def test_a_device_is_held_once(opened):
    opened.submit("k", *map(asked, "ab"))
    opened.start(1, 0, 1)
    with pytest.raises(InvariantError, match="device 1 is given to attempt 1 of job 2 while attempt 1 of job 1 holds"):
        opened.start(2, 2, 1)
    assert opened.job(2).state == "pending", "nothing of the step was written"
    opened.commit(attempts=(replace(running(2, 1, 1), state="waiting"),))
    opened.commit(attempts=(replace(running(1, 1, 1), state="ended"), running(2, 1, 1)))
    with pytest.raises(InvariantError, match="an attempt that has ended was given another state"):
        opened.commit(attempts=(running(1, 1, 5),))


def test_a_step_that_contradicts_the_store_is_refused_whole(opened):
    opened.submit("k")
    unknown = replace(opened.job(1), id=9)
    with pytest.raises(InvariantError, match="a step changed 2 jobs, and the store has 1 of them"):
        opened.commit(jobs=(opened.job(1), unknown), lines=("a",))
    with pytest.raises(InvariantError, match="FOREIGN KEY"):
        opened.commit(attempts=(replace(running(9, 1), state="waiting"),), lines=("a",))
    with pytest.raises(InvariantError, match="NOT NULL"):
        opened.commit(jobs=(replace(opened.job(1), samples_done=float("nan")),), lines=("a",))
    assert opened.store.load().lines == ()


def test_one_bad_request_of_a_group_fails_alone(tmp_path):
    """All wait while the first is written, so that they become one group."""
    with Opened(tmp_path) as opened:
        inside, go = threading.Event(), threading.Event()
        opened.store._deliver = lambda _: (inside.set(), go.wait())
        first = opened.store.accept(submission("first"))
        inside.wait()
        bad = replace(submission("bad"), user="\ud800")
        futures = [opened.store.accept(item) for item in (submission("a"), bad, submission("b"), submission("c"))]
        go.set()
        assert isinstance(futures[1].exception(), UnicodeEncodeError)
        assert [first.result().ids, *(futures[place].result().ids for place in (0, 2, 3))] == [(1,), (2,), (3,), (4,)]
        assert groups(opened.store) == 2


def groups(store: Store) -> int:
    with sqlite3.connect(store._folder.database) as connection:
        (number,) = connection.execute("SELECT number FROM last_group").fetchone()
    connection.close()
    return number


def test_two_hundred_threads_submit_at_once(tmp_path):
    with Opened(tmp_path) as opened:
        results: dict[int, tuple[Accepted, Accepted]] = {}
        begin = threading.Barrier(200)

        def submit(number: int) -> None:
            begin.wait()
            results[number] = (opened.submit(f"k{number}"), opened.submit(f"k{number}"))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(first.ids[0] for first, _ in results.values()) == list(range(1, 201))
        assert all(first.ids == again.ids for first, again in results.values())
        assert [given.inbox for given in opened.delivered] == list(range(1, 201)), "delivered in the order of the inbox"
        assert groups(opened.store) < 200, "some shared a transaction"


def test_too_many_that_wait_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("brim.live.store.group_writer.QUEUE_MAX", 3)
    with Opened(tmp_path) as opened:
        inside, go = threading.Event(), threading.Event()
        opened.store._deliver = lambda _: (inside.set(), go.wait())
        futures = [opened.store.accept(submission("k"))]
        inside.wait()
        futures += [opened.store.accept(submission(f"k{number}")) for number in range(3)]
        with pytest.raises(NotAcceptedError, match="3 requests wait to be written: nothing was accepted, try again"):
            opened.store.accept(submission("late"))
        go.set()
        assert [future.result().ids for future in futures] == [(1,), (2,), (3,), (4,)]


def test_what_is_cancelled_before_it_is_written_is_not_written(tmp_path):
    with Opened(tmp_path) as opened:
        inside, go = threading.Event(), threading.Event()
        opened.store._deliver = lambda _: (inside.set(), go.wait())
        opened.store.accept(submission("first"))
        inside.wait()
        gone: Future[Accepted] = opened.store.accept(submission("gone"))
        assert gone.cancel()
        go.set()
        assert opened.submit("last").ids == (2,)
        assert opened.job(2).key == "last"


def test_closing_writes_what_waits(tmp_path):
    with Opened(tmp_path) as opened:
        futures = [opened.store.accept(submission(f"k{number}")) for number in range(50)]
    assert [future.result().ids[0] for future in futures] == list(range(1, 51))
    with pytest.raises(NotAcceptedError, match="the store is closed"):
        opened.store.accept(submission("late"))


def test_the_audit_names_who_did_what_and_only_grows(opened):
    opened.submit("k", asked("train"))
    opened.command("cancel", 1)
    opened.commit(at_ms=7, jobs=(replace(opened.job(1), reason="no change of state"),))
    opened.commit(at_ms=8, jobs=(replace(opened.job(1), state="cancelled", ended_ms=8, reason="as asked"),))
    assert opened.audit("at_ms", "wall_s", "uid", "user", "verb", "job", "detail") == [
        (0, 1e9, 1, "ann", "submit", 1, "train"),
        (0, 1e9, 1, "ann", "cancel", 1, ""),
        (8, 1e9, -1, "controller", "cancelled", 1, "as asked"),
    ]
    with sqlite3.connect(opened.store._folder.database) as connection:
        for statement in ("DELETE FROM audit", "UPDATE audit SET user = 'eve'"):
            with pytest.raises(sqlite3.IntegrityError, match="the audit only grows"):
                connection.execute(statement)
    connection.close()


def test_a_token_is_found_by_its_digest_until_its_user_revokes_it(tmp_path):
    with Opened(tmp_path) as opened:
        made = opened.store.add_token(uid=1, user="ann", label="laptop", digest="ab" * 32, expires_s=2e9).result()
        assert made == TokenRecord(id=1, uid=1, user="ann", label="laptop", made_s=1e9, expires_s=2e9)
    with Opened(tmp_path) as opened:
        store = opened.store
        assert store.reads.token("ab" * 32) == made
        assert store.reads.token("cd" * 32) is None
        assert store.reads.tokens(1) == (made,)
        assert store.reads.tokens(2) == ()
        with pytest.raises(InvariantError, match="UNIQUE"):
            store.add_token(uid=2, user="eve", label="same", digest="ab" * 32, expires_s=2e9).result()
        with pytest.raises(NotFoundError, match="token 1 does not exist"):
            store.revoke_token(uid=2, user="eve", number=1).result()
        store.revoke_token(uid=1, user="ann", number=1).result()
        assert store.reads.token("ab" * 32) is None
        assert store.add_token(uid=1, user="ann", label="new", digest="ab" * 32, expires_s=2e9).result().id == 2
        assert opened.audit("verb", "detail") == [
            ("make token", "1 laptop"), ("revoke token", "1"), ("make token", "2 new")]


def test_the_first_forecast_of_a_job_counts_and_is_scored_when_it_starts(tmp_path):
    with Opened(tmp_path) as opened:
        assert opened.submit("k", *[asked()] * 4).ids == (1, 2, 3, 4)
        around = StartForecast(150, 100, 200, 120, 180)
        opened.store.note_forecasts({1: around, 2: around, 3: around, 99: around}, "fifo").result()
        opened.store.note_forecasts({2: StartForecast(950, 900, 1_000, 900, 1_000)}, "fifo").result()
        assert opened.store.reads.forecasts_hit() == (0, 0), "none has started"
        opened.commit(jobs=tuple(
            replace(opened.job(job), first_start_ms=start) for job, start in ((1, 200), (2, 950), (4, 150))
        ))
        opened.store.note_forecasts({4: around}, "fifo").result()
        assert opened.store.reads.forecasts_hit() == (2, 1), "a forecast of what has happened is none"
        assert opened.store.reads.forecasts("las", 9) == (), "another policy's tell nothing of this one"
    with Opened(tmp_path) as opened:
        assert opened.store.reads.forecasts_hit() == (2, 1)
        record = opened.store.reads.forecasts("fifo", 9)
        assert [row[1:] for row in record] == [(150, 120, 180, start, -1) for start in (-1, 950, 200)], "newest first"
        assert opened.store.reads.forecasts("fifo", 1) == record[:1]


def test_the_newest_jobs_that_finished_are_read_with_their_attempts(opened):
    opened.submit("k", *[asked()] * 4)
    for job in (1, 2, 4):
        opened.start(job, 0)
        ended = replace(running(job, 1, 0), state="ended", outcome="finished", exit_code=0, end_ms=5)
        state = "failed" if job == 4 else "finished"
        opened.commit(jobs=(replace(opened.job(job), state=state, ended_ms=5),), attempts=(ended,))
    jobs, attempts = opened.store.reads.finished(9)
    assert ([job.id for job in jobs], [attempt.job for attempt in attempts]) == ([1, 2], [1, 2])
    assert [job.id for job in opened.store.reads.finished(1)[0]] == [2]


def test_readers_cannot_write(opened):
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        opened.store.reads._connection.execute("DELETE FROM jobs")


def test_every_file_is_private_from_its_creation(tmp_path):
    with Opened(tmp_path) as opened:
        opened.submit("k")
        folder = tmp_path / "controller"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == dict.fromkeys(("brim.db", "brim.db-shm", "brim.db-wal", "lock"), 0o600)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_long_log_is_copied_into_the_database(tmp_path, monkeypatch):
    monkeypatch.setattr("brim.live.store.group_writer.WAL_BYTES_MAX", 100_000)
    with Opened(tmp_path) as opened:
        wal, longest = tmp_path / "controller" / "brim.db-wal", 0
        for number in range(40):
            opened.commit(lines=("x" * 10_000,))
            opened.submit(f"k{number}")
            longest = max(longest, wal.stat().st_size)
        assert 0 < longest < 300_000
        with sqlite3.connect(tmp_path / "controller" / "brim.db") as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchone()
            for _ in range(20):
                opened.commit(lines=("x" * 10_000,))
            assert wal.stat().st_size > 200_000, "a reader that goes on is not disturbed"
        reader.close()
        opened.commit(lines=("x" * 10_000,))
        opened.commit()
        assert wal.stat().st_size < 100_000
        assert len(opened.store.load().lines) == 61


def test_time_goes_on_through_restarts_and_reboots(tmp_path):
    clock = StoppedClock()
    with Opened(tmp_path, clock) as opened:
        assert opened.store.now_ms() == 0
        clock.boottime += 500
        assert opened.store.now_ms() == 500
    clock.boottime += 500
    with Opened(tmp_path, clock) as opened:
        assert opened.store.now_ms() == 1_000, "the machine ran meanwhile"
        clock.wall -= 1e8
        opened.submit("k")
        clock.boottime += 10
    clock.boot_id, clock.boottime = "second", 3
    with Opened(tmp_path, clock) as opened:
        assert opened.store.now_ms() == 1_000, "the last time that the store knows of"
        clock.boottime += 40
        opened.commit(at_ms=1_040)
    clock.boottime = 20
    with Opened(tmp_path, clock) as opened:
        assert opened.store.now_ms() == 1_040, "a boot clock that went back"
        clock.boottime += 1
        assert opened.store.now_ms() == 1_041
        assert len(opened.store.reads.anchors()) == 3


def test_a_second_controller_is_refused(tmp_path):
    with Opened(tmp_path), pytest.raises(RefusedError, match=rf"a controller \(process {os.getpid()}\) already uses"):
        Opened(tmp_path)
    Opened(tmp_path).store.close()


def test_the_clock_of_the_machine_counts_from_its_start():
    """And is not the wall clock, which may be set."""
    before_s = float(Path("/proc/uptime").read_text().split()[0])
    counted_s = SystemClock().boottime_ms() / 1000
    assert before_s - 0.1 <= counted_s < time.time() / 2
