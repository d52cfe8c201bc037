"""Values of any size in the store of a group."""

from __future__ import annotations

from typing import Any, Final

_PART_BYTES: Final = 4 * 1024 * 1024
"""Largest part of a value that is stored under one key: the store of PyTorch closes the connection above 8 MiB."""


def put_value(store: Any, key: str, value: bytes) -> None:
    """Store a value: its parts first, then their number under the key itself, for which others wait."""
    starts = range(0, len(value), _PART_BYTES)
    for part, start in enumerate(starts):
        store.set(f"{key}/{part}", value[start : start + _PART_BYTES])
    store.set(key, str(len(starts)))


def get_value(store: Any, key: str) -> bytes:
    """Return a value, once it is stored."""
    return b"".join(store.get(f"{key}/{part}") for part in range(int(store.get(key))))


def delete_value(store: Any, key: str) -> None:
    """Delete a value that is stored."""
    for part in range(int(store.get(key))):
        store.delete_key(f"{key}/{part}")
    store.delete_key(key)
