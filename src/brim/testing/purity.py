"""Finds reads that a pure part must not make: of clocks, files and random numbers without a seed.

While a decision is made, the interpreter reports every call of a function written in C (``sys.setprofile``), whichever
way the part reached it: ``from time import time`` at the top of its file, ``datetime.now``, ``pathlib.Path.stat``. The
check does not see reads of environment variables, the ``hash`` of a string (which differs between processes), calls
made inside compiled code, and whatever a part does only in situations that were not tried.
"""

from __future__ import annotations

import builtins
import datetime
import io
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

import numpy as np

ValueT = TypeVar("ValueT")

_CLOCKS: Final = frozenset({
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime",
    "ctime", "asctime", "strftime", "sleep",
})
_FILES: Final = frozenset({
    "stat", "lstat", "fstat", "access", "open", "read", "listdir", "scandir", "readlink", "getcwd", "getloadavg",
    "times",
})
_FORBIDDEN: Final[dict[Any, str]] = {
    **{getattr(time, name): "a clock" for name in _CLOCKS if hasattr(time, name)},
    **{getattr(os, name): "a file or the system" for name in _FILES if hasattr(os, name)},
    builtins.open: "a file", io.open_code: "a file", os.urandom: "random numbers",
}
_NOW: Final = ("now", "utcnow", "today")
_NOT_ITS_OWN: Final = (
    "<frozen importlib", *(f"{os.sep}{name}{os.sep}" for name in ("numba", "llvmlite", "hypothesis")),
)
"""Imports, compilations and Hypothesis' hooks into the garbage collector read clocks and files without deciding."""


def outside_reads(decide: Callable[[], ValueT]) -> tuple[ValueT, str]:
    """Call a function and watch what it reads.

    Returns:
        Its value, and a description of the first read that a pure function must not make; empty for none.
    """
    found: list[str] = []
    outermost = sys._getframe()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if found:
            return
        what = ""
        if event == "c_call":
            what = _read_by(called)
        elif event == "call" and frame.f_code is _SEED and frame.f_locals.get("a") is None:
            what = "random numbers (a generator without a seed)"
        if what and not _incidental(frame, outermost):
            name = getattr(called, "__qualname__", "seed")
            found.append(f"{what}: {name}, called in {_place(frame, outermost)}")

    before, drawn = sys.getprofile(), _generators()
    sys.setprofile(watch)
    try:
        value = decide()
    finally:
        sys.setprofile(before)
    if not found and _generators() != drawn:
        found.append("random numbers: from a generator of the whole process, random.random or numpy.random")
    return value, found[0] if found else ""


_SEED: Final = random.Random.seed.__code__


def _generators() -> bytes:
    """State of the random generators shared by the whole process."""
    return pickle.dumps((random.getstate(), np.random.get_state()))


def _read_by(called: Any) -> str:
    """Describe what a C function reads; empty if it reads only its arguments."""
    owner = getattr(called, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, datetime.date) and called.__name__ in _NOW:
        return "a clock"
    return _FORBIDDEN.get(called, "")


def _incidental(frame: FrameType | None, outermost: FrameType) -> bool:
    while frame is not None and frame is not outermost:
        if any(where in frame.f_code.co_filename for where in _NOT_ITS_OWN):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType, outermost: FrameType) -> str:
    """The innermost line outside the standard library."""
    library = os.path.dirname(os.__file__)
    inner: FrameType | None = frame
    while inner is not None and inner is not outermost:
        name = inner.f_code.co_filename
        if not name.startswith(("<frozen", library)) or "site-packages" in name:
            return f"{os.path.basename(name)}, line {inner.f_lineno}"
        inner = inner.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
