"""The checkpoints of a run: when to save, which process may save, and what is stored beside the state."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from brim.train.checkpoint.checkpointer import Checkpointer, CheckpointError, PendingSave
from brim.train.checkpoint.intervals import Autosave
from brim.train.reproducibility import differences


class Checkpoints:
    """The run's folder of checkpoints.

    Attributes:
        token: Fencing token of this start of the job, equal on all ranks. The rank that restores the state takes the
            next token, and processes of an earlier start can no longer publish. Among ranks with the same token, the
            last to begin saving may publish.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        self._saver = Checkpointer(self.folder, on_error=_go_on)
        self._autosave = Autosave()
        self._ours = False
        self._ended_at = -1
        self.token = 0

    def restore(self, settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any] | None:
        """Shut out processes of earlier starts of the job, and return the newest verified state, if any.

        A line on standard error lists changed settings with which this run cannot repeat the bits of the saved one.
        """
        self.belong_to(self._saver.newest_token() + 1)
        found = self._saver.restore()
        if found is None:
            return None
        announced = bool(found.meta.get("announced"))
        self._autosave = Autosave(found.meta.get("autosave"), stopped=not announced)
        self._ended_at = found.step if announced else -1
        _report_differences(found.meta.get("certificate"), settings)
        return found.tensors, found.meta["tree"]

    def belong_to(self, token: int) -> None:
        """Use the token of the start of the job that this process is part of."""
        if token > self.token:
            self.token = token
            self._saver.advance(token)

    def take_over(self) -> None:
        """Let this process save from now on; another one may have saved before."""
        self._saver.advance(self.token)

    def is_ours(self, ours: bool) -> None:
        """Set whether this process saves from now on."""
        if ours and not self._ours:
            self.take_over()
        self._ours = ours

    def due(self) -> bool:
        """Return whether to save now."""
        return self._autosave.due()

    def has_end(self, step: int) -> bool:
        """Return whether the state after this step was saved before an announced end, and is still the same."""
        return step == self._ended_at

    def state_changed(self) -> None:
        """Tell that the state is another one than before, although no step was committed."""
        self._ended_at = -1

    def begin(
        self, step: int, state: tuple[dict[str, Tensor], Any], settings: Mapping[str, Any], *, announced: bool
    ) -> PendingSave:
        """Begin to save; ``announced``: the job ends after this save, and loses nothing, so this is not a stop."""
        tensors, tree = state
        meta = {
            "tree": tree, "autosave": self._autosave.state(), "certificate": dict(settings), "announced": announced,
        }  # fmt: skip
        saving = self._saver.save(step, tensors, meta)
        self._autosave.began(saving)
        return saving

    def end(self, saving: PendingSave) -> str | None:
        """Wait for a save and return its path; None if it failed, which was logged."""
        try:
            path = str(saving.wait())
        except CheckpointError:
            return None
        self._ended_at = saving.step
        return path


def _report_differences(saved: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Report changed settings, except the script's own, which a tuned job may change."""
    if saved is None or not (saved.get("exact") and now.get("exact")):
        return
    found = differences({**saved, "rules": None}, {**now, "rules": None})
    if found:
        sys.stderr.write(
            "brim: the bits will not be those of an uninterrupted run, since settings have changed since the "
            f"checkpoint was written: {'; '.join(found)}\n"
        )


def _go_on(error: CheckpointError) -> None:
    """Ignore the error of a save: it was logged when it happened, and training continues."""
