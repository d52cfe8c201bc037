"""What is believed of a job's losses, in words: whether they say where it ends, on what evidence, and since when."""

from __future__ import annotations

import math
from typing import Final

from brim.beliefs.progress import SeenProgress, Verdict
from brim.core.snapshot import Snapshot
from brim.foresight.answers import LossOutlook

EVIDENCE_SHOWN: Final = 3
"""Pieces of evidence that are told; ours."""
UNIT: Final = "losses as parts of the fall from 5 % of the planned samples to the predicted end"
"""Of the evidence: see ``brim.beliefs.curve_features.FEATURES``."""


def outlook_of(progress: SeenProgress, snapshot: Snapshot, job: int) -> LossOutlook | None:
    """What is believed of a job, None if it is not there or has reported no loss."""
    if job not in snapshot.losses.jobs or job not in snapshot.jobs.id:
        return None
    verdict = progress.verdict(snapshot, job)
    done = float(snapshot.jobs.samples_done[snapshot.jobs.id == job][0])
    return LossOutlook(
        is_predictable=verdict.is_predictable,
        probability=None if math.isnan(verdict.probability) else verdict.probability,
        since_samples=verdict.since_samples, at_samples=verdict.at_samples, samples_done=done,
        evidence=tuple((f"{one.side}: {one.words}", one.value) for one in verdict.evidence),
        cannot_say="" if verdict.cannot_say is None else str(verdict.cannot_say),
        text=outlook_in_words(verdict, done),
    )


def outlook_in_words(verdict: Verdict, samples_done: float) -> str:
    """Say in a sentence or two what is believed of a job that has reported losses.

    Args:
        verdict: What is believed.
        samples_done: Samples that it has done.
    """
    believed = "believed predictable" if verdict.is_predictable else "not believed predictable"
    since = f" since {verdict.since_samples:,.0f} samples" if verdict.since_samples else ""
    said = f"Its progress is {believed}{since}"
    if verdict.cannot_say is not None:
        return f"{said}; nothing can be said at {samples_done:,.0f} samples: {verdict.cannot_say}."
    chance = "" if math.isnan(verdict.probability) else (
        f"; at {verdict.at_samples:,.0f} samples its losses tell its end with probability {verdict.probability:.2f}"
    )
    speaks: dict[str, list[str]] = {"for": [], "against": []}
    for words, value, side in verdict.evidence[:EVIDENCE_SHOWN]:
        speaks[side].append(f"{words} {value:.3g}")
    shown = [f"{side.capitalize()} it: {'; '.join(each)}" for side, each in speaks.items() if each]
    return f"{said}{chance}." + (f" {'. '.join(shown)} ({UNIT})." if shown else "")
