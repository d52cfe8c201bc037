"""Several replays: what depends on the trace alone is computed once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from brim import traces
from brim.cli import replays
from brim.core.cluster import parse_cluster
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import BOUNDS, ReplaySettings


class Noted:
    """Rigid jobs, and a file with a line for each time that their bounds are computed."""

    name, contended = "rigid", False

    def __init__(self, rigid: Rigid, log: Path) -> None:
        self._rigid, self._log = rigid, log

    def __getattr__(self, name: str) -> object:
        return getattr(self._rigid, name)

    @property
    def shortest_ms(self):
        with self._log.open("a") as file:
            file.write("bounds\n")
        return self._rigid.shortest_ms


@dataclass(frozen=True)
class Recipe:
    log: Path

    def build(self, trace, cluster, seed=0):
        return Noted(Rigid(trace), self.log)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_bounds_are_computed_once_for_all_policies_on_a_trace(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(replays.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(replays, "JOBS_HERE", 0)
    cluster, settings = parse_cluster("2x4xT4"), ReplaySettings()
    drawn = [traces.synthesize("philly", jobs=8, seed=seed) for seed in (1, 2)]
    recipe = Recipe(tmp_path / "log")
    tasks = [
        replays.Task(trace=trace, cluster=cluster, policy=policy, settings=settings, truth=recipe)
        for trace in drawn for policy in ("fifo", "srtf", "las")
    ]
    found = list(replays.run_all(tasks))
    assert recipe.log.read_text().splitlines() == ["bounds"] * len(drawn)
    for task, outcome in zip(tasks, found, strict=True):
        alone = replays.replay_task(task)
        for name in (*BOUNDS, "finish_ms"):
            np.testing.assert_array_equal(getattr(outcome, name), getattr(alone, name), err_msg=name)


SENDS = """
import os, signal
from multiprocessing import parent_process
from brim import traces
from brim.cli import replays
from brim.core.cluster import parse_cluster
from brim.errors import BrimError
from brim.sim.truth_option import RIGID
from brim.sim.twin import ReplaySettings

class Stops:
    '''Stops the parent of the process that replays, so that its result fills the pipe.'''
    def build(self, trace, cluster, seed=0):
        if parent_process() is not None:
            os.kill(os.getppid(), signal.SIGSTOP)
        return RIGID.build(trace, cluster, seed)

if __name__ == "__main__":
    replays.JOBS_HERE = 0
    trace, cluster = traces.synthesize("philly", jobs=4, seed=1), parse_cluster("2x4xT4")
    settings = ReplaySettings(notes=("x" * 10_000_000,))
    tasks = [replays.Task(trace=trace, cluster=cluster, policy=policy, settings=settings, truth=Stops())
             for policy in ("fifo", "sjf")]
    try:
        print(len(list(replays.run_all(tasks))))
    except BrimError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_sends_its_result_ends_the_comparison(tmp_path):
    """Its parent waited for the rest, of which other processes held the pipe open."""
    (tmp_path / "sends.py").write_text(SENDS)
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(tmp_path)}  # four jobs
    with subprocess.Popen([sys.executable, tmp_path / "sends.py"], env=env, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as run:  # fmt: skip
        children, sending = Path(f"/proc/{run.pid}/task/{run.pid}/children"), []
        while not sending:
            assert run.poll() is None
            time.sleep(0.02)
            sending = [pid for pid in children.read_text().split() if sends(pid)]
        os.kill(int(sending[0]), signal.SIGKILL)
        try:
            until_s = time.monotonic() + 60
            while run.poll() is None and time.monotonic() < until_s:
                os.kill(run.pid, signal.SIGCONT)  # the other process may stop it later
                time.sleep(0.02)
            said, _ = run.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert said.startswith("the process of a replay died;")


def sends(pid):
    """Whether a thread of this process is in a write to a full pipe or socket."""
    try:
        waits = [(task / "wchan").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(place in wait for wait in waits for place in ("pipe_write", "sock_alloc_send"))


HANGS = """
import os, sys
from multiprocessing import parent_process
from brim import traces
from brim.cli import replays
from brim.core.cluster import parse_cluster
from brim.sim.twin import ReplaySettings

class Hangs:
    '''Never comes back in a process of a replay.'''
    def build(self, trace, cluster, seed=0):
        assert parent_process() is not None
        open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
        while True:
            pass

if __name__ == "__main__":
    replays.JOBS_HERE, os.cpu_count = 0, lambda: 2
    trace, cluster = traces.synthesize("philly", jobs=4, seed=1), parse_cluster("2x4xT4")
    replays._bounds = lambda task, known: {}  # else the parent hangs, too
    list(replays.run_all([
        replays.Task(trace=trace, cluster=cluster, policy=policy, settings=ReplaySettings(), truth=Hangs())
        for policy in ("fifo", "sjf")
    ]))
"""


@pytest.mark.slow
def test_replays_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    noted = tmp_path / "pids"
    noted.mkdir()
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, tmp_path / "hangs.py", noted], env=env, start_new_session=True) as run:
        try:
            until_s = time.monotonic() + 60
            while len(list(noted.iterdir())) < 2:
                assert run.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.02)
            run.kill()
            until_s = time.monotonic() + 10
            while left := [one for one in noted.iterdir() if Path(f"/proc/{one.name}").exists()]:
                assert time.monotonic() < until_s, left
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
