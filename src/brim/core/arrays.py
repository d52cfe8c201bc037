"""Array types of the columnar tables. Suffixes in names give shapes: J jobs, N nodes, G grants, U users."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]


ArrayT = TypeVar("ArrayT", bound=NDArray[Any])


def frozen(array: ArrayT) -> ArrayT:
    """Return a read-only view of the array that, unlike a read-only array, ``setflags`` cannot make writable again."""
    return cast(ArrayT, np.asarray(memoryview(cast(Any, array)).toreadonly()))


def set_frozen_state(self: Any, state: list[Any]) -> None:
    """Unpickle a frozen dataclass with slots; its arrays are read-only, as they were.

    NumPy unpickles read-only arrays as writable ones, for which numba would compile every function a second time.
    """
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, frozen(value) if isinstance(value, np.ndarray) else value)
