"""The folder of a controller: private, on a local disk, and locked by one process at a time.

The file ``lock`` holds two lines: the process that has the lock, and the id of the store once it exists. So a folder
whose database is gone is never taken for a new one.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Final

from brim.errors import RefusedError
from brim.live.store.mounts import mount_of, refuse_network

DATABASE: Final = "brim.db"
LOCK: Final = "lock"
_PROBE: Final = ".probe"
_PROBE_BYTES: Final = 1 << 16
"""More than a small transaction writes: 16 pages of SQLite."""
_HOLDER: Final = "process {:>10}\n"
_HOLDER_BYTES: Final = len(_HOLDER.format(0))
_STORE: Final = re.compile(r"store ([0-9a-f]{32})\n")


class StateFolder:
    """The folder, created where it is missing, and locked until ``close`` or the end of this process.

    Args:
        path: The folder.

    Raises:
        RefusedError: it is on a network file system, cannot be made, belongs to somebody else or is open to others, or
            another controller has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        refuse_network(self.path)
        self.database = self.path / DATABASE
        try:
            self._make()
            self._fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                self._lock()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise RefusedError(
                f"{self.path} cannot be used: {os.strerror(error.errno or 0)} on the volume {mount_of(self.path)}; "
                "mend that, or set BRIM_STATE to another folder"
            ) from None

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            found = os.lstat(self.path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise RefusedError(f"{self.path} is no folder of yours: set BRIM_STATE to one that is") from None
            if found.st_mode & 0o077:
                raise RefusedError(
                    f"{self.path} is open to other users (mode {stat.S_IMODE(found.st_mode):o}), expected 700: "
                    f"run chmod 700 {self.path}"
                ) from None
        else:
            self._sync(self.path.parent)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, _HOLDER_BYTES, 0).decode("ascii", "replace").removeprefix("process").strip()
            raise RefusedError(
                f"a controller (process {holder or 'unknown'}) already uses {self.path}: end it with `brim down`, or "
                "set BRIM_STATE to another folder"
            ) from None
        os.pwrite(self._fd, _HOLDER.format(os.getpid()).encode("ascii"), 0)

    @property
    def store_id(self) -> str:
        """Id of the store that was completed here, empty if none ever was."""
        match = _STORE.match(os.pread(self._fd, 100, _HOLDER_BYTES).decode("ascii", "replace"))
        return match[1] if match else ""

    def complete(self, store_id: str) -> None:
        """Write down, durably, that a store was completed here."""
        self._sync(self.path)
        os.pwrite(self._fd, f"store {store_id}\n".encode("ascii"), _HOLDER_BYTES)
        os.fsync(self._fd)

    def shortage(self) -> str:
        """Why nothing can be written here at present, by trying; empty if it can."""
        probe = self.path / _PROBE
        try:
            fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.write(fd, bytes(_PROBE_BYTES)) < _PROBE_BYTES:
                    return "there is no room"
                os.fsync(fd)
            finally:
                os.close(fd)
                probe.unlink(missing_ok=True)
        except OSError as error:
            return os.strerror(error.errno or 0)
        return ""

    def room(self) -> str:
        """The volume and its free bytes, for people."""
        free = os.statvfs(self.path)
        return f"the volume {mount_of(self.path)} has {free.f_bavail * free.f_frsize} bytes free"

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._fd)

    @staticmethod
    def _sync(folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
