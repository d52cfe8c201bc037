"""What a run needs of a loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Batches(Protocol):
    """What the loop needs of a loader: batches for (epoch, step, logical worker), a cursor that commits."""

    wait_s: float

    @property
    def epoch(self) -> int:
        """Of the next step to commit."""

    @property
    def step(self) -> int:
        """The next step to commit, counted in its epoch."""

    @property
    def global_batch(self) -> int:
        """Samples of the next step."""

    @property
    def logical_workers(self) -> int:
        """Shares of a step."""

    def samples(self, epoch: int, step: int, worker: int) -> int:
        """Samples of one share; may be 0."""

    def assign(self, epoch: int, step: int, workers: range) -> None:
        """These shares will be fetched, from this step on."""

    def fetch(self, epoch: int, step: int, worker: int) -> Any:
        """The batch of one share."""

    def commit(self, epoch: int, step: int) -> None:
        """The step is done."""

    def state_dict(self) -> dict[str, Any]:
        """Cursor and ledger."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
