"""A folder of checkpoints: its file names, which process may publish there, and the meaning of disk errors.

::

    save-00000007-step-1200/         published: manifest.json and tensors-*.safetensors
    writing-00000003-9f2c61d0-0/     being written by process 9f2c61d0 with token 3; left over if it died
    fence-00000003-000001-9f2c61d0/  an empty folder whose name says which process may publish
    trash-..., aside-...             being deleted; damaged and kept for inspection

**Fencing** needs no lock, which a frozen process could keep. Each start of a job has a higher token. A writer of a
higher token, or a later one of the same token, makes its fence durable, then renames every ``writing-`` folder that is
not its own. The process that it fences off either sees the higher fence before it publishes, or finds that the folder
it wants to publish is gone.
"""

from __future__ import annotations

import errno
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from brim.errors import BrimError
from brim.train.checkpoint.files import Files

ANY = "any"
"""Owner of a fence that shuts out lower tokens, and lets any process of this token save."""

_log = logging.getLogger(__name__)
_SAVED = re.compile(r"save-(\d{8,})-step-(\d+)")
_FENCE = re.compile(r"fence-(\d{8,})-(\d{6,})-([0-9a-f]{8}|any)(?:-(.+))?")
_WRITING = re.compile(r"writing-(\d{8,})-([0-9a-f]{8})-\d+")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BARRED = (errno.EACCES, errno.EPERM, errno.EROFS)
_DAMAGED = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP, errno.EUCLEAN, errno.EBADMSG,
)  # fmt: skip
"""Errors of reading a damaged checkpoint; others have their cause in this process, not in the files."""


class CheckpointError(BrimError):
    """A checkpoint could not be written or read; the last good one is unchanged."""


class SpaceError(CheckpointError):
    """The disk is full, or has too little space for the checkpoint."""


class StaleError(CheckpointError):
    """Another process, of a higher token or a later one of the same token, writes here now; this one should end."""


class ForeignError(CheckpointError):
    """The folder belongs to another job."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A checkpoint that could not be used: its new name, its step, and the reason."""

    name: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """States which process may publish; the highest fence in the folder counts."""

    token: int
    turn: int
    owner: str
    job_id: str = ""

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return f"fence-{self.token:08d}-{self.turn:06d}-{self.owner}" + (f"-{self.job_id}" if self.job_id else "")

    @staticmethod
    def of(name: str) -> Fence | None:
        """Return the fence with this name; None if it is not the name of a fence."""
        found = _FENCE.fullmatch(name)
        return Fence(int(found[1]), int(found[2]), found[3], found[4] or "") if found else None


class Folder:
    """The checkpoints of one job, for one process with a token."""

    def __init__(self, root: str, *, files: Files, fsync: bool, job_id: str, token: int) -> None:
        self.root, self.files, self.fsync, self.job_id, self.token = root, files, fsync, job_id, token
        self._fence: Fence | None = None
        self._count = 0

    def path(self, name: str) -> str:
        """Return the path of a name in this folder."""
        return f"{self.root}/{name}"

    def names(self) -> list[str]:
        """Return all names in this folder."""
        return self.files.names(self.root)

    def exists(self) -> bool:
        """Return whether the folder exists."""
        try:
            self.names()
        except FileNotFoundError:
            return False
        return True

    def saved(self) -> list[str]:
        """Return the published checkpoints, the newest first."""
        return sorted(filter(_SAVED.fullmatch, self.names()), key=lambda name: (-number_of(name), name))

    def sync(self) -> None:
        """Make the names in this folder durable."""
        if self.fsync:
            self.files.sync_folder(self.root)

    # Fencing.

    def advance(self, token: int) -> None:
        """Use a new token; the next `claim` creates a new fence."""
        self.token, self._fence = token, None

    def claim(self) -> None:
        """Make this process the one that may publish, or check that it still is; raise `StaleError` if it may not."""
        if self._fence is None:
            self.files.make_folders(self.root)
            top = self._top_fence()
            self._refuse_if_stale(top)
            turn = top.turn + 1 if top is not None and top.token == self.token else 1
            fence = Fence(self.token, turn, secrets.token_hex(4), self.job_id)
            self._raise_fence(fence)
            self._fence = fence
        self.check_fence()

    def fence_off(self) -> None:
        """Shut out lower tokens, unless another rank of this token has done so; `StaleError` if its own is lower."""
        if self.token > 0:
            self.files.make_folders(self.root)
        top = self._top_fence()
        self._refuse_if_stale(top)
        if self.token > 0 and (top is None or top.token < self.token):
            self._raise_fence(Fence(self.token, 0, ANY, self.job_id))

    def check_fence(self) -> None:
        """Raise `StaleError` if another process has taken over."""
        top = self._top_fence()
        self._refuse_if_stale(top)
        if self._fence is not None and top != self._fence:
            raise StaleError(f"{self.root} has been taken over by another process of token {self.token}")

    def new_writing(self) -> str:
        """Return a new name under which to write a checkpoint; it contains the owner."""
        assert self._fence is not None
        self._count += 1
        return f"writing-{self._fence.token:08d}-{self._fence.owner}-{self._count}"

    def _raise_fence(self, fence: Fence) -> None:
        try:
            self.files.make_folder(self.path(fence.name))
        except FileExistsError:
            if fence.owner != ANY:
                raise
        self.sync()
        for name in self.names():
            found = _WRITING.fullmatch(name)
            if found and (int(found[1]) < fence.token or (fence.owner != ANY and int(found[1]) == fence.token)):
                self._move_away(name)
            other = Fence.of(name)
            if other is not None and other < fence:
                self._try(self.files.remove_folder, self.path(name))

    def _move_away(self, name: str) -> None:
        """Rename what a fenced-off process is writing, so that it cannot publish it, and delete it."""
        trash = _trash_name(name)
        try:
            self.files.rename(self.path(name), self.path(trash))
        except FileNotFoundError:
            return  # it was published or deleted just before
        self._delete(trash)

    def newest_token(self) -> int:
        """Return the highest token of a fence in this folder; 0 if there is none."""
        top = self._top_fence()
        return 0 if top is None else top.token

    def _top_fence(self) -> Fence | None:
        return max((fence for fence in map(Fence.of, self.names()) if fence is not None), default=None)

    def _refuse_if_stale(self, top: Fence | None) -> None:
        if top is None:
            return
        if self.job_id and top.job_id and top.job_id != self.job_id:
            raise ForeignError(
                f"{self.root} belongs to job {top.job_id!r}, this is job {self.job_id!r}: give each job its own folder"
            )
        if top.token > self.token:
            raise StaleError(
                f"{self.root} has been taken over by a later start (token {top.token}, this process has {self.token}): "
                "if that is another job, give each its own folder"
            )

    # Publishing, setting aside, deleting.

    def publish(self, writing: str, step: int) -> str:
        """Rename what was written to the next free number, if this process still may publish; return the name."""
        while True:
            self.check_fence()
            number = 1 + max(map(number_of, self.saved()), default=0)
            name = f"save-{number:08d}-step-{step}"
            try:
                self.files.rename(self.path(writing), self.path(name))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            else:
                self.sync()
                return name

    def set_aside(self, name: str, reason: str) -> SetAside:
        """Rename a damaged checkpoint, so that it is not tried again, and log a warning."""
        kept = f"aside-{secrets.token_hex(2)}-{name}"
        if self._try(self.files.rename, self.path(name), self.path(kept)):
            if self.fsync:
                self._try(self.files.sync_folder, self.root)
        else:
            kept = name
        _log.warning("checkpoint %s cannot be used: %s; kept as %s", self.path(name), reason, kept)
        return SetAside(kept, step_of(name), reason)

    def kept_aside(self) -> list[str]:
        """Return the names of the checkpoints that were set aside."""
        return sorted(name for name in self.names() if name.startswith("aside-"))

    def discard(self, name: str) -> None:
        """Rename a checkpoint durably, then delete it, so that no process reads one that is half deleted."""
        trash = _trash_name(name)
        if not self._try(self.files.rename, self.path(name), self.path(trash)):
            return
        if self.fsync and not self._try(self.files.sync_folder, self.root):
            return
        self._delete(trash)

    def tidy(self) -> None:
        """Delete what could not be deleted before: unfinished checkpoints of this process, and trash."""
        assert self._fence is not None
        ours = f"writing-{self._fence.token:08d}-{self._fence.owner}-"
        for name in self.names():
            if name.startswith(ours):
                self.discard(name)
            elif name.startswith("trash-"):
                self._delete(name)

    def _delete(self, trash: str) -> None:
        path = self.path(trash)
        if self.files.is_link(path):
            self._try(self.files.remove, path)
            return
        try:
            inside = self.files.names(path)
        except OSError:
            return
        for name in inside:
            self._try(self.files.remove, f"{path}/{name}")
        self._try(self.files.remove_folder, path)

    def _try(self, operation: Callable[..., None], *paths: str) -> bool:
        """Return whether an operation that may fail without harm succeeded; failures are logged."""
        try:
            operation(*paths)
        except OSError as error:
            _log.info("%s: %s", " ".join(paths), error)
            return False
        return True

    # Errors.

    def check_space(self, needed_bytes: int, *, step: int) -> None:
        """Raise `SpaceError` if fewer bytes than ``needed_bytes`` are free."""
        free_bytes = self.files.free_bytes(self.root)
        if needed_bytes > free_bytes:
            raise SpaceError(
                f"checkpoint of step {step} needs {needed_bytes:,} bytes in {self.root}, {free_bytes:,} are free; "
                "nothing was written, and older checkpoints are kept. Free some space"
            )

    def in_words(self, error: OSError, *, doing: str) -> CheckpointError:
        """Return the error for a failed operation; a folder may be missing because another process took over."""
        try:
            self.check_fence()
        except CheckpointError as stale:
            return stale
        except OSError:
            pass
        message = f"{doing} in {self.root}: {reason_of(error)}"
        if error.errno in _FULL:
            return SpaceError(f"{message}; the checkpoint before is kept. Free some space")
        if error.errno in _BARRED:
            return CheckpointError(f"{message}; this user must be allowed to read and write the folder")
        return CheckpointError(message)


def is_damage(error: OSError) -> bool:
    """Return whether an error of reading means that the files are damaged, not that this process cannot read them."""
    return error.errno in _DAMAGED


def reason_of(error: OSError) -> str:
    """Return the message of a system error without its number."""
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")


def number_of(name: str) -> int:
    """Return the serial number of a published checkpoint."""
    return int(name.split("-")[1])


def step_of(name: str) -> int:
    """Return the step of a published checkpoint."""
    return int(name.split("-")[3])


def _trash_name(name: str) -> str:
    return f"trash-{secrets.token_hex(4)}-{name}"
