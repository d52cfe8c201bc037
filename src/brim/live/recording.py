"""What a live cluster recorded of its jobs, in the terms of the twin: when each could run, ran, and held GPUs.

Pure: it reads the records of the store, and a trace comes out that the twin replays. Of each attempt:

- *granted*: a round decided it, and the attempts before it had left its devices; from then on it holds them;
- *under way*: it makes progress. For a job that reports none, its processes are seen to run;
- *ended*: its processes are proven gone. What it holds in between counts as allocated, whatever it did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brim.beliefs.change_costs import ChangeCosts, learn_costs
from brim.core.cluster import Cluster
from brim.core.setting import ON_CPU
from brim.core.trace import NONE, Trace, trace_of
from brim.live.ends import EXCHANGED, PREEMPTED, starts_over
from brim.live.holds import spec_of
from brim.live.records import AttemptRecord, JobRecord
from brim.units import MS_PER_S


class Holding(NamedTuple):
    """An interval in which an attempt held the same devices; times in ms of cluster time."""

    from_ms: int
    until_ms: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """One attempt; times in ms of cluster time.

    Attributes:
        granted_ms: From when on it held its devices.
        from_ms: When it was under way.
        stop_ms: When it was told to stop; NONE if it was not.
        end_ms: When its processes were gone.
        holdings: Which devices it held, and when, in turn.
        preempted: Whether the policy took its devices away.
        starts_over: Whether it ended so that its job does all of it again (``ends.starts_over``).
        gpu_energy_j: What its GPUs used, measured; NONE where that is not known.
    """

    granted_ms: int
    from_ms: int
    stop_ms: int
    end_ms: int
    holdings: tuple[Holding, ...]
    preempted: bool
    starts_over: bool = False
    gpu_energy_j: float = NONE

    @property
    def run_ms(self) -> int:
        """Time in which it made progress: to its end, or to the decision to stop it, as in the twin."""
        until_ms = self.end_ms if self.stop_ms == NONE else self.stop_ms
        return max(0, until_ms - self.from_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """One job that held devices.

    Attributes:
        job: Its record.
        ready_ms: When it waited for nothing but devices: its submission, or the end of its last hold before it started.
        attempts: Its attempts, in turn; those of a job that runs end now.
        speeds: What it reported: GPUs, 0 on CPU, and samples per second, of each time that it told of step times.
        samples: Samples that it had done by its end: the last that it reported, and at its last speed those since then.
        batch: Global batch with which it trained, as far as it is known; NONE otherwise.
        undisturbed: Whether it finished, and was neither cancelled, nor requeued, nor failed on its way: only then does
            its run time say how long its like run.
    """

    job: JobRecord
    ready_ms: int
    attempts: tuple[RecordedAttempt, ...]
    speeds: tuple[tuple[int, float], ...]
    samples: float
    batch: int
    undisturbed: bool

    @property
    def run_ms(self) -> int:
        """Time in which it made progress, of all attempts together; at least 1 ms."""
        return max(1, sum(attempt.run_ms for attempt in self.attempts))

    @property
    def end_ms(self) -> int:
        """When it ended; for one that has not, when its last attempt did so far."""
        return self.attempts[-1].end_ms if self.job.ended_ms == NONE else self.job.ended_ms

    @property
    def start_ms(self) -> list[int]:
        """Time from each grant until it was under way; the first is that of its first start."""
        return [attempt.from_ms - attempt.granted_ms for attempt in self.attempts]

    @property
    def save_ms(self) -> list[int]:
        """Time from each decision to preempt it while it was under way until its processes were gone."""
        return [
            attempt.end_ms - attempt.stop_ms for attempt in self.attempts if attempt.preempted and attempt.run_ms
        ]


def recorded_jobs(
    jobs: Iterable[JobRecord], attempts: Iterable[AttemptRecord], lines: Iterable[str], now_ms: int
) -> tuple[RecordedJob, ...]:
    """Return what was recorded of every job that held devices, in order of their ids.

    Args:
        jobs: Jobs of the store.
        attempts: All attempts of the store, also of other jobs: a start waits until others have left its devices.
        lines: The journal, as far as it goes back: it tells when holds ended, how many devices a job that was resized
            had when, and what jobs reported. Before it, a job is ready from its submission on, had the devices of its
            end, and reported nothing.
        now_ms: Cluster time, at which the attempts that have not ended are cut off.
    """
    attempts = tuple(attempts)
    jobs = sorted(jobs, key=lambda one: one.id)
    events = _Journal.of(lines, {job.id: job.request.gpus for job in jobs})
    granted = _granted(attempts, now_ms)
    of_job: dict[int, list[AttemptRecord]] = {}
    for attempt in sorted(attempts, key=lambda one: (one.job, one.number)):
        of_job.setdefault(attempt.job, []).append(attempt)
    found = []
    for job in jobs:
        own = [
            _recorded(attempt, granted[job.id, attempt.number], events, now_ms)
            for attempt in of_job.get(job.id, ()) if (job.id, attempt.number) in granted
        ]
        if own:
            ready_ms = max(job.submit_ms, min(events.ready_ms.get(job.id, job.submit_ms), own[0].granted_ms))
            stops = {attempt.stop_reason for attempt in of_job[job.id]} - {"", PREEMPTED}
            alone = job.state == "finished" and not stops and all(
                attempt.outcome == "finished" or attempt.stop_reason for attempt in of_job[job.id]
            )
            told = events.told.get(job.id, [])
            found.append(RecordedJob(
                job=job, ready_ms=ready_ms, attempts=tuple(own), undisturbed=alone,
                speeds=tuple((report.gpus, report.per_s) for report in told),
                samples=_samples(events.done[job.id], told[-1], own[-1].end_ms) if told else 0.0,
                batch=max(job.request.batch, told[-1].batch if told else NONE),
            ))
    return tuple(found)


def trace_of_recorded(
    name: str, jobs: Sequence[RecordedJob], cluster: Cluster, run_ms: Mapping[int, int]
) -> Trace:
    """Return recorded jobs as a trace, in which each is submitted when it was ready.

    Args:
        name: Name of the trace.
        jobs: The jobs.
        cluster: The cluster that they ran on.
        run_ms: Run time of each by its id: measured, or predicted.
    """
    users = sorted({one.job.user for one in jobs})
    specs = [spec_of(one.job, cluster, users.index(one.job.user), one.ready_ms) for one in jobs]
    models = sorted({_model(one.job) for one in jobs if one.job.request.is_elastic})
    listed = tuple(dict.fromkeys(spec.sizes for spec in specs if spec.sizes))
    return trace_of(
        name=name, format="live", job_id=[str(one.job.id) for one in jobs], users=users, gpu_types=cluster.gpu_types,
        submit_ms=[spec.submit_ms for spec in specs], user=[spec.user for spec in specs],
        gpus=[spec.gpus for spec in specs], cpu_milli=[spec.cpu_milli for spec in specs],
        mem_mib=[spec.mem_mib for spec in specs], gpu_type=[spec.gpu_type for spec in specs],
        gpu_util_milli=[spec.gpu_util_milli for spec in specs], gpu_mem_mib=[spec.gpu_mem_mib for spec in specs],
        time_limit_ms=[spec.time_limit_ms for spec in specs], priority=[spec.priority for spec in specs],
        job_class=[spec.job_class for spec in specs], size_lists=listed,
        profiles=models, profile=[
            models.index(_model(one.job)) if one.job.request.is_elastic else NONE for one in jobs
        ],
        size_list=[listed.index(spec.sizes) if spec.sizes else NONE for spec in specs],
        batch=[one.batch if one.job.request.is_elastic else NONE for one in jobs],
        run_ms=[run_ms[one.job.id] for one in jobs],
        wait_ms=[one.attempts[0].granted_ms - one.ready_ms for one in jobs],
        jct_ms=[one.end_ms - one.ready_ms for one in jobs],
    )


def _model(job: JobRecord) -> str:
    """What jobs have in common that know each other's step times, as under the controller."""
    return f"{job.user} {job.request.name}"


class _Done(NamedTuple):
    """Samples that a job had done at a time."""

    at_ms: int
    samples: float


class _DeviceGrant(NamedTuple):
    """Devices that a job was given, as of the time at which the round that decided it began."""

    at_ms: int
    devices: tuple[int, ...]


class _SpeedReport(NamedTuple):
    """One report of step times."""

    gpus: int
    batch: int
    per_s: float


def costs_of(jobs: Sequence[RecordedJob]) -> ChangeCosts:
    """Learn what changes cost from recorded jobs."""
    starts = [one.start_ms for one in jobs]
    return learn_costs(
        [times[0] for times in starts], [time_ms for times in starts for time_ms in times[1:]],
        [save_ms for one in jobs for save_ms in one.save_ms],
    )


@dataclass(frozen=True, slots=True)
class _Journal:
    """What only the journal tells, by job.

    Attributes:
        ready_ms: When its last hold ended before its first start.
        given: Devices that it was given, in turn: a list for each of its starts, after one for what came before these.
        told: Its reports of step times, in turn: none beside neighbours.
        done: Its last report of samples.
    """

    ready_ms: Mapping[int, int]
    given: Mapping[int, list[list[_DeviceGrant]]]
    told: Mapping[int, list[_SpeedReport]]
    done: Mapping[int, _Done]

    @classmethod
    def of(cls, lines: Iterable[str], ranks_on_cpu: Mapping[int, int]) -> _Journal:
        ready_ms: dict[int, int] = {}
        given: dict[int, list[list[_DeviceGrant]]] = {}
        told: dict[int, list[_SpeedReport]] = {}
        done: dict[int, _Done] = {}
        for line in lines:
            record = json.loads(line)
            if record.get("e") == "ELIGIBLE" and record["job"] not in given:
                ready_ms[record["job"]] = record["t"]
            if "report" in record:
                if "samples_done" in record["report"]:
                    done[record["job"]] = _Done(record["t"], record["report"]["samples_done"])
                for _, gpus, local_batch, step_s, _ in record["report"]["seen"]:
                    batch = (gpus or ranks_on_cpu.get(record["job"], 1)) * local_batch
                    told.setdefault(record["job"], []).append(_SpeedReport(gpus, batch, batch / step_s))
            exchanged = [record | {"do": "start"}] if record.get("e") == "START" else []
            for one in (*exchanged, *(action for action in record.get("d", ()) if action["do"] in ("start", "resize"))):
                of_job = given.setdefault(one["job"], [[]])
                if one["do"] == "start":
                    of_job.append([])
                devices = tuple(rank[1] for rank in one["setting"]["ranks"] if rank[1] >= 0)
                of_job[-1].append(_DeviceGrant(record["t"], devices))
        return cls(ready_ms, given, told, done)


def _samples(last: _Done, told: _SpeedReport, end_ms: int) -> float:
    """Samples of a job by its end: at its last speed since its last report."""
    return last.samples + (end_ms - last.at_ms) / MS_PER_S * told.per_s


def _granted(attempts: Iterable[AttemptRecord], now_ms: int) -> dict[tuple[int, int], int]:
    """When each attempt held its devices: when it was decided, or later, when the last before it had left them.

    An attempt that was called off before its processes existed never held any.
    """
    left_ms: dict[int, int] = {}
    found = {}
    for attempt in sorted(attempts, key=lambda one: (one.decided_ms, one.job)):
        if attempt.begin_ms != NONE:
            devices = [device for device in attempt.devices if device != ON_CPU]
            granted_ms = max([attempt.decided_ms, *(left_ms.get(device, 0) for device in devices)])
            found[attempt.job, attempt.number] = min(granted_ms, max(attempt.begin_ms, attempt.decided_ms))
            left_ms.update(dict.fromkeys(devices, now_ms if attempt.end_ms == NONE else attempt.end_ms))
    return found


def _recorded(attempt: AttemptRecord, granted_ms: int, events: _Journal, now_ms: int) -> RecordedAttempt:
    end_ms = now_ms if attempt.end_ms == NONE else attempt.end_ms
    from_ms = attempt.start_ms if attempt.start_ms != NONE else attempt.begin_ms
    return RecordedAttempt(
        granted_ms=granted_ms, from_ms=max(from_ms, granted_ms), stop_ms=attempt.stop_ms, end_ms=end_ms,
        preempted=attempt.stop_reason == PREEMPTED, gpu_energy_j=attempt.gpu_energy_j,
        starts_over=attempt.end_ms != NONE and starts_over(attempt),
        holdings=_holdings(attempt, events.given.get(attempt.job, [[]]), granted_ms, end_ms),
    )


def _holdings(
    attempt: AttemptRecord, given: Sequence[Sequence[_DeviceGrant]], granted_ms: int, end_ms: int
) -> tuple[Holding, ...]:
    """Devices of an attempt: those of each decision about it, and before the first that is known those of its end.

    A round may take a while: an attempt is decided, or stopped, when the round is over.
    """
    before, *started = given
    own = next((turn for turn in reversed(started) if turn[0].at_ms <= attempt.decided_ms), before)
    if attempt.stop_reason == EXCHANGED:  # the last before its stop, and later ones, are of the next attempt
        own = [one for one in own if one.at_ms <= attempt.stop_ms][:-1]
    own = [_DeviceGrant(max(one.at_ms, granted_ms), one.devices) for one in own if one.at_ms < end_ms]
    if not own or own[0].at_ms > granted_ms:
        own.insert(0, _DeviceGrant(granted_ms, tuple(device for device in attempt.devices if device != ON_CPU)))
    ends = [*(one.at_ms for one in own[1:]), end_ms]
    return tuple(Holding(one.at_ms, until_ms, one.devices) for one, until_ms in zip(own, ends, strict=True))
