"""Twin and controller decide alike: byte-equal decisions at the same times for the same jobs; and journals replay."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.agent.protocol import (
    ENDED,
    FINISHED,
    RUNNING,
    STOPPED,
    VERSION,
    AgentHello,
    AttemptSeen,
    StartAttempt,
    StopAttempt,
)
from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.events import Kind
from brim.core.trace import trace_of
from brim.engine.journal import Journal
from brim.engine.journal import replay as replay_journal
from brim.engine.scheduler import Scheduler
from brim.live.controller import Controller
from brim.live.inputs import AgentJoined, AgentSynced, AttemptReported, Input, Submit
from brim.live.records import JobRecord
from brim.policies.order.attained import LeastAttained
from brim.policies.order.tiresias import ServiceQueues
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from brim.sim.overheads import Overheads
from brim.sim.specs import user_names
from brim.sim.twin import ReplaySettings, replay
from tests.live.virtual import request
from tests.sampling import sample

GAPS = ({"gap_ms": 60}, {"gap_ms": 1_040, "gap_job_us": 10_000})
"""Fixed, and 1 s and 10 ms for each of up to four waiting jobs."""
GRID_MS = 10
"""All times are multiples of this, so that no process ends in the millisecond in which an order is on its way to it:
there the real world and the twin may differ."""
COSTS = Overheads(start_ms=10, restart_ms=20, save_ms=30)
POLICIES = (
    *(find_policy(name) for name in ("fifo", "backfill", "sjf", "srtf", "gittins", "fair")),
    # these remember between rounds, and have rounds that no event asks for
    replace(find_policy("tiresias"), name="tiresias-fast", order=ServiceQueues((400, 1_500), promote_ratio=1.0),
            period_ms=150),
    replace(find_policy("las"), name="las-fast", order=LeastAttained(100), period_ms=100),
)
FOUR = parse_cluster("1x4xcpu-slot")
UID = 1
Jobs = list[tuple[int, str, int, int, int]]
"""(submission in ms, user, GPUs, run time in ms, time limit in s)."""
tens = st.integers(0, 60).map(lambda tens: tens * GRID_MS)
PREEMPTED: Jobs = [(0, "ana", 4, 400, 900), (60, "bo", 2, 50, 60), (60, "cem", 2, 70, 80), (200, "bo", 1, 100, 30)]


@dataclass
class Process:
    """A process of an attempt; it makes progress from ``from_ms`` on."""

    job: int
    attempt: int
    from_ms: int
    is_stopped: bool = False


@dataclass
class Node:
    """A controller, and processes that take given times. An order reaches a process 1 ms after the decision."""

    controller: Controller
    left_ms: dict[int, int]
    coming: list[tuple[int, int, int, Input]] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    serial: int = 0

    def later(self, at_ms: int, kind: Kind, given: Input) -> None:
        self.serial += 1
        heapq.heappush(self.coming, (at_ms, int(kind), self.serial, given))

    def says(self, at_ms: int, kind: Kind, process: Process, state: str, **more: object) -> None:
        seen = AttemptSeen(job=process.job, attempt=process.attempt, sequence=99, state=state, **more)
        self.later(at_ms, kind, AttemptReported(at_ms=at_ms, uid=UID, seen=seen))

    def run(self) -> None:
        """Let the controller handle everything at its time, until all jobs have ended."""
        wake_ms: int | None = None
        while self.coming or self.controller.jobs:
            now_ms = min(time_ms for time_ms in (self.coming[0][0] if self.coming else None, wake_ms)
                         if time_ms is not None)
            inputs = []
            while self.coming and self.coming[0][0] == now_ms:
                given = heapq.heappop(self.coming)[-1]
                if not self._is_void(given):
                    inputs.append(given)
            result = self.controller.step(inputs, now_ms + 1)
            self.lines += result.changes.lines
            wake_ms = result.wake_ms
            for dispatch in result.orders:
                self._obey(dispatch.order, now_ms)

    def _is_void(self, given: Input) -> bool:
        """Whether a process that was to go on has been stopped meanwhile."""
        if not isinstance(given, AttemptReported) or given.seen.outcome == STOPPED:
            return False
        process = self.processes[given.seen.job]
        return process.attempt != given.seen.attempt or process.is_stopped

    def _obey(self, order: object, decided_ms: int) -> None:
        if isinstance(order, StartAttempt):
            known = self.processes.get(order.job)
            if known is None or known.attempt < order.attempt:
                cost_ms = COSTS.start_ms if order.attempt == 1 else COSTS.restart_ms
                process = Process(order.job, order.attempt, decided_ms + cost_ms)
                self.processes[order.job] = process
                self.says(process.from_ms, Kind.STARTED, process, RUNNING)
                self.says(process.from_ms + self.left_ms[order.job], Kind.FINISHED, process, ENDED, outcome=FINISHED,
                          exit_code=0)
        elif isinstance(order, StopAttempt) and not (process := self.processes[order.job]).is_stopped:
            worked_ms = decided_ms - process.from_ms
            assert worked_ms > 0
            self.left_ms[order.job] -= worked_ms
            process.is_stopped = True
            self.says(decided_ms + COSTS.save_ms, Kind.STOPPED, process, ENDED, outcome=STOPPED, exit_code=75)


def of_the_controller(policy: Policy, jobs: Jobs, gap: dict[str, int] = GAPS[0]) -> list[str]:
    """The journal of the controller."""
    controller = Controller(FOUR, policy, **gap)
    hello = AgentHello(version=VERSION, user="u", boot_id="b", devices=("0", "1", "2", "3"))
    controller.step((AgentJoined(at_ms=0, uid=UID, hello=hello), AgentSynced(at_ms=0, uid=UID)), 0)
    node = Node(controller, {row: run_ms for row, (_, _, _, run_ms, _) in enumerate(jobs)})
    for row, (at_ms, user, gpus, _, limit_s) in enumerate(jobs):
        job = JobRecord(id=row, uid=UID, user=user, key=str(row), request=request(gpus=gpus, time_limit_s=limit_s),
                        submitted_s=0.0, submit_ms=at_ms, state="pending")
        node.later(at_ms, Kind.SUBMITTED, Submit(inbox=row, at_ms=at_ms, job=job))
    node.run()
    return node.lines


def of_the_twin(policy: Policy, jobs: Jobs, gap: dict[str, int]) -> list[str]:
    """The journal of the twin."""
    users = tuple(dict.fromkeys(user for _, user, *_ in jobs))
    trace = trace_of(
        name="session", format="live", job_id=[str(row) for row in range(len(jobs))], users=users,
        submit_ms=[job[0] for job in jobs], user=[users.index(job[1]) for job in jobs], gpus=[job[2] for job in jobs],
        run_ms=[job[3] for job in jobs], time_limit_ms=[job[4] * 1_000 for job in jobs],
    )
    journal = Journal()
    replay(trace, FOUR, policy, ReplaySettings(overheads=COSTS, **gap), journal=journal)
    return journal.lines


def comparable(lines: list[str]) -> list[tuple[int, list[object]]]:
    """Lines by time; those of rounds come last, and events of one time have no order.

    Of a submission the job is compared only: the controller knows limits of sizes, and users by their names.
    """
    found = []
    for at_ms, group in groupby(map(json.loads, lines), key=itemgetter("t")):
        records = [(one["e"], one["job"]) if one.get("e") == "SUBMITTED" else json.dumps(one) for one in group]
        events = [one for one in records if '"d"' not in one]
        assert records[: len(events)] == events
        found.append((at_ms, [*sorted(map(str, events)), *records[len(events):]]))
    return found


@pytest.mark.cases(2)
@example(drawn=PREEMPTED)
@given(drawn=st.lists(
    st.tuples(tens, st.sampled_from(("ana", "bo", "cem")), st.integers(1, 4), tens.map(lambda ms: ms + GRID_MS),
              st.integers(1, 60)),
    min_size=1, max_size=8,
))
@settings(max_examples=sample(15, 6))
@pytest.mark.parametrize("gap", GAPS, ids=("fixed", "by-jobs"))
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_the_twin_and_the_controller_decide_the_same_at_the_same_times(
    policy: Policy, gap: dict[str, int], drawn: Jobs
) -> None:
    jobs = sorted((at_ms - min(job[0] for job in drawn), *rest) for at_ms, *rest in drawn)
    live = of_the_controller(policy, jobs, gap)
    assert comparable(live) == comparable(of_the_twin(policy, jobs, gap))
    assert sum('"e":"FINISHED"' in line for line in live) == len(jobs)


def test_the_example_above_preempts_and_resumes() -> None:
    live = of_the_controller(find_policy("srtf"), PREEMPTED)
    assert any('"do":"preempt"' in line for line in live)
    assert any('"attempt":2,"do":"start"' in line for line in live)


@pytest.mark.parametrize("name", ["fifo", "backfill", "srtf", "las", "gittins", "tiresias", "fair"])
def test_the_journal_of_the_twin_replays_byte_for_byte(name: str) -> None:
    rng = np.random.default_rng(5)
    size = 60
    trace = trace_of(
        name="made", format="made", synthetic=True, job_id=[str(row) for row in range(size)], users=("a", "b", "c"),
        submit_ms=np.sort(rng.integers(0, 4 * 3_600_000, size)), gpus=rng.choice([1, 2, 4, 8], size),
        user=rng.integers(0, 3, size), run_ms=rng.integers(60_000, 7_200_000, size),
        time_limit_ms=rng.integers(3_600_000, 14_400_000, size),
    )
    cluster, policy, journal = parse_cluster("2x8xT4"), find_policy(name), Journal()
    outcome = replay(trace, cluster, policy, journal=journal)
    scheduler = Scheduler(cluster, policy, Beliefs(), users=user_names(trace))
    decisions = list(replay_journal(journal.lines, scheduler))
    assert len(decisions) == outcome.rounds > size
    assert all(now == then for then, now in decisions)
