"""Compiled functions: numba's ``njit`` with a cache that knows when it is stale (``kernel_cache``).

A folder in which code cannot be saved, as on a full disk, costs time only: the process says so and goes on.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
from numba.core.cpu import CPUTargetOptions

from brim.kernel_cache import CACHE_DIR, failed, lock

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

setattr(numba.config, "CACHE_DIR", str(CACHE_DIR))  # noqa: B010 - numba declares no attributes there


_NOT_FROM_C: Final[dict[str, Any]] = {"no_cfunc_wrapper": True}
_NOT_FROM_PYTHON: Final[dict[str, Any]] = {"no_cpython_wrapper": True}
_HAS_NRT: Final = hasattr(CPUTargetOptions, "_nrt")
_COUNTED: Final[dict[str, Any]] = {"_nrt": True} if _HAS_NRT else {}
_UNCOUNTED: Final[dict[str, Any]] = {"_nrt": False} if _HAS_NRT else {}
"""Options that numba's types leave out. Numba has ``_nrt`` for its own tests. A function that is not told, as those of
NumPy, inherits it from the caller for which it is first compiled in a process, and is then used by all others."""
_SCALARS: Final = frozenset({"None", "bool", "int", "float"})


def njit(function: FunctionT) -> FunctionT:
    """Compile at the first call; later processes load the machine code from the cache."""
    return cast(FunctionT, _one_process_compiles(numba.njit(cache=True, **_NOT_FROM_C, **_COUNTED)(function)))


def in_place(function: FunctionT) -> FunctionT:
    """As ``njit``, for a function that makes no arrays and returns none: it counts no references to them.

    It calls no function or method of NumPy on arrays, and no function that returns one. Numba refuses some of those
    calls, or accepts them and never frees what they return: it depends on what was compiled before. A test reads the
    sources.

    Raises:
        TypeError: It returns an array, which nothing would keep.
    """
    _check_scalar(function)
    return cast(FunctionT, _one_process_compiles(numba.njit(cache=True, **_NOT_FROM_C, **_UNCOUNTED)(function)))


def internal(function: FunctionT) -> FunctionT:
    """As ``in_place``, for calls from compiled functions alone: without what translates arguments from Python."""
    _check_scalar(function)
    dispatcher = numba.njit(cache=True, **_NOT_FROM_C, **_NOT_FROM_PYTHON, **_UNCOUNTED)(function)
    return cast(FunctionT, _one_process_compiles(dispatcher))


def _check_scalar(function: Callable[..., Any]) -> None:
    returned = function.__annotations__["return"]
    if returned not in _SCALARS:
        raise TypeError(f"{function.__qualname__}: found the result {returned}, expected one of {sorted(_SCALARS)}")


def inline(function: FunctionT) -> FunctionT:
    """Compile inline into the caller; for functions of a few lines on a hot path."""
    return cast(FunctionT, _one_process_compiles(numba.njit(cache=True, inline="always")(function)))


def _one_process_compiles(dispatcher: Any) -> Any:
    """Hold the lock while compiling; numba first looks into the cache, where another process may have put the code."""
    compile_ = getattr(dispatcher, "compile", None)
    if compile_ is None:  # NUMBA_DISABLE_JIT
        return dispatcher

    def locked(signature: Any) -> Any:
        with lock():
            try:
                return compile_(signature)
            except OSError as error:  # numba's: a full disk, or files of another user
                _report(error)
                dispatcher._cache.disable()
                return compile_(signature)

    dispatcher.compile = locked
    return dispatcher


def _report(error: OSError) -> None:
    """Say once, and in the parent of several processes only, that compiled code is not kept."""
    if not failed and multiprocessing.parent_process() is None:
        why = error.strerror or error
        sys.stderr.write(f"brim: compiled code cannot be kept in {CACHE_DIR} ({why}): every process compiles again\n")
    failed.append(error)
