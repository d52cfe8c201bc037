"""The twin told again, slowly: one tick per millisecond, whole numbers, no heap, no stretches.

It is told the plans and the faults of a replay's journal, and works out for itself when jobs start, get on, save and
end, and what the scheduler should know of them at each round. Shares no code with the twin.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from brim.core.cluster import Cluster
from brim.core.trace import Trace
from brim.sim.overheads import Overheads
from brim.testing.elastic import PARTS, ToyTruth, toy_pace


@dataclass
class Attempt:
    gpus: list[tuple[int, int]]
    batch: int
    decided: int
    begin: int
    since: int
    first: bool
    kept: list[int] = field(default_factory=list)  # work after each ms of progress

    @property
    def nodes(self):
        where = [node for node, _ in self.gpus]
        return tuple(where.count(node) for node in sorted(set(where)))


@dataclass
class Life:
    """What comes of one job. Work in 1/1024."""

    share: int
    work: int
    done: int = 0
    attempt: Attempt | None = None
    saved: int = 0
    first_start: int = -1
    finish: int = -1
    service: int = 0
    useful: int = 0
    lost: int = 0
    preemptions: int = 0
    restarts: int = 0
    rejected: int = 0
    given_up: int = 0
    told_service: int = 0  # what the scheduler counts: from the plan on
    told_run: int = 0
    tries: int = 0
    ran: list[int] = field(default_factory=list)  # running time of each try
    failed: list[bool] = field(default_factory=list)
    sequence: int = 0
    stops: int = -1  # when it is gone after a preemption
    eligible: bool = True


class Slow:
    def __init__(self, trace: Trace, cluster: Cluster, truth: ToyTruth, overheads: Overheads, lines: list[str]) -> None:
        self.costs, self.lines = overheads, [json.loads(line) for line in lines]
        self.jobs = [
            Life(share=int(share), work=work * 1024) for share, work in zip(trace.share_milli, truth.work, strict=True)
        ]
        self.leaving: dict[tuple[int, int], int] = {}
        self.now = 0
        self.runs: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.told: list[dict[int, tuple]] = []  # per decision, before its plan
        self.offset = cluster.gpu_offset_N.tolist()
        self.wrong: list[str] = []

    def run(self) -> Slow:
        for line in self.lines:
            while self.now < line["t"]:
                self._tick()
            if "d" in line:
                self._decide(line)
            else:
                self._read_event(line)
        return self

    # -- progress ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for life in self.jobs:
            one = life.attempt
            if one and one.since <= self.now:
                each = life.work // PARTS
                part = min(life.done // each, PARTS - 1)
                step = toy_pace(part, one.nodes, one.batch) * 1024
                assert step == int(step)
                life.done = min(life.done + int(step), each * (part + 1))
                one.kept.append(life.done)
        self.now += 1

    # -- what is on record ---------------------------------------------------------------------------------------

    def _read_event(self, line: dict) -> None:
        kind, job = line["e"], line.get("job")
        if kind == "NODE_DOWN":
            self.lost_node = line["node"]
        if kind.startswith("NODE") or kind == "SUBMITTED":
            return
        life = self.jobs[job]
        one = life.attempt
        if kind == "STARTED":
            self._expect(one is not None and one.since == self.now, line)
        elif kind == "FINISHED":
            self._expect(one is not None and life.done == life.work, line)
            self._end_attempt(job, keep=True)
            life.finish = self.now
        elif kind in ("FAILED", "GAVE_UP", "EVICTED"):
            self._expect(one is not None, line)
            if kind == "EVICTED":
                self._expect(any(node == self.lost_node for node, _ in one.gpus), line)
            self._end_attempt(job, keep=False)
            life.failed[-1] = kind != "EVICTED"
            if kind == "GAVE_UP":
                life.finish, life.given_up = self.now, 1
        elif kind == "STOPPED":
            self._expect(life.stops == self.now, line)
            life.stops = -1
        elif kind == "REPORTED":
            self._expect(line["report"]["samples_per_s"] > 0, line)

    def _end_attempt(self, job: int, *, keep: bool) -> None:
        """Ends here and now, without a save."""
        life, one = self.jobs[job], self.jobs[job].attempt
        ran = max(0, self.now - one.since)
        kept = ran if keep else ran - ran % self.costs.checkpoint_ms
        if not keep and ran:
            life.done = one.kept[kept - 1] if kept else self._before(one, life)
        self._book(life, one, kept, ran - kept)
        self._close(job, self.now)

    def _before(self, one: Attempt, life: Life) -> int:
        return one.done_before

    def _book(self, life: Life, one: Attempt, kept: int, lost: int) -> None:
        weight = len(one.gpus) * life.share
        life.useful += kept * weight // 1000
        life.lost += lost * weight // 1000
        life.told_service += (self.now - one.decided) * weight // 1000
        life.told_run += max(0, self.now - one.since)
        life.ran[-1] += max(0, self.now - one.since)

    def _close(self, job: int, end: int) -> None:
        life, one = self.jobs[job], self.jobs[job].attempt
        life.attempt = None
        if end < one.begin:  # it never got its GPUs
            if one.first:
                life.first_start = -1
            else:
                life.restarts -= 1
        elif end > one.begin:
            life.service += (end - one.begin) * len(one.gpus) * life.share // 1000
            flat = tuple(self.offset[node] + gpu for node, gpu in one.gpus)
            self.runs.append((job, one.begin, end, flat))

    # -- decisions -----------------------------------------------------------------------------------------------

    def _decide(self, line: dict) -> None:
        self.told.append({job: self._known(life) for job, life in enumerate(self.jobs)})
        takes = [action["do"] in ("start", "tune") for action in line["d"]]
        frees = [action["do"] == "preempt" for action in line["d"]]
        self._expect(not any(takes[at] and any(frees[at:]) for at in range(len(takes))), line)
        for action in line["d"]:
            if action["do"] in ("preempt", "resize"):
                gone = self._leave(action["job"])
                life = self.jobs[action["job"]]
                if action["do"] == "preempt":
                    life.preemptions += 1
                    life.stops = max(gone, life.saved)
        for action in line["d"]:
            life = self.jobs[action["job"]]
            if action["do"] in ("start", "resize"):
                if action["do"] == "start":
                    life.tries += 1
                    life.ran.append(0)
                    life.failed.append(False)
                life.sequence += 1
                self._expect((action["attempt"], action["sequence"]) == (life.tries, life.sequence), line)
                self._take(action["job"], action["setting"])
            elif action["do"] == "tune":
                life.sequence += 1
                self._expect((action["attempt"], action["sequence"]) == (life.tries, life.sequence), line)
                life.attempt.batch = action["setting"]["batch"]
            elif action["do"] == "reject":
                life.rejected = 1

    def _leave(self, job: int) -> int:
        life, one = self.jobs[job], self.jobs[job].attempt
        ran = self.now - one.since
        gone = self.now
        if ran > 0:
            gone = life.saved = self.now + self.costs.save_ms
            for pair in one.gpus:
                self.leaving[pair] = gone
        self._book(life, one, max(0, ran), 0)
        self._close(job, gone)
        return gone

    def _take(self, job: int, setting: dict) -> None:
        life = self.jobs[job]
        gpus = [tuple(rank[:2]) for rank in setting["ranks"]]
        begin = max([self.now, life.saved, *(self.leaving.get(pair, 0) for pair in gpus)])
        first = life.first_start < 0
        since = begin + (self.costs.start_ms if first else self.costs.restart_ms)
        if first:
            life.first_start = begin
        else:
            life.restarts += 1
        life.attempt = Attempt(gpus, setting.get("batch", -1), self.now, begin, since, first)
        life.attempt.done_before = life.done

    def _known(self, life: Life) -> tuple:
        """samples done, samples per second, GPUs, batch, service, run time: what a snapshot should say now."""
        one = life.attempt
        if one is None:
            return life.done / 512, None, 0, None, life.told_service, life.told_run
        runs = self.now - one.since if one.since <= self.now else None
        pace = None
        if runs is not None:
            part = min(life.done // (life.work // PARTS), PARTS - 1)
            pace = toy_pace(part, one.nodes, one.batch) * 2000
        service = life.told_service + (self.now - one.decided) * len(one.gpus) * life.share // 1000
        return life.done / 512, pace, len(one.gpus), one.batch, service, life.told_run + (runs or 0)

    def _expect(self, true: bool, line: dict) -> None:
        if not true:
            self.wrong.append(json.dumps(line))
