"""Locks by which processes see whether another attempt of their job lives, or another job is on their device.

They trust neither controller nor agent. A lock ends with the last process that has inherited it, so it also covers what
a job has left behind. A process that sees another holder says so in the file ``violations``, and goes on.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_LOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""


def hold(folder: Path, devices: list[str]) -> list[int]:
    """Hold the locks of this attempt, ``$BRIM_JOB_ID`` and ``$BRIM_ATTEMPT``, and of devices while this process lives.

    Returns:
        The open files that hold them.
    """
    job, attempt = os.environ["BRIM_JOB_ID"], int(os.environ["BRIM_ATTEMPT"])
    me = f"attempt {attempt} of job {job}, process {os.getpid()}"
    fd = os.open(folder / f"job-{job}", os.O_RDWR | os.O_CREAT, 0o600)
    held = [fd]
    _lock(fd, fcntl.F_RDLCK, attempt, 1)  # one byte for each attempt, shared by its ranks
    for start, length in ((0, attempt), (attempt + 1, 0)):
        if length or start:
            _look(folder, fd, start, length, me)
    for device in devices:
        fd = os.open(folder / f"device-{device}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(fd, 200, 0).decode().partition("\n")[0]
            _violated(folder, f"{me}, is on {device} together with {other}")
        os.pwrite(fd, f"{me}\n".encode().ljust(100), 0)
        held.append(fd)
    return held


def holders(folder: Path) -> list[str]:
    """Names of the locks that a process holds now."""
    found = []
    for path in sorted(folder.iterdir()):
        with path.open("r+b") as file:
            if path.name.startswith("device-"):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.append(f"{path.name}: {file.read(100).decode().strip()}")
            elif path.name.startswith("job-") and _holder(file.fileno(), 0, 0):
                found.append(path.name)
    return found


def _lock(fd: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, start, length, 0))


def _holder(fd: int, start: int, length: int) -> bool:
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    return _LOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK


def _look(folder: Path, fd: int, start: int, length: int, me: str) -> None:
    if _holder(fd, start, length):
        _violated(folder, f"{me}, lives together with another attempt of its job")


def _violated(folder: Path, text: str) -> None:
    fd = os.open(folder / "violations", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)
