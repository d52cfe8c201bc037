"""Where the files and sockets of a user are."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from brim.errors import ConfigError, RefusedError

STATE_VARIABLE: Final = "BRIM_STATE"
"""Environment: the state folder; by default, the user's of the XDG base directory specification."""
RUNTIME_VARIABLE: Final = "BRIM_RUNTIME"
"""Environment: the folder of the controller's sockets."""


def state_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the user's state folder; it may not exist.

    Raises:
        RefusedError: nothing says where it is, because the user has no home folder.
        ConfigError: the environment names a file.
    """
    if given := env.get(STATE_VARIABLE):
        if os.path.exists(given) and not os.path.isdir(given):
            raise ConfigError(f"{STATE_VARIABLE}: found {given}, which is a file, expected a folder")
        return Path(given).absolute()
    base = env.get("XDG_STATE_HOME", "")
    try:
        return (Path(base) if os.path.isabs(base) else Path(env.get("HOME") or Path.home()) / ".local/state") / "brim"
    except RuntimeError as error:
        raise RefusedError(f"user {os.getuid()} has no home folder: set HOME or {STATE_VARIABLE}") from error


def agent_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the user's agent in the state folder; it may not exist."""
    return state_folder(env) / "agent"


def captures_folder(agent: Path) -> Path:
    """Return the folder of the captures of an agent."""
    return agent / "captures"


def log_folder(agent: Path, job: int, attempt: int) -> Path:
    """Return the folder of the logs of an attempt, one ``rank-N.log`` for each rank."""
    return attempt_folder(agent, job, attempt) / "log"


def attempt_folder(agent: Path, job: int, attempt: int) -> Path:
    """Return the folder of an attempt."""
    return agent / "attempts" / f"{job}-{attempt}"


def make_private(path: Path) -> None:
    """Make this folder if it is missing, and those above it; what is made is of this user only.

    Raises:
        OSError: it cannot be made.
    """
    for folder in (*reversed(path.parents), path):
        with contextlib.suppress(FileExistsError):
            if not folder.is_dir():
                folder.mkdir(0o700)


def runtime_folder(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """Return the folder of the sockets of the controller that ``uid`` (None: this user) runs; it may not exist."""
    return Path(env.get(RUNTIME_VARIABLE) or f"/tmp/brim-{os.getuid() if uid is None else uid}").absolute()


def check_runtime_folder(path: Path, uid: int) -> None:
    """Check that the folder belongs to this user, who alone can write to it, and is no link.

    Raises:
        RefusedError: it is not so; another user could have put a socket there.
        OSError: there is no such folder.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise RefusedError(f"{path}: expected a folder of user {uid}, which that user alone can write to")
