"""Where sockets are: the path of a Unix socket has 107 bytes at most, that of a folder may be longer."""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from brim.errors import RefusedError
from brim.gang.unix_socket import PATH_BYTES_MAX

NAME_BYTES_MAX: Final = 17
"""Longest name of a socket in one of these folders, with its slash."""


def folder_id(folder: Path) -> str:
    """Return 16 hexadecimal digits that no other folder of this machine has; they mark the gang of an attempt."""
    return sha256(os.fsencode(folder.absolute())).hexdigest()[:16]


def socket_folder(folder: Path) -> Path:
    """Return the folder, or one with a short path, which then exists, if those of sockets in it would be too long.

    Raises:
        RefusedError: the one with a short path is not this user's only.
        OSError: it cannot be made.
    """
    if len(os.fsencode(folder)) + NAME_BYTES_MAX <= PATH_BYTES_MAX:
        return folder
    short = Path(f"/tmp/brim-agent-{os.getuid()}")
    for each in (short, short / folder_id(folder)):
        with contextlib.suppress(FileExistsError):
            each.mkdir(0o700)
        found = os.lstat(each)
        if each.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o77:
            raise RefusedError(f"{each}: expected a folder that this user alone can use")
    return short / folder_id(folder)


def control_path(folder: Path) -> str:
    """Return the path of the socket of the supervisor of the attempt in this folder; raises like ``socket_folder``."""
    return str(socket_folder(folder) / "control")


def remove_socket_folder(folder: Path) -> None:
    """Remove the one with a short path, if there is one and it is empty."""
    with contextlib.suppress(OSError, RefusedError):
        if (short := socket_folder(folder)) != folder:
            short.rmdir()
