"""The interface of a loader as a run uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Batches(Protocol):
    """A loader of batches for (epoch, step, logical worker), with a cursor that moves when a step is committed.

    Attributes:
        wait_s: Seconds that `fetch` has waited in all.
    """

    wait_s: float

    @property
    def epoch(self) -> int:
        """Epoch of the next step to commit."""

    @property
    def step(self) -> int:
        """Number of the next step to commit, counted within its epoch."""

    @property
    def global_batch(self) -> int:
        """Samples of the next step."""

    @property
    def logical_workers(self) -> int:
        """Number of shares of a step, one for each logical worker."""

    def samples(self, epoch: int, step: int, worker: int) -> int:
        """Return the number of samples of one share; it may be 0."""

    def assign(self, epoch: int, step: int, workers: range) -> None:
        """Announce that this rank will fetch these shares, from this step on."""

    def fetch(self, epoch: int, step: int, worker: int) -> Any:
        """Return the batch of one share."""

    def commit(self, epoch: int, step: int) -> None:
        """Move the cursor past this step."""

    def state_dict(self) -> dict[str, Any]:
        """Return cursor and ledger."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved cursor and ledger."""
