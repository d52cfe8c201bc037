"""When jobs will start and end: intervals from the twin, which continues the live queue with drawn run times.

Run times are drawn from jobs like it that finished here: of its name and size, of its name, or of its user, the first
of these of which there are enough. Without them the time limit bounds it, and any time up to it is as likely. With
neither, nothing is known: it ends at once in half of the continuations, and never in the others. What starts in all of
them has an interval, and what does not has no basis yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brim.beliefs.kinds import BASES, JobKind, alike, grouped
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Event, Kind
from brim.core.lifecycle import Phase
from brim.core.trace import NONE
from brim.foresight.answers import Forecast
from brim.live import holds
from brim.live.recording import RecordedJob, costs_of
from brim.live.records import JobRecord
from brim.live.situation import Situation
from brim.sim.continuation import Outset, continued
from brim.sim.overheads import Overheads
from brim.units import CENTURY_MS, MS_PER_S, counted, show_duration

DRAWS: Final = 20
"""Continuations: one more start falls between the first and the last of twenty in 19 of 21 cases, if it is of their
kind."""
DRAWS_MIN: Final = 6
EVENTS_MAX: Final = 20 * 1_024
"""Events and rounds of all continuations together, if that leaves ``DRAWS_MIN`` of them; ours: some seconds."""
QUEUE_MAX: Final = 500
"""Jobs of a queue that is continued; ours: so many take 4 s of CPU time under backfill, 10 s under elastic."""
RUNS_MIN: Final = 3
"""Fewest runs of its kind from which a run time is drawn; ours."""
_BASES: Final = 3
"""Of ``BASES``, all but the last: all jobs together are no kind."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a job's run time: runs like it in increasing order, or a bound, all in ms; or neither."""

    runs_ms: FloatArray
    ran_ms: int
    limit_ms: int
    words: str

    def drawn_ms(self, quantile: float) -> int:
        """Run time at a quantile: between two runs like it, or beyond all n of them in 2 of n + 1 cases."""
        if len(self.runs_ms):
            at = quantile * (len(self.runs_ms) + 1)
            steps = np.concatenate(([self.runs_ms[0] / 2], self.runs_ms, [self.runs_ms[-1] * 2]))
            drawn = float(np.interp(at, np.arange(len(steps)), steps))
        elif self.limit_ms != NONE:
            drawn = self.ran_ms + quantile * (self.limit_ms - self.ran_ms)
        else:
            drawn = 0.0 if quantile < 0.5 else float(CENTURY_MS)
        drawn = min(drawn, self.limit_ms) if self.limit_ms != NONE else drawn
        return max(round(drawn), self.ran_ms + 1)

    @property
    def is_bounded(self) -> bool:
        return bool(len(self.runs_ms)) or self.limit_ms != NONE


def forecasts(
    situation: Situation, history: Sequence[RecordedJob], jobs: Iterable[int], seed: int = 0
) -> tuple[Forecast, ...]:
    """Forecast when jobs start and end.

    Args:
        situation: The situation; it is not changed.
        history: Jobs that have ended, with their run times.
        jobs: Ids of jobs that have not ended.
        seed: Seed of the draws.

    Raises:
        PlanError: the policy wants something impossible.
    """
    wanted = [job for job in jobs if job in situation.jobs]
    if len(situation.jobs) > QUEUE_MAX:
        missing = f"no forecast: {len(situation.jobs):,} jobs have not ended, and at most {QUEUE_MAX:,} are replayed"
        return tuple(Forecast(job=job, start_s=None, end_s=None, basis="", missing=missing) for job in wanted)
    stuck = _stuck(situation)
    outset, ids = _outset(situation, history, stuck)
    rows = {job: row for row, job in enumerate(ids.tolist())}
    groups = grouped([_kind(one.job) for one in history if one.undisturbed],
                     [one.run_ms for one in history if one.undisturbed])
    known = [_known(situation, situation.jobs[job], groups) for job in ids.tolist()]
    unknown = tuple(job for job, one in zip(ids.tolist(), known, strict=True) if not one.is_bounded)
    start_DJ, end_DJ = _drawn(outset, known, seed)
    found = []
    for job in wanted:
        if job in stuck:
            found.append(Forecast(job=job, start_s=None, end_s=None, basis="", missing=stuck[job]))
            continue
        row = rows[job]
        begun = situation.scheduler.state.phase(job) in (Phase.STARTING, Phase.RUNNING)
        start_s = None if begun else _interval_s(start_DJ[:, row], situation.now_ms)
        end_s = _interval_s(end_DJ[:, row], situation.now_ms) if known[row].is_bounded else None
        found.append(Forecast(
            job=job, start_s=start_s, end_s=end_s, basis=known[row].words,
            missing="" if end_s and (begun or start_s) else _missing(job, unknown),
        ))
    return tuple(found)


def _missing(job: int, unknown: tuple[int, ...]) -> str:
    others = [number for number in unknown if number != job]
    if job in unknown:
        return "no basis yet: no run of its name or its user has finished often enough, and it has no time limit"
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"no basis yet: it depends on job {others[0]}{more}, of which no run is known, and no time limit"
    return "no basis yet: it starts too far ahead, or needs devices that are withheld"


def _interval_s(times_D: IntArray, now_ms: int) -> tuple[int, int] | None:
    """Whole seconds around all times; rounds are up to a second apart, which may be on the other side live."""
    if (times_D == NONE).any():
        return None
    return max(int(times_D.min()) - now_ms, 0) // MS_PER_S, max(int(times_D.max()) - now_ms, 0) // MS_PER_S + 2


def _drawn(outset: Outset, known: Sequence[_Known], seed: int) -> tuple[IntArray, IntArray]:
    """Start and end of each job in each continuation (D, J); the quantiles of a job are spread evenly over them."""
    draw, total = np.random.default_rng(seed), len(known)
    quantile_DJ = (draw.permuted(np.tile(np.arange(DRAWS), (total, 1)), axis=1).T + draw.random((DRAWS, total))) / DRAWS
    starts, ends, events, draws = [], [], 0, DRAWS
    for number in range(DRAWS):
        if number >= draws:
            break
        quantiles = quantile_DJ[number].tolist()
        course = continued(outset, [one.drawn_ms(at) for one, at in zip(known, quantiles, strict=True)])
        starts.append(course.start_ms)
        ends.append(course.end_ms)
        events += course.events
        draws = max(DRAWS_MIN, min(DRAWS, EVENTS_MAX * (number + 1) // events))
    return np.array(starts), np.array(ends)


def _kind(job: JobRecord) -> JobKind:
    return JobKind(job.request.name, job.user, job.request.gpus)


def _known(situation: Situation, job: JobRecord, groups: Mapping[tuple[object, ...], Sequence[float]]) -> _Known:
    ran_ms = situation.scheduler.state.run_ms(job.id, situation.now_ms)
    limit_ms = job.request.time_limit_s * MS_PER_S or NONE
    for basis, key in list(zip(BASES, alike(_kind(job)), strict=True))[:_BASES]:
        runs = np.sort(np.array([run for run in groups.get(key, ()) if run > ran_ms], dtype=np.float64))
        if len(groups.get(key, ())) >= RUNS_MIN and len(runs):
            return _Known(runs, ran_ms, limit_ms, f"{counted(len(runs), 'run')} of the same {basis}")
    if limit_ms != NONE:
        words = f"its time limit of {show_duration(limit_ms / MS_PER_S)} alone"
        return _Known(np.zeros(0), ran_ms, max(limit_ms, ran_ms + 1), words)
    return _Known(np.zeros(0), ran_ms, NONE, "")


def _stuck(situation: Situation) -> dict[int, str]:
    """Jobs that nobody knows when to expect, because somebody has to do something first, and why."""
    stuck = {job.id: reason for job in situation.jobs.values() if (reason := _held_for(job))}
    for job in sorted(situation.jobs):  # a job waits for earlier ones only
        for other in situation.jobs[job].request.before:
            if other in stuck and job not in stuck:
                stuck[job] = f"it waits for job {other}: {stuck[other]}"
    return {job: reason for job, reason in stuck.items() if job not in situation.attempts}


def _held_for(job: JobRecord) -> str:
    waits = {holds.BEGIN, holds.ARRAY_LIMIT, *map(holds.after, {*job.request.after, *job.request.after_any})}
    reasons = [hold for hold in job.holds if hold not in waits]
    return f"it is held: {', '.join(reasons)}" if reasons else ""


def _outset(situation: Situation, history: Sequence[RecordedJob], stuck: Mapping[int, str]) -> tuple[Outset, IntArray]:
    """What continuations begin from, without the jobs that are stuck; and the id of each job in it (J,)."""
    scheduler = situation.scheduler.copy()
    for job in sorted(stuck):
        scheduler.state.apply(Event(situation.now_ms, Kind.CANCELLED, job))
    scheduler.state, ids = scheduler.state.renumbered()
    rows = {job: row for row, job in enumerate(ids.tolist())}
    jobs, state, cluster = situation.jobs, scheduler.state, scheduler.state.cluster
    costs = costs_of(history)
    waits = {}
    for job, row in rows.items():
        if state.phase(row) is Phase.HELD:
            others = {rows[other] for other in jobs[job].request.before if holds.after(other) in jobs[job].holds}
            waits[row] = tuple(sorted(others | _of_array(situation, jobs[job], rows)))
    begins = {
        row: holds.cluster_ms(jobs[job], jobs[job].request.begin_s) if holds.BEGIN in jobs[job].holds else 0
        for job, row in rows.items() if row in waits
    }  # fmt: skip
    outset = Outset(
        now_ms=situation.now_ms, scheduler=scheduler, overheads=Overheads(
            start_ms=costs.start_ms, restart_ms=costs.restart_ms, save_ms=costs.save_ms
        ),
        specs=[
            replace(holds.spec_of(jobs[job], cluster, state.user_code(jobs[job].user), 0, situation.user_gpus), id=row)
            for job, row in rows.items()
        ],
        waits={row: others for row, others in waits.items() if others},
        begin_ms={row: at for row, at in begins.items() if not waits.get(row)},
    )
    return outset, ids


def _of_array(situation: Situation, job: JobRecord, rows: Mapping[int, int]) -> set[int]:
    """The job of a limited array after which this one may run: as many places before it as may run at once."""
    if holds.ARRAY_LIMIT not in job.holds:
        return set()
    array = [one for one in sorted(rows) if situation.jobs[one].array == job.array]
    before = array.index(job.id) - job.request.array_limit
    return {rows[array[before]]} if before >= 0 else set()
