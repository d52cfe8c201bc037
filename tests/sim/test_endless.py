"""A replay in which no job gets anywhere any more ends with a line that says so; slow ones go on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from brim.core.cluster import parse_cluster
from brim.errors import ConfigError, InvariantError, PlanError
from brim.policies.place.parts import Consolidate
from brim.policies.presets import PRESETS
from brim.policies.sockets import Sizes
from brim.sim import loop, stall_detector
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay
from brim.testing import job, small_trace
from brim.units import MS_PER_DAY, MS_PER_H
from tests.sampling import sample

SKIP = replace(PRESETS["fifo"], name="mine", place=Consolidate("skip"))
TWO = small_trace(job(run=7200), job(run=7200))
HALF_MINUTE = ReplaySettings(gap_ms=30_000)
FEWER = sample(1, 4)
"""A replay is given up after so many times fewer rounds, so rounds are rarer and pauses shorter."""
MINUTE, HOUR = FEWER * 60_000, MS_PER_H // FEWER


@pytest.fixture(autouse=True)
def fewer_rounds(monkeypatch):
    monkeypatch.setattr(loop, "PROGRESS_EVERY", loop.PROGRESS_EVERY // FEWER)
    monkeypatch.setattr(stall_detector, "STUCK_EVENTS", stall_detector.STUCK_EVENTS // FEWER)
    monkeypatch.setattr(stall_detector, "FUTILE_ROUNDS", stall_detector.FUTILE_ROUNDS // FEWER)


@dataclass(frozen=True)
class Thrash:
    """Jobs that wait come before jobs that run: each round undoes the last."""

    def __call__(self, snapshot, beliefs):
        return np.argsort(snapshot.jobs.holds, kind="stable")


@dataclass(frozen=True)
class From:
    """Gives nobody anything before a time."""

    begin_ms: int
    resizes_running = False

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        return Sizes(gpus=np.where(jobs.holds | (snapshot.now_ms >= self.begin_ms), jobs.gpus, 0))


def test_nodes_that_fail_before_any_checkpoint_end_the_replay():
    settings = ReplaySettings(faults=Faults(node_mtbf_ms=1_000))
    with pytest.raises(ConfigError, match=r"job j0 has made no lasting progress for [\d.]+ d.*starts of this job: \d+.*"
                                          r"failures every 1 s on average leave no time for its next checkpoint"):
        replay(TWO, parse_cluster("2x1xT4"), SKIP, settings)


def test_a_policy_that_lets_nobody_finish_ends_the_replay():
    with pytest.raises(PlanError, match=r"policy 'mine': job j0 has made no lasting progress for [\d.]+ [hd], and"):
        replay(TWO, parse_cluster("1x1xT4"), replace(SKIP, order=Thrash(), period_ms=MINUTE // 2), HALF_MINUTE)


def test_a_policy_that_never_starts_a_job_ends_the_replay():
    never = replace(SKIP, size=From(10**15), period_ms=MINUTE)
    with pytest.raises(PlanError, match=r"policy 'mine': job j0 has made no lasting progress .*starts of this job: 0"):
        replay(TWO, parse_cluster("2x1xT4"), never)
    with pytest.raises(InvariantError, match=r"2 jobs still waiting at 0 ms and nothing will happen \(first: job j0\)"):
        replay(TWO, parse_cluster("2x1xT4"), replace(never, period_ms=0))
    with pytest.raises(InvariantError, match=r"1 job still waiting at \d+ ms and nothing will happen"):
        replay(small_trace(job(run=60)), parse_cluster("2x1xT4"), replace(never, period_ms=0))


@pytest.mark.parametrize(("policy", "settings", "end_ms"), [
    (replace(SKIP, size=From(7 * MS_PER_DAY), period_ms=MINUTE), ReplaySettings(), 7 * MS_PER_DAY),  # 10,080 minutes
    (replace(SKIP, period_ms=MINUTE),
     ReplaySettings(faults=Faults(drains=(Drain(nodes=(0, 1), start_ms=0, end_ms=9 * MS_PER_DAY),))), 9 * MS_PER_DAY),
])
def test_a_long_wait_is_not_given_up(policy, settings, end_ms):
    outcome = replay(TWO, parse_cluster("2x1xT4"), policy, settings)
    assert outcome.finish_ms.tolist() == [end_ms + 2 * MS_PER_H] * 2


def test_a_job_that_runs_for_days_under_a_round_a_minute_is_not_given_up():
    trace = small_trace(job(run=9 * 86_400), job(run=86_400))
    outcome = replay(trace, parse_cluster("1x1xT4"), replace(SKIP, period_ms=MINUTE), ReplaySettings(
        overheads=Overheads(checkpoint_ms=400 * MS_PER_DAY)))
    assert outcome.finish_ms.tolist() == [9 * MS_PER_DAY, 10 * MS_PER_DAY]


@dataclass(frozen=True)
class TakeBack:
    """Takes the GPUs from every job that has some, up to a time."""

    end_ms: int
    resizes_running = False

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        return Sizes(gpus=np.where(jobs.holds & (snapshot.now_ms < self.end_ms), 0, jobs.gpus))


THIRTY_S = ReplaySettings(overheads=Overheads(start_ms=30_000))


@pytest.mark.slow
def test_a_policy_that_takes_back_what_it_gave_is_given_up_after_rounds_not_days():
    with pytest.raises(PlanError, match=r"policy 'mine': job j0 .* no lasting progress for [\d.]+ min, and"):
        replay(TWO, parse_cluster("1x1xT4"), replace(SKIP, size=TakeBack(10**15), period_ms=1_000), THIRTY_S)


@pytest.mark.slow
def test_a_policy_that_takes_back_what_it_gave_for_an_hour_is_not_given_up():
    policy = replace(SKIP, size=TakeBack(HOUR), period_ms=1_000)
    assert replay(TWO, parse_cluster("1x1xT4"), policy, THIRTY_S).finish_ms.min() > HOUR + 2 * MS_PER_H
