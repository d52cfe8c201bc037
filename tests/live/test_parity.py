"""Both drivers make the same decisions: byte-equal plans for the same recorded events."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.beliefs.beliefs import Beliefs
from brim.core.actions import Preempt, Start
from brim.core.cluster import Cluster, parse_cluster
from brim.core.events import Kind
from brim.core.trace import Trace, trace_of
from brim.engine.journal import Journal, read_event
from brim.engine.journal import replay as replay_journal
from brim.engine.scheduler import Scheduler
from brim.live.driver import LiveDriver, LiveJob, wall_clock, warm_up
from brim.live.local import LocalExecutor
from brim.live.record import recorded_trace
from brim.policies.order.tiresias import ServiceQueues
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from brim.sim.truth import Rigid, user_names
from brim.sim.twin import Settings, _Twin, replay
from tests.live.conftest import counter

GAP_MS = 60
QUEUES = replace(
    find_policy("tiresias"), name="tiresias-demo", order=ServiceQueues((400, 1_500), promote_ratio=1.0), period_ms=150
)
"""Remembers between rounds, and has rounds that no event asks for."""
POLICIES = (find_policy("fifo"), find_policy("srtf"), QUEUES)
JOBS = ((0, "ana", 4, 1.2), (150, "bo", 1, 0.2), (300, "ana", 2, 0.6), (450, "cem", 2, 0.3), (600, "bo", 1, 0.4))


def live_session(policy: Policy, folder: Path) -> tuple[LiveDriver, Journal]:
    cluster, journal = parse_cluster("1x4xcpu-slot"), Journal()
    jobs = tuple(
        LiveJob(name=str(row), user=user, at_ms=at_ms, gpus=gpus, command=counter(run_s),
                time_limit_ms=round(run_s * 1_300))
        for row, (at_ms, user, gpus, run_s) in enumerate(JOBS)
    )
    warm_up(cluster, policy)
    with LocalExecutor(4, folder) as executor:
        driver = LiveDriver(cluster, policy, jobs, executor, gap_ms=GAP_MS, journal=journal)
        assert driver.run(wall_clock())
    return driver, journal


class TwinOnRecord(_Twin):
    """The twin's loop, with what really happened in place of its own truth."""

    def __init__(self, trace: Trace, cluster: Cluster, policy: Policy, journal: Journal, record: list[str]) -> None:
        settings = Settings(gap_ms=GAP_MS)
        super().__init__(trace, cluster, policy, settings, Rigid(trace), Beliefs(), journal)
        self._recorded = [read_event(event) for event in map(json.loads, record) if "e" in event]
        for count, event in enumerate(self._recorded):
            if event.kind is not Kind.SUBMITTED:
                self._push(event.time_ms, event.kind, event.job, count)

    def _start(self, action: Start, now_ms: int) -> None:
        pass  # what came of it is on record

    def _preempt(self, action: Preempt, now_ms: int) -> None:
        pass

    def _handle(self, kind: Kind, now_ms: int, item: int, count: int) -> None:
        self._inputs.append(self._recorded[count])
        self._record.ended += kind in (Kind.FINISHED, Kind.GAVE_UP)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_both_drivers_make_byte_equal_plans_for_the_same_recorded_events(policy: Policy, tmp_path: Path) -> None:
    driver, live = live_session(policy, tmp_path)
    assert sum(json.loads(line).get("e") == "FINISHED" for line in live.lines) == len(JOBS)
    assert sum(json.loads(line).get("e") == "REPORTED" for line in live.lines) >= len(JOBS)
    if policy.name != "fifo":
        assert any(attempt.preempt_ms is not None for attempt in driver.attempts)

    # the engine alone: fed the events, it repeats every decision
    again = Scheduler(driver.scheduler.state.cluster, policy, Beliefs(), users=driver.users, gap_ms=GAP_MS)
    decisions = list(replay_journal(live.lines, again))
    assert len(decisions) == driver.rounds
    assert all(now == then for then, now in decisions)

    # driver 1: given only the submissions and what happened, it comes to the same rounds at the same times
    trace = recorded_trace("session", driver.specs, driver.users, driver.attempts)
    twin = Journal()
    TwinOnRecord(trace, driver.scheduler.state.cluster, policy, twin, live.lines).run(lambda ended, now_ms: True)
    assert "\n".join(twin.lines) == "\n".join(live.lines)


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
