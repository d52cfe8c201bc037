"""Whether modules are as they were shipped: a policy file may replace what the compiled loops implement themselves.

A function is as shipped if its code was compiled in brim, under the name at which it stands; that holds whenever it was
replaced. Everything else, such as constants, is compared with what it was when the comparison was made.
"""

from __future__ import annotations

import collections
import dataclasses
import reprlib
import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Final

import brim

_FOLDER: Final = str(Path(brim.__file__).parent)
_OTHERS: Final = frozenset({*sys.stdlib_module_names, "numpy", "numba"})
"""Packages whose functions the modules import by name."""
_MAKERS: Final = frozenset(str(module.__file__) for module in (collections, dataclasses, reprlib, typing))
"""Files from which named tuples, dataclasses and protocols get methods."""
_MADE_FROM_TEXT: Final = frozenset(
    {"__init__", "__new__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"}
)
"""Methods that dataclasses and named tuples compile from text."""


class AsShipped:
    """The contents of modules of brim, for later comparison.

    Args:
        modules: Names of modules that have been imported.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = tuple(sorted(set(modules)))
        self._before = list(self._contents())

    def holds(self) -> bool:
        """Whether nothing has been replaced."""
        now = list(self._contents())
        return len(now) == len(self._before) and all(
            name == before and value is known and _is_shipped(name, value)
            for (name, value), (before, known) in zip(now, self._before, strict=True)
        )

    def _contents(self) -> Iterator[tuple[str, object]]:
        """Qualified name and value of everything in the modules, and in the classes that they define."""
        for module in self._modules:
            for name, value in vars(sys.modules[module]).items():
                if name.startswith("__"):
                    continue
                yield name, value
                if isinstance(value, type) and value.__module__ == module:
                    for key, each in vars(value).items():
                        if not key.startswith("__") or _code_of(each) is not None:  # Python adds others when it likes
                            yield f"{name}.{key}", each


def _is_shipped(name: str, value: object) -> bool:
    """Whether a function's code was compiled in a file of brim under this name; True for what is no function."""
    code = _code_of(value)
    if code is None or code.co_filename in _MAKERS:
        return True
    if code.co_filename == "<string>" and name.rpartition(".")[2] in _MADE_FROM_TEXT:
        return True
    if "." not in name and str(getattr(value, "__module__", "")).partition(".")[0] in _OTHERS:
        return True
    return code.co_filename.startswith(_FOLDER) and code.co_qualname == name


def _code_of(value: object) -> CodeType | None:
    """The code of a function, a compiled function, a property or a method of a class; None for anything else."""
    for inner in ("py_func", "fget", "__func__"):
        value = getattr(value, inner, value)
    return getattr(value, "__code__", None)
