"""Compiled functions: numba's ``njit`` with a cache that knows when it is stale (docs/decisions/0005).

numba's own cache looks at the file a function stands in, not at the files of the functions it calls: after an edit of
one module, another would go on running old code. So the cache lives in a folder named after a digest of all compiled
sources, under ``$XDG_CACHE_HOME/brim``. With ``NUMBA_BOUNDSCHECK=1``, as some tests set it for
a process of their own, an index outside its array raises IndexError; that code is cached in another folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

SOURCES: Final = (
    "beliefs/batching.py", "policies/place/room.py", "policies/place/walk.py", "policies/size/knapsack.py",
    "sim/lane.py", "reports/bounds.py", "reports/charts/gantt.py",
)
"""Every module that compiles, relative to this package; a test keeps the list complete."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _cache_dir() -> Path:
    checked = os.environ.get("NUMBA_BOUNDSCHECK", "")
    digest = hashlib.sha256(f"{numba.__version__} {checked}".encode())
    for source in SOURCES:
        digest.update((Path(__file__).parent / source).read_bytes())
    folder = f"brim/compiled-{digest.hexdigest()[:16]}"
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / folder
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to, as in some containers
        return Path(tempfile.gettempdir()) / f"{os.getuid()}" / folder
    return wanted


_CACHE_DIR: Final = _cache_dir()
setattr(numba.config, "CACHE_DIR", str(_CACHE_DIR))  # noqa: B010 - numba declares no attributes there


def is_cold() -> bool:
    """Nothing is in the cache yet: the first calls will take some ten seconds longer than later ones."""
    return not any(_CACHE_DIR.rglob("*.nbi"))


def njit(function: FunctionT) -> FunctionT:
    """Compile at the first call; later processes load the machine code from the cache."""
    return cast(FunctionT, numba.njit(cache=True)(function))


def inline(function: FunctionT) -> FunctionT:
    """Compile into the caller; for functions of a few lines on a hot path."""
    return cast(FunctionT, numba.njit(cache=True, inline="always")(function))
