"""A folder of checkpoints: its names, which process may publish there, and how to treat errors of the disk.

::

    save-00000007-step-1200/         published: manifest.json and tensors-*.safetensors
    writing-00000003-9f2c61d0-0/     being written by owner 9f2c61d0 of epoch 3; left over if that one died
    fence-00000003-000001-9f2c61d0/  an empty folder: names the process that may publish
    trash-..., aside-...             being deleted; found bad and kept for inspection

**Fencing** needs no lock that a frozen process could hold. A writer with a higher epoch (or with an equal one, if it
came later) makes its fence durable, then renames every ``writing-`` folder that is not its own. A process that is
fenced off either sees the higher fence before it publishes, or finds that the folder it wants to publish is gone.
"""

from __future__ import annotations

import errno
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from brim.errors import BrimError
from brim.train.files import Files

ANY = "any"
"""Owner of a fence that shuts out lower epochs and leaves open who of this epoch will save."""

_log = logging.getLogger(__name__)
_SAVED = re.compile(r"save-(\d{8,})-step-(\d+)")
_FENCE = re.compile(r"fence-(\d{8,})-(\d{6,})-([0-9a-f]{8}|any)(?:-(.+))?")
_WRITING = re.compile(r"writing-(\d{8,})-([0-9a-f]{8})-\d+")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BARRED = (errno.EACCES, errno.EPERM, errno.EROFS)
_DAMAGED = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP, errno.EUCLEAN, errno.EBADMSG,
)  # fmt: skip
"""What reading a broken checkpoint may give; other errors say something about this process, not about the files."""


class CheckpointError(BrimError):
    """A checkpoint could not be written or read; the last good one is untouched."""


class SpaceError(CheckpointError):
    """The disk is full, or too full to begin."""


class StaleError(CheckpointError):
    """Another process, of a higher epoch or of the same and later, writes here now. This one should end."""


class ForeignError(CheckpointError):
    """The folder belongs to another job."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A checkpoint that could not be used: what it is called now, its step, and why."""

    name: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """Names the process that may publish: that of the highest fence in the folder."""

    epoch: int
    turn: int
    owner: str
    job_id: str = ""

    @property
    def name(self) -> str:
        """How it is called in the folder."""
        return f"fence-{self.epoch:08d}-{self.turn:06d}-{self.owner}" + (f"-{self.job_id}" if self.job_id else "")

    @staticmethod
    def of(name: str) -> Fence | None:
        """The fence that is called so."""
        found = _FENCE.fullmatch(name)
        return Fence(int(found[1]), int(found[2]), found[3], found[4] or "") if found else None


class Folder:
    """One job's checkpoints, seen by one process of an epoch."""

    def __init__(self, root: str, *, files: Files, fsync: bool, job_id: str, epoch: int) -> None:
        self.root, self.files, self.fsync, self.job_id, self.epoch = root, files, fsync, job_id, epoch
        self._fence: Fence | None = None
        self._count = 0

    def path(self, name: str) -> str:
        """Path of a name in this folder."""
        return f"{self.root}/{name}"

    def names(self) -> list[str]:
        """All names in this folder."""
        return self.files.names(self.root)

    def exists(self) -> bool:
        """Whether there is such a folder."""
        try:
            self.names()
        except FileNotFoundError:
            return False
        return True

    def saved(self) -> list[str]:
        """Published checkpoints, the newest first."""
        return sorted(filter(_SAVED.fullmatch, self.names()), key=lambda name: (-number_of(name), name))

    def sync(self) -> None:
        """Make the names in this folder durable."""
        if self.fsync:
            self.files.sync_folder(self.root)

    # Who may publish.

    def advance(self, epoch: int) -> None:
        """Take a new epoch; the next `claim` raises a new fence."""
        self.epoch, self._fence = epoch, None

    def claim(self) -> None:
        """Become the one that may publish, or see that this process still is."""
        if self._fence is None:
            self.files.make_folders(self.root)
            top = self._top_fence()
            self._refuse_if_stale(top)
            turn = top.turn + 1 if top is not None and top.epoch == self.epoch else 1
            fence = Fence(self.epoch, turn, secrets.token_hex(4), self.job_id)
            self._raise_fence(fence)
            self._fence = fence
        self.check_fence()

    def fence_off(self) -> None:
        """Shut out lower epochs; fine if another rank of this epoch has done it."""
        if self.epoch > 0:
            self.files.make_folders(self.root)
        top = self._top_fence()
        self._refuse_if_stale(top)
        if self.epoch > 0 and (top is None or top.epoch < self.epoch):
            self._raise_fence(Fence(self.epoch, 0, ANY, self.job_id))

    def check_fence(self) -> None:
        """`StaleError` if another process has taken over."""
        top = self._top_fence()
        self._refuse_if_stale(top)
        if self._fence is not None and top != self._fence:
            raise StaleError(f"{self.root} has been taken over by another process of epoch {self.epoch}")

    def new_aside(self) -> str:
        """A name to write a checkpoint under; it says whose it is."""
        assert self._fence is not None
        self._count += 1
        return f"writing-{self._fence.epoch:08d}-{self._fence.owner}-{self._count}"

    def _raise_fence(self, fence: Fence) -> None:
        try:
            self.files.make_folder(self.path(fence.name))
        except FileExistsError:
            if fence.owner != ANY:
                raise
        self.sync()
        for name in self.names():
            found = _WRITING.fullmatch(name)
            if found and (int(found[1]) < fence.epoch or (fence.owner != ANY and int(found[1]) == fence.epoch)):
                self._move_away(name)
            other = Fence.of(name)
            if other is not None and other < fence:
                self._try(self.files.remove_folder, self.path(name))

    def _move_away(self, name: str) -> None:
        """Take what a fenced-off process is writing out of its hands; it must not stay under its name."""
        trash = _trash_name(name)
        try:
            self.files.rename(self.path(name), self.path(trash))
        except FileNotFoundError:
            return  # published or given up just before
        self._delete(trash)

    def newest_epoch(self) -> int:
        """The highest epoch that this folder has seen; 0 for none."""
        top = self._top_fence()
        return 0 if top is None else top.epoch

    def _top_fence(self) -> Fence | None:
        return max((fence for fence in map(Fence.of, self.names()) if fence is not None), default=None)

    def _refuse_if_stale(self, top: Fence | None) -> None:
        if top is None:
            return
        if self.job_id and top.job_id and top.job_id != self.job_id:
            raise ForeignError(
                f"{self.root} belongs to job {top.job_id!r}, this is job {self.job_id!r}: give each job its own folder"
            )
        if top.epoch > self.epoch:
            raise StaleError(
                f"{self.root} has been taken over by a later start (epoch {top.epoch}, this process has {self.epoch}): "
                "if that is another job, give each its own folder"
            )

    # Publishing, setting aside, deleting.

    def publish(self, aside: str, step: int) -> str:
        """Rename what was written to the next free number, if this process still may; the name."""
        while True:
            self.check_fence()
            number = 1 + max(map(number_of, self.saved()), default=0)
            name = f"save-{number:08d}-step-{step}"
            try:
                self.files.rename(self.path(aside), self.path(name))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            else:
                self.sync()
                return name

    def set_aside(self, name: str, reason: str) -> SetAside:
        """Give a bad checkpoint a name under which it is not tried again, and report it."""
        kept = f"aside-{secrets.token_hex(2)}-{name}"
        if self._try(self.files.rename, self.path(name), self.path(kept)):
            if self.fsync:
                self._try(self.files.sync_folder, self.root)
        else:
            kept = name
        _log.warning("checkpoint %s cannot be used: %s; kept as %s", self.path(name), reason, kept)
        return SetAside(kept, step_of(name), reason)

    def kept_aside(self) -> list[str]:
        """Bad checkpoints that were set aside."""
        return sorted(name for name in self.names() if name.startswith("aside-"))

    def discard(self, name: str) -> None:
        """Delete a checkpoint: under another, durable name first, so that it is never seen half deleted."""
        trash = _trash_name(name)
        if not self._try(self.files.rename, self.path(name), self.path(trash)):
            return
        if self.fsync and not self._try(self.files.sync_folder, self.root):
            return
        self._delete(trash)

    def tidy(self) -> None:
        """Delete what could not be deleted before: half a checkpoint of this process, and trash."""
        assert self._fence is not None
        ours = f"writing-{self._fence.epoch:08d}-{self._fence.owner}-"
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
        """Do what may fail without harm; it is logged, and done by the next one who passes."""
        try:
            operation(*paths)
        except OSError as error:
            _log.info("%s: %s", " ".join(paths), error)
            return False
        return True

    # What an error means.

    def check_space(self, needed_bytes: int, *, step: int) -> None:
        """`SpaceError` before anything is written, if it would not fit."""
        free_bytes = self.files.free_bytes(self.root)
        if needed_bytes > free_bytes:
            raise SpaceError(
                f"checkpoint of step {step} needs {needed_bytes:,} bytes in {self.root}, {free_bytes:,} are free; "
                "nothing was written, and what is there is kept. Make room or lower keep"
            )

    def in_words(self, error: OSError, *, doing: str) -> CheckpointError:
        """What a failed operation means; a folder that vanished may have been taken away by a newer process."""
        try:
            self.check_fence()
        except CheckpointError as stale:
            return stale
        except OSError:
            pass
        said = f"{doing} in {self.root}: {words(error)}"
        if error.errno in _FULL:
            return SpaceError(f"{said}; the checkpoint before is kept. Make room or lower keep")
        if error.errno in _BARRED:
            return CheckpointError(f"{said}; expected a folder that this user may read and write")
        return CheckpointError(said)


def is_damage(error: OSError) -> bool:
    """Whether an error while reading says that the files are bad, rather than this process unable."""
    return error.errno in _DAMAGED


def words(error: OSError) -> str:
    """An error of the system without its number."""
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")


def number_of(name: str) -> int:
    """Which publication in this folder a checkpoint was."""
    return int(name.split("-")[1])


def step_of(name: str) -> int:
    """Which step a checkpoint is of."""
    return int(name.split("-")[3])


def _trash_name(name: str) -> str:
    return f"trash-{secrets.token_hex(4)}-{name}"
