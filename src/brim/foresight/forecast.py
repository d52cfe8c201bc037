"""When jobs will start and end: intervals from the twin, which continues the live queue with drawn run times.

A job's run time comes from its losses if they predict its end, else from similar jobs that have ended or run here
(``run_times``). Without those, the time limit bounds it, and any time up to it is as likely. With neither, nothing is
known: it ends at once in half of the continuations, and never in the others. What starts in all of them has an
interval, and what does not has no basis yet. How wide the interval of a start is follows from earlier forecasts
(``calibration``).

Run times are those on the GPUs that a job asks for; what is believed of its speed tells those on others. Of a long
queue only the jobs that were submitted first are replayed, and each forecast says how many were left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from brim.beliefs.kinds import JobKind
from brim.core.arrays import FloatArray, IntArray
from brim.core.events import Event, Kind
from brim.core.lifecycle import Phase
from brim.core.trace import NONE
from brim.engine.scheduler import Scheduler
from brim.foresight.answers import Forecast
from brim.foresight.calibration import Calibration
from brim.foresight.run_times import Believed, ObservedRun, RunTimesByKind
from brim.foresight.start_interval import drawn, ends, stated
from brim.live import holds
from brim.live.ends import CANCELLED, TIME_LIMIT
from brim.live.recording import RecordedJob, costs_of
from brim.live.records import JobRecord, PastForecast
from brim.live.situation import Situation
from brim.policies.size.candidates import candidates
from brim.sim.continuation import InitialState, Limit
from brim.sim.overheads import Overheads
from brim.units import MS_PER_S, counted, show_duration

QUEUE_MAX: Final = 500
"""Jobs that are replayed, running ones first, then in order of submission; ours: so many take 4 s of CPU time under
backfill, 10 s under elastic."""
SPREAD: Final = 0.8
"""Scale of the logistic distribution of the logarithm of what a job has left until a loss: two of five are within a
factor of two. Ours, as is aimed at on AlgoPerf's runs; not measured on a cluster."""
PLANNED_SPREAD: Final = 0.05
"""The same of what it has left until its planned end: only its speed may change. Ours."""


def forecasts(
    situation: Situation, history: Sequence[RecordedJob], jobs: Iterable[int], seed: int = 0,
    record: Sequence[PastForecast] = (), *, whole_since_ms: int = 0, asks_ends: bool = True,
) -> tuple[Forecast, ...]:
    """Forecast when jobs start and end.

    Args:
        situation: The situation; it is not changed.
        history: Jobs that have ended, with their run times.
        jobs: Ids of jobs that have not ended.
        seed: Seed of the draws.
        record: Earlier forecasts under the policy that decides now.
        whole_since_ms: Cluster time since when the history has every job that ended.
        asks_ends: Whether ends are asked for, too; starts alone take less.

    Raises:
        PlanError: the policy wants something impossible.
    """
    wanted = [job for job in jobs if job in situation.jobs]
    leaving = _leaving(situation)
    stuck = _stuck(situation, leaving)
    late = _late(situation, stuck)
    why_not = stuck | late
    if all(job in why_not for job in wanted):  # which takes no continuation to say
        return tuple(Forecast(job=job, basis="", missing=why_not[job]) for job in wanted)
    initial, ids = _outset(situation, history, {*stuck, *late} - situation.attempts.keys(), leaving)
    left_out = f"; {counted(len(late), 'job')} submitted later left out" if late else ""
    rows = {job: row for row, job in enumerate(ids.tolist())}
    run_times = RunTimesByKind(_observed(situation, history), whole_since_ms)
    left_ms = _left_ms(situation)
    believed = [_believed(situation, situation.jobs[job], run_times, left_ms.get(job)) for job in ids.tolist()]
    unknown = tuple(job for job, one in zip(ids.tolist(), believed, strict=True) if not one.is_bounded)
    asked = None if asks_ends else [rows[job] for job in wanted if job in rows and job not in situation.attempts]
    start_DJ, end_DJ = drawn(initial, believed, seed, asked)
    calibration, found = Calibration(record, situation.now_ms), []
    for job in wanted:
        if job in why_not:
            found.append(Forecast(job=job, basis="", missing=why_not[job]))
            continue
        row = rows[job]
        begun = situation.scheduler.state.phase(job) in (Phase.STARTING, Phase.RUNNING)
        start = None if begun else stated(start_DJ[:, row], situation.now_ms, calibration)
        start_s = start and _around_s(start.low_ms, start.high_ms, situation.now_ms)
        end_s = _interval_s(end_DJ[:, row], situation.now_ms) if asks_ends and believed[row].is_bounded else None
        if start_s and end_s:  # no end of it is before that of the start, which follows from the record
            end_s = max(start_s[0], end_s[0]), max(start_s[1], end_s[1])
        found.append(Forecast(
            job=job, start_s=start_s,
            expected_s=start and (start.expected_ms - situation.now_ms) // MS_PER_S,
            drawn_s=start and _around_s(start.first_ms, start.last_ms, situation.now_ms), end_s=end_s,
            basis=f"{believed[row].words}{left_out}",
            missing="" if (end_s or not asks_ends) and (begun or start) else _missing(job, unknown),
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
    """Whole seconds around the times, but for a tenth at each end; None if one is never."""
    if (times_D == NONE).any():
        return None
    low_ms, high_ms = ends(times_D)
    return _around_s(round(low_ms), round(high_ms), now_ms)


def _around_s(low_ms: int, high_ms: int, now_ms: int) -> tuple[int, int]:
    """Whole seconds around two times; rounds are up to a second apart, which may be on the other side live."""
    return max(low_ms - now_ms, 0) // MS_PER_S, max(high_ms - now_ms, 0) // MS_PER_S + 2


def _observed(situation: Situation, history: Sequence[RecordedJob]) -> Iterator[ObservedRun]:
    """Run times of jobs that ended, and what the jobs that have begun have run."""
    state, now_ms = situation.scheduler.state, situation.now_ms
    yield from (ObservedRun(_kind(one.job), one.run_ms, one.end_ms, True) for one in history if one.undisturbed)
    yield from (
        ObservedRun(_kind(record), state.run_ms(job, now_ms), now_ms, False) for job, record in situation.jobs.items()
    )


def _kind(job: JobRecord) -> JobKind:
    return JobKind(job.request.name, job.user, job.request.gpus)


def _believed(
    situation: Situation, job: JobRecord, run_times: RunTimesByKind, told: tuple[float, float] | None
) -> Believed:
    ran_ms = situation.scheduler.state.run_ms(job.id, situation.now_ms)
    attempt, limit_s, limit_ms = situation.attempts.get(job.id), job.request.time_limit_s, NONE
    if limit_s:  # of each attempt: what earlier ones have run does not count
        left_ms = limit_s * MS_PER_S if attempt is None else attempt.limit_left_ms(limit_s, situation.now_ms)
        limit_ms = ran_ms + max(left_ms, 1)
    believed = run_times.believed(_kind(job), ran_ms, limit_ms)
    if believed.lifetimes is None and limit_s:
        believed = replace(believed, words=f"its time limit of {show_duration(limit_s)} alone")
    if told is None:
        return believed
    return replace(believed, words="its losses, which tell where it ends", left_ms=told[0], spread=told[1])


def _left_ms(situation: Situation) -> dict[int, tuple[float, float]]:
    """What jobs have left whose losses tell where they end, at their present speed, and how far that may be wrong."""
    scheduler = situation.scheduler
    snapshot = scheduler.state.freeze(situation.now_ms)
    jobs, outlook = snapshot.jobs, scheduler.beliefs.progress.copy().of_jobs(snapshot)
    told = outlook.is_predictable & np.isfinite(outlook.samples_left) & (jobs.samples_per_s > 0) & (jobs.gpus_now > 0)
    return {
        int(jobs.id[row]): (
            float(outlook.samples_left[row] / jobs.samples_per_s[row]) * MS_PER_S,
            PLANNED_SPREAD if outlook.samples_left[row] == jobs.samples_max[row] - jobs.samples_done[row] else SPREAD,
        )
        for row in np.flatnonzero(told).tolist()
    }


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
    stuck, roots = dict(leaving), {job: job for job in leaving}
    for job in sorted(situation.jobs):  # a job waits for earlier ones only
        record = situation.jobs[job]
        if job in situation.attempts:
            continue
        gpus = holds.sizes_within(record.request, situation.user_gpus)[1]
        if reason := _held_for(record):
            stuck[job] = reason
        elif situation.user_gpus != NONE and gpus > situation.user_gpus:
            stuck[job] = f"it needs {counted(gpus, 'GPU')}, and jobs of {record.user} may have {situation.user_gpus}"
        roots[job] = job
        for other in record.request.before:
            ends = other in leaving and situation.attempts[other].stop_reason in (CANCELLED, TIME_LIMIT)
            if other in stuck and job not in stuck and not (ends and other not in record.request.after):
                root = roots[job] = roots[other]
                by = "" if root == other else f", which is held up by job {root}"
                stuck[job] = f"it waits for job {other}{by}: {stuck[root]}"
    return stuck


def _held_for(job: JobRecord) -> str:
    others = map(holds.after, {*job.request.after, *job.request.after_any})
    reasons = [hold for hold in job.holds if hold not in {holds.BEGIN, holds.ARRAY_LIMIT, holds.QUOTA, *others}]
    return f"it is held: {'; '.join(reasons)}" if reasons else ""


def _late(situation: Situation, stuck: Mapping[int, str]) -> dict[int, str]:
    """The jobs of a long queue that were submitted last and are not replayed, and why they have no forecast."""
    waiting = [job for job in sorted(situation.jobs) if job not in situation.attempts and job not in stuck]
    room = max(QUEUE_MAX - len(situation.attempts), 0)
    missing = f"no forecast: more than {QUEUE_MAX:,} jobs that have not ended were submitted before it"
    return dict.fromkeys(waiting[room:], missing)


def _outset(
    situation: Situation, history: Sequence[RecordedJob], without: Collection[int], leaving: Collection[int]
) -> tuple[InitialState, IntArray]:
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
    initial = InitialState(
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
    return initial, ids


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
