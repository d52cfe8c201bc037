"""Captures: what a user wants to run, written by the client into the user's own folder and read by the user's agent.

A capture is a JSON file ``captures/<32 hexadecimal digits>.json`` of mode 0600: ``{"version": 1, "command": [...],
"env": {...}, "cwd": "/...", "umask": 18, "limits": {"nofile": 1024}, "slurm": false}``, of which the last three may be
missing. That of an array, of version 2, has its ``"indices": [0, 1]`` too: one job for each. The controller knows the
name of a capture and the SHA-256 of the file, and never sees the content.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brim.agent.folders import make_private
from brim.errors import BrimError, ConfigError, RefusedError
from brim.gang.inherited import AS_IT_IS, Inherited, read_inherited

ONE_JOB: Final = 1
ARRAY: Final = 2
"""Version of a capture with indices, which an older agent would run without one."""
CAPTURE_BYTES_MAX: Final = 4 << 20
"""Longest capture that is read. Ours: Linux gives a process at most 2 MiB of arguments and environment by default."""
_NAME: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a job is run with.

    Attributes:
        command: The words of the command.
        env: Its environment, to which the agent adds.
        cwd: Its working folder.
        inherits: Its umask and limits.
        slurm: Whether it is a script for Slurm, which reads Slurm's variables.
        indices: Of the jobs of an array, each of which may be run; empty for a single job.
    """

    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    inherits: Inherited = AS_IT_IS
    slurm: bool = False
    indices: tuple[int, ...] = ()


def write_capture(
    folder: Path, command: Sequence[str], env: Mapping[str, str], cwd: str, inherits: Inherited = AS_IT_IS, *,
    slurm: bool = False, indices: Sequence[int] = (),
) -> tuple[str, str]:  # fmt: skip
    """Write a capture into the folder of captures; return its name and digest. For the arguments, see ``Capture``.

    Raises:
        ConfigError: no agent would read a file of its size.
        BrimError: the file cannot be written.
    """
    plain = {"version": ONE_JOB, "command": list(command), "env": dict(env), "cwd": cwd, "slurm": slurm}
    plain |= inherits.plain()
    if indices:
        plain |= {"version": ARRAY, "indices": list(indices)}
    data = json.dumps(plain).encode()
    if len(data) > CAPTURE_BYTES_MAX:  # JSON writes a control character as six
        raise ConfigError(
            f"command and environment have {len(data)} bytes as JSON, expected at most {CAPTURE_BYTES_MAX}"
        )
    name = os.urandom(16).hex()
    try:
        make_private(folder)
        fd = os.open(_path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BrimError(f"cannot write into {folder}: {error.strerror}") from None
    return name, hashlib.sha256(data).hexdigest()


def remove_capture(folder: Path, name: str) -> None:
    """Remove a capture that nobody will run, with its folder if that is then empty."""
    with suppress(OSError):
        _path(folder, name).unlink()
        folder.rmdir()


def read_capture(folder: Path, name: str, digest: str) -> Capture:
    """Read a capture, if it is what the user has signed.

    Raises:
        RefusedError: there is no such capture, others can write to it, or its digest differs.
    """
    if not _NAME.fullmatch(name):
        raise RefusedError(f"capture {name!r}: expected 32 hexadecimal digits")
    try:
        with open(_path(folder, name), "rb", opener=_open_no_link) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise RefusedError(f"capture {name}: expected a file that this user alone can write")
            data = file.read(CAPTURE_BYTES_MAX + 1)
    except OSError as error:
        raise RefusedError(f"capture {name}: {error.strerror}") from None
    if len(data) > CAPTURE_BYTES_MAX:
        raise RefusedError(f"capture {name}: found over {CAPTURE_BYTES_MAX} bytes, expected at most that")
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest().encode(), digest.encode("utf-8", "replace")):
        raise RefusedError(f"capture {name}: its content is not what was submitted")
    return _parse(name, data)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # opening a FIFO must not wait for a writer


def _parse(name: str, data: bytes) -> Capture:
    try:
        plain: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError(f"capture {name}: expected JSON") from None
    match plain:
        case {"version": 1 | 2, "command": [str(), *_] as command, "env": dict(env), "cwd": str(cwd)}:
            texts = [*command, *env, *env.values(), cwd]
            indices = plain.get("indices") if plain["version"] == ARRAY else []
            is_whole = isinstance(indices, list) and all(type(index) is int for index in indices)
            if is_whole and all(isinstance(text, str) and "\0" not in text for text in texts):
                try:
                    inherits = read_inherited(plain)
                except ValueError as error:
                    raise RefusedError(f"capture {name}: {error}") from None
                return Capture(command=tuple(command), env=env, cwd=cwd, inherits=inherits,
                               slurm=plain.get("slurm") is True, indices=tuple(indices))
    raise RefusedError(f"capture {name}: expected version 1 or 2 with a command, an environment and a working folder")


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"
