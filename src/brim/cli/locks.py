"""Whether a controller or an agent runs: each holds the lock on a file of its folder while it does."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from brim.agent.folders import agent_folder


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def agent_runs() -> bool:
    """Whether an agent of this user runs."""
    return is_locked(agent_folder() / "lock")
