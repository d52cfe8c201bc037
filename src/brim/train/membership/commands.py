"""Which commands of the supervisor all ranks have received, and which this rank has acted on."""

from __future__ import annotations


class Commands:
    """Numbers of commands, and requests to leave.

    Attributes:
        agreed: All ranks have received the commands up to this number.
        applied: This rank has acted on the commands up to this number, or they were overridden.
        tuned: Number of the newest `TuneSettings` that was applied.
        leave_requested: A signal has asked this rank to leave.
        leave_agreed: All ranks know that a rank was asked to leave.
    """

    def __init__(self) -> None:
        self.agreed = self.applied = self.tuned = 0
        self.leave_requested = self.leave_agreed = False

    def group_formed(self, command: int) -> None:
        """A group has formed, for which commands up to ``command`` are overridden."""
        self.applied = max(self.applied, command)
        self.agreed = self.applied  # new ranks have received, and agreed on, no more than this
        self.leave_agreed = False
