"""Replace names by pseudonyms in pages, tables and files that are shown to others.

Users and groups (accounts, partitions, queues) get a keyed hash: a name has the same pseudonym in every file made with
the same key, and without the key a name cannot be found by trial. Jobs are numbered in the order of the trace,
which preserves the order of ties. The file name is removed. GPU types and model names are kept: replays need them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from brim.core.trace import Trace
from brim.errors import ConfigError

KEY_BYTES: Final = 32
PSEUDONYM_CHARACTERS: Final = 8
"""Forty bits: among a hundred thousand names, two collide with a probability of half a percent; all get longer then."""
_MOST_CHARACTERS: Final = 48


def anonymise(trace: Trace, key: bytes) -> Trace:
    """Replace the names of users, groups and jobs, and of the trace itself."""
    return replace(
        trace,
        name="trace",
        job_id=tuple(f"job-{number}" for number in range(1, len(trace) + 1)),
        users=_pseudonyms("user", trace.users, key),
        groups=_pseudonyms("group", trace.groups, key),
    )


def own_key() -> bytes:
    """Return the user's key, ``anonymise.key`` in brim's configuration folder; create it at the first use.

    Raises:
        ConfigError: the file cannot be read or written, or does not hold a key.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "brim"
    path = folder / "anonymise.key"
    try:
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_key(path)
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"key of pseudonyms {path}: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        expected = f"expected {KEY_BYTES}; remove the file to get a new key"
        raise ConfigError(f"key of pseudonyms {path}: found {len(key)} bytes, {expected}")
    return key


def _write_key(path: Path) -> None:
    """Write a new key that only its owner can read, in one step; keep a key that another process wrote meanwhile."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(os.urandom(KEY_BYTES))
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    finally:
        part.unlink()


def _pseudonyms(kind: str, names: tuple[str, ...], key: bytes) -> tuple[str, ...]:
    digests = [hmac.digest(key, f"{kind}\0{name}".encode("utf-8", "surrogatepass"), hashlib.sha256) for name in names]
    texts = [base64.b32encode(digest).decode("ascii").lower() for digest in digests]
    length = PSEUDONYM_CHARACTERS
    while length < _MOST_CHARACTERS and len({text[:length] for text in texts}) < len(texts):
        length += 1
    return tuple(f"{kind}-{text[:length]}" for text in texts)
