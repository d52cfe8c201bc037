"""Checkpoints that survive a kill, a power cut or a full disk at any moment, written while training goes on.

`Checkpointer.save` copies the tensors. A thread then writes the files to a temporary folder and syncs them, writes the
manifest (sizes, SHA-256) and syncs it and the folder, checks that this process may still publish, renames the folder
and syncs its parent. Finally it reads all files back, and deletes older checkpoints only if every byte is right. A
crash at any point leaves the older checkpoints, with or without a complete new one. Names and fencing: ``folder.py``.

State is replicated: a checkpoint can be restored at any world size. **Not supported:** sharded state.
``torch.distributed.checkpoint`` stores its metadata as a pickle, and has neither checksums nor atomic publishing;
gather a full state first (``get_model_state_dict`` with ``full_state_dict=True``). Host memory for one copy of the
state stays allocated between saves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from brim.train.checkpoint.files import Files, RealFiles
from brim.train.checkpoint.flatten import flatten_state, unflatten_state
from brim.train.checkpoint.folder import (
    CheckpointError,
    Folder,
    ForeignError,
    SetAside,
    SpaceError,
    StaleError,
    is_damage,
    number_of,
    reason_of,
)
from brim.train.checkpoint.manifest import MANIFEST, Origin, UnusableCheckpointError, checked_json, write_manifest
from brim.train.checkpoint.reading import Expected, MismatchError, Restored, holds, read_newest
from brim.train.checkpoint.shards import SHARD_BYTES, HostCopy, Spec, spec_of

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "ForeignError",
    "MismatchError",
    "PendingSave",
    "Restored",
    "SetAside",
    "SpaceError",
    "StaleError",
    "flatten_state",
    "unflatten_state",
]  # fmt: skip

CHUNK_BYTES = 8 << 20
"""Files are written, hashed and read back in pieces that stay in the processor's cache between two uses. Our choice."""

SPARE_BYTES = 1 << 20
"""Free bytes required for folder and manifest, in addition to those of the tensors. Our choice."""

_log = logging.getLogger(__name__)
_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True, eq=False)
class PendingSave:
    """A checkpoint being saved. Training waited ``stall_s`` for it; after ``total_s`` it was verified, or failed."""

    step: int
    bytes: int = 0
    stall_s: float = 0.0
    total_s: float = 0.0
    path: Path | None = None
    error: Exception | None = None
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        """Whether the save has ended, with or without success."""
        return self._done.is_set()

    def wait_a_while(self, timeout_s: float) -> None:
        """Return once the save has ended, or after ``timeout_s``."""
        self._done.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> Path:
        """Return the path once it is verified; raise the save's error, or `CheckpointError` after ``timeout_s``."""
        if not self._done.wait(timeout_s):
            raise CheckpointError(f"checkpoint of step {self.step} is still being written after {timeout_s} s")
        if self.error is not None:
            raise self.error
        assert self.path is not None
        return self.path


class Checkpointer:
    """Saves and restores checkpoints in one folder. One process saves; any may restore.

    Args:
        folder: Created if missing; may be a symbolic link, or on another file system.
        keep: Number of verified checkpoints to keep, the newest included.
        job_id: A folder that another job wrote to is refused; "" accepts any.
        token: The fencing token, which each start of the job raises. A process with a lower token than the folder has
            seen cannot publish; among processes with the same token, the last to begin saving may.
        fsync: False for folders that need not survive a power cut.
        files: The file operations; by default those of this machine.
        on_error: Called with the error of a failed save, so that training goes on; by default the next `save` or
            `wait` raises it. A `StaleError` is always raised.
        shard_bytes: Largest size of a file with several tensors.
        chunk_bytes: Size of one write.

    Raises:
        ValueError: ``keep``, ``job_id`` or ``token`` is out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 2,
        job_id: str = "",
        token: int = 0,
        fsync: bool = True,
        files: Files | None = None,
        on_error: Callable[[CheckpointError], None] | None = None,
        shard_bytes: int = SHARD_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1")
        if job_id and not _JOB_ID.fullmatch(job_id):
            raise ValueError(f"job_id is {job_id!r}, expected up to 64 letters, digits, '.', '_' or '-'")
        if token < 0:
            raise ValueError(f"token is {token}, expected 0 or more")
        self._files: Files = files if files is not None else RealFiles()
        self._folder = Folder(str(folder), files=self._files, fsync=fsync, job_id=job_id, token=token)
        self._keep = keep
        self._on_error = on_error
        self._chunk_bytes = chunk_bytes
        self._copy = HostCopy(shard_bytes=shard_bytes)
        self._saving: PendingSave | None = None
        self._thread: threading.Thread | None = None

    # Called in the caller's thread.

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written; `save` would wait for it."""
        return self._saving is not None and not self._saving.done

    def newest_token(self) -> int:
        """Return the highest fencing token that the folder has seen; 0 if there is none."""
        try:
            return self._folder.newest_token()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._folder.in_words(error, doing="restoring") from None

    def advance(self, token: int) -> None:
        """Use a new fencing token; with an equal one, take over saving from another process."""
        if token < self._folder.token:
            raise ValueError(f"token is {token}, expected at least {self._folder.token}")
        self._join()
        self._folder.advance(token)

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate the host memory for tensors like these, so that the first `save` stalls no longer than the next."""
        self._join()
        self._copy.reserve(tensors)

    def save(
        self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, wait: bool = False
    ) -> PendingSave:
        """Copy the state and write it in the background.

        The caller may change the tensors and ``meta`` once this returns. If an earlier checkpoint is still being
        written, this waits for it (see `busy`). If an earlier save failed, this raises its error, once, and does
        nothing else; call again to save.

        Args:
            step: The step after which this is the state, 0 or more.
            tensors: By name; dense, on any device. Tied tensors are stored once.
            meta: JSON: dicts with str keys, lists, str, int, float, bool, None.
            wait: Return only when the checkpoint is verified, and raise its own error.

        Raises:
            CheckpointError: an earlier save failed, or with ``wait`` this one.
            TypeError: a tensor or value cannot be saved; the message has its name or path.
        """
        began_s = time.perf_counter()
        if step < 0:
            raise ValueError(f"step is {step}, expected 0 or more")
        self._join()
        self._surface()
        text = json.dumps(checked_json(meta, "meta"))
        self._copy.take(tensors)
        saving = PendingSave(step, self._copy.bytes, time.perf_counter() - began_s)
        self._saving = saving
        self._thread = threading.Thread(target=self._run, args=(saving, text, began_s), name=f"checkpoint-{step}")
        self._thread.start()
        if wait:
            self.wait()
            saving.stall_s = time.perf_counter() - began_s
        return saving

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once nothing is being written; raise the error of the last save if it was not raised before."""
        if self._saving is not None and not self._saving._done.wait(timeout_s):
            raise CheckpointError(f"checkpoint of step {self._saving.step} is still being written after {timeout_s} s")
        self._join()
        self._surface()

    def close(self) -> None:
        """Call `wait`, then free the host memory."""
        try:
            self.wait()
        finally:
            self._copy.release()

    def restore(
        self, expected: Mapping[str, Tensor] | Mapping[str, Spec] | None = None, *, within: str = ""
    ) -> Restored | None:
        """Read the newest checkpoint that can be verified.

        A checkpoint that is truncated, lacks a file, or has a wrong SHA-256 or a newer format is renamed to
        ``aside-...`` and logged, and the next older one is tried. With a token above 0, a missing folder is created,
        so that an error of writing to it shows now, and processes of lower tokens cannot publish once this returns.

        Args:
            expected: Tensors, or their specs, that the checkpoint must have, with equal shapes and types.
            within: Compare only names that begin with this: with ``"model."`` the checkpoint may hold other tensors,
                such as those of an optimizer.

        Returns:
            Tensors in host memory, tied ones as one object; None if nothing was ever saved here.

        Raises:
            MismatchError: the checkpoint is of another model; nothing is renamed.
            CheckpointError: there are checkpoints, but none can be used.
            StaleError: the folder has seen a higher token.
        """
        wanted = None
        if expected is not None:
            specs = {name: it if isinstance(it, Spec) else spec_of(name, it) for name, it in expected.items()}
            wanted = Expected(specs, within)
        self._join()
        try:
            if self._folder.token == 0 and not self._folder.exists():
                return None
            self._folder.fence_off()
            return read_newest(self._folder, wanted)
        except OSError as error:
            raise self._folder.in_words(error, doing="restoring") from None

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _surface(self) -> None:
        saving, self._saving = self._saving, None
        if saving is None or saving.error is None:
            return
        error = saving.error
        if self._on_error is None or isinstance(error, StaleError) or not isinstance(error, CheckpointError):
            raise error
        self._on_error(error)

    # Called in the background thread. What a crash leaves behind depends on the order of these steps.

    def _run(self, saving: PendingSave, meta: str, began_s: float) -> None:
        try:
            saving.path = Path(self._folder.path(self._write(saving.step, meta)))
        except OSError as error:
            saving.error = self._folder.in_words(error, doing=f"saving step {saving.step}")
            saving.error.__cause__ = error
        except Exception as error:
            saving.error = error
        if saving.error is not None:
            _log.warning("%s", saving.error)
        saving.total_s = time.perf_counter() - began_s
        saving._done.set()

    def _write(self, step: int, meta: str) -> str:
        self._folder.claim()
        self._folder.tidy()
        self._folder.check_space(self._copy.bytes + len(meta) + SPARE_BYTES, step=step)
        writing = self._folder.new_writing()
        try:
            written = self._write_files(writing, step, meta)
            name = self._folder.publish(writing, step)
        except Exception:
            self._folder.discard(writing)
            raise
        self._verify(name, step, written)
        self._delete_older(name)
        return name

    def _write_files(self, writing: str, step: int, meta: str) -> dict[str, memoryview]:
        """Write all files of a checkpoint; return their bytes by name."""
        self._files.make_folder(self._folder.path(writing))
        written = {shard.file: self._copy.image(shard) for shard in self._copy.shards}
        sums = [self._write_file(f"{writing}/{file}", image) for file, image in written.items()]
        written[MANIFEST] = self._manifest(step, sums, meta)
        self._write_file(f"{writing}/{MANIFEST}", written[MANIFEST])
        if self._folder.fsync:
            self._files.sync_folder(self._folder.path(writing))
        return written

    def _manifest(self, step: int, sums: list[str], meta: str) -> memoryview:
        origin = Origin(step=step, token=self._folder.token, job_id=self._folder.job_id)
        return memoryview(write_manifest(origin, self._copy, sums, meta))

    def _write_file(self, name: str, data: memoryview) -> str:
        """Write and sync one file; return its SHA-256."""
        sums = hashlib.sha256()
        handle = self._files.create(self._folder.path(name))
        try:
            for at in range(0, len(data), self._chunk_bytes):
                piece = data[at : at + self._chunk_bytes]
                self._files.write(handle, piece)
                sums.update(piece)
            if self._folder.fsync:
                self._files.sync(handle)
        finally:
            self._files.close(handle)
        return sums.hexdigest()

    def _verify(self, name: str, step: int, written: Mapping[str, memoryview]) -> None:
        """Read back what was published; if it is damaged, set it aside and keep those before it."""
        try:
            for file, image in written.items():
                if not holds(self._files, self._folder.path(f"{name}/{file}"), image, chunk_bytes=self._chunk_bytes):
                    raise UnusableCheckpointError(f"{file} was read back with other bytes than were written")
        except (UnusableCheckpointError, OSError) as error:
            if isinstance(error, OSError) and not is_damage(error):
                raise
            self._folder.check_fence()
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            bad = self._folder.set_aside(name, reason)
            raise CheckpointError(
                f"checkpoint of step {step}: {reason}; kept as {bad.name}, older ones are unchanged: check the disk"
            ) from error

    def _delete_older(self, newest: str) -> None:
        """Delete all checkpoints before ``newest``, which is verified, but for the last ``keep`` - 1."""
        self._folder.check_fence()
        older = [name for name in self._folder.saved() if number_of(name) < number_of(newest)]
        for name in older[self._keep - 1 :]:
            self._folder.discard(name)
