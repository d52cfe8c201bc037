"""How often a job should save that may lose its GPUs at any moment."""

from __future__ import annotations

import math


def young_ms(blocking_ms: float, between_ms: float) -> float:
    """Time between checkpoints with the least loss to saving and to repeated work: sqrt(2 delta M).

    A job that measures both while it trains uses the higher order of ``brim.train.checkpoint.intervals``.

    Args:
        blocking_ms: What a checkpoint takes from the training.
        between_ms: Mean time between losses of what was not saved.

    Source:
        Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.

    Example:
        >>> round(young_ms(1_000, 600_000) / 1_000)
        35
    """
    return math.sqrt(2.0 * blocking_ms * between_ms)
