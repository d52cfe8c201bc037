"""What a reader did with a file: rows used, repaired and dropped, each with its reason. Nothing is dropped silently."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """

    file: str
    format: str
    rows: int = 0
    used: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def repair(self, reason: str, rows: int = 1) -> None:
        """Count rows that were changed and kept."""
        if rows:
            self.repaired[reason] = self.repaired.get(reason, 0) + rows

    def drop(self, reason: str, rows: int = 1) -> None:
        """Count rows that were left out."""
        if rows:
            self.dropped[reason] = self.dropped.get(reason, 0) + rows
