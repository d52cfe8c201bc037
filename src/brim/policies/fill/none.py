"""The fill part that adds no jobs."""

from __future__ import annotations

from dataclasses import dataclass

from brim.beliefs.beliefs import Beliefs
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants


@dataclass(frozen=True, slots=True)
class NoFill:
    """Leave free GPUs free."""

    def __call__(self, snapshot: Snapshot, beliefs: Beliefs, grants: Grants) -> Grants:
        """See ``Fill``."""
        return grants
