"""Both drivers make the same decisions: byte-equal journals for the same jobs, and for the same recorded events."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.beliefs.beliefs import Beliefs
from brim.core.cluster import parse_cluster
from brim.core.events import Kind
from brim.core.trace import trace_of
from brim.engine.advance import advance
from brim.engine.journal import Journal, read_event
from brim.engine.journal import replay as replay_journal
from brim.engine.scheduler import Scheduler
from brim.live.driver import LiveDriver, LiveJob, warm_up
from brim.live.executor import Command
from brim.live.local import LocalExecutor
from brim.live.world import RealWorld, driver_in
from brim.policies.order.attained import LeastAttained
from brim.policies.order.tiresias import ServiceQueues
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from brim.sim.overheads import Overheads
from brim.sim.specs import user_names
from brim.sim.twin import ReplaySettings, replay
from brim.testing.world import LATENCY_MS, VirtualWorld
from tests.live.conftest import counter
from tests.sampling import sample

GAP_MS = 60
QUEUES = replace(
    find_policy("tiresias"), name="tiresias-demo", order=ServiceQueues((400, 1_500), promote_ratio=1.0), period_ms=150
)
"""Remembers between rounds, and has rounds that no event asks for."""
POLICIES = (find_policy("fifo"), find_policy("srtf"), QUEUES)
JOBS = ((0, "ana", 4, 1.2), (150, "bo", 1, 0.2), (300, "ana", 2, 0.6), (450, "cem", 2, 0.3), (600, "bo", 1, 0.4))
FOUR = parse_cluster("1x4xcpu-slot")


# -- the twin and the live driver, unmodified ----------------------------------------------------------------------

GRID_MS = 10
"""All times of a session in virtual time are multiples of this, so that no process ends in the millisecond in which an
order is on its way to it: there the real world and the twin may differ."""
COSTS = Overheads(start_ms=10, restart_ms=20, save_ms=30)
VIRTUAL = (
    *(find_policy(name) for name in ("fifo", "backfill", "sjf", "srtf", "gittins", "fair")), QUEUES,
    replace(find_policy("las"), name="las-fast", order=LeastAttained(100), period_ms=100),
)
Jobs = list[tuple[int, str, int, int, int]]
"""(submission, user, GPUs, run time, time limit)."""
tens = st.integers(0, 60).map(lambda tens: tens * GRID_MS)


def in_virtual_time(policy: Policy, jobs: Jobs) -> tuple[LiveDriver, list[str]]:
    """The journal of the live driver."""
    live = tuple(
        LiveJob(name=str(row), user=user, at_ms=at_ms, gpus=gpus, command=Command(argv=("true",)),
                time_limit_ms=limit_ms)
        for row, (at_ms, user, gpus, _, limit_ms) in enumerate(jobs)
    )
    world = VirtualWorld(
        dict(enumerate(run_ms for *_, run_ms, _ in jobs)), start_ms=COSTS.start_ms - LATENCY_MS,
        restart_ms=COSTS.restart_ms - LATENCY_MS, save_ms=COSTS.save_ms - LATENCY_MS,
    )
    driver = driver_in(world, FOUR, policy, live, gap_ms=GAP_MS)
    assert driver.run(world.now_ms)
    return driver, world.disk.getvalue().splitlines()


def in_the_twin(policy: Policy, jobs: Jobs) -> list[str]:
    """The journal of the twin."""
    users = tuple(dict.fromkeys(user for _, user, *_ in jobs))
    trace = trace_of(
        name="session", format="live", job_id=[str(row) for row in range(len(jobs))], users=users,
        submit_ms=[job[0] for job in jobs], user=[users.index(job[1]) for job in jobs], gpus=[job[2] for job in jobs],
        run_ms=[job[3] for job in jobs], time_limit_ms=[job[4] for job in jobs],
    )
    journal = Journal()
    replay(trace, FOUR, policy, ReplaySettings(overheads=COSTS, gap_ms=GAP_MS), journal=journal)
    return journal.lines


@example([(0, "ana", 4, 400, 900), (60, "bo", 2, 50, 60), (60, "cem", 2, 70, 80), (200, "bo", 1, 100, 30)])
@given(st.lists(
    st.tuples(tens, st.sampled_from(("ana", "bo", "cem")), st.integers(1, 4), tens.map(lambda ms: ms + GRID_MS),
              tens.map(lambda ms: ms + GRID_MS)),
    min_size=1, max_size=8,
))
@settings(max_examples=sample(25, 10))
@pytest.mark.parametrize("policy", VIRTUAL, ids=lambda policy: policy.name)
def test_the_twin_and_the_live_driver_write_the_same_journal(policy: Policy, drawn: Jobs) -> None:
    jobs = sorted((at_ms - min(job[0] for job in drawn), *rest) for at_ms, *rest in drawn)
    driver, live = in_virtual_time(policy, jobs)
    assert live == in_the_twin(policy, jobs)
    assert len(driver.ended_ms) == len(jobs)


def test_the_example_above_preempts_and_resumes() -> None:
    jobs: Jobs = [(0, "ana", 4, 400, 900), (60, "bo", 2, 50, 60), (60, "cem", 2, 70, 80), (200, "bo", 1, 100, 30)]
    driver, live = in_virtual_time(find_policy("srtf"), jobs)
    assert any('"do":"preempt"' in line for line in live)
    assert max(attempt.number for attempt in driver.attempts) > 1


# -- real processes ------------------------------------------------------------------------------------------------


def live_session(policy: Policy, folder: Path) -> tuple[LiveDriver, list[str]]:
    jobs = tuple(
        LiveJob(name=str(row), user=user, at_ms=at_ms, gpus=gpus, command=counter(run_s),
                time_limit_ms=round(run_s * 1_300))
        for row, (at_ms, user, gpus, run_s) in enumerate(JOBS)
    )
    warm_up(FOUR, policy)
    with LocalExecutor(4, folder) as executor, (folder / "journal.jsonl").open("w") as disk:
        world = RealWorld(executor, disk)
        driver = driver_in(world, FOUR, policy, jobs, gap_ms=GAP_MS)
        assert driver.run(world.now_ms)
    return driver, (folder / "journal.jsonl").read_text().splitlines()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_the_engine_repeats_a_session_of_real_processes_from_its_events(policy: Policy, tmp_path: Path) -> None:
    driver, live = live_session(policy, tmp_path)
    assert sum(json.loads(line).get("e") == "FINISHED" for line in live) == len(JOBS)
    assert sum(json.loads(line).get("e") == "REPORTED" for line in live) >= len(JOBS)
    if policy.name != "fifo":
        assert any(attempt.preempt_ms is not None for attempt in driver.attempts)

    # fed the events, and told when the rounds were, it repeats every decision
    again = Scheduler(driver.scheduler.state.cluster, policy, Beliefs(), users=driver.users, gap_ms=GAP_MS)
    decisions = list(replay_journal(live, again))
    assert len(decisions) == driver.rounds
    assert all(now == then for then, now in decisions)

    # fed the events alone, it comes to the same rounds at the same times
    journal = Journal()
    alone = Scheduler(FOUR, policy, Beliefs(), users=driver.users, gap_ms=GAP_MS, journal=journal)
    events = [read_event(record) for record in map(json.loads, live) if "e" in record]
    assert [event.kind for event in events].count(Kind.SUBMITTED) == len(JOBS)
    advance(alone, events, events[-1].time_ms + 1)
    assert journal.lines == live


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
