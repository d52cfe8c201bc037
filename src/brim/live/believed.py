"""What a live controller believes before anything has run."""

from __future__ import annotations

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.overheads import IN_PLACE_MS
from brim.beliefs.predictability import default, load
from brim.beliefs.progress import SeenProgress


def believed(predictability: str = "") -> Beliefs:
    """Beliefs without any measurement: what neighbours cost is found out only by comparing steps.

    A job that reports no progress starts from zero if it is stopped: whether it saves cannot be seen from outside.

    Args:
        predictability: File of ``brim predictability fit``; empty for the classifier that comes with brim.

    Raises:
        NotFoundError: the file cannot be read.
        ConfigError: it is broken.
    """
    progress = SeenProgress(load(predictability) if predictability else default())
    return Beliefs(in_place_ms=IN_PLACE_MS, judges_steps=True, progress=progress, saves_unreported=False)
