"""Where compiled code is kept between processes, and the lock of who compiles (docs/decisions/0005).

numba's own cache checks the file that defines a function, not the files of the functions it calls: after an edit of
one module, another would still run old code. The cache is therefore in a folder named after a digest of all compiled
sources, under ``$XDG_CACHE_HOME/brim``. Their path is part of the digest, because numba does not run code of a source
at another path. With ``NUMBA_BOUNDSCHECK=1``, which some tests set for a process of their own, an index outside its
array raises IndexError; that code is cached in another folder.

A process that compiles locks that folder, so that one of several processes compiles and the others load the result.
The kernel frees the lock of a process that ends in any way.

If that folder cannot be written to, one of the user's among the temporary files is used; numba itself would write
beside the sources. numba is not loaded here: a verb that only asks whether all is compiled answers at once.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

SOURCES: Final = (
    "beliefs/batching.py", "beliefs/loading.py", "core/changes.py", "core/columns.py", "core/energy.py", "core/sums.py",
    "engine/rows.py", "policies/feed/throughput.py", "policies/place/faults.py", "policies/place/free_resources.py",
    "policies/place/gang_places.py", "policies/place/walk.py",
    "policies/size/knapsack.py", "sim/compiled/loop.py", "sim/compiled/orders.py", "sim/compiled/queues.py",
    "reports/bounds.py", "reports/charts/gantt.py",
)
"""Every module with compiled functions, relative to this package; a test keeps the list complete."""
CONSTANTS: Final = (
    "compiled.py", "beliefs/runtime.py", "core/events.py", "core/lifecycle.py", "core/reasons.py", "core/setting.py",
    "core/tables.py", "core/trace.py", "core/usage.py", "units.py",
)
"""Modules whose constants compiled functions read: options of compilation, codes, and places of columns."""


def _cache_dir() -> Path:
    checked = os.environ.get("NUMBA_BOUNDSCHECK", "")
    package = Path(__file__).parent
    digest = hashlib.sha256(f"{version('numba')} {checked} {package}".encode())
    for source in SOURCES + CONSTANTS:
        digest.update((package / source).read_bytes())
    name = f"compiled-{digest.hexdigest()[:16]}"
    try:
        wanted = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brim" / name
        wanted.mkdir(parents=True, exist_ok=True)
        writable = all(os.access(path, os.W_OK) for path in (wanted, *wanted.iterdir()))
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return _temporary(name)
    return wanted if writable else _temporary(name)  # as in some containers, or after `sudo brim`


def _temporary(name: str) -> Path:
    """Return a folder among the temporary files that nobody else can write to, because numba unpickles what is there.

    A folder that somebody else made under the name in question is not used, but a new one, until this process ends.
    """
    ours = Path(tempfile.gettempdir()) / f"brim-{os.getuid()}"
    try:
        for folder in (ours, ours / name):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
                raise PermissionError(f"{folder} is not this user's alone")
    except OSError:
        made = tempfile.mkdtemp(prefix="brim-")
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        return Path(made)
    return ours / name


CACHE_DIR: Final = _cache_dir()
"""The folder."""
failed: Final[list[OSError]] = []
"""Why code could not be loaded or saved in this process, one entry for each function."""
_mine = threading.RLock()
_held: Final[list[int | None]] = []
"""Descriptors of the lock file while this process holds the lock: one, or none."""


@contextmanager
def lock(waits: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock, so that no other process compiles meanwhile.

    Args:
        waits: Called once if another process holds the lock and this one has to wait.
    """
    with _mine:
        if _held:  # compiling one function compiles those that it calls
            yield
            return
        descriptor = _lock_file()
        try:
            if descriptor is not None:
                _wait_for(descriptor, waits)
            _held.append(descriptor)
            yield
        finally:
            _held.clear()
            if descriptor is not None:
                os.close(descriptor)


def _wait_for(descriptor: int, waits: Callable[[], object]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waits()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _lock_file() -> int | None:
    """Return a descriptor to lock; None if the folder cannot be written or its file system has no locks."""
    try:
        CACHE_DIR.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(CACHE_DIR / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # another process holds it
        return descriptor
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_ready(what: str) -> bool:
    """Return whether everything that ``what`` runs was compiled before on this machine."""
    return (CACHE_DIR / f"{what}.ready").exists()


def set_ready(what: str) -> None:
    """Remember that everything that ``what`` runs is compiled and saved."""
    if failed:
        return
    try:
        (CACHE_DIR / f"{what}.ready").touch()
    except OSError:
        return  # a folder that cannot be written: compiled again by the next process
