"""Convert nested state (of a model, an optimizer, a schedule) to named tensors and JSON, and back without loss.

Values that JSON would change are encoded: containers with their type, which preserves tuples, keys that are numbers,
and the order of keys; floats that are not finite with their bits. Only the types that `flatten_state` lists are
supported; others raise a ``TypeError`` with their path. Nothing is pickled.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brim.train.checkpoint.shards import RESERVED_NAME, tied

Json = Any
"""None, bool, int, float, str, or a list or str-keyed dict of these."""

_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAPPING_OF: dict[str, Callable[[Any], Any]] = {
    "dict": dict, "ordered": OrderedDict, "counter": lambda rows: Counter(dict(rows)),
}  # fmt: skip
_SEQUENCES: dict[type, str] = {tuple: "tuple", torch.Size: "size"}
_SEQUENCE_OF: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "size": torch.Size}


def flatten_state(state: object, *, prefix: str = "") -> tuple[dict[str, Tensor], Json]:
    """Split a nested state into named tensors and JSON.

    Args:
        state: Nested ``dict``, ``OrderedDict``, ``Counter``, ``list``, ``tuple``, ``torch.Size`` of tensors, None,
            bool, int, float, str, bytes, ``torch.dtype``. Subclasses of int, float and str, and numbers and texts of
            NumPy, are converted to these.
        prefix: Prefix of all tensor names.

    Returns:
        Tensors, not copied, by their path in the state (``optimizer.state.0.exp_avg``), and JSON for the rest.
        Tensors with the same memory, type, shape and strides (tied weights) are returned once.

    Raises:
        TypeError: an object has another type; the message has its path.
        ValueError: a container contains itself.
    """
    found: dict[str, Tensor] = {}
    tree = _take_apart(state, prefix, found, ())
    same = tied(found)
    return {name: tensor for name, tensor in found.items() if name not in same}, _rename(tree, same)


def unflatten_state(tensors: Mapping[str, Tensor], tree: Json) -> Any:
    """Rebuild the state that `flatten_state` has split; tied tensors come back as one object.

    Raises:
        KeyError: a tensor is missing.
        ValueError: ``tree`` is not from `flatten_state`.
    """
    match tree:
        case {"tensor": name}:
            return tensors[name]
        case {"float": bits}:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"bytes": digits}:
            return bytes.fromhex(digits)
        case {"dtype": name}:
            return getattr(torch, name)
        case {"keys": kind, "items": rows} if kind in _MAPPING_OF:
            return _MAPPING_OF[kind](
                [(unflatten_state(tensors, key), unflatten_state(tensors, value)) for key, value in rows]
            )
        case {"kind": kind, "items": rows} if kind in _SEQUENCE_OF:
            return _SEQUENCE_OF[kind]([unflatten_state(tensors, row) for row in rows])
        case list():
            return [unflatten_state(tensors, row) for row in tree]
        case None | bool() | int() | float() | str():
            return tree
    raise ValueError(f"this is not JSON from flatten_state: {str(tree)[:80]}")


def _take_apart(state: object, path: str, found: dict[str, Tensor], above: tuple[int, ...]) -> Json:
    if isinstance(state, Tensor):
        return {"tensor": _add(state, path, found)}
    if isinstance(state, dict | list | tuple):
        if id(state) in above:
            raise ValueError(f"{path or 'the state'} contains itself")
        return _container(state, path, found, (*above, id(state)))
    return _scalar(state, path)


def _container(state: Any, path: str, found: dict[str, Tensor], above: tuple[int, ...]) -> Json:
    kind = type(state)
    if kind is list:
        return [_take_apart(row, _join(path, index), found, above) for index, row in enumerate(state)]
    if kind in _SEQUENCES:
        rows = [_take_apart(row, _join(path, index), found, above) for index, row in enumerate(state)]
        return {"kind": _SEQUENCES[kind], "items": rows}
    if kind in _MAPPINGS:
        items = [
            [_key(key, path), _take_apart(value, _join(path, key), found, above)] for key, value in state.items()
        ]
        return {"keys": _MAPPINGS[kind], "items": items}
    raise _unknown(state, path)


def _key(key: object, path: str) -> Json:
    if type(key) is tuple:
        return {"kind": "tuple", "items": [_key(part, path) for part in key]}
    return _scalar(key, f"a key of {path or 'the state'}")


def _scalar(state: object, path: str) -> Json:
    if isinstance(state, np.bool_ | np.integer | np.floating | np.str_ | np.bytes_):
        converted = state.item()  # a longdouble stays one, and is refused below
        state = converted if not isinstance(converted, np.generic) else state
    if state is None or isinstance(state, bool):
        return state
    if isinstance(state, int):
        return int(state)
    if isinstance(state, float):
        value = float(state)
        return value if isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if isinstance(state, str):
        return str(state)
    if isinstance(state, bytes):
        return {"bytes": state.hex()}
    if isinstance(state, torch.dtype):
        return {"dtype": str(state).removeprefix("torch.")}
    raise _unknown(state, path)


def _unknown(state: object, path: str) -> TypeError:
    kind = f"{type(state).__module__}.{type(state).__qualname__}"
    return TypeError(
        f"{path or 'the state'} is a {kind}, which cannot be saved: use dict, OrderedDict, Counter, list, tuple, "
        "tensor, None, bool, int, float, str, bytes or torch.dtype"
    )


def _join(path: str, key: object) -> str:
    name = str(key).encode("utf-8", "backslashreplace").decode()
    return f"{path}.{name}" if path else name


def _add(tensor: Tensor, path: str, found: dict[str, Tensor]) -> str:
    """Name a tensor after its path, and a number if that is taken: the keys "a.b" and "a" -> "b" have one path."""
    name, number = path or "tensor", 1
    while name in found or name == RESERVED_NAME:
        number += 1
        name = f"{path or 'tensor'}~{number}"
    found[name] = tensor
    return name


def _rename(tree: Json, same: Mapping[str, str]) -> Json:
    if not same:
        return tree
    match tree:
        case {"tensor": name}:
            return {"tensor": same.get(name, name)}
        case {"keys": kind, "items": rows}:
            return {"keys": kind, "items": [[key, _rename(value, same)] for key, value in rows]}
        case {"kind": kind, "items": rows}:
            return {"kind": kind, "items": [_rename(row, same) for row in rows]}
        case list():
            return [_rename(row, same) for row in tree]
    return tree
