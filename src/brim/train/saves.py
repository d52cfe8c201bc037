"""When a run saves, and how all ranks wait for the save before an end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from brim.gang.messages import Saved
from brim.train.checkpoint.checkpointer import PendingSave
from brim.train.checkpoint.saving import Checkpoints
from brim.train.gradients.consistency import ConsistencyCheck
from brim.train.job_state import JobState
from brim.train.membership.ranks import Ranks

LOOK_S: Final = 0.2
"""How often the other ranks check whether the rank that saves is done. Ours."""

_END: Final = "the save at the end"


class Saves:
    """The saves of one rank.

    Args:
        job: The state to save.
        ranks: The ranks, of which the first saves.
        checkpoints: The folder; None: nothing is saved.
        settings: Returns the settings on which the bits of the run depend.
    """

    def __init__(
        self, job: JobState, ranks: Ranks, checkpoints: Checkpoints | None, settings: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._job, self._ranks, self._checkpoints, self._settings = job, ranks, checkpoints, settings

    @property
    def exist(self) -> bool:
        """Whether there is a folder to save to."""
        return self._checkpoints is not None

    def group_formed(self) -> None:
        """Let the first rank save from now on."""
        if self._checkpoints is not None:
            self._checkpoints.is_ours(self._ranks.rank == 0)

    def between_steps(self) -> None:
        """Begin a save if one is due."""
        due = self._checkpoints is not None and self._ranks.rank == 0 and self._job.step > 0
        if self._checkpoints is not None and due and self._checkpoints.due():
            self._begin(self._checkpoints, announced=False)

    def save_alone(self, command: int) -> None:
        """Save before an end that this rank, which is in no group, has learned of; the last to begin may publish."""
        if self._job.step > 0 and self._checkpoints is not None:
            self._checkpoints.take_over()
            self._end(self._checkpoints, self._begin(self._checkpoints, announced=True), command)

    def save_together(self, consistency: ConsistencyCheck | None, command: int | None = None) -> None:
        """Save the state before an end; return on all ranks once that is done. One rank saves.

        The other ranks check repeatedly, so that a long save is not one long collective. If the rank that saves dies,
        they notice it at once and still have the state.

        Raises:
            BrokenGroupError: a rank has died.
        """
        saving: PendingSave | None = None
        checkpoints, ranks, step = self._checkpoints, self._ranks, self._job.step
        group = ranks.group
        if group is not None and consistency is not None and step > 0:
            consistency.require_equal_state(lambda value: ranks.compared(value, _END), step)
        if checkpoints is not None and ranks.rank == 0 and step > 0 and not checkpoints.has_end(step):
            saving = self._begin(checkpoints, announced=True)
        while group is not None:
            with ranks.in_collective(_END):
                done = group.share([int(saving is None or saving.done)])
            if all(row == [1] for row in done):
                break
            if saving is not None:
                saving.wait_a_while(LOOK_S)
        if checkpoints is not None and saving is not None:
            self._end(checkpoints, saving, command)

    def _begin(self, checkpoints: Checkpoints, *, announced: bool) -> PendingSave:
        return checkpoints.begin(self._job.step, self._job.to_save(), self._settings(), announced=announced)

    def _end(self, checkpoints: Checkpoints, saving: PendingSave, command: int | None) -> None:
        path = checkpoints.end(saving)
        if path is not None and command is not None:
            self._ranks.send(Saved(command, self._job.step, path))
