"""Zygotes with torch: what starts in a process forked from one starts seconds sooner. One of them is for all tests."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from brim.gang.launch_config import PRELOAD

ROOT = Path(__file__).parents[1]
FOLDER_VARIABLE = "BRIM_TEST_ZYGOTE"
"""Environment: where the one for all tests listens."""
MODULES = ("torch._inductor.compile_fx", "pytest")
"""What it has besides: ranks of tests compile, and import the modules of their functions."""


def start(folder: Path, *modules: str) -> subprocess.Popen[bytes]:
    """Start one for many gangs, with these modules besides those that ranks import. It ends with this process."""
    words = [sys.executable, "-m", "brim.gang.zygote", "--listen", str(folder / "z")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # as ranks have it, else they are not forked
    env.pop("BRIM_TEST_MARK", None)  # it outlives the test
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [*words, "--preload", ",".join([*PRELOAD, *modules])], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip


def listens(folder: Path, ended: Callable[[], object] = lambda: None) -> str:
    """Path of the socket of the one that was started there, once it listens."""
    deadline_s = time.monotonic() + 300  # it imports torch, beside much else
    while not (folder / "z").exists():
        assert ended() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline_s, (folder / "log").read_text()
        time.sleep(0.05)
    return str(folder / "z")


@contextlib.contextmanager
def shared(folder: Path, *modules: str) -> Iterator[str]:
    """One for many gangs: path of its socket."""
    process = start(folder, *modules)
    try:
        yield listens(folder, process.poll)
    finally:
        process.terminate()
        process.wait(10)


def start_for_all_tests() -> None:
    """Start the one that ``of_tests`` finds, in this process and in those that it starts from now on."""
    folder = Path(tempfile.mkdtemp(prefix="brim-test-"))
    process = start(folder, *MODULES)
    os.environ[FOLDER_VARIABLE] = str(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(process.wait)
    atexit.register(process.terminate)


@functools.cache
def of_tests() -> str:
    """Path of the socket of one for all tests of this process; where it is a worker, of all workers."""
    if FOLDER_VARIABLE not in os.environ:
        start_for_all_tests()
    return listens(Path(os.environ[FOLDER_VARIABLE]))
