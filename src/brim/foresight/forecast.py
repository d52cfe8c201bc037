"""When jobs will start and end: intervals from the twin, which continues the live queue with drawn run times.

Run times are drawn from jobs like it that finished here: of its name and size, of its name, or of its user, the first
of these of which there are enough. Without them the time limit bounds it, and any time up to it is as likely. With
neither, nothing is known: it ends at once in half of the continuations, and never in the others. What starts in all of
them has an interval, and what does not has no basis yet.

Run times are those on the GPUs that a job asks for; what is believed of its speed tells those on others. Of a long
queue only the jobs that were submitted first are replayed, and each forecast says how many were left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brim.beliefs.kinds import BASES, JobKind, alike, grouped
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Event, Kind
from brim.core.lifecycle import Phase
from brim.core.trace import NONE
from brim.engine.scheduler import Scheduler
from brim.foresight.answers import Forecast
from brim.live import holds
from brim.live.ends import CANCELLED, TIME_LIMIT
from brim.live.recording import RecordedJob, costs_of
from brim.live.records import JobRecord
from brim.live.situation import Situation
from brim.policies.size.candidates import candidates
from brim.sim.continuation import Limit, Outset, courses
from brim.sim.overheads import Overheads
from brim.units import CENTURY_MS, MS_PER_S, counted, show_duration

DRAWS: Final = 20
"""Continuations: one more start falls between the first and the last of twenty in 19 of 21 cases, if it is of their
kind."""
DRAWS_MIN: Final = 6
EVENTS_MAX: Final = 20 * 1_024
"""Events and rounds of all continuations together, if that leaves ``DRAWS_MIN`` of them; ours: some seconds."""
QUEUE_MAX: Final = 500
"""Jobs that are replayed, those first that run, then in order of submission; ours: so many take 4 s of CPU time under
backfill, 10 s under elastic."""
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
    leaving = _leaving(situation)
    stuck = _stuck(situation, leaving)
    late = _late(situation, stuck)
    outset, ids = _outset(situation, history, {*stuck, *late} - situation.attempts.keys(), leaving)
    left_out = f"; {counted(len(late), 'job')} submitted later left out" if late else ""
    rows = {job: row for row, job in enumerate(ids.tolist())}
    groups = grouped([_kind(one.job) for one in history if one.undisturbed],
                     [one.run_ms for one in history if one.undisturbed])
    known = [_known(situation, situation.jobs[job], groups) for job in ids.tolist()]
    unknown = tuple(job for job, one in zip(ids.tolist(), known, strict=True) if not one.is_bounded)
    start_DJ, end_DJ = _drawn(outset, known, seed)
    found = []
    for job in wanted:
        why_not = stuck.get(job) or late.get(job)
        if why_not:
            found.append(Forecast(job=job, start_s=None, end_s=None, basis="", missing=why_not))
            continue
        row = rows[job]
        begun = situation.scheduler.state.phase(job) in (Phase.STARTING, Phase.RUNNING)
        start_s = None if begun else _interval_s(start_DJ[:, row], situation.now_ms)
        end_s = _interval_s(end_DJ[:, row], situation.now_ms) if known[row].is_bounded else None
        found.append(Forecast(
            job=job, start_s=start_s, end_s=end_s, basis=f"{known[row].words}{left_out}",
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
    run_ms = ([one.drawn_ms(at) for one, at in zip(known, row, strict=True)] for row in quantile_DJ.tolist())
    starts, ends, events = [], [], 0
    for number, course in enumerate(courses(outset, run_ms), 1):
        starts.append(course.start_ms)
        ends.append(course.end_ms)
        events += course.events
        if number >= max(DRAWS_MIN, EVENTS_MAX * number // events):
            break
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


def _leaving(situation: Situation) -> dict[int, str]:
    """Jobs that were told to stop and will not come back by themselves, and why."""
    leaving = {}
    for job, attempt in situation.attempts.items():
        if job in situation.jobs and situation.scheduler.state.phase(job) is Phase.STOPPING:
            held = _held_for(situation.jobs[job])
            if attempt.stop_reason in (CANCELLED, TIME_LIMIT):
                leaving[job] = "it is being cancelled" if attempt.stop_reason == CANCELLED else "its time limit is over"
            elif held:
                leaving[job] = held
    return leaving


def _stuck(situation: Situation, leaving: Mapping[int, str]) -> dict[int, str]:
    """Jobs that nobody knows when to expect, because somebody has to do something first, and why."""
    stuck = dict(leaving)
    for job in sorted(situation.jobs):  # a job waits for earlier ones only
        record = situation.jobs[job]
        if job in situation.attempts:
            continue
        gpus = holds.sizes_within(record.request, situation.user_gpus)[1]
        if reason := _held_for(record):
            stuck[job] = reason
        elif situation.user_gpus != NONE and gpus > situation.user_gpus:
            stuck[job] = f"it needs {counted(gpus, 'GPU')}, and jobs of {record.user} may have {situation.user_gpus}"
        for other in record.request.before:
            ends = other in leaving and situation.attempts[other].stop_reason in (CANCELLED, TIME_LIMIT)
            if other in stuck and job not in stuck and not (ends and other not in record.request.after):
                stuck[job] = f"it waits for job {other}: {stuck[other]}"
    return stuck


def _held_for(job: JobRecord) -> str:
    others = map(holds.after, {*job.request.after, *job.request.after_any})
    reasons = [hold for hold in job.holds if hold not in {holds.BEGIN, holds.ARRAY_LIMIT, holds.QUOTA, *others}]
    return f"it is held: {', '.join(reasons)}" if reasons else ""


def _late(situation: Situation, stuck: Mapping[int, str]) -> dict[int, str]:
    """The jobs of a long queue that were submitted last and are not replayed, and why they have no forecast."""
    waiting = [job for job in sorted(situation.jobs) if job not in situation.attempts and job not in stuck]
    room = max(QUEUE_MAX - len(situation.attempts), 0)
    missing = f"no forecast: more than {QUEUE_MAX:,} jobs that have not ended were submitted before it"
    return dict.fromkeys(waiting[room:], missing)


def _outset(
    situation: Situation, history: Sequence[RecordedJob], without: Collection[int], leaving: Collection[int]
) -> tuple[Outset, IntArray]:
    """What continuations begin from, without some jobs; and the id of each job in it (J,)."""
    scheduler = situation.scheduler.copy()
    for job in sorted(without):
        scheduler.state.apply(Event(situation.now_ms, Kind.CANCELLED, job))
    scheduler.state, ids = scheduler.state.renumbered()
    rows = {job: row for row, job in enumerate(ids.tolist())}
    jobs, state, cluster = situation.jobs, scheduler.state, scheduler.state.cluster
    costs = costs_of(history)
    held = {job: row for job, row in rows.items() if state.phase(row) is Phase.HELD}
    waits = {
        row: tuple(sorted(rows[other] for other in jobs[job].request.before if holds.after(other) in jobs[job].holds))
        for job, row in held.items()
    }
    begins = {
        row: holds.cluster_ms(jobs[job], jobs[job].request.begin_s) if holds.BEGIN in jobs[job].holds else 0
        for job, row in held.items()
    }
    outset = Outset(
        now_ms=situation.now_ms, scheduler=scheduler, overheads=Overheads.of_live(
            start_ms=costs.start_ms, restart_ms=costs.restart_ms, save_ms=costs.save_ms
        ),
        specs=[
            replace(holds.spec_of(jobs[job], cluster, state.user_code(jobs[job].user), 0, situation.user_gpus), id=row)
            for job, row in rows.items()
        ],
        waits={row: others for row, others in waits.items() if others},
        begin_ms={row: at for row, at in begins.items() if not waits[row]},
        limits=tuple(_limits(situation, rows)), leaving=frozenset(rows[job] for job in leaving if job in rows),
        speedups=_speedups(scheduler, situation.now_ms),
    )
    return outset, ids


def _limits(situation: Situation, rows: Mapping[int, int]) -> Iterator[Limit]:
    """The quotas of users and the limits of arrays."""
    arrays: dict[int, dict[int, int]] = {}
    users: dict[int, dict[int, int]] = {}
    most = {}
    for number, row in rows.items():
        job = situation.jobs[number]
        if job.request.array_limit != NONE:
            most[job.array] = job.request.array_limit
            arrays.setdefault(job.array, {})[row] = 1
        if situation.user_gpus != NONE:
            users.setdefault(job.uid, {})[row] = holds.sizes_within(job.request, situation.user_gpus)[1]
    yield from (Limit(most=most[array], needs=needs) for array, needs in arrays.items())
    yield from (Limit(most=situation.user_gpus, needs=needs) for needs in users.values())


def _speedups(scheduler: Scheduler, now_ms: int) -> dict[int, FloatArray]:
    """Speed of each elastic job whose step times are known, relative to the GPUs it asks for, by number of GPUs."""
    snapshot, total = scheduler.state.freeze(now_ms), int(scheduler.state.cluster.num_gpus)
    if not snapshot.jobs.elastic.any():
        return {}
    found = candidates(snapshot, scheduler.beliefs.speeds.of_jobs(snapshot), gpus_max=total)
    speedups = {}
    for at in np.flatnonzero(found.fitted).tolist():
        rates, asked = found.rate_JG[at], int(snapshot.jobs.gpus[at])
        sizes = np.flatnonzero(np.isfinite(rates))
        all_rates = np.interp(np.arange(len(rates)), sizes, rates[sizes])  # other sizes lie between them
        speedups[int(snapshot.jobs.id[at])] = all_rates / all_rates[asked]
    return speedups
