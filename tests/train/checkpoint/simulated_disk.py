"""A disk in memory that remembers every operation, so that it can be rebuilt as a crash at any of them would leave it.

What a power cut may do: bytes are durable once their file was synced, names once their folder was. Of everything else
any part may have reached the disk, in any order: single sectors of a write, one name and not the one before it, half a
sector.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR = 512
ROOT = "/disk"


@dataclass
class Op:
    kind: str
    at: int
    """Number of the file or folder that it changes."""
    name: str = ""
    new: str = ""
    target: int = -1
    offset: int = 0
    data: bytes = b""


CHANGES = ("make", "create", "write", "truncate", "sync", "sync_folder", "rename", "remove")


@dataclass
class Disk:
    """Implements ``brim.train.checkpoint.files.Files``. ``before`` is called with every operation, and may raise."""

    files: dict[int, bytearray] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    log: list[Op] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda kind, path: None
    free: int = 1 << 40
    damage_write: int = -1
    """Which write silently puts a wrong bit on the disk."""
    handles: dict[int, list[int]] = field(default_factory=dict)
    made: int = 0
    writes: int = 0

    def copy(self) -> Disk:
        """A disk with the same content and no memory of what was done."""
        files = {number: bytearray(data) for number, data in self.files.items()}
        return Disk(files, {number: dict(names) for number, names in self.folders.items()}, made=self.made)

    def find(self, path: str) -> tuple[int, str]:
        """Number of the folder that holds a name, and the name."""
        parts = path.removeprefix(ROOT).strip("/").split("/")
        at = 0
        for part in parts[:-1]:
            at = self.enter(at, part, path)
        return at, parts[-1]

    def enter(self, at: int, name: str, path: str) -> int:
        found = self.folders[at].get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if found not in self.folders:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return found

    def folder(self, path: str) -> int:
        at, name = self.find(path)
        return self.enter(at, name, path) if name else at

    def note(self, op: Op) -> None:
        self.log.append(op)

    def new_number(self) -> int:
        self.made += 1
        return self.made

    def make_folder(self, path: str) -> None:
        self.before("make", path)
        at, name = self.find(path)
        if name in self.folders[at]:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        new = self.new_number()
        self.folders[at][name] = new
        self.folders[new] = {}
        self.note(Op("make", at, name, target=new))

    def make_folders(self, path: str) -> None:
        assert path == ROOT

    def create(self, path: str) -> int:
        self.before("create", path)
        at, name = self.find(path)
        if name in self.folders[at]:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        new = self.new_number()
        self.folders[at][name] = new
        self.files[new] = bytearray()
        self.note(Op("create", at, name, target=new))
        return self.handle(new)

    def handle(self, number: int) -> int:
        handle = 1000 + len(self.handles)
        self.handles[handle] = [number, 0]
        return handle

    def write(self, handle: int, data: memoryview) -> None:
        self.before("write", "")
        number = self.handles[handle][0]
        raw = bytearray(data)
        if self.writes == self.damage_write:
            raw[len(raw) // 2] ^= 1
        self.writes += 1
        self.note(Op("write", number, offset=len(self.files[number]), data=bytes(raw)))
        self.files[number] += raw

    def sync(self, handle: int) -> None:
        self.before("sync", "")
        self.note(Op("sync", self.handles[handle][0]))

    def close(self, handle: int) -> None:
        assert handle in self.handles

    def sync_folder(self, path: str) -> None:
        self.before("sync_folder", path)
        self.note(Op("sync_folder", self.folder(path)))

    def rename(self, old: str, new: str) -> None:
        self.before("rename", f"{old} {new}")
        (at, name), (there, new_name) = self.find(old), self.find(new)
        assert at == there, "renamed into another folder"
        if name not in self.folders[at]:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        if new_name in self.folders[at]:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        number = self.folders[at].pop(name)
        self.folders[at][new_name] = number
        self.note(Op("rename", at, name, new_name, number))

    def remove(self, path: str) -> None:
        self.before("remove", path)
        at, name = self.find(path)
        if name not in self.folders[at]:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        del self.folders[at][name]
        self.note(Op("remove", at, name))

    def remove_folder(self, path: str) -> None:
        if self.folders[self.folder(path)]:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.remove(path)

    def names(self, path: str) -> list[str]:
        self.before("names", path)
        return list(self.folders[self.folder(path)])

    def is_link(self, path: str) -> bool:
        return False

    def free_bytes(self, path: str) -> int:
        return self.free

    def open(self, path: str, *, fresh: bool) -> int:
        self.before("open", path)
        at, name = self.find(path)
        number = self.folders[at].get(name)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if number in self.folders:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return self.handle(number)

    def size(self, handle: int) -> int:
        return len(self.files[self.handles[handle][0]])

    def read(self, handle: int, into: memoryview) -> int:
        self.before("read", "")
        number, position = self.handles[handle]
        piece = self.files[number][position : position + len(into)]
        into[: len(piece)] = piece
        self.handles[handle][1] += len(piece)
        return len(piece)


def after_kill(log: list[Op], until: int, *, part: float = 0.0) -> Disk:
    """What is there once the process was killed before operation ``until``, having done ``part`` of it if it writes."""
    disk = Disk()
    for op in log[:until]:
        _apply(disk, op)
    if part and until < len(log) and log[until].kind == "write":
        op = log[until]
        _apply(disk, Op("write", op.at, offset=op.offset, data=op.data[: int(len(op.data) * part)]))
    disk.made = 1 << 20
    return disk


def after_power_cut(log: list[Op], until: int, rng: random.Random, *, base: Disk | None = None) -> Disk:
    """What may be there once the power failed before operation ``until`` ended; ``base`` was there at first."""
    synced_files: set[int] = set()
    synced_folders: set[int] = set()
    durable = [False] * until
    for index in range(until - 1, -1, -1):
        op = log[index]
        if op.kind == "sync":
            synced_files.add(op.at)
        elif op.kind == "sync_folder":
            synced_folders.add(op.at)
        else:
            durable[index] = op.at in (synced_files if op.kind in ("write", "truncate") else synced_folders)
    disk = base.copy() if base is not None else Disk()
    luck = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    for index, op in enumerate(log[:until]):
        if op.kind == "create":
            disk.files[op.target] = bytearray()
        elif op.kind == "make":
            disk.folders[op.target] = {}
        if durable[index]:
            _apply(disk, op)
        elif op.kind == "write":
            _tear(disk.files[op.at], op, rng, luck)
        elif op.kind not in ("sync", "sync_folder") and rng.random() < luck:
            _apply(disk, op)
    disk.made += 1 << 20
    return disk


def _apply(disk: Disk, op: Op) -> None:
    if op.kind == "write":
        _put(disk.files[op.at], op.offset, op.data)
    elif op.kind == "truncate":
        del disk.files[op.at][op.offset :]
    elif op.kind == "make":
        disk.folders.setdefault(op.target, {})
        disk.folders[op.at][op.name] = op.target
    elif op.kind == "create":
        disk.files.setdefault(op.target, bytearray())
        disk.folders[op.at][op.name] = op.target
    elif op.kind == "rename":
        disk.folders[op.at].pop(op.name, None)
        disk.folders[op.at][op.new] = op.target
    elif op.kind == "remove":
        disk.folders[op.at].pop(op.name, None)


def _put(file: bytearray, offset: int, data: bytes) -> None:
    if len(file) < offset + len(data):
        file.extend(bytes(offset + len(data) - len(file)))
    file[offset : offset + len(data)] = data


def _tear(file: bytearray, op: Op, rng: random.Random, luck: float) -> None:
    """Any of the sectors, in any order, one of them perhaps half; the length may have grown without them."""
    if rng.random() < 0.3:
        _put(file, op.offset, bytes(len(op.data)))
    begin = op.offset
    end = op.offset + len(op.data)
    while begin < end:
        stop = min(end, (begin // SECTOR + 1) * SECTOR)
        if rng.random() < luck:
            kept = stop if rng.random() < 0.9 else rng.randrange(begin, stop)
            _put(file, begin, op.data[begin - op.offset : kept - op.offset])
        begin = stop
