"""Kernels are compiled by one process for all; a process that is killed while compiling blocks no other."""

from __future__ import annotations

import ast
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from brim import compiled, kernel_cache
from brim.core.arrays import IntArray
from brim.core.cluster import parse_cluster
from brim.policies.presets import PRESETS
from brim.sim.twin import replay
from brim.traces import synthesize

KERNEL = """
import sys, time
sys.path.insert(0, {folder!r})
from brim import compiled
import numba.core.event as events

class Compiled(events.Listener):
    def on_start(self, event):
        print("compiled", event.data["dispatcher"].py_func.__name__, flush=True)
    def on_end(self, event):
        pass

events.register("numba:compile", Compiled())
import kernel
print(kernel.doubled(21))
"""


def test_of_four_processes_one_compiles(tmp_path):
    (tmp_path / "kernel.py").write_text(
        "from brim.compiled import njit\n\n@njit\ndef inner(x):\n    return x + x\n\n"
        "@njit\ndef doubled(x):\n    return inner(x)\n"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", KERNEL.format(folder=str(tmp_path))]
    processes = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=120)[0].split("\n") for process in processes]
    assert all("42" in lines for lines in said)
    said_compiled = [line for lines in said for line in lines if line.startswith("compiled")]
    assert sorted(said_compiled) == ["compiled doubled", "compiled inner"]


HOLDER = """
import time
from brim.kernel_cache import lock
with lock():
    print('has it', flush=True)
    time.sleep(60)
"""


def test_a_killed_compiler_leaves_no_lock(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], env=env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "has it\n"
    other = subprocess.Popen(
        [sys.executable, "-c", "from brim.kernel_cache import lock\nwith lock(lambda: print('waits', flush=True)):\n"
                               "    print('has it')"],
        env=env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "waits\n"
    time.sleep(0.1)
    assert other.poll() is None
    os.kill(holder.pid, signal.SIGKILL)
    assert other.communicate(timeout=60)[0] == "has it\n"
    holder.communicate()


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    blocked = tmp_path / "a file"
    blocked.touch()
    env = {**os.environ, "XDG_CACHE_HOME": str(blocked), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "from brim.kernel_cache import lock\nwith lock():\n    print('has it')"], env=env,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "has it\n", done.stderr
    assert Path(blocked).is_file()


FULL = """
import sys
sys.path.insert(0, {folder!r})
from brim import compiled, kernel_cache
import kernel
print(kernel.doubled(21))
kernel_cache.set_ready("all")
print(kernel_cache.is_ready("all"))
"""


@pytest.mark.slow
def test_on_a_full_disk_code_is_compiled_but_not_kept(tmp_path):
    """A tmpfs of 16 KiB, mounted for this process alone, holds no compiled function."""
    (tmp_path / "kernel.py").write_text(
        "from brim.compiled import njit\n\n@njit\ndef inner(x):\n    return x + x\n\n"
        "@njit\ndef doubled(x):\n    return inner(x)\n"
    )
    cache = tmp_path / "cache"
    cache.mkdir()
    mount = 'mount -t tmpfs -o size=16k tmpfs "$1" && shift && exec "$@"'
    mounted = ["unshare", "-m", "sh", "-c", mount, "sh", str(cache)]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    done = subprocess.run(
        [*mounted, sys.executable, "-c", FULL.format(folder=str(tmp_path))], capture_output=True, text=True,
        check=False, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, timeout=120,
    )  # fmt: skip
    assert done.stdout == "42\nFalse\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"brim: compiled code cannot be kept in {cache}/brim/compiled-")
    assert "No space left on device" in line


def test_what_another_copy_has_compiled_is_not_ready(tmp_path):
    """numba compiles again for sources at another path, so nothing may say that it need not."""
    shutil.copytree(Path(kernel_cache.__file__).parent, tmp_path / "copy" / "brim")
    answers = []
    for folder in (str(Path(kernel_cache.__file__).parents[1]), str(tmp_path / "copy")):
        code = f"import sys; sys.path.insert(0, {folder!r})\nfrom brim.kernel_cache import is_ready, set_ready\n"
        code += "print(is_ready('x')); set_ready('x'); print(is_ready('x'))"
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        answers.append(subprocess.check_output([sys.executable, "-c", code], env=env, text=True))
    assert answers == ["False\nTrue\n"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "lock", "subfolder"], ids=["the folder", "a file", "a subfolder"])
def test_a_folder_of_somebody_else_is_not_written_nor_are_the_sources(tmp_path, part):
    (tmp_path / "kernel.py").write_text("from brim.compiled import njit\n\n@njit\ndef doubled(x):\n    return x + x\n")
    code = KERNEL.format(folder=str(tmp_path)) + "print(compiled.CACHE_DIR)"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=120).split("\n")
    assert said[:2] == ["compiled doubled", "42"]
    folder = Path(said[2])
    assert tmp_path / "cache" in folder.parents
    (subfolder,) = (path for path in folder.iterdir() if path.is_dir())
    with _read_only(folder / part.replace("subfolder", subfolder.name)) as command:
        for expected in (["compiled doubled", "42"], ["42"]):  # kept in another folder
            said = subprocess.check_output([*command, sys.executable, "-c", code], env=env, text=True).split("\n")
            assert said[:-2] == expected
            assert Path(said[-2]).parent == tmp_path / f"brim-{os.getuid()}"
    assert not list((tmp_path / "__pycache__").glob("*.nb*"))


@contextmanager
def _read_only(path):
    """Give the words before a command that cannot write to this file or folder; root can, but for a mount."""
    mode = path.stat().st_mode
    path.chmod(mode & 0o555)
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    command = [] if os.getuid() else ["unshare", "-m", "sh", "-c", mount, "sh", str(path)]
    if command and subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield command
    path.chmod(mode)


WHERE = "from brim import kernel_cache; print(kernel_cache.CACHE_DIR)"


def test_the_folder_among_temporary_files_is_of_the_user_alone(tmp_path):
    blocked = tmp_path / "a file"
    blocked.touch()
    env = {**os.environ, "XDG_CACHE_HOME": str(blocked), "TMPDIR": str(tmp_path)}

    def folder():
        return Path(subprocess.check_output([sys.executable, "-c", WHERE], env=env, text=True, timeout=60).strip())

    ours = tmp_path / f"brim-{os.getuid()}"
    made = folder()
    assert made.parent == ours
    assert [path.stat().st_mode & 0o777 for path in (ours, made)] == [0o700, 0o700]
    assert folder() == made
    for path in (made, ours):
        path.chmod(0o777)
        other = folder()
        assert other.parent == tmp_path
        assert other != ours
        assert not other.exists()  # removed as its process ended
        path.chmod(0o700)
    ours.rename(tmp_path / "moved")
    ours.symlink_to(tmp_path / "moved")
    assert folder().parent == tmp_path


_DECORATORS = {"njit", "in_place", "internal", "inline"}
_NO_ARRAYS = {"None", "bool", "int", "float", "GangRequest"}
_OF_NUMBERS = {"math.ceil", "np.floor", "np.log2"}


class Kernel(NamedTuple):
    """A compiled function: where it is, what it returns, and what it calls."""

    path: Path
    name: str
    decorator: str
    result: str
    calls: frozenset[str]


def _kernels():
    for path in sorted(Path(kernel_cache.__file__).parent.rglob("*.py")):
        for each in ast.parse(path.read_text("utf-8")).body:
            for decorator in getattr(each, "decorator_list", ()):
                if isinstance(each, ast.FunctionDef) and getattr(decorator, "id", "") in _DECORATORS:
                    calls = (ast.unparse(node.func) for node in ast.walk(each) if isinstance(node, ast.Call))
                    yield Kernel(path, each.name, decorator.id, ast.unparse(each.returns), frozenset(calls))


def _calls_that_return_arrays(kernel, kernels):
    """What a function calls that may return arrays, also through functions that are compiled into it."""
    for name in kernel.calls:
        if "." in name and name not in _OF_NUMBERS:
            yield name
        equal = [one for one in kernels if one.name == name]
        for one in [one for one in equal if one.path == kernel.path] or equal:
            if not set(re.findall(r"\w+", one.result)) <= {*_NO_ARRAYS, "tuple"}:
                yield name
            if one.decorator == "inline":
                yield from _calls_that_return_arrays(one, kernels)


def test_functions_that_count_no_references_get_no_arrays():
    """Nobody would free them; and whether numba compiles a call of NumPy depends on what it compiled before."""
    kernels = list(_kernels())
    assert len(kernels) > 100
    calls = frozenset({"walk", "_table", "all_free", "_list_options", "most.max", "choose", "gang_of", "math.ceil"})
    found = set(_calls_that_return_arrays(Kernel(Path(), "x", "njit", "None", calls), kernels))
    assert found == {"walk", "_table", "all_free", "_list_options", "most.max"}
    for kernel in kernels:
        if kernel.decorator in {"in_place", "internal"}:
            assert not list(_calls_that_return_arrays(kernel, kernels)), kernel


FIRST = """
import numpy as np
from brim.policies.place.free_resources import EXTRA, FreeResources, GangRequest, choose

node = np.array([[1000, 1000, 2, 2, 0, 0, 0, 1]] * 2)
scratch, pairs = np.zeros((2, 2), np.int64), np.zeros((3, 2), np.int64)
print(choose(FreeResources(node, np.array([4])), GangRequest(3, 1000, 0, 0, -1), 0, np.zeros((0, 3)), scratch, pairs))
print(pairs.tolist())
"""


@pytest.mark.slow
def test_a_function_that_counts_no_references_may_be_the_first_that_is_compiled(tmp_path):
    """As after an interrupt; numba knows no function of NumPy yet that another one was compiled with."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", FIRST]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "True\n[[0, 0], [0, 1], [1, 0]]\n", done.stderr[-2_000:]


def test_a_function_that_counts_no_references_returns_no_array():
    def made(size: int) -> IntArray:
        return np.zeros(size, np.int64)

    with pytest.raises(TypeError, match="found the result IntArray"):
        compiled.in_place(made)


@pytest.mark.cases(2)
@pytest.mark.parametrize("preset", ["fifo", "backfill", "srtf", "fair", "tiresias"])
def test_replays_free_all_arrays_that_they_make(preset):
    """Under three of the presets, these are more than 4,000."""
    cluster = parse_cluster("2x8xV100")
    trace = synthesize("philly", jobs=300, seed=1, cluster=cluster, load=0.9)
    replay(trace, cluster, PRESETS[preset])
    _nrt_python.memsys_enable_stats()
    try:
        gc.collect()
        before = rtsys.get_allocation_stats()
        replay(trace, cluster, PRESETS[preset])
        gc.collect()
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.mi_alloc - before.mi_alloc == after.mi_free - before.mi_free
    if preset not in {"fifo", "backfill"}:  # whose loop makes none
        assert after.mi_alloc - before.mi_alloc > 4_000
