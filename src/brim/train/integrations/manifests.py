"""Marks checkpoints that another library wrote as complete.

A manifest in the checkpoint's folder has the size and SHA-256 of every file. It is written last, after all files are
synced, and then everything is read back from the disk. A folder without a manifest is incomplete or was written
without brim: it cannot be verified, and no run resumes from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from typing import Any, Final

from brim.train.checkpoint.files import RealFiles
from brim.train.checkpoint.folder import CheckpointError, is_damage, reason_of
from brim.train.checkpoint.manifest import FORMAT, UnusableCheckpointError, read_manifest, with_checksum

NAME: Final = "brim-manifest.json"
_CHECKPOINT: Final = re.compile(r"(?:checkpoint|step)-(\d+)")


def write_manifest(folder: str, *, step: int, ranks: int) -> None:
    """Write the manifest of a checkpoint's folder, then verify the checkpoint.

    Raises:
        CheckpointError: a file is damaged when it is read back.
    """
    files = RealFiles()
    found = []
    for name in _names(folder):
        size, sha256 = _sum(os.path.join(folder, name), fresh=False)
        found.append({"name": name, "bytes": size, "sha256": sha256})
    raw = with_checksum({"format": FORMAT, "step": step, "ranks": ranks, "files": found})
    part = os.path.join(folder, NAME + ".part")
    with open(part, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    for below, _, _ in os.walk(folder):
        files.sync_folder(below)
    files.rename(part, os.path.join(folder, NAME))
    files.sync_folder(folder)
    files.sync_folder(os.path.dirname(os.path.abspath(folder)))
    try:
        verify(folder)
    except UnusableCheckpointError as error:
        raise CheckpointError(f"checkpoint {folder} was written but cannot be read back: {error}") from None


def verify(folder: str) -> dict[str, Any]:
    """Compare every file of a checkpoint with its manifest, and return the manifest.

    Raises:
        UnusableCheckpointError: the checkpoint is incomplete or damaged; the message gives the reason.
    """
    try:
        with open(os.path.join(folder, NAME), "rb") as file:
            manifest = read_manifest(file.read())
        for listed in manifest["files"]:
            size, sha256 = _sum(os.path.join(folder, listed["name"]), fresh=True)
            if size != listed["bytes"]:
                raise UnusableCheckpointError(f"{listed['name']} has {size} bytes, expected {listed['bytes']}")
            if sha256 != listed["sha256"]:
                raise UnusableCheckpointError(f"{listed['name']} does not have the SHA-256 of the manifest")
    except FileNotFoundError as error:
        name = os.path.basename(str(error.filename))
        why = "incomplete, or written without brim" if name == NAME else "its manifest lists this file"
        raise UnusableCheckpointError(f"it has no {name}: {why}") from None
    except OSError as error:
        if is_damage(error):
            raise UnusableCheckpointError(reason_of(error)) from None
        raise
    return manifest


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the folder of the newest complete and undamaged checkpoint; None if there is none.

    Checkpoints are verified from the newest to the oldest. Rank 0 renames and reports those that cannot be used; all
    ranks return the same folder.
    """
    root = os.fspath(folder)
    for name in _checkpoints(root):
        path = os.path.join(root, name)
        try:
            verify(path)
        except UnusableCheckpointError as error:
            if int(os.environ.get("RANK", "0")) == 0:
                _set_aside(root, name, str(error))
        else:
            return path
    return None


def ranks_of(folder: str) -> int | None:
    """Return the number of ranks that wrote a checkpoint; None if its manifest cannot be read."""
    try:
        with open(os.path.join(folder, NAME), "rb") as file:
            return int(read_manifest(file.read())["ranks"])
    except (OSError, UnusableCheckpointError, KeyError, ValueError):
        return None


def keep_newest(folder: str, number: int) -> None:
    """Delete all checkpoints but the newest ``number``."""
    for name in _checkpoints(folder)[number:]:
        trash = os.path.join(folder, f"trash-{secrets.token_hex(4)}-{name}")
        with contextlib.suppress(OSError):
            os.rename(os.path.join(folder, name), trash)
            shutil.rmtree(trash, ignore_errors=True)


def _checkpoints(root: str) -> list[str]:
    """Return the names of the checkpoints in a folder, newest first."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    found = [(int(match[1]), name) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    return [name for _, name in sorted(found, reverse=True)]


def _set_aside(root: str, name: str, reason: str) -> None:
    kept = f"aside-{secrets.token_hex(2)}-{name}"
    try:
        os.rename(os.path.join(root, name), os.path.join(root, kept))
    except OSError:
        kept = name
    sys.stderr.write(f"brim: checkpoint {os.path.join(root, name)} cannot be used: {reason}; kept as {kept}\n")


def _names(folder: str) -> Iterator[str]:
    """Yield the relative paths of all files below a folder, except the manifest."""
    for below, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.relpath(os.path.join(below, name), folder)
            if path not in (NAME, NAME + ".part"):
                yield path


def _sum(path: str, *, fresh: bool) -> tuple[int, str]:
    """Return size and SHA-256 of a file: synced first or, if ``fresh``, read from the disk where possible."""
    with open(path, "rb") as file:
        if not fresh:
            os.fsync(file.fileno())
        elif hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
