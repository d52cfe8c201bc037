"""A volume under SQLite that remembers every write and sync, and fails where a test wants it to.

SQLite reaches files through a table of functions; here a copy of its own table is put in front, whose functions for
opening, writing, cutting, syncing and removing call a hook first. So a failed sync, a full disk at any write, a kill
between any two system calls and a power cut happen to the very code that runs in production. Memory shared between
connections is not part of it: it does not outlive the machine, and SQLite rebuilds it.
"""

from __future__ import annotations

import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.train.checkpoint.simulated_disk import Op

_ptr, _int, _wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_OPEN = ctypes.CFUNCTYPE(_int, _ptr, _ptr, _ptr, _int, _ptr)
_DELETE = ctypes.CFUNCTYPE(_int, _ptr, _ptr, _int)
_WRITE = ctypes.CFUNCTYPE(_int, _ptr, _ptr, _int, _wide)
_TRUNCATE = ctypes.CFUNCTYPE(_int, _ptr, _wide)
_SYNC = ctypes.CFUNCTYPE(_int, _ptr, _int)


class Vfs(ctypes.Structure):
    """``sqlite3_vfs`` of sqlite3.h, version 3."""

    _fields_ = [
        ("version", _int), ("file_bytes", _int), ("path_max", _int), ("next", _ptr), ("name", ctypes.c_char_p),
        ("data", _ptr), ("open", _OPEN), ("delete", _DELETE), *((f"other{number}", _ptr) for number in range(14)),
    ]  # fmt: skip


class Methods(ctypes.Structure):
    """``sqlite3_io_methods`` of sqlite3.h, version 3."""

    _fields_ = [
        ("version", _int), ("close", _ptr), ("read", _ptr), ("write", _WRITE), ("truncate", _TRUNCATE),
        ("sync", _SYNC), *((f"other{number}", _ptr) for number in range(13)),
    ]  # fmt: skip


class File(ctypes.Structure):
    """``sqlite3_file`` of sqlite3.h."""

    _fields_ = [("methods", ctypes.POINTER(Methods))]


Hook = Callable[[Op], int]
"""Called before an operation; what it returns instead of 0 is the error of SQLite that the operation fails with."""


def _library() -> ctypes.CDLL:
    """The library that Python's own module runs on."""
    sqlite3.connect(":memory:").close()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "libsqlite3" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[-1])
    pytest.skip("SQLite is part of this Python, so that nothing can be put under it")


class Recorder:
    """What SQLite did to the files of one folder, as operations that ``simulated_disk`` can play again."""

    def __init__(self, folder: Path, hook: Hook, *, shared_memory: bool) -> None:
        self.folder, self.hook, self.shared_memory = str(folder) + "/", hook, shared_memory
        self.log: list[Op] = []
        self.numbers: dict[str, int] = {}
        self.made = 0
        self.errors: list[BaseException] = []
        self._not_synced: set[int] = set()
        self._kept: list[object] = []

    def number(self, path: str) -> int:
        """Number of a file; one that is not known is made."""
        name = path.removeprefix(self.folder)
        if name not in self.numbers:
            self.made += 1
            self.numbers[name] = self.made
            self._not_synced.add(self.numbers[name])
            self.log.append(Op("create", 0, name, target=self.numbers[name]))
        return self.numbers[name]

    def path(self, pointer: int | None) -> str:
        """The path, empty for one that is not in the folder. The pointer goes on to SQLite: more stands behind it."""
        path = ctypes.string_at(pointer).decode() if pointer else ""
        return path if path.startswith(self.folder) else ""

    def wrap(self, address: int, path: str) -> None:
        """Put our functions in front of those of an open file."""
        file = File.from_address(address)
        number, real = self.number(path), file.methods.contents
        mine = Methods.from_buffer_copy(real)
        mine.version = real.version if self.shared_memory else 1  # version 1 of the table ends before it
        mine.write = _WRITE(lambda at, data, count, offset: self._do(
            Op("write", number, offset=offset, data=ctypes.string_at(data, count)),
            lambda: real.write(at, data, count, offset)))
        mine.truncate = _TRUNCATE(lambda at, size: self._do(
            Op("truncate", number, offset=size), lambda: real.truncate(at, size)))
        mine.sync = _SYNC(lambda at, flags: self._synced(number, lambda: real.sync(at, flags)))
        self._kept += [mine, real, mine.write, mine.truncate, mine.sync]
        file.methods = ctypes.pointer(mine)

    def _do(self, op: Op, really: Callable[[], int]) -> int:
        try:
            code = self.hook(op)
        except BaseException as error:  # SQLite would go on as if the operation had been done
            self.errors.append(error)
            return sqlite3.SQLITE_ERROR
        if not code:
            code = really()
        if not code:
            self.log.append(op)
        return code

    def _synced(self, number: int, really: Callable[[], int]) -> int:
        code = self._do(Op("sync", number), really)
        if not code and number in self._not_synced:
            self._not_synced.discard(number)
            self.log.append(Op("sync_folder", 0))  # SQLite syncs the folder with the first sync of a new log
        return code

    def removed(self, path: str, sync_folder: int, really: Callable[[], int]) -> int:
        name = path.removeprefix(self.folder)
        code = self._do(Op("remove", 0, name), really)
        self.numbers.pop(name, None)
        if not code and sync_folder:
            self.log.append(Op("sync_folder", 0))
        return code


@contextmanager
def volume(folder: Path, hook: Hook = lambda op: 0, *, shared_memory: bool = True) -> Iterator[Recorder]:
    """All connections that are opened meanwhile to databases of this folder are on such a volume."""
    library = _library()
    library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
    real = library.sqlite3_vfs_find(None)
    recorder = Recorder(folder, hook, shared_memory=shared_memory)

    def opened(vfs: int, pointer: int | None, address: int, flags: int, out: int) -> int:
        code = real.contents.open(vfs, pointer, address, flags, out)
        if not code and (path := recorder.path(pointer)):
            recorder.wrap(address, path)
        return code

    def deleted(vfs: int, pointer: int | None, sync_folder: int) -> int:
        def really() -> int:
            return real.contents.delete(vfs, pointer, sync_folder)

        path = recorder.path(pointer)
        return recorder.removed(path, sync_folder, really) if path else really()

    mine = Vfs.from_buffer_copy(real.contents)
    mine.name, mine.open, mine.delete = b"recorded", _OPEN(opened), _DELETE(deleted)
    library.sqlite3_vfs_register(ctypes.byref(mine), 1)
    try:
        yield recorder
    finally:
        library.sqlite3_vfs_register(real, 1)
        library.sqlite3_vfs_unregister(ctypes.byref(mine))
    if recorder.errors:
        raise recorder.errors[0]
