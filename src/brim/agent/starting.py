"""Processes that outlive who started them: agents and controllers, in the background, with a log of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start_process(module: str, words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a module as a process of its own session, which writes to the end of ``log`` in a folder.

    The folder is made if it is missing; others cannot read it, nor the log.

    Raises:
        OSError: the process cannot be started, or the log cannot be opened.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, cwd="/",
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(fd)
