"""States of an older brim: they are gone on with, or left as they are; and the way back."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from brim.core.cluster import parse_cluster
from brim.core.lifecycle import Phase
from brim.errors import RefusedError
from brim.live.controller import Controller
from brim.live.store import migrations, schema
from brim.live.store.reading import Recovered
from brim.live.store.store import Store
from brim.policies.presets import find_policy
from tests.live.store.stores import StoppedClock
from tests.live.store.test_folder import contents

BEFORE = Path(__file__).parent / "version-1.db.gz"
"""Made by brim 0.1.0 of version aa34044, whose CPU slots had the type ``cpu-slot``: job 1 runs on device 0 of two."""


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "controller"
    folder.mkdir(mode=0o700)
    (folder / "brim.db").write_bytes(gzip.decompress(BEFORE.read_bytes()))
    return folder


def opened(folder: Path, cluster: str) -> Controller:
    """The controller of a cluster that goes on with the state."""
    controller = Controller(parse_cluster(cluster), find_policy("backfill"))

    def goes_on(found: Recovered, now_ms: int) -> None:
        Controller(controller.scheduler.state.cluster, find_policy("backfill")).recover(
            found.snapshot, found.lines, found.jobs, found.attempts, now_ms
        )

    store = Store(folder, lambda _: None, goes_on, clock=StoppedClock())
    try:
        found = store.load()
        controller.recover(found.snapshot, found.lines, found.jobs, found.attempts, store.now_ms())
    finally:
        store.close()
    return controller


def version(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return migrations.version_of(connection)


def test_a_type_of_another_name_keeps_its_running_job(folder):
    controller = opened(folder, "1x2xcpu:cpus=2,mem=23.54GB")
    state = controller.scheduler.state
    assert state.phase(1) is Phase.RUNNING
    assert controller.ledger.of(1).devices == (0,)
    assert controller.is_moved
    assert version(folder / "brim.db") == len(schema.MIGRATIONS)


def test_what_is_refused_is_not_upgraded(folder):
    before = contents(folder)
    with pytest.raises(RefusedError, match=r"the cluster was 1x2xcpu-slot.* and is 1x3xcpu.*"):
        opened(folder, "1x3xcpu")
    assert contents(folder) == before


def test_the_state_of_before_stays_beside_the_new_one(folder):
    (folder / "brim.db.version-0").touch()
    opened(folder, "1x2xcpu")
    assert sorted(contents(folder)) == ["brim.db", "brim.db.version-1"]
    kept = folder / "brim.db.version-1"
    assert version(kept) == 1
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.replace(folder / "brim.db")
    opened(folder, "1x2xcpu-slot")


def test_without_room_for_a_copy_nothing_changes(folder, monkeypatch):
    before = contents(folder)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("brim.live.store.upgrade._copy", full)
    with pytest.raises(Exception, match=r"cannot be opened: database or disk is full; the volume .* bytes free"):
        opened(folder, "1x2xcpu")
    assert contents(folder) == before
