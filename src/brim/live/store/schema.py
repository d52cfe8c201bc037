"""The tables, as the statements of each version: version n+1 is version n after ``MIGRATIONS[n]``.

A version that was released is never edited. The constraints here hold whatever the code above them does: ids are never
used twice, a key stands for one submission, an end is never overwritten, a device is held once, and the audit only
grows.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x4252494D
"""``BRIM``: how a file of ours is told from any other SQLite database."""

_ENDED: Final = "('finished', 'failed', 'cancelled', 'timeout', 'lost')"

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('store_id', lower(hex(randomblob(16))))",
        """CREATE TABLE last_group (
            id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL, at_ms INTEGER NOT NULL
        )""",
        "INSERT INTO last_group VALUES (1, 0, 0)",
        """CREATE TABLE boots (
            id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, boottime_ms INTEGER NOT NULL, cluster_ms INTEGER NOT NULL
        )""",
        f"""CREATE TABLE jobs (
            id INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, user TEXT NOT NULL, key TEXT NOT NULL,
            part INTEGER NOT NULL, request TEXT NOT NULL, array INTEGER NOT NULL, submitted_s REAL NOT NULL,
            submit_ms INTEGER NOT NULL, state TEXT NOT NULL, holds TEXT NOT NULL, reason TEXT NOT NULL,
            attempt INTEGER NOT NULL, devices TEXT NOT NULL, failures INTEGER NOT NULL, preemptions INTEGER NOT NULL,
            exit_code INTEGER NOT NULL, first_start_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
            samples_done REAL NOT NULL, samples_total REAL NOT NULL, lost_gpu_s REAL NOT NULL,
            UNIQUE (uid, key, part),
            CHECK (state IN ('held', 'pending', 'starting', 'running', 'stopping') OR state IN {_ENDED}),
            CHECK ((state IN {_ENDED}) = (ended_ms >= 0))
        )""",
        "CREATE INDEX jobs_open ON jobs (id) WHERE ended_ms < 0",
        "CREATE INDEX jobs_of_user ON jobs (uid, id)",
        "CREATE INDEX jobs_of_array ON jobs (array, id) WHERE array >= 0",
        f"""CREATE TRIGGER an_end_is_final BEFORE UPDATE OF state ON jobs
            WHEN OLD.state IN {_ENDED} AND NEW.state <> OLD.state
            BEGIN SELECT RAISE(ABORT, 'a job that has ended was given another state'); END""",
        """CREATE TABLE attempts (
            job INTEGER NOT NULL REFERENCES jobs, number INTEGER NOT NULL, uid INTEGER NOT NULL, state TEXT NOT NULL,
            sequence INTEGER NOT NULL, devices TEXT NOT NULL, ranks INTEGER NOT NULL, batch INTEGER NOT NULL,
            loader_workers INTEGER NOT NULL, decided_ms INTEGER NOT NULL, begin_ms INTEGER NOT NULL,
            start_ms INTEGER NOT NULL, stop_ms INTEGER NOT NULL, stop_reason TEXT NOT NULL, end_ms INTEGER NOT NULL,
            outcome TEXT NOT NULL, exit_code INTEGER NOT NULL, blame TEXT NOT NULL, detail TEXT NOT NULL,
            samples_first REAL NOT NULL, samples_first_ms INTEGER NOT NULL,
            PRIMARY KEY (job, number),
            CHECK (state IN ('waiting', 'starting', 'running', 'stopping', 'ended'))
        ) WITHOUT ROWID""",
        "CREATE INDEX attempts_open ON attempts (job, number) WHERE state <> 'ended'",
        """CREATE TRIGGER an_attempt_ends_once BEFORE UPDATE OF state ON attempts
            WHEN OLD.state = 'ended' AND NEW.state <> 'ended'
            BEGIN SELECT RAISE(ABORT, 'an attempt that has ended was given another state'); END""",
        """CREATE TABLE device_holds (
            device INTEGER PRIMARY KEY, job INTEGER NOT NULL, number INTEGER NOT NULL,
            FOREIGN KEY (job, number) REFERENCES attempts
        )""",
        "CREATE INDEX device_holds_of_attempt ON device_holds (job, number)",
        """CREATE TABLE inbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, verb TEXT NOT NULL,
            job INTEGER NOT NULL REFERENCES jobs, user TEXT NOT NULL
        )""",
        "CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, line TEXT NOT NULL)",
        """CREATE TABLE snapshots (
            id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL, line INTEGER NOT NULL, data BLOB NOT NULL
        )""",
        """CREATE TABLE audit (
            id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, wall_s REAL NOT NULL, uid INTEGER NOT NULL,
            user TEXT NOT NULL, verb TEXT NOT NULL, job INTEGER NOT NULL, detail TEXT NOT NULL
        )""",
        "CREATE INDEX audit_of_job ON audit (job, id)",
        """CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit
            BEGIN SELECT RAISE(ABORT, 'the audit only grows'); END""",
        """CREATE TRIGGER audit_is_not_cut BEFORE DELETE ON audit
            BEGIN SELECT RAISE(ABORT, 'the audit only grows'); END""",
        """CREATE TABLE tokens (
            id INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, user TEXT NOT NULL, label TEXT NOT NULL,
            made_s REAL NOT NULL, expires_s REAL NOT NULL, digest TEXT NOT NULL UNIQUE
        )""",
    ),
    ("ALTER TABLE attempts ADD COLUMN processes TEXT NOT NULL DEFAULT '[]'",),
    (
        """CREATE TABLE forecasts (
            job INTEGER PRIMARY KEY REFERENCES jobs, made_ms INTEGER NOT NULL, low_ms INTEGER NOT NULL,
            high_ms INTEGER NOT NULL
        )""",
    ),
    ("ALTER TABLE attempts ADD COLUMN gpu_energy_j REAL NOT NULL DEFAULT -1",),
    (
        "ALTER TABLE jobs ADD COLUMN loader_wait_ratio REAL", "ALTER TABLE jobs ADD COLUMN slowdown_ratio REAL",
        "ALTER TABLE attempts ADD COLUMN share_milli INTEGER NOT NULL DEFAULT 1000",
        "ALTER TABLE device_holds RENAME TO whole_holds",
        """CREATE TABLE device_holds (
            device INTEGER NOT NULL, job INTEGER NOT NULL, number INTEGER NOT NULL, share_milli INTEGER NOT NULL,
            PRIMARY KEY (device, job), FOREIGN KEY (job, number) REFERENCES attempts
        )""",
        "INSERT INTO device_holds SELECT device, job, number, 1000 FROM whole_holds",
        "DROP TABLE whole_holds",
        "CREATE INDEX device_holds_of_attempt ON device_holds (job, number)",
        """CREATE TRIGGER a_device_is_given_once AFTER INSERT ON device_holds
            WHEN (SELECT sum(share_milli) FROM device_holds WHERE device = NEW.device) > 1000
            BEGIN SELECT RAISE(ABORT, 'a device was given more than once'); END""",
    ),
    ("ALTER TABLE attempts ADD COLUMN cores_milli INTEGER NOT NULL DEFAULT 0",),
    (
        "ALTER TABLE forecasts ADD COLUMN expected_ms INTEGER NOT NULL DEFAULT -1",
        "ALTER TABLE forecasts ADD COLUMN policy TEXT NOT NULL DEFAULT ''",
    ),
    (
        "ALTER TABLE forecasts ADD COLUMN first_ms INTEGER NOT NULL DEFAULT -1",
        "ALTER TABLE forecasts ADD COLUMN last_ms INTEGER NOT NULL DEFAULT -1",
    ),
    ("ALTER TABLE jobs ADD COLUMN samples_again REAL NOT NULL DEFAULT 0",),
)
