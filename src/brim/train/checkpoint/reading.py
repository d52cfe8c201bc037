"""Reads checkpoints, and verifies that they hold what was written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from brim.train.checkpoint.files import Files
from brim.train.checkpoint.folder import CheckpointError, Folder, SetAside, is_damage, reason_of
from brim.train.checkpoint.manifest import MANIFEST, UnusableCheckpointError, differences, read_manifest, specs_in
from brim.train.checkpoint.shards import Spec, empty_bytes, place, raw_bytes, read_header


class MismatchError(CheckpointError):
    """The checkpoint is intact, but of another model."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The newest checkpoint that could be verified; ``set_aside`` lists newer ones that could not."""

    step: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    path: Path
    set_aside: tuple[SetAside, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """The tensors of a model. Those whose names begin with ``within`` must be the same as in the checkpoint."""

    specs: Mapping[str, Spec]
    within: str = ""


def read_newest(folder: Folder, expected: Expected | None) -> Restored | None:
    """Read the newest published checkpoint that can be used; set aside newer ones. None if there is none at all."""
    set_aside: list[SetAside] = []
    tried: set[str] = set()
    while names := [name for name in folder.saved() if name not in tried]:
        name = names[0]
        try:
            return _read(folder, name, expected, tuple(set_aside))
        except UnusableCheckpointError as error:
            reason = str(error)
        except OSError as error:
            if not is_damage(error):
                raise
            reason = reason_of(error)
        tried.add(name)
        if name in folder.saved():
            set_aside.append(folder.set_aside(name, reason))
        else:  # its writer has just deleted it, having published a newer one
            tried.clear()
    _refuse_to_start_afresh(folder, set_aside)
    return None


def _refuse_to_start_afresh(folder: Folder, set_aside: list[SetAside]) -> None:
    """Raise if all checkpoints are damaged: starting over silently would hide the loss."""
    kept = folder.kept_aside()
    if not set_aside and not kept:
        return
    reasons = "; ".join(f"{bad.name}: {bad.reason}" for bad in set_aside) or ", ".join(kept)
    raise CheckpointError(
        f"none of the checkpoints in {folder.root} can be used ({reasons}). To start from the beginning, remove them "
        "or use another folder"
    )


def _read(folder: Folder, name: str, expected: Expected | None, set_aside: tuple[SetAside, ...]) -> Restored:
    path = folder.path(name)
    manifest = read_manifest(bytes(raw_bytes(_load(folder.files, f"{path}/{MANIFEST}"))))
    specs = specs_in(manifest)
    if expected is not None and (difference := differences(specs, expected.specs, within=expected.within)):
        raise MismatchError(f"{path} is of another model: {difference}")
    tensors: dict[str, Tensor] = {}
    for file in manifest["files"]:
        tensors |= _read_shard(folder.files, path, file, specs)
    tensors |= {later: tensors[earlier] for later, earlier in manifest["tied"].items()}
    return Restored(
        manifest["step"], {key: tensors[key] for key in specs}, manifest["meta"], Path(path), set_aside
    )  # fmt: skip


def _read_shard(files: Files, path: str, file: Mapping[str, Any], specs: Mapping[str, Spec]) -> dict[str, Tensor]:
    memory = _load(files, f"{path}/{file['name']}", expected_bytes=file["bytes"])
    if hashlib.sha256(raw_bytes(memory)).hexdigest() != file["sha256"]:
        raise UnusableCheckpointError(f"{file['name']} does not have the SHA-256 of the manifest")
    offsets = read_header(memory)
    return {name: place(memory, offsets[name], specs[name]) for name in file["tensors"]}


def _load(files: Files, path: str, *, expected_bytes: int | None = None) -> Tensor:
    """Read a whole file into memory."""
    name = path.rsplit("/", 1)[1]
    handle = files.open(path, fresh=False)
    try:
        size = files.size(handle)
        if expected_bytes is not None and size != expected_bytes:
            raise UnusableCheckpointError(f"{name} has {size:,} bytes, the manifest says {expected_bytes:,}")
        memory = empty_bytes(size)
        missing = raw_bytes(memory)
        while missing and (count := files.read(handle, missing)):
            missing = missing[count:]
    finally:
        files.close(handle)
    if missing:
        raise UnusableCheckpointError(f"{name} ended {len(missing):,} bytes early")
    return memory


def holds(files: Files, path: str, written: memoryview, *, chunk_bytes: int) -> bool:
    """Return whether a file has these bytes on the disk, rather than in the cache, where that can be read.

    Comparing is five times as fast as hashing, and NumPy does it without blocking other threads.
    """
    buffer = bytearray(min(chunk_bytes, len(written) + 1))
    seen = np.frombuffer(buffer, dtype=np.uint8)
    wanted = np.frombuffer(written, dtype=np.uint8)
    at = 0
    handle = files.open(path, fresh=True)
    try:
        while count := files.read(handle, memoryview(buffer)):
            if not np.array_equal(seen[:count], wanted[at : at + count]):
                return False
            at += count
    finally:
        files.close(handle)
    return at == len(written)
