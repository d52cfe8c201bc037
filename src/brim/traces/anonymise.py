"""Names replaced by pseudonyms, for pages, tables and files that are shown to others.

Users and groups (accounts, partitions, queues) get a keyed hash: a name has the same pseudonym in every file made with
the same key, and without the key nobody can find out by trying names. Jobs are numbered in their order, which keeps
ties as they were. The name of the file is left out. GPU types and the names of models stay: replays need them.
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
"""Forty bits: a hundred thousand names collide with a chance of half a percent, and then get longer pseudonyms."""
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
    """Return this person's key, made at its first use: ``anonymise.key`` in brim's folder of configuration.

    Raises:
        ConfigError: it cannot be read or written, or is not one.
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
        expected = f"expected {KEY_BYTES}; remove it for a new one"
        raise ConfigError(f"key of pseudonyms {path}: found {len(key)} bytes, {expected}")
    return key


def _write_key(path: Path) -> None:
    """Write a new key for its owner alone, whole or not at all; one that another process wrote meanwhile stays."""
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
