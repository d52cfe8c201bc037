"""The file operations that checkpoints use.

A `Checkpointer` uses the disk only through `Files`, so that tests can record the operations, kill the process between
any two of them, simulate a power cut or a full disk, or damage files. Paths are strings. Every operation may raise
``OSError``; ``folder.py`` turns it into a `CheckpointError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol


class Files(Protocol):
    """The file system as a checkpoint uses it. Handles are integers, returned by `create` and `open`."""

    def make_folder(self, path: str) -> None:
        """Create a folder in an existing parent; ``FileExistsError`` if it exists."""

    def make_folders(self, path: str) -> None:
        """Create a folder and its missing parents, and make each name durable; an existing folder is left as it is."""

    def create(self, path: str) -> int:
        """Open a new file for writing; ``FileExistsError`` if it exists."""

    def write(self, handle: int, data: memoryview) -> None:
        """Append all of ``data``."""

    def sync(self, handle: int) -> None:
        """Return once the content of the file is durable; its name may not be."""

    def close(self, handle: int) -> None:
        """Close the handle."""

    def sync_folder(self, path: str) -> None:
        """Return once the names in this folder are durable."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder within its parent, atomically."""

    def remove(self, path: str) -> None:
        """Delete a file or a symbolic link."""

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, in any order."""

    def is_link(self, path: str) -> bool:
        """Return whether this path is a symbolic link."""

    def free_bytes(self, path: str) -> int:
        """Return the bytes that this user may still write below ``path``."""

    def open(self, path: str, *, fresh: bool) -> int:
        """Open for reading; ``fresh`` asks for bytes from the disk in place of cached ones, where that is possible."""

    def size(self, handle: int) -> int:
        """Return the length of an open file in bytes."""

    def read(self, handle: int, into: memoryview) -> int:
        """Read the next bytes into the start of ``into``; return their number, 0 at the end of the file."""


class RealFiles:
    """`Files` on the file system of this machine."""

    def make_folder(self, path: str) -> None:
        """Create one folder."""
        os.mkdir(path)

    def make_folders(self, path: str) -> None:
        """Create a folder and its missing parents, and make each name durable."""
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
        """Append all of ``data``; the kernel may write it in parts."""
        while data:
            data = data[os.write(handle, data) :]

    def sync(self, handle: int) -> None:
        """Fsync a file."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def sync_folder(self, path: str) -> None:
        """Fsync a folder, where the file system can: some network mounts cannot, and answer ``EINVAL``."""
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
        """Return whether this is a symbolic link."""
        return os.path.islink(path)

    def free_bytes(self, path: str) -> int:
        """Return the bytes that are free for ordinary users; a user's quota is not taken into account."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def open(self, path: str, *, fresh: bool) -> int:
        """Open for reading; ``fresh`` advises the kernel to drop the file's cached pages, which it usually does."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if fresh:
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return handle

    def size(self, handle: int) -> int:
        """Return the length in bytes."""
        return os.fstat(handle).st_size

    def read(self, handle: int, into: memoryview) -> int:
        """Read the next bytes."""
        return os.readv(handle, [into])
