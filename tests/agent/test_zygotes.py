"""Zygotes of an agent: one per environment, ended when idle, started again when needed."""

import os
import sys
import time

import pytest

from brim.agent import zygotes as module
from brim.agent.zygotes import IDLE_MS, Zygotes
from brim.gang import processes

GANG = {"is_gang": True}


@pytest.fixture
def zygotes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PRELOAD", ())
    made = Zygotes(tmp_path / "z")
    yield made
    pids = made.pids()
    made.close()
    for pid in pids:
        os.waitpid(pid, 0)


def path_of(zygotes, command, now_ms=0, *, is_gang=True, env=os.environ):
    """Where the zygote listens, once it does."""
    while True:
        try:
            return zygotes.for_command(command, env, now_ms, is_gang=is_gang)
        except BlockingIOError:
            for pid in zygotes.pids():
                if (ended := os.waitpid(pid, os.WNOHANG)[0]) != 0:
                    zygotes.ended(ended)
            time.sleep(0.02)


def test_gangs_of_one_environment_share_one_and_those_of_another_do_not(zygotes):
    first = path_of(zygotes, [sys.executable, "train.py"])
    assert path_of(zygotes, [sys.executable, "other.py"]) == first
    assert path_of(zygotes, [sys.executable, "train.py"], env={**os.environ, "OMP_NUM_THREADS": "3"}) != first
    assert len(zygotes.pids()) == 2


def test_a_program_is_started_by_the_plain_one(zygotes):
    zygotes.start_plain(0)
    plain = path_of(zygotes, ["/bin/sh"], is_gang=False)
    assert plain.endswith("plain")
    assert path_of(zygotes, ["/bin/sh"]) == plain
    assert path_of(zygotes, [sys.executable, "x.py"], env={**os.environ, "BRIM_ZYGOTE": "off"}) == plain


def test_one_that_was_warmed_is_the_one_that_the_command_then_uses(zygotes):
    assert not zygotes.warm(["/bin/sh"], os.environ, 0, is_gang=False)
    assert zygotes.warm([sys.executable, "train.py"], os.environ, 0, is_gang=False)
    (pid,) = zygotes.pids()
    while not path_of(zygotes, [sys.executable, "x.py"], is_gang=False):
        time.sleep(0.02)
    assert zygotes.pids() == {pid}
    zygotes.end_idle(IDLE_MS + 1, busy=False)
    os.waitpid(pid, 0)
    zygotes.ended(pid)


def test_an_idle_one_is_ended_and_started_again_when_it_is_needed(zygotes):
    path_of(zygotes, [sys.executable, "train.py"])
    (pid,) = zygotes.pids()
    zygotes.end_idle(IDLE_MS, busy=True)
    zygotes.end_idle(2 * IDLE_MS, busy=False)
    assert processes.find_process(pid).state not in "ZX"
    zygotes.end_idle(2 * IDLE_MS + 1, busy=False)
    os.waitpid(pid, 0)
    zygotes.ended(pid)
    path_of(zygotes, [sys.executable, "train.py"])
    assert zygotes.pids() != {pid}


def test_an_environment_without_brim_has_none_and_is_not_tried_again(zygotes, tmp_path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert path_of(zygotes, [str(python), "train.py"]) is None
    assert zygotes.pids() == set()
    assert zygotes.for_command([str(python), "train.py"], os.environ, 0, **GANG) is None
