"""What a tool may observe and set in a run, beside an unmodified script: `attach` one before the script starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brim.train.data.batches import Batches
from brim.train.gradients.update import Schedule
from brim.train.state import State

if TYPE_CHECKING:
    from brim.train.run import Run


class Instrument:
    """Observes a run. Every method does nothing by itself; a tool overrides the ones that it needs."""

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of `brim.train.start` that the run uses instead of the script's own."""
        return options

    def schedule(self, factor: Schedule | None) -> Schedule | None:
        """Return the factor on the learning rates that the run uses instead of the script's own."""
        return factor

    def epochs(self, number: int, steps: int | None) -> tuple[int, int | None]:
        """Return the numbers of epochs and steps after which the run ends instead of the script's own."""
        return number, steps

    def micro_batch(self, samples: int | None, global_batch: int) -> int | None:
        """Return the bound on the samples of a micro-batch that the run uses instead of the script's own.

        It is asked for each loader that is made with this global batch; in fast mode only, the bound is used.
        """
        del global_batch
        return samples

    def before_steps(self, run: Run, loader: Batches) -> bool:
        """Receive the loader before each epoch's steps; return whether its cursor or its batch has been changed."""
        del run, loader
        return False

    def between_steps(self, run: Run, state: State) -> bool:
        """Observe the run between two steps; return whether it is to save and end here, on every rank.

        ``state`` is all that it saves, equal on every rank.
        """
        del run, state
        return False

    def step_begins(self, loader: Batches) -> None:
        """Observe that a step begins."""

    def undoes(self, step: int) -> bool:
        """Return whether to undo this step, counted from 1, once and repeat it, as when a rank dies."""
        del step
        return False

    def step_computed(self, samples: int, loader: Batches) -> None:
        """Observe that the update of a step of so many samples was made; the step is committed next."""


_attached: list[Instrument] = []


def attach(instrument: Instrument) -> None:
    """Let this instrument observe the runs that are started from now on in this process."""
    _attached[:] = [instrument]


def attached() -> Instrument:
    """Return the instrument of new runs; one that does nothing if none was attached."""
    return _attached[0] if _attached else Instrument()
