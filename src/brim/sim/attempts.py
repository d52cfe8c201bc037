"""Jobs on simulated GPUs: how fast each runs, what it has done, and what it reports.

Jobs progress between events, without ticks. A job's next end is computed when it starts, and an event of an attempt
that is no longer the current one is dropped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from brim.core.actions import Resize, Start
from brim.core.cluster import Cluster
from brim.core.events import Event, JobSpec, Kind, Sample
from brim.core.setting import Setting
from brim.core.sums import CORE_MILLI
from brim.core.trace import NONE
from brim.sim.record import Record
from brim.sim.sleepers import Sleepers
from brim.sim.stall_detector import StallDetector
from brim.sim.timeline import Timeline
from brim.sim.truths.truth import Colocation, NodeColocation, Pace, SharesNodes, Truth
from brim.units import WHOLE_GPU


@dataclass(slots=True, kw_only=True)
class RunningJob:
    """A job on GPUs: granted at ``begin_ms``, making progress from ``from_ms``.

    Attributes:
        number: Number of the placement; a start or resize begins one. Events of earlier ones are stale.
        attempt: Number of the attempt, which goes on through resizes.
        setting: What the job has.
        gpus: Global GPU indices.
        nodes: GPUs per node.
        begin_ms: When it got the GPUs.
        from_ms: When it begins to make progress.
        ran_ms: Running time of the attempt in its earlier placements.
        pace: Pace of the present interval.
        stretches: Intervals of equal pace: (begin, work done by then, work per ms).
        serial: Number of the present interval; an event with another number is stale.
        seen: Step times that the job measured before it began to train.
        cores_milli: Milli-cores of its ranks.
        held: Since when the job has had each share of its GPUs, in thousandths, and so many milli-cores: (begin, share,
            cores).
    """

    number: int
    attempt: int
    setting: Setting
    gpus: tuple[int, ...]
    nodes: tuple[int, ...]
    begin_ms: int
    from_ms: int
    ran_ms: int
    pace: Pace
    stretches: list[tuple[int, float, float]] = field(default_factory=list)
    serial: int = 0
    seen: tuple[Sample, ...] = ()
    cores_milli: int = 0
    held: list[tuple[int, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.held = [(self.begin_ms, self.setting.share_milli, self.cores_milli)]

    def gpu_ms(self, begin_ms: int, end_ms: int) -> int:
        """GPU time that the job holds between two times, by the share that it has at each moment."""
        ends = [begin for begin, _, _ in self.held[1:]] + [end_ms]
        return sum(  # rounded as ``Record.run`` rounds each, so that the parts are never more than the whole
            max(0, min(end, end_ms) - max(begin, begin_ms)) * len(self.gpus) * share // WHOLE_GPU
            for (begin, share, _), end in zip(self.held, ends, strict=True)
        )

    def ran_at(self, time_ms: int) -> int:
        """Running time of the attempt by this time, its earlier placements included."""
        return self.ran_ms + max(0, time_ms - self.from_ms)

    def done_at(self, time_ms: int) -> float:
        """Work done by this time."""
        for begin_ms, done, per_ms in reversed(self.stretches):
            if time_ms >= begin_ms:
                return min(done + per_ms * (time_ms - begin_ms), self.pace.until)
        return self.stretches[0][1]


class Attempts:
    """The jobs on GPUs, and the work that each job of the trace has done.

    Attributes:
        running: The present attempt of each job on GPUs.
        reported_profiles: Models whose steps some job has reported, by profile code.
    """

    def __init__(
        self, cluster: Cluster, specs: Sequence[JobSpec], truth: Truth, checkpoint_ms: int, timeline: Timeline,
        record: Record, stall_detector: StallDetector, sleepers: Sleepers,
    ) -> None:
        self._sleepers = sleepers
        self._shares_nodes = isinstance(truth, SharesNodes)
        self._specs, self._truth, self._checkpoint_ms = specs, truth, checkpoint_ms
        self._timeline, self._record, self._stall_detector = timeline, record, stall_detector
        self._offset = cluster.gpu_offset_N.tolist()
        self._done = [0.0] * len(specs)  # work
        self._met = [0.0] * len(specs)  # work that each had done when its neighbours last changed
        self._serials = count(1)
        self.running: dict[int, RunningJob] = {}
        self.reported_profiles: set[int] = set()

    # -- coming and going ------------------------------------------------------------------------------------------

    def gpus_of(self, setting: Setting) -> tuple[int, ...]:
        """Global indices of the GPUs of a setting."""
        return tuple(self._offset[node] + gpu for node, gpu in setting.gpus)

    def on_node(self, node: int) -> list[int]:
        """Jobs that have ranks on a node, in increasing order."""
        return sorted(job for job, held in self.running.items() if node in held.setting.nodes)

    def begin(
        self, action: Start | Resize, begin_ms: int, from_ms: int, ran_ms: int, seen: tuple[Sample, ...], now_ms: int
    ) -> RunningJob:
        """Give a job its GPUs from ``begin_ms`` on; it makes progress from ``from_ms`` on."""
        job, setting = action.job, action.setting
        gpus, nodes = self.gpus_of(setting), tuple(Counter(node for node, _ in setting.gpus).values())
        self._met[job] = self._done[job]
        attempt = self.running[job] = RunningJob(
            number=next(self._serials), attempt=action.attempt, setting=setting, gpus=gpus, nodes=nodes,
            begin_ms=begin_ms, from_ms=from_ms, ran_ms=ran_ms, pace=self._pace(job, setting, gpus, nodes), seen=seen,
            cores_milli=self._cores_milli(job, setting),
        )
        self._record.start(job, begin_ms)
        self._sleepers.come(setting.nodes)
        self._timeline.push(from_ms, Kind.STARTED, job, attempt.number)
        self._go_on(job, attempt, from_ms)
        self._neighbours_changed(gpus, setting.nodes, now_ms, but=job)
        return attempt

    def has_done(self, job: int, work: float) -> None:
        """Take over what a job has done."""
        self._done[job] = work

    def resume(self, action: Start, from_ms: int, now_ms: int) -> None:
        """Take over a job that has its GPUs; it makes progress from ``from_ms`` on."""
        job, setting = action.job, action.setting
        gpus, nodes = self.gpus_of(setting), tuple(Counter(node for node, _ in setting.gpus).values())
        attempt = self.running[job] = RunningJob(
            number=next(self._serials), attempt=action.attempt, setting=setting, gpus=gpus, nodes=nodes,
            begin_ms=now_ms, from_ms=from_ms, ran_ms=0, pace=self._pace(job, setting, gpus, nodes),
            cores_milli=self._cores_milli(job, setting),
        )
        if from_ms > now_ms:
            self._timeline.push(from_ms, Kind.STARTED, job, attempt.number)
        self._go_on(job, attempt, from_ms)

    def pace_on(self, job: int, setting: Setting) -> Pace:
        """The pace that a job would have with another setting."""
        nodes = tuple(Counter(node for node, _ in setting.gpus).values())
        return self._pace(job, setting, self.gpus_of(setting), nodes)

    def vacate(self, job: int, now_ms: int, gone_ms: int, kept_ms: int) -> None:
        """Take a job's GPUs from it by a decision: it stops now and frees them at ``gone_ms``.

        What it did until ``kept_ms`` is kept.
        """
        attempt = self.running.pop(job)
        if now_ms > attempt.from_ms:
            self._keep(job, attempt, now_ms, max(kept_ms, attempt.from_ms))
        self._close_run(job, attempt, gone_ms, now_ms)
        self._sleepers.go(attempt.setting.nodes, gone_ms)
        self._neighbours_changed(attempt.gpus, attempt.setting.nodes, now_ms, but=job)

    def leave(self, job: int, now_ms: int, kind: Kind) -> None:
        """End a job's attempt at once, as an event of this kind tells."""
        attempt = self.running.pop(job)
        self._close_run(job, attempt, now_ms)
        self._sleepers.go(attempt.setting.nodes, now_ms)
        self._timeline.record_event(Event(now_ms, kind, job))
        self._neighbours_changed(attempt.gpus, attempt.setting.nodes, now_ms, but=job)

    def end(self, job: int, now_ms: int, kind: Kind) -> None:
        """End a job for good, as an event of this kind tells."""
        self.leave(job, now_ms, kind)
        self._record.finish_ms[job] = now_ms
        self.over(job, now_ms)

    def over(self, job: int, now_ms: int) -> None:
        """Record that a job has ended or was rejected, and release the jobs that waited for it."""
        self._record.ended += 1
        self._stall_detector.progress()
        self._timeline.release(job, now_ms)

    def close_runs(self, now_ms: int) -> None:
        """End the record of the jobs that still run when a replay stops early, and of the nodes that sleep."""
        for job, attempt in self.running.items():
            self._close_run(job, attempt, now_ms)
        self._sleepers.close(now_ms)

    def _close_run(self, job: int, attempt: RunningJob, end_ms: int, stops_ms: int | None = None) -> None:
        """Record that a job has left its GPUs, with the last share it had of them and its last cores.

        It makes no progress from ``stops_ms`` on, if that is earlier.
        """
        begin_ms, share_milli, cores_milli = attempt.held[-1]
        worked_ms = (end_ms if stops_ms is None else stops_ms) - max(begin_ms, attempt.from_ms)
        part = max(worked_ms, 0) / max(end_ms - begin_ms, 1)
        gpus_busy, cores_busy_milli = attempt.pace.busy
        self._record.run(
            job, begin_ms, end_ms, attempt.gpus, share_milli, cores_milli, (part * gpus_busy, part * cores_busy_milli)
        )

    def _cores_milli(self, job: int, setting: Setting) -> int:
        """Milli-cores of the ranks of a job."""
        asked = self._specs[job].cpu_milli
        on_cpu = max(asked, CORE_MILLI)
        return sum(asked if rank.gpu >= 0 else rank.share_milli or on_cpu for rank in setting.ranks)

    # -- progress --------------------------------------------------------------------------------------------------

    def started(self, job: int, number: int, now_ms: int) -> None:
        """A job begins to make progress."""
        attempt = self.running.get(job)
        if attempt is not None and attempt.number == number:
            self._timeline.record_event(Event(now_ms, Kind.STARTED, job))
            self._report(job, attempt, now_ms)

    def reached(self, job: int, serial: int, now_ms: int) -> None:
        """A job reaches the end of an interval of equal pace: its own end, or another part of its work."""
        attempt = self.running.get(job)
        if attempt is None or attempt.serial != serial:
            return
        if attempt.pace.ends:
            self._keep(job, attempt, now_ms, now_ms)
            self.end(job, now_ms, Kind.FINISHED)
        else:
            self._done[job] = attempt.pace.until
            self._change_pace(job, attempt, now_ms)
            self._report(job, attempt, now_ms)
            self._neighbours_changed((), attempt.setting.nodes, now_ms, but=job)

    def change_setting(self, job: int, setting: Setting, now_ms: int) -> None:
        """Change what a job has besides its GPUs at once, without a stop."""
        attempt = self.running[job]
        has = setting.share_milli, self._cores_milli(job, setting)
        if has != attempt.held[-1][1:]:
            if now_ms > attempt.held[-1][0]:
                self._close_run(job, attempt, now_ms)
                attempt.held.append((now_ms, *has))
            else:  # it does not have its GPUs yet, or has had them for no time
                attempt.held[-1] = attempt.held[-1][0], *has
        attempt.setting, before = setting, attempt.setting
        self._pace_anew(job, attempt, now_ms)
        if setting.loader_workers != before.loader_workers:
            self._neighbours_changed((), setting.nodes, now_ms, but=job)

    def roll_back(self, job: int, now_ms: int) -> None:
        """Keep the work up to the last checkpoint and report it; checkpoints count from the first step."""
        attempt = self.running[job]
        if now_ms <= attempt.from_ms:
            return
        self._keep(job, attempt, now_ms, now_ms - (now_ms - attempt.from_ms) % self._checkpoint_ms)
        report = self._pace(job, attempt.setting, attempt.gpus, attempt.nodes).report
        if report is not None:
            self._timeline.record_event(Event(now_ms, Kind.REPORTED, job, report=replace(report, seen=())))

    def _keep(self, job: int, attempt: RunningJob, now_ms: int, kept_ms: int) -> None:
        """Record the work done until ``kept_ms``, which is kept; work from then to ``now_ms`` is lost."""
        done = attempt.done_at(kept_ms)
        if done > self._done[job]:
            self._stall_detector.progress()
        self._done[job] = done
        self._record.useful_gpu_ms[job] += attempt.gpu_ms(attempt.from_ms, kept_ms)
        self._record.lost_gpu_ms[job] += attempt.gpu_ms(kept_ms, now_ms)

    def _report(self, job: int, attempt: RunningJob, now_ms: int) -> None:
        """Report a job's progress to the engine, if the truth has a report."""
        report = attempt.pace.report
        if report is not None:
            if attempt.seen:
                report, attempt.seen = replace(report, seen=attempt.seen + report.seen), ()
            if report.seen and self._specs[job].profile != NONE:
                self.reported_profiles.add(self._specs[job].profile)
            self._timeline.record_event(Event(now_ms, Kind.REPORTED, job, report=report))

    # -- pace ------------------------------------------------------------------------------------------------------

    def _pace(self, job: int, setting: Setting, gpus: tuple[int, ...], nodes: tuple[int, ...]) -> Pace:
        """The job's pace from what it has done on, beside the jobs that have a share of its GPUs."""
        neighbours = self._beside(gpus, job) if self._truth.contended else ()
        on_nodes = self._on_nodes(setting, job) if self._shares_nodes else ()
        ranks = setting.ranks if len(setting.ranks) > len(gpus) else ()
        workers, met = setting.loader_workers, self._met[job]
        colocation = Colocation(setting.share_milli, neighbours, workers, met, on_nodes, ranks)
        return self._truth.pace(job, self._done[job], nodes, setting.batch, colocation)

    def _on_nodes(self, setting: Setting, but: int) -> tuple[NodeColocation, ...]:
        """Who else has ranks on the nodes of a setting."""
        mates = [(job, self.running[job].setting) for job in self._mates(setting.nodes, but)]
        return tuple(
            NodeColocation(node, _ranks_on(setting, node), tuple(
                (job, ranks, other.loader_workers) for job, other in mates if (ranks := _ranks_on(other, node))
            ))
            for node in setting.nodes
        )

    def _mates(self, nodes: tuple[int, ...], but: int) -> tuple[int, ...]:
        """Jobs that have ranks on one of these nodes."""
        return tuple(sorted(
            job for job, attempt in self.running.items()
            if job != but and not set(nodes).isdisjoint(attempt.setting.nodes)
        ))

    def _beside(self, gpus: tuple[int, ...], but: int) -> tuple[int, ...]:
        """Jobs that hold a share of one of these GPUs."""
        return tuple(sorted(
            job for job, attempt in self.running.items() if job != but and not set(gpus).isdisjoint(attempt.gpus)
        ))

    def _neighbours_changed(self, gpus: tuple[int, ...], nodes: tuple[int, ...], now_ms: int, but: int) -> None:
        """Give the jobs on these GPUs the pace they have now that a job came or went, and those on these nodes.

        Those on the nodes only if the truth says that they share them; to them a change of loader workers matters too.
        """
        if self._truth.contended:
            beside = self._beside(gpus, but)
            for job in self._mates(nodes, but) if self._shares_nodes else ():
                if job not in beside and self._pace_differs(job, self.running[job], now_ms):
                    self._pace_anew(job, self.running[job], now_ms)
            for job in beside:
                attempt = self.running[job]
                self._met[job] = self._done[job] if now_ms < attempt.from_ms else attempt.done_at(now_ms)
                self._pace_anew(job, attempt, now_ms)

    def _pace_differs(self, job: int, attempt: RunningJob, now_ms: int) -> bool:
        """Whether a job's pace is another now that a mate came or went; if not, it goes on and reports nothing."""
        before = self._done[job]
        if now_ms >= attempt.from_ms:
            self._done[job] = attempt.done_at(now_ms)
        pace = self._pace(job, attempt.setting, attempt.gpus, attempt.nodes)
        self._done[job] = before
        return (pace.per_ms, pace.until, pace.ends) != (attempt.pace.per_ms, attempt.pace.until, attempt.pace.ends)

    def _pace_anew(self, job: int, attempt: RunningJob, now_ms: int) -> None:
        """Change a job's pace in the middle of an interval, and report it."""
        if now_ms < attempt.from_ms:
            attempt.stretches.clear()
            self._change_pace(job, attempt, attempt.from_ms)
        else:
            self._done[job] = attempt.done_at(now_ms)
            self._change_pace(job, attempt, now_ms)
            self._report(job, attempt, now_ms)

    def _change_pace(self, job: int, attempt: RunningJob, from_ms: int) -> None:
        """Change a job's pace: it has another batch, or has reached another part of its work."""
        attempt.pace = self._pace(job, attempt.setting, attempt.gpus, attempt.nodes)
        self._go_on(job, attempt, from_ms)

    def _go_on(self, job: int, attempt: RunningJob, from_ms: int) -> None:
        """Begin an interval of equal pace at ``from_ms``."""
        pace, done = attempt.pace, self._done[job]
        attempt.stretches.append((from_ms, done, pace.per_ms))
        attempt.serial = next(self._serials)
        end_ms = from_ms + math.ceil((pace.until - done) / pace.per_ms)
        self._timeline.push(end_ms, Kind.FINISHED if pace.ends else Kind.REPORTED, job, attempt.serial)


def _ranks_on(setting: Setting, node: int) -> int:
    """Ranks of a job on a node."""
    return sum(rank.node == node for rank in setting.ranks)
