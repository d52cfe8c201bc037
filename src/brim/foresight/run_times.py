"""How long jobs are believed to run: by their losses, from jobs like them that ended or run, or up to their time limit.

Of jobs of the same name and size, of the same name, of the same user and size, of the same user: the first of these of
which enough have ended. Without any, of all jobs of the same size, or of all. Three of a name or a user are
enough, five of a user and size, of a size, or of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from brim.beliefs.kinds import JobKind
from brim.beliefs.lifetimes import Lifetimes, lifetimes
from brim.core.arrays import FloatArray, IntArray
from brim.core.trace import NONE
from brim.units import CENTURY_MS, counted

RUNS_MIN: Final = 3
"""Fewest runs of its name or its user from which a run time is drawn; ours."""
STRANGERS_MIN: Final = 5
"""The same of a user and size, of a size, and of all. Jobs of a size that is rare are long ones, of which others do not
speak: with 20 the score of intervals was 1.7 times as bad, with 10 the same. Chosen on one trace
(docs/measurements/2026-11-28-eta.md)."""
RUNS_MAX: Final = 300
"""Runs that count of jobs alike, those that ended last: what people run changes. Chosen on one trace
(docs/measurements/2026-11-28-eta.md)."""


class ObservedRun(NamedTuple):
    """What was seen of a job's run time, in ms.

    Attributes:
        kind: What is known of the job before it runs.
        run_ms: What it has run.
        until_ms: Cluster time until which it was seen.
        has_ended: Whether it ended then; otherwise it still runs.
    """

    kind: JobKind
    run_ms: int
    until_ms: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Believed:
    """What is believed of a job's run time: what its losses say, else a distribution, a bound, or nothing.

    Attributes:
        lifetimes: Run times of jobs like it; None if too few are known.
        ran_ms: What it has run.
        limit_ms: Its time limit, NONE without.
        words: What it rests on, for users.
        left_ms: What it has left by its losses; NaN where they do not say.
        spread: How far that may be wrong: the scale of the logistic distribution of its logarithm.
    """

    lifetimes: Lifetimes | None
    ran_ms: int
    limit_ms: int
    words: str
    left_ms: float = math.nan
    spread: float = 0.0

    @property
    def is_bounded(self) -> bool:
        """Whether anything is known."""
        return self.lifetimes is not None or self.limit_ms != NONE or not math.isnan(self.left_ms)


class RunTimesByKind:
    """Run times by what jobs have in common.

    Args:
        observed: Jobs that ended or run.
        whole_since_ms: Cluster time since when every job that ended is among them.
    """

    def __init__(self, observed: Iterable[ObservedRun], whole_since_ms: int) -> None:
        self._of: dict[tuple[object, ...], list[ObservedRun]] = {}
        self._ended: Counter[tuple[object, ...]] = Counter()
        self._whole_since_ms = whole_since_ms
        for one in observed:
            for _, _, key in _alike(one.kind):
                self._of.setdefault(key, []).append(one)
                self._ended[key] += one.has_ended
        self._found: dict[tuple[object, ...], Lifetimes] = {}

    def believed(self, kind: JobKind, ran_ms: int, limit_ms: int) -> Believed:
        """What is believed of a job that has run so long; ``limit_ms``: its time limit, NONE without."""
        for words, enough, key in _alike(kind):
            if self._ended[key] >= enough:
                found = self._lifetimes(key)
                return Believed(found, ran_ms, limit_ms, f"{counted(found.jobs, 'run')} of {words}")
        if limit_ms != NONE:
            return Believed(None, ran_ms, max(limit_ms, ran_ms + 1), "its time limit alone")
        return Believed(None, ran_ms, NONE, "")

    def _lifetimes(self, key: tuple[object, ...]) -> Lifetimes:
        if key not in self._found:
            _, run_ms, until_ms, ended = (np.array(column) for column in zip(*self._of[key], strict=True))
            begin_ms, ends_ms = self._whole_since_ms, np.sort(until_ms[ended])
            if len(ends_ms) > RUNS_MAX:
                begin_ms = max(begin_ms, int(ends_ms[-RUNS_MAX]))
            since_ms = np.maximum(run_ms - (until_ms - begin_ms), 0)
            seen = run_ms > since_ms
            run_ms, since_ms = (column[seen].astype(np.float64) for column in (run_ms, since_ms))
            self._found[key] = lifetimes(run_ms, since_ms, ended[seen])
        return self._found[key]


def _alike(kind: JobKind) -> Iterator[tuple[str, int, tuple[object, ...]]]:
    """What jobs may have in common, the most telling first: in words, runs that are enough, and what identifies it."""
    if kind.name:
        yield "the same name and size", RUNS_MIN, ("name", kind.name, kind.gpus)
        yield "the same name", RUNS_MIN, ("name", kind.name)
    if kind.user:
        yield "the same user and size", STRANGERS_MIN, ("user", kind.user, kind.gpus)
        yield "the same user", RUNS_MIN, ("user", kind.user)
    yield "jobs of the same size", STRANGERS_MIN, ("all", kind.gpus)
    yield "all jobs", STRANGERS_MIN, ("all",)


def drawn_ms(believed: Sequence[Believed], draws: int, draw: np.random.Generator) -> IntArray:
    """Draw whole run times in ms, above what jobs have run; the quantiles of a job are spread evenly over them (D, J).

    Of a job of which nothing is known half of the draws end at once, and half never.
    """
    total = len(believed)
    quantile = (draw.permuted(np.tile(np.arange(draws), (total, 1)), axis=1).T + draw.random((draws, total))) / draws
    ran_ms, limit_ms = (np.array(column, dtype=np.float64).reshape(total) for column in
                        ([one.ran_ms for one in believed], [one.limit_ms for one in believed]))
    run_ms = np.where(limit_ms == NONE, np.where(quantile < 0.5, 0.0, CENTURY_MS),
                      ran_ms + quantile * (limit_ms - ran_ms))
    for known, rows in _rows(believed):
        run_ms[:, rows] = known.at(quantile[:, rows], ran_ms[rows])
    told = np.array([row for row, one in enumerate(believed) if not math.isnan(one.left_ms)], dtype=np.int64)
    if len(told):
        left_ms, spread = np.array([(believed[row].left_ms, believed[row].spread) for row in told]).T
        chance = quantile[:, told]
        run_ms[:, told] = ran_ms[told] + left_ms * (chance / (1.0 - chance)) ** spread
    run_ms = np.minimum(run_ms, np.where(limit_ms == NONE, CENTURY_MS, limit_ms))
    return np.maximum(np.round(run_ms), ran_ms + 1).astype(np.int64)


def _rows(believed: Sequence[Believed]) -> Iterator[tuple[Lifetimes, FloatArray | IntArray]]:
    """Each distribution with the jobs that it is believed of."""
    of: dict[int, tuple[Lifetimes, list[int]]] = {}
    for row, one in enumerate(believed):
        if one.lifetimes is not None:
            of.setdefault(id(one.lifetimes), (one.lifetimes, []))[1].append(row)
    for known, rows in of.values():
        yield known, np.array(rows)
