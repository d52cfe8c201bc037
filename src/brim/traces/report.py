"""What a reader did with a file: rows used, repaired, dropped, and not usable. Nothing is dropped silently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from brim.errors import TraceError

UNUSABLE: Final = "cannot be used"
UNUSABLE_MAX_FRACTION: Final = 0.1
"""A trace is refused where more than this share of the rows that would become jobs cannot be used. Ours: accounting has
odd rows in the low percents (free text, changed clocks); where it is more than a tenth, the file is misread or broken
as a whole, and the rest does not stand for the cluster."""


@dataclass(slots=True)
class ReadReport:
    """Counts of one read.

    Attributes:
        file: As the user gave it.
        format: Reader that was used.
        rows: Data rows found.
        used: Jobs in the trace.
        repaired: Reason -> rows changed and kept.
        dropped: Reason -> rows left out.
        cluster: What the record shows of the cluster, in words; empty where it names no nodes.
        unusable: Row -> what is wrong with it; they are left out, and counted in ``dropped`` too.
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
        """What is wrong with the first rows that cannot be used, in the order of the file."""
        return [self.unusable[row] for row in sorted(self.unusable)[:count]]

    def check_unusable(self, jobs: int) -> None:
        """Refuse the trace if too large a share of its rows cannot be used.

        Args:
            jobs: Rows that became jobs, or that may yet become jobs.

        Raises:
            TraceError: for the first such row, with the share.
        """
        count = len(self.unusable)
        if count <= UNUSABLE_MAX_FRACTION * (jobs + count):
            return
        (first,) = self.first_unusable(1)
        share = f"{count:,} of {jobs + count:,} rows cannot be used; more than {UNUSABLE_MAX_FRACTION:.0%} are refused"
        raise TraceError(
            first.file, row=first.row, column=first.column, found=first.found, expected=f"{first.expected} ({share})"
        )
