"""Kernels are compiled by one process for all; a process that is killed while compiling blocks no other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from brim import kernel_cache

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
    compiled = [line for lines in said for line in lines if line.startswith("compiled")]
    assert sorted(compiled) == ["compiled doubled", "compiled inner"]


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
