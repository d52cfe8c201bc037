"""Array types of the columnar tables. Suffixes in names give shapes: J jobs, N nodes, G grants, U users."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]


ArrayT = TypeVar("ArrayT", bound=NDArray[Any])
TableT = TypeVar("TableT")


_as_array: Callable[[Any], Any] = np.asarray  # typed so that ``frozen`` needs no ``cast``, a call at run time


def frozen(array: ArrayT) -> ArrayT:
    """Return a read-only view of the array that, unlike a read-only array, ``setflags`` cannot make writable again."""
    memory: Any = array
    view: ArrayT = _as_array(memoryview(memory).toreadonly())
    return view


def table_of(kind: type[TableT], columns: Iterable[Any]) -> TableT:
    """Make a frozen dataclass with slots of its columns, in the order of its fields.

    Its own ``__init__`` goes through ``object.__setattr__``, which takes three times as long for dozens of columns.
    """
    table = object.__new__(kind)
    hashable: Any = kind
    for put, column in zip(_puts(hashable), columns, strict=True):
        put(table, column)
    return table


def replaced(table: TableT, **columns: Any) -> TableT:
    """Copy a frozen dataclass with slots and give it other columns: ``dataclasses.replace``, three times as fast."""
    kind: Any = type(table)
    copy = table_of(type(table), _read(kind)(table))
    for name, column in columns.items():
        vars(kind)[name].__set__(copy, column)
    return copy


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _read(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What reads all slots; there are at least two."""
    return attrgetter(*_names(kind))


@cache
def _puts(kind: Any) -> tuple[Callable[[Any, Any], None], ...]:
    """What writes each slot."""
    return tuple(vars(kind)[name].__set__ for name in _names(kind))


def set_frozen_state(self: Any, state: list[Any]) -> None:
    """Unpickle a frozen dataclass with slots; its arrays are read-only, as they were.

    NumPy unpickles read-only arrays as writable ones, for which numba would compile every function a second time.
    """
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, frozen(value) if isinstance(value, np.ndarray) else value)
