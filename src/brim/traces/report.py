"""The account of one read: rows used, repaired, dropped and unusable. Nothing is dropped silently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brim.errors import TraceError
from brim.units import counted

UNUSABLE: Final = "cannot be used"
UNUSABLE_MAX_FRACTION: Final = 0.1
"""A trace is refused if more than this share of the rows that would become jobs cannot be used. Our choice: accounting
data has a few percent of odd rows (free text, changed clocks); if there are more than a tenth, the file is misread or
broken as a whole, and the other rows do not represent the cluster."""


@dataclass(slots=True)
class ReadReport:
    """Counts of one read.

    Attributes:
        file: Path as the user gave it.
        format: Name of the format whose reader was used.
        rows: Data rows found.
        used: Jobs in the trace.
        repaired: Reason -> rows changed and kept.
        dropped: Reason -> rows left out.
        cluster: Description of the cluster that the record shows, or why none is inferred; empty where it says nothing
            of nodes.
        unusable: Row -> what is wrong with it; these rows are left out, and counted in ``dropped`` too.
    """

    file: str
    format: str
    rows: int = 0
    used: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    cluster: str = ""
    unusable: dict[int, TraceError] = field(default_factory=dict)

    def repair(self, reason: str, rows: int = 1) -> None:
        """Count rows that were changed and kept."""
        if rows:
            self.repaired[reason] = self.repaired.get(reason, 0) + rows

    def drop(self, reason: str, rows: int = 1) -> None:
        """Count rows that were left out."""
        if rows:
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    def first_unusable(self, count: int) -> list[TraceError]:
        """Errors of the first rows that cannot be used, in the order of the file."""
        return [self.unusable[row] for row in sorted(self.unusable)[:count]]

    def check_unusable(self, jobs: int) -> None:
        """Refuse the trace if too large a share of its rows cannot be used.

        Args:
            jobs: Rows that became jobs, or that may yet become jobs.

        Raises:
            TraceError: the share is too large; the message names it and the first such row.
        """
        count = len(self.unusable)
        if count <= UNUSABLE_MAX_FRACTION * (jobs + count):
            return
        (first,) = self.first_unusable(1)
        share = (
            f"{counted(count, 'row')} cannot be used, the others give at most {max(jobs, 0):,} jobs; "
            f"more than {UNUSABLE_MAX_FRACTION:.0%} are refused"
        )
        raise TraceError(
            first.file, row=first.row, column=first.column, found=first.found, expected=f"{first.expected} ({share})"
        )
