"""The twin beside what a live cluster recorded: which run times it is given, the replay, and the closing words.

Two ways, never mixed: with the run times that were measured in the jobs compared, which checks only how the twin
queues; and with run times and costs learned from other jobs, which is a prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from brim.beliefs.change_costs import ChangeCosts
from brim.beliefs.kind_speeds import KindSpeeds, learn_speeds
from brim.beliefs.kinds import BASES, JobKind, KindRunTimes, learn_run_times
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.engine.journal import Journal
from brim.errors import ConfigError
from brim.live.billing import gpu_ms_of, runs_of
from brim.live.recording import RecordedJob, costs_of, trace_of_recorded
from brim.policies.sockets import Policy
from brim.reports.fidelity import Fidelity, fidelity
from brim.sim.overheads import Overheads
from brim.sim.truths.seen import SeenRates
from brim.sim.truths.truth import Truth
from brim.sim.twin import ReplaySettings, replay
from brim.units import MS_PER_S, counted

_WORDS: Final = {"jct_mean_s": "mean JCT", "queue_mean_s": "mean queueing", "makespan_s": "makespan",
                 "allocated_gpu_s": "allocated GPU time", "jct_s": "JCT", "queue_s": "queueing"}  # fmt: skip

SPEEDS: Final = "name, with the speeds reported on each number of GPUs"
"""Beside ``BASES``, on what the run time of an elastic job is based."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """Under what jobs were recorded, and are replayed."""

    cluster: Cluster
    policy: Policy
    gap_ms: int
    gap_job_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedBeliefs:
    """What other jobs tell: run times of kinds of jobs, and what changes cost."""

    run_times: KindRunTimes
    speeds: Mapping[str, KindSpeeds]
    costs: ChangeCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityResult:
    """One replay beside the record.

    Attributes:
        fidelity: How far they differ.
        replay: The replay.
        costs: The costs of changes that it had.
        bases: How many compared jobs have their run time on which of ``BASES``; empty if it is their own.
        preemptions: Preemptions of the compared jobs in the record.
    """

    fidelity: Fidelity
    replay: Replay
    costs: ChangeCosts
    bases: Mapping[str, int]
    preemptions: int

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        rows = self.fidelity.rows
        trace = self.replay.trace
        errors = [self.fidelity.per_job[name].error_C.tolist() for name in ("jct_s", "queue_s", "allocated_gpu_s")]
        return {
            **self.fidelity.as_json(), "preemptions_live": self.preemptions, "costs": asdict(self.costs),
            "run_times_from": dict(self.bases) or "the jobs themselves",
            "errors": [
                {"job": int(trace.job_id[row]), "jct_live_s": int(trace.jct_ms[row]) / 1000, "jct_error_s": jct,
                 "queue_error_s": queue, "allocated_gpu_s_error": gpu}
                for row, jct, queue, gpu in zip(rows.tolist(), *errors, strict=True)
            ],
        }  # fmt: skip


def learn(jobs: Sequence[RecordedJob]) -> LearnedBeliefs:
    """Learn from recorded jobs.

    Raises:
        ConfigError: none of them ran undisturbed to its end.
    """
    whole = [one for one in jobs if one.undisturbed]
    if not whole:
        raise ConfigError("nothing to learn from: none of the jobs finished undisturbed")
    rigid = [one for one in whole if not one.job.request.is_elastic] or whole
    run_times = learn_run_times(
        list(map(_kind, rigid)), [one.run_ms for one in rigid], [len(one.attempts) - 1 for one in rigid]
    )
    costs = costs_of(jobs)
    restart_ms = costs.restart_ms + round(run_times.repeat_ms)
    return LearnedBeliefs(run_times=run_times, speeds=_speeds(whole), costs=replace(costs, restart_ms=restart_ms))


def with_own_run_times(jobs: Sequence[RecordedJob], compared: frozenset[int], setup: ReplaySetup) -> FidelityResult:
    """Replay jobs with the run times and costs that they showed themselves: this checks only how the twin queues."""
    own = [one for one in jobs if one.job.id in compared]
    run_ms = {one.job.id: one.run_ms for one in jobs}
    return _replayed(jobs, compared, setup, run_ms, _own_work(jobs), costs_of(own), {})


def predicted(
    jobs: Sequence[RecordedJob], compared: frozenset[int], setup: ReplaySetup, beliefs: LearnedBeliefs
) -> FidelityResult:
    """Replay jobs with the run times and costs that others showed; what is not compared keeps its own run times."""
    run_ms, bases = {one.job.id: one.run_ms for one in jobs}, Counter[str]()
    work = _own_work([one for one in jobs if one.job.id not in compared])
    for one in jobs:
        if one.job.id in compared and one.undisturbed:
            name = one.job.request.name
            if one.job.request.is_elastic and name in beliefs.speeds:
                work[one.job.id] = beliefs.speeds[name]
                bases[SPEEDS] += 1
            else:
                run_ms[one.job.id], basis = beliefs.run_times.run_ms(_kind(one))
                bases[BASES[basis]] += 1
    return _replayed(jobs, compared, setup, run_ms, work, beliefs.costs, bases)


def _own_work(jobs: Sequence[RecordedJob]) -> dict[int, KindSpeeds]:
    """What each job that reported speeds has trained on, at the speeds of all of its name."""
    speeds = _speeds(jobs)
    return {one.job.id: replace(speeds[one.job.request.name], samples=one.samples) for one in jobs
            if one.samples > 0 and one.job.request.name in speeds}


def _speeds(jobs: Sequence[RecordedJob]) -> dict[str, KindSpeeds]:
    return learn_speeds([one.job.request.name for one in jobs], [one.speeds for one in jobs],
                        [one.samples for one in jobs])  # fmt: skip


def _kind(one: RecordedJob) -> JobKind:
    return JobKind(one.job.request.name, one.job.user, one.job.request.gpus)


def _replayed(
    jobs: Sequence[RecordedJob], compared: frozenset[int], setup: ReplaySetup, run_ms: Mapping[int, int],
    work: Mapping[int, KindSpeeds], costs: ChangeCosts, bases: Mapping[str, int],
) -> FidelityResult:
    trace = trace_of_recorded("the recorded jobs", jobs, setup.cluster, run_ms)
    of = {str(one.job.id): one for one in jobs}
    rows = [of[name] for name in trace.job_id]
    result = replay(
        trace, setup.cluster, setup.policy,
        ReplaySettings(
            overheads=Overheads.of_live(
                start_ms=costs.start_ms, restart_ms=costs.restart_ms, save_ms=costs.save_ms
            ),
            gap_ms=setup.gap_ms, gap_job_us=setup.gap_job_us,
        ),
        truth=_truth(trace, rows, work, setup.cluster),
        journal=Journal(),  # the general loop: it is ready at once, and shares its steps with the controller
    )
    found = fidelity(
        result, gpu_ms_of(runs_of(rows), len(rows)).astype(np.int64),
        np.array([one.undisturbed and one.job.id in compared for one in rows], dtype=np.bool_),
    )
    return FidelityResult(
        fidelity=found, replay=result, costs=costs, bases=bases,
        preemptions=sum(rows[row].job.preemptions for row in found.rows.tolist()),
    )


def _truth(trace: Trace, rows: Sequence[RecordedJob], work: Mapping[int, KindSpeeds], cluster: Cluster) -> Truth:
    """How the jobs run: elastic ones at the speeds of ``work``, all others for the run times of the trace."""
    limits, samples = np.stack([trace.gpus, trace.gpus], axis=1), trace.run_ms.copy()
    rate_JG = np.full((len(rows), cluster.num_gpus), float(MS_PER_S))  # the work of a rigid job is its time in ms
    for row, one in enumerate(rows):
        if one.job.request.is_elastic and one.job.id in work:
            known = work[one.job.id]
            limits[row] = one.job.request.limits[0], min(one.job.request.limits[1], cluster.num_gpus)
            rate_JG[row], samples[row] = known.rates(cluster.num_gpus), max(1, round(known.samples))
    return SeenRates(trace, rate_JG, samples=samples, gpus_min=limits[:, 0], gpus_max=limits[:, 1])


def in_words(result: FidelityResult) -> Iterator[str]:
    """Say how far the replay is from the record: a table of totals, one of errors per job, and the worst jobs."""
    found, trace = result.fidelity, result.replay.trace
    yield f"{'':20}{'live':>12}{'twin':>12}{'error':>9}"
    for name, total in found.totals.items():
        unit = "GPU s" if name == "allocated_gpu_s" else "s"
        error = "-" if total.error_ratio is None else f"{total.error_ratio:+.1%}"
        yield f"{_WORDS[name]:20}{total.recorded:>12.2f}{total.replayed:>12.2f}{error:>9}  {unit}"
    yield f"{'preemptions':20}{result.preemptions:>12}{found.preemptions:>12}"
    yield f"{'error per job':20}{'median':>12}{'90% within':>12}{'worst':>9}"
    for name, errors in found.per_job.items():
        cells = [errors.percentile(percent) for percent in (50, 90, 100)]
        unit = "GPU s" if name == "allocated_gpu_s" else "s"
        yield f"{_WORDS[name]:20}{cells[0]:>12.2f}{cells[1]:>12.2f}{cells[2]:>9.2f}  {unit}"
    error_s = dict(zip(found.rows.tolist(), found.per_job["jct_s"].error_C.tolist(), strict=True))
    worst = [f"job {trace.job_id[row]} ({error_s[row]:+.2f} s of {trace.jct_ms[row] / 1000:.2f} s)"
             for row in found.worst.tolist()]  # fmt: skip
    yield f"furthest off: {', '.join(worst)}"
    costs = result.costs
    yield (
        f"costs of changes: {costs.start_ms} ms to start ({counted(costs.starts, 'job')}), {costs.restart_ms} ms to "
        f"start again ({costs.restarts}), {costs.save_ms} ms to leave the devices when preempted ({costs.saves})"
    )
