"""The few file operations a checkpoint is made of.

Everything that a `Checkpointer` does to a disk goes through `Files`, so that a test can record the operations, kill
the process between any two of them, cut the power, fill the disk, or damage what was written. Paths are strings. Every
operation may raise ``OSError``; what that means for a checkpoint is decided in ``folder.py``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol


class Files(Protocol):
    """What a checkpoint needs of a file system. Handles are integers that this object gave out."""

    def make_folder(self, path: str) -> None:
        """Create one folder; its parent exists, it does not (``FileExistsError``)."""

    def make_folders(self, path: str) -> None:
        """Create a folder and its missing parents, each durable in the one above; fine if it is there."""

    def create(self, path: str) -> int:
        """Open a new file for writing; ``FileExistsError`` if there is one."""

    def write(self, handle: int, data: memoryview) -> None:
        """Append all of ``data``."""

    def sync(self, handle: int) -> None:
        """Return once the bytes of the file are durable; its name may not be."""

    def close(self, handle: int) -> None:
        """Give the handle back."""

    def sync_folder(self, path: str) -> None:
        """Return once the names in this folder are durable."""

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same parent, at once or not at all."""

    def remove(self, path: str) -> None:
        """Delete a file or a symbolic link."""

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""

    def names(self, path: str) -> list[str]:
        """Names in a folder, in any order."""

    def is_link(self, path: str) -> bool:
        """Whether this name is a symbolic link."""

    def free_bytes(self, path: str) -> int:
        """Bytes that this user may still write below ``path``."""

    def open(self, path: str, *, fresh: bool) -> int:
        """Open for reading; ``fresh`` asks for the disk's bytes, not cached ones, as far as they can be had."""

    def size(self, handle: int) -> int:
        """Length in bytes of an open file."""

    def read(self, handle: int, into: memoryview) -> int:
        """Fill the front of ``into`` from where the last read ended; bytes read, 0 at the end."""


class RealFiles:
    """`Files` on the file system of this machine."""

    def make_folder(self, path: str) -> None:
        """Create one folder."""
        os.mkdir(path)

    def make_folders(self, path: str) -> None:
        """Create a folder and what is missing above it, and make each name durable."""
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or parent == path:
            return
        self.make_folders(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return
        self.sync_folder(parent)

    def create(self, path: str) -> int:
        """Open a new file for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, data: memoryview) -> None:
        """Append all of ``data``; the kernel may take it in parts."""
        while data:
            data = data[os.write(handle, data) :]

    def sync(self, handle: int) -> None:
        """Fsync a file."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def sync_folder(self, path: str) -> None:
        """Fsync a folder; file systems that cannot (some network mounts answer EINVAL) are taken as they are."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Rename."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Unlink."""
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def names(self, path: str) -> list[str]:
        """List a folder."""
        return os.listdir(path)

    def is_link(self, path: str) -> bool:
        """Whether this is a symbolic link."""
        return os.path.islink(path)

    def free_bytes(self, path: str) -> int:
        """Free bytes for those who are not root; a user's quota is not seen here."""
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def open(self, path: str, *, fresh: bool) -> int:
        """Open for reading; ``fresh`` drops clean pages from the cache first, a hint that kernels usually follow."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if fresh:
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return handle

    def size(self, handle: int) -> int:
        """Length in bytes."""
        return os.fstat(handle).st_size

    def read(self, handle: int, into: memoryview) -> int:
        """Read on."""
        return os.readv(handle, [into])
