"""The run's folder of checkpoints: when to save, and what a session gives and takes."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import Tensor

from brim.train.checkpoint import Checkpointer, CheckpointError
from brim.train.intervals import Autosave

EPOCH = 0
"""The fencing token is the same for all ranks: of those, the last to begin saving may publish."""


class Checkpoints:
    """The run's folder of checkpoints."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._saver = Checkpointer(os.fspath(folder), on_error=_warn)
        self._autosave = Autosave()
        self._ours = False

    def restore(self) -> tuple[dict[str, Tensor], Any] | None:
        """The newest verified state, if any."""
        found = self._saver.restore()
        return None if found is None else (found.tensors, found.meta["tree"])

    def due(self) -> bool:
        """Whether to save now."""
        return self._autosave.due()

    def save(self, step: int, tensors: dict[str, Tensor], tree: Any, *, wait: bool) -> str | None:
        """Begin to save; with ``wait`` return where it is once verified."""
        saving = self._saver.save(step, tensors, {"tree": tree, "autosave": self._autosave.state()})
        self._autosave.began(saving)
        return str(saving.wait()) if wait else None

    def save_if_free(self, step: int, tensors: dict[str, Tensor], tree: Any) -> str | None:
        """Save and wait, unless another process has begun to."""
        try:
            self._saver.advance(EPOCH)
            return self.save(step, tensors, tree, wait=True)
        except CheckpointError as error:
            _warn(error)
            return None

    def is_ours(self, ours: bool) -> None:
        """Whether this process saves from now on; it may have been another in between."""
        if ours and not self._ours:
            self._saver.advance(EPOCH)
        self._ours = ours

    def wait(self) -> None:
        """Return once nothing is being written."""
        self._saver.wait()


def _warn(error: CheckpointError) -> None:
    sys.stderr.write(f"brim: {error}\n")
