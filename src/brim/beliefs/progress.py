"""How far jobs are from their target loss, and whether that can be believed, as far as their reported losses say.

A job is evaluated again when its samples have grown by a fifth, on the points that were reported by then. What is
believed of it follows from the points that the state keeps and from nothing else, so that a replay, a restarted
controller and a trial copy agree; what is kept here only saves the work of doing it again.

Shapes: J jobs, N points of a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.convergence import POINTS_MIN, CannotSay
from brim.beliefs.curve_features import FallingCurve, seen
from brim.beliefs.predictability import CUT, Classifier, Evidence, default
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.losses import POINTS_KEPT
from brim.core.snapshot import Snapshot
from brim.core.trace import NONE

MILLION: Final = 1_000_000
GROWTH: Final = 1.2
"""Samples over those of the evaluation before from which a job is evaluated again. Ours: 13 evaluations from a tenth of
a run to its end."""
PARTED: Final = 0.3
"""Difference of the real fall of the loss from the predicted one, over the latter, from which they part. Ours:
what AITurbo publishes says that a job flips back, not when."""
NOISE: Final = 2.0
"""Standard deviations of the reports around the curve by which they may differ besides. Ours: without it, the noise of
a job that hardly learns any more would part it from any prediction."""
PARTED_WORDS: Final = "predicted and real fall of the loss part by more than"


class Outlook(NamedTuple):
    """What is believed of jobs that train towards a loss (J,).

    Attributes:
        samples_left: Samples until the target, never more than the job's user planned; NaN where nothing can be said.
        is_predictable: Whether the curve through its losses says where the job ends. A job of which nothing says how
            far it trains, neither a target nor samples, may be predictable and has samples left NaN.
        probability: That it does, at the newest evaluation; NaN where nothing can be said.
        by_curve: Samples until the curve through its losses reaches the target, whatever the job's user planned and
            whether or not that can be believed; infinite where it never does, NaN without a target or a curve.
    """

    samples_left: FloatArray
    is_predictable: BoolArray
    probability: FloatArray
    by_curve: FloatArray


class Verdict(NamedTuple):
    """What is believed of one job, and why.

    Attributes:
        is_predictable: Whether the curve through its losses says where the job ends.
        probability: That it does, at the newest evaluation; NaN where nothing can be said.
        since_samples: Samples at the evaluation from which that is believed; 0 for a job that was never believed
            predictable.
        at_samples: Samples at the newest evaluation.
        evidence: What it rests on, in plain words and with values.
        cannot_say: Why nothing can be said, or None.
    """

    is_predictable: bool = False
    probability: float = np.nan
    since_samples: float = 0.0
    at_samples: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    cannot_say: CannotSay | None = CannotSay.TOO_FEW


class _State(NamedTuple):
    """A job after an evaluation.

    Attributes:
        verdict: What is believed of it.
        votes_for: How this evaluation alone would decide.
        seen: The curve of this evaluation, or None.
        believed: The curve of the newest evaluation that spoke for it while the job is believed predictable, or None.
    """

    verdict: Verdict
    votes_for: bool = False
    seen: FallingCurve | None = None
    believed: FallingCurve | None = None


_AT_FIRST: Final = _State(Verdict())


@dataclass(slots=True)
class SeenProgress:
    """Curves through reported losses; equal losses give equal answers.

    Attributes:
        classifier: Says whether a curve can be trusted.
        states: By the points of a prefix and the planned end: the job after the evaluation on them. Those that the last
            call needed.
    """

    classifier: Classifier = field(default_factory=default)
    states: dict[bytes, _State] = field(default_factory=dict)
    _newest: dict[int, tuple[tuple[FloatArray, FloatArray], bytes]] = field(default_factory=dict)

    def of_jobs(self, snapshot: Snapshot) -> Outlook:
        """The outlook of each job."""
        jobs = snapshot.jobs
        left, by_curve, probability = (np.full(len(jobs), np.nan) for _ in range(3))
        sure = np.zeros(len(jobs), dtype=np.bool_)
        ids = np.array(snapshot.losses.jobs, dtype=np.int64)
        rows = np.searchsorted(jobs.id, ids)
        kept: dict[bytes, _State] = {}
        newest: dict[int, tuple[tuple[FloatArray, FloatArray], bytes]] = {}
        for row, job, points in zip(rows.tolist(), snapshot.losses.jobs, snapshot.losses.points, strict=True):
            if row == len(jobs) or jobs.id[row] != job:
                continue
            known = self._newest.get(job)
            key, state = self._after(points, _planned(snapshot, row)) if known is None or known[0] is not points else (
                known[1], self.states[known[1]])
            kept[key], newest[job] = state, (points, key)
            verdict = state.verdict
            sure[row], probability[row] = verdict.is_predictable, verdict.probability
            if jobs.target_loss_ppm[row] == NONE:  # it ends where its user planned
                left[row] = np.inf if jobs.samples_max[row] != NONE else np.nan
            elif state.seen is not None:
                reached = state.seen.samples_at(float(jobs.target_loss_ppm[row]) / MILLION)
                by_curve[row] = left[row] = max(reached - float(jobs.samples_done[row]), 0.0)
        self.states, self._newest = kept, newest
        planned = np.where(jobs.samples_max == NONE, np.inf, jobs.samples_max - jobs.samples_done)
        return Outlook(np.minimum(left, np.maximum(planned, 0.0)), sure, probability, by_curve)

    def verdict(self, snapshot: Snapshot, job: int) -> Verdict:
        """What is believed of one job by its id, and why; a job of which the snapshot knows nothing says nothing."""
        row = int(np.searchsorted(snapshot.jobs.id, job))
        if row == len(snapshot.jobs) or snapshot.jobs.id[row] != job:
            return _AT_FIRST.verdict
        return self._after(snapshot.losses.of(job), _planned(snapshot, row))[1].verdict

    def copy(self) -> SeenProgress:
        """An independent copy, for trials: jobs have other ids there, and the same points."""
        return SeenProgress(self.classifier, dict(self.states))

    def _after(self, points: tuple[FloatArray, FloatArray], planned: float) -> tuple[bytes, _State]:
        """The state after the evaluations that are due, and its key: each follows from the one before."""
        ends = due(points[0])
        todo: list[tuple[int, bytes]] = []
        state, key = _AT_FIRST, b""
        for end in reversed(ends.tolist()):
            content = points[0][:end].tobytes() + points[1][:end].tobytes()
            key_there = blake2b(content, digest_size=16, person=np.float64(planned).tobytes()).digest()
            key = key or key_there
            if found := self.states.get(key_there):
                state = found
                break
            todo.append((end, key_there))
        for end, _ in reversed(todo):
            state = self._next(state, points[0][:end], points[1][:end], planned)
        return key, state

    def _next(self, before: _State, samples: FloatArray, loss: FloatArray, planned: float) -> _State:
        """The state after one more evaluation."""
        at, past = float(samples[-1]), before.verdict
        found = seen(samples, loss, planned)
        probability, votes_for = np.nan, False
        evidence: tuple[Evidence, ...] = ()
        if not isinstance(found, CannotSay):
            features = np.array(found.features)
            probability = float(self.classifier.probability(features[None])[0])
            parted = before.believed is not None and has_parted(before.believed, found)
            votes_for = probability >= CUT and not parted
            told = self.classifier.evidence(features)
            evidence = (Evidence(PARTED_WORDS, PARTED, "against"), *told) if parted else told
        flips = votes_for is before.votes_for and votes_for is not past.is_predictable
        is_predictable = past.is_predictable is not flips
        curve = None if isinstance(found, CannotSay) else found
        return _State(
            Verdict(
                is_predictable=is_predictable, probability=probability, at_samples=at,
                since_samples=at if flips else past.since_samples, evidence=evidence,
                cannot_say=found if isinstance(found, CannotSay) else None,
            ),
            votes_for, curve, None if not is_predictable else curve if votes_for else before.believed,
        )


def due(samples: FloatArray) -> IntArray:
    """How many points count at each evaluation that is due after these, in increasing order.

    The fourth point, and each that is the first past a power of ``GROWTH``. The last of many points may still be the
    mean of some reports only: it counts when there is another after it.

    Args:
        samples: Samples by each point, increasing (N,).
    """
    whole = len(samples) if len(samples) < POINTS_KEPT // 2 else len(samples) - 1
    if whole < POINTS_MIN:
        return np.zeros(0, dtype=np.int64)
    step = np.floor(np.log(np.maximum(samples[POINTS_MIN - 1 : whole], 1e-300)) / np.log(GROWTH))
    return np.concatenate(([0], np.flatnonzero(np.diff(step)) + 1)) + POINTS_MIN


def _planned(snapshot: Snapshot, row: int) -> float:
    """Samples at which the user of a job planned its end, infinite where that is not known."""
    planned = int(snapshot.jobs.samples_max[row])
    return np.inf if planned == NONE else float(planned)


def has_parted(believed: FallingCurve, now: FallingCurve) -> bool:
    """Whether the loss has fallen otherwise than was believed, by more than ``PARTED`` and noise."""
    expected = believed.loss_at(now.newest_at)
    fall = believed.loss_at(believed.newest_at) - expected
    return abs(now.newest - expected) > PARTED * fall + NOISE * believed.deviation
