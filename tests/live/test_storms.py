"""The controller through storms: lost, late and repeated messages, crashes, dead agents, jumps of time, a full disk.

One line replays a seed: ``python -m tests.live.test_storms SEED``.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from dataclasses import replace

import pytest

from brim.beliefs.beliefs import Beliefs
from brim.beliefs.overheads import IN_PLACE_MS
from brim.engine.advance import advance
from brim.engine.journal import Journal, read_event, replay
from brim.engine.scheduler import Scheduler
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from brim.testing.elastic import restless
from tests.live.users import random_life
from tests.live.virtual import GAP_MS, Chances, Limits, VirtualCluster, Work, request
from tests.sampling import sample

SEEDS, GROUPS = sample((500, 5), (24, 1))
FAILED_ONCE = (291, 319)
"""Seeds that once found a fault, which stay."""
SITUATIONS = {
    "the controller crashed", "an agent died", "a gang was resized", "a gang was stopped", "time jumped",
    "a job came back and finished", "the disk was full", "a message was lost", "a gang was killed",
    "a job waited for its quota", "a job waited for its array limit", "a user had too many jobs",
    "a job with a deadline ended",
}
"""What must happen in each group of seeds: silence is no proof."""


def policy_of(seed: int) -> Policy:
    """The policy of a seed: half of them resize."""
    if seed % 2:
        return restless(calm_ms=30_000, seed=seed, period_ms=3_000)
    return find_policy(("fifo", "srtf", "tiresias", "fair", "las")[seed // 2 % 5])


def storm(seed: int, limits: Limits | None = None) -> VirtualCluster:
    """One seed: half a minute of life under faults, then calm until everything has ended."""
    limits = Limits.drawn(random.Random(f"limits {seed}")) if limits is None else limits
    world = VirtualCluster(seed, policy_of(seed), limits=limits)
    try:
        random_life(world, 30_000)
        world.settle()
    except BaseException as error:
        error.add_note(f"replay: python -m tests.live.test_storms {seed}")
        raise
    return world


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_is_lost_started_twice_or_forgotten_in_a_storm(group: int) -> None:
    seeds = range(group * SEEDS // GROUPS, (group + 1) * SEEDS // GROUPS)
    happened = sum((storm(seed).happened for seed in seeds), start=Counter())
    assert happened.keys() >= SITUATIONS, f"did not happen: {SITUATIONS - happened.keys()}"


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once_do_not_again(seed: int) -> None:
    storm(seed, Limits())  # as they were then


def quiet_day(crash_at: int | None = None) -> VirtualCluster:
    """Five jobs, two of which come back by themselves, with at most one crash: before or after some commit."""
    world = VirtualCluster(0, find_policy("fifo"), Chances())
    world.crash_at = crash_at
    world.run(100)
    world.submit(1, (request(gpus=2), Work(4_000)), (request(gpus=3), Work(3_000, [75])))
    world.run(300)
    world.submit(2, (request(gpus=1, time_limit_s=1), Work(9_000)), (request(after=(1,)), Work(500)))
    world.submit(3, (request(gpus=4), Work(4_000, [1])))
    world.run(1_500)
    world.command(1, "cancel", 1)
    world.settle(minutes=1)
    return world


@pytest.mark.slow
def test_a_crash_before_or_after_any_commit_changes_nothing_that_users_see() -> None:
    expected = quiet_day()
    ends = {job: (one.state, one.attempt, one.failures, one.holds) for job, one in expected.store.jobs().items()}
    assert [end[:3] for end in ends.values()] == [
        ("cancelled", 1, 0), ("finished", 2, 0), ("timeout", 1, 0), ("held", 0, 0), ("finished", 2, 1),
    ]
    for crash_at in range(1, 2 * expected.commits + 1):
        world = quiet_day(crash_at)
        assert world.happened["the controller crashed"] == 1
        found = {job: (one.state, one.attempt, one.failures, one.holds) for job, one in world.store.jobs().items()}
        assert found == ends, f"a crash at {crash_at}"
        assert sorted(world.forks) == sorted(expected.forks)  # adopted, not restarted


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_the_twin_decides_again_what_the_controller_decided(seed: int) -> None:
    """I24: the journal of a storm, with its crashes and restarts, replays byte for byte."""
    chances = replace(Chances.drawn(random.Random(seed)), crash=0.05)
    limits = Limits(user_gpus=2, user_jobs=6, deadlines=0.5) if seed % 2 else Limits()
    world = VirtualCluster(seed, policy_of(seed), chances, snapshots=False, limits=limits)
    random_life(world, 30_000)
    world.settle()
    lines = world.store.lines()
    beliefs = Beliefs(in_place_ms=IN_PLACE_MS, judges_steps=True)
    again = Scheduler(world.cluster, world.policy, beliefs, gap_ms=GAP_MS, in_place=True)
    decisions = list(replay(lines, again))
    assert len(decisions) > 5
    assert all(now == then for then, now in decisions)
    journal = Journal()
    alone = Scheduler(world.cluster, world.policy, beliefs, gap_ms=GAP_MS, in_place=True, journal=journal)
    events = [read_event(record) for record in map(json.loads, lines) if "e" in record]
    advance(alone, events, json.loads(lines[-1])["t"] + 1)
    assert journal.lines == lines


if __name__ == "__main__":
    for given in map(int, sys.argv[1:]):
        done = storm(given)
        sys.stdout.write(
            f"seed {given}: {len(done.accepted)} jobs, {len(done.forks)} attempts, {done.steps} steps, "
            f"{dict(done.happened)}, {done.chances}, {done.limits}\n"
        )
