"""What the first run on a machine says while it compiles, on a terminal and in a pipe; later runs say nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.cli import compiling
from brim.cli.compiling import CompileStep, compile_first
from brim.core.lifecycle import Phase
from brim.policies.sockets import Sizes
from brim.testing import job, snapshot_of

COMPILES = """
import sys, time
sys.path.insert(0, {folder!r})
import kernel
from brim.cli import compiling
from brim.cli.compiling import CompileStep, compile_first
compiling.QUIET_S = {quiet_s}
compile_first([
    CompileStep(name=name, key=name, run=lambda: (time.sleep({sleep_s}), kernel.doubled(21)))
    for name in ("fifo", "srtf")
])
print(kernel.doubled(21))
"""
DONE = r"brim: compiled the scheduling kernels in \d+ s of CPU time"


def compiles(tmp_path, sleep_s, quiet_s=1.0):
    """A process that compiles a kernel in two steps, in an empty cache; each step takes so long, and a little more.

    Args:
        quiet_s: Time from which on a step is reported.
    """
    (tmp_path / "kernel.py").write_text("from brim.compiled import njit\n\n@njit\ndef doubled(x):\n    return x + x\n")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = COMPILES.format(folder=str(tmp_path), sleep_s=sleep_s, quiet_s=quiet_s)
    return {"args": [sys.executable, "-c", code], "env": env}


@pytest.fixture
def command(tmp_path):
    return compiles(tmp_path, 1)


def piped(command):
    done = subprocess.run(**command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "42\n"
    return done.stderr.splitlines()


def on_terminal(command, columns):
    """Everything that the process writes to a terminal of so many columns."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    with subprocess.Popen(**command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 1 << 12):
                said += chunk
        except OSError:  # the process has ended, and with it the other side
            pass
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


@pytest.mark.slow
def test_in_a_pipe_it_says_what_it_does_and_what_it_took_and_nothing_later(command):
    first, last = piped(command)
    assert first == "brim: compiling the scheduling kernels, once for this version of brim: 1 to 2 minutes of CPU time"
    assert re.fullmatch(DONE, last)
    assert piped(command) == []


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 120])
def test_on_a_terminal_one_line_shows_each_step_and_is_replaced(command, columns):
    said = on_terminal(command, columns)
    parts = said.removeprefix("\r\x1b[K").split("\r\x1b[K")
    what = "once for this version of brim: 1 to 2 minutes of CPU time"
    told = "brim: compiling the scheduling kernels ({} of 2: {}), " + what
    assert parts[:-1] == [told.format(1, "fifo")[: columns - 1], told.format(2, "srtf")[: columns - 1]]
    assert re.fullmatch(DONE + "\r\n", parts[-1])
    assert on_terminal(command, columns) == ""


def test_an_interrupt_names_the_compilation_and_no_policy(tmp_path):
    def interrupted():
        raise KeyboardInterrupt("policy 'fifo', order")

    with pytest.raises(KeyboardInterrupt, match=r"^while the scheduling kernels were compiled$"):
        compile_first([CompileStep(name="fifo", key=f"interrupted {tmp_path.name}", run=interrupted)])


def test_the_search_for_places_is_compiled_once_by_the_step_and_by_rounds():
    from brim.policies.place import gang_places
    from brim.policies.place.workers_and_servers import WorkersAndServers

    next(step for step in compiling.kernels() if step.key == "servers").run()
    kernels = [gang_places.num_gpus, gang_places.search, gang_places.write_ranks, gang_places.fits, gang_places.change]
    assert [len(kernel.signatures) for kernel in kernels] == [1] * len(kernels)
    snapshot = snapshot_of("1x2xT4", job(gpus=2, on=[(0, 0), (0, 1)], phase=Phase.RUNNING, start=0), job(), now=5)
    sizes = Sizes(gpus=np.array([2, 1]), servers=np.ones(2, dtype=np.int64), server_milli=np.ones(2, dtype=np.int64))
    for order in ([0, 1], [1, 0]):  # the first asks for a server more, then the second takes a GPU of it
        WorkersAndServers()(snapshot, Beliefs(), np.array(order), sizes)
    assert [len(kernel.signatures) for kernel in kernels] == [1] * len(kernels)


def test_what_takes_less_than_a_second_is_not_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # a step that needs nothing new
    assert compiling.QUIET_S == 1.0
    assert piped(compiles(tmp_path, 0, quiet_s=100.0)) == []  # in place of the second, on however slow a machine


@pytest.mark.slow
def test_a_trace_that_does_not_fit_its_cluster_is_refused_before_the_steps_run(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "1"}
    brim = [sys.executable, "-m", "brim.cli.main"]
    subprocess.run([*brim, "trace", "synth", "philly", "t.parquet", "-n", "20"], cwd=tmp_path, env=env, check=True)
    for command in (["run"], ["compare", "-p", "fifo,srtf"]):
        refused = subprocess.run(
            [*brim, "sim", *command, "t.parquet", "-c", "1x1xV100"],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        )
        assert refused.returncode == 2
        assert "which cluster 1x1xV100 (1 GPU) could not give it even when empty" in refused.stderr
        assert "compil" not in refused.stderr
    assert not list(tmp_path.glob("cache/brim/*/*.ready"))


SLOW = """
import time
from dataclasses import dataclass, replace
from pathlib import Path
from brim.policies.presets import PRESETS

@dataclass(frozen=True)
class Slow:
    def __call__(self, snapshot, beliefs):
        Path("decides").touch()
        time.sleep(600)

policy = replace(PRESETS["srtf"], name="slow", order=Slow())
"""


@pytest.mark.slow
def test_a_users_policy_that_never_returns_keeps_nobody_waiting_and_compiles_nothing(tmp_path):
    """The steps need no code of the user's, so another process can have the lock while a user's part decides."""
    (tmp_path / "slow.py").write_text(SLOW)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "1"}
    brim = [sys.executable, "-m", "brim.cli.main"]
    subprocess.run([*brim, "trace", "synth", "philly", "t.parquet", "-n", "20"], cwd=tmp_path, env=env, check=True)
    slow = subprocess.Popen(
        [*brim, "sim", "run", "t.parquet", "-c", "1x8xV100", "-p", "./slow.py"], cwd=tmp_path, env=env,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until_s = time.monotonic() + 120
        while not (tmp_path / "decides").exists():
            assert slow.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.05)
        lock = "from brim.kernel_cache import lock\nwith lock(lambda: print('waits', flush=True)):\n    print('has it')"
        other = subprocess.run(
            [sys.executable, "-c", lock], env=env, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert other.stdout == "has it\n"
        time.sleep(2)  # longer than a step that is not reported
    finally:
        slow.kill()
    told = slow.communicate()[1]
    assert told.count("compiling the scheduling kernels") == told.count("compiled the scheduling kernels")
    assert {path.stem for path in tmp_path.glob("cache/brim/*/*.ready")} == {step.key for step in compiling.kernels()}
